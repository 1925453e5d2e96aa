// SPDX-License-Identifier: MIT
/* What calls of the driver cost: a line each, "cost NAME SECONDS". Run with and without brumate's library. */
#include <cuda_runtime.h>

#include <cstdio>
#include <ctime>
#include <vector>

static double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__global__ void nothing()
{
}

enum { CALLS = 1000000, ROUNDS = 3, KEPT = 100, REPEATS = 20 };

/* The best of a few: noise only adds. */
template <typename Work> static void tell(const char *name, Work work)
{
	double best = 0;

	for (int i = 0; i < ROUNDS; i++) {
		double start = now();
		work();
		double seconds = now() - start;
		if (!best || seconds < best)
			best = seconds;
	}
	printf("cost %s %.6f\n", name, best);
	fflush(stdout);
}

static void churn(size_t bytes)
{
	std::vector<void *> kept(KEPT);

	for (int r = 0; r < REPEATS; r++) {
		for (void *&p : kept)
			cudaMalloc(&p, bytes);
		for (void *p : kept)
			cudaFree(p);
	}
}

int main()
{
	static const size_t sizes[] = { 64u << 10, 1u << 20, 2u << 20, 16u << 20, 512u << 20 };
	cudaStream_t stream;
	cudaEvent_t event;
	char name[64];

	if (cudaStreamCreate(&stream) != cudaSuccess || cudaEventCreate(&event) != cudaSuccess)
		return 1;
	nothing<<<1, 1, 0, stream>>>();
	cudaDeviceSynchronize();
	tell("1e6-launches", [&] {
		for (int i = 0; i < CALLS; i++)
			nothing<<<1, 1, 0, stream>>>();
		cudaStreamSynchronize(stream);
	});
	tell("1e6-event-queries", [&] {
		for (int i = 0; i < CALLS; i++)
			cudaEventQuery(event);
	});
	for (size_t bytes : sizes) {
		snprintf(name, sizeof(name), "2000-malloc-free-%zu-KiB", bytes >> 10);
		tell(name, [&] { churn(bytes); });
	}
	return cudaGetLastError() != cudaSuccess;
}
