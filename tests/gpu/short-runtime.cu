// SPDX-License-Identifier: MIT
/*
 * short-runtime KIND: a program of the CUDA runtime that starts, uses the GPU for a moment, and ends, as
 * NVIDIA's sample programs do: what it prints and how it ends is the same every time. See
 * tests/programs/short.c for programs that use the driver itself.
 */
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <unistd.h>

namespace cg = cooperative_groups;

#define OK(call)                                                                                    \
	do {                                                                                        \
		cudaError_t e_ = (call);                                                            \
		if (e_ != cudaSuccess) {                                                            \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); \
			fflush(stdout);                                                             \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

static const int STEPS = 30, WORDS = 1 << 18;
static const unsigned int STEP_NS = 10000000;

__device__ int module_global = 7;

__global__ void add(int *p, int n, int value)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] += value;
}

__global__ void spin(unsigned int ns)
{
	unsigned long long begin, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begin < ns);
}

__global__ void cooperate(int *p)
{
	cg::grid_group grid = cg::this_grid();

	atomicAdd(&p[0], 1);
	grid.sync();
	if (grid.thread_rank() == 0)
		p[1] = p[0];
}

__global__ void read_texture(cudaTextureObject_t texture, int *out, int width)
{
	out[blockIdx.x * width + threadIdx.x] = tex2D<int>(texture, threadIdx.x, blockIdx.x);
}

__global__ void print_line(int step)
{
	if (threadIdx.x == 0)
		printf("step %d from the GPU\n", step);
}

__global__ void assert_below(int limit)
{
	assert((int)threadIdx.x < limit);
}

static void say(const char *what, int step, bool right)
{
	printf("%s %d %s\n", what, step, right ? "OK" : "BAD");
	fflush(stdout);
}

static int *filled(int value)
{
	std::vector<int> host(WORDS, value);
	int *p;

	OK(cudaMalloc(&p, WORDS * sizeof(int)));
	OK(cudaMemcpy(p, host.data(), WORDS * sizeof(int), cudaMemcpyHostToDevice));
	return p;
}

static bool is_filled(const int *p, int value)
{
	std::vector<int> host(WORDS);

	OK(cudaMemcpy(host.data(), p, WORDS * sizeof(int), cudaMemcpyDeviceToHost));
	for (int word : host)
		if (word != value)
			return false;
	return true;
}

static void plain()
{
	int *p = filled(1);

	for (int n = 1; n <= STEPS; n++) {
		spin<<<1, 1>>>(STEP_NS);
		add<<<64, 256>>>(p, WORDS, n);
		say("step", n, is_filled(p, 1 + n * (n + 1) / 2));
	}
	OK(cudaFree(p));
}

static void streams()
{
	cudaStream_t stream;
	cudaEvent_t event;

	for (int n = 1; n <= STEPS; n++) {
		int *p = filled(n);

		OK(cudaStreamCreate(&stream));
		OK(cudaEventCreate(&event));
		spin<<<1, 1, 0, stream>>>(STEP_NS);
		add<<<64, 256, 0, stream>>>(p, WORDS, n);
		OK(cudaEventRecord(event, stream));
		OK(cudaStreamWaitEvent(stream, event, 0));
		OK(cudaStreamSynchronize(stream));
		say("step", n, is_filled(p, 2 * n));
		OK(cudaEventDestroy(event));
		OK(cudaStreamDestroy(stream));
		OK(cudaFree(p));
	}
}

static void graphs()
{
	cudaStream_t stream;
	int *p = filled(0);

	OK(cudaStreamCreate(&stream));
	for (int n = 1; n <= STEPS; n++) {
		cudaGraphExec_t exec;
		cudaGraph_t graph;

		OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
		spin<<<1, 1, 0, stream>>>(STEP_NS);
		add<<<64, 256, 0, stream>>>(p, WORDS, 1);
		OK(cudaStreamEndCapture(stream, &graph));
		OK(cudaGraphInstantiate(&exec, graph, 0));
		OK(cudaGraphLaunch(exec, stream));
		OK(cudaStreamSynchronize(stream));
		say("step", n, is_filled(p, n));
		OK(cudaGraphExecDestroy(exec));
		OK(cudaGraphDestroy(graph));
	}
}

static void cooperative()
{
	int *p = filled(0), result[2];
	void *args[] = { &p };

	for (int n = 1; n <= STEPS; n++) {
		OK(cudaMemset(p, 0, 2 * sizeof(int)));
		spin<<<1, 1>>>(STEP_NS);
		OK(cudaLaunchCooperativeKernel((void *)cooperate, 32, 128, args, 0, 0));
		OK(cudaMemcpy(result, p, sizeof(result), cudaMemcpyDeviceToHost));
		say("step", n, result[0] == 32 * 128 && result[1] == result[0]);
	}
}

static void print()
{
	for (int n = 1; n <= STEPS; n++) {
		spin<<<1, 1>>>(STEP_NS);
		print_line<<<1, 32>>>(n);
		OK(cudaDeviceSynchronize());
	}
}

/* A failed assertion stays: every call returns it, until the end or a reset. */
static void fail(bool reset)
{
	int *p;

	plain();
	assert_below<<<1, 64>>>(60);
	printf("waiting: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
	fflush(stdout);
	for (int n = 1; n <= STEPS; n++) {
		usleep(STEP_NS / 1000);
		printf("again: %s, allocating: %s\n", cudaGetErrorName(cudaDeviceSynchronize()),
		       cudaGetErrorName(cudaMalloc(&p, 1 << 20)));
		fflush(stdout);
	}
	if (reset)
		printf("reset: %s\n", cudaGetErrorName(cudaDeviceReset()));
}

static void texture()
{
	const int width = 64, height = 32;
	std::vector<int> host(width * height), back(width * height);
	cudaChannelFormatDesc channels = cudaCreateChannelDesc<int>();
	cudaResourceDesc resource = {};
	cudaTextureDesc how = {};
	cudaTextureObject_t object;
	cudaArray_t array;
	int *out = filled(0);

	OK(cudaMallocArray(&array, &channels, width, height));
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = array;
	how.readMode = cudaReadModeElementType;
	OK(cudaCreateTextureObject(&object, &resource, &how, nullptr));
	for (int n = 1; n <= STEPS; n++) {
		for (int i = 0; i < width * height; i++)
			host[i] = i * n;
		OK(cudaMemcpy2DToArray(array, 0, 0, host.data(), width * sizeof(int), width * sizeof(int), height,
				       cudaMemcpyHostToDevice));
		spin<<<1, 1>>>(STEP_NS);
		read_texture<<<height, width>>>(object, out, width);
		OK(cudaMemcpy(back.data(), out, back.size() * sizeof(int), cudaMemcpyDeviceToHost));
		say("step", n, back == host);
	}
	OK(cudaDestroyTextureObject(object));
	OK(cudaFreeArray(array));
}

static void managed()
{
	int *p;

	OK(cudaMallocManaged(&p, WORDS * sizeof(int)));
	memset(p, 0, WORDS * sizeof(int));
	for (int n = 1; n <= STEPS; n++) {
		spin<<<1, 1>>>(STEP_NS);
		add<<<64, 256>>>(p, WORDS, 1);
		OK(cudaDeviceSynchronize());
		say("step", n, p[0] == n && p[WORDS - 1] == n);
	}
	OK(cudaFree(p));
}

/* The context is made and destroyed again and again. */
static void resets()
{
	for (int n = 1; n <= 4; n++) {
		int *p = filled(n);

		spin<<<1, 1>>>(STEP_NS);
		add<<<64, 256>>>(p, WORDS, n);
		say("step", n, is_filled(p, 2 * n));
		OK(cudaDeviceReset());
	}
}

static void async()
{
	cudaStream_t stream;
	int *p;

	OK(cudaStreamCreate(&stream));
	for (int n = 1; n <= STEPS; n++) {
		OK(cudaMallocAsync(&p, WORDS * sizeof(int), stream));
		OK(cudaMemsetAsync(p, 0, WORDS * sizeof(int), stream));
		spin<<<1, 1, 0, stream>>>(STEP_NS);
		add<<<64, 256, 0, stream>>>(p, WORDS, n);
		OK(cudaStreamSynchronize(stream));
		say("step", n, is_filled(p, n));
		OK(cudaFreeAsync(p, stream));
	}
}

static void pinned()
{
	int *p = filled(0), *host;

	OK(cudaMallocHost(&host, WORDS * sizeof(int)));
	for (int n = 1; n <= STEPS; n++) {
		for (int i = 0; i < WORDS; i++)
			host[i] = n;
		spin<<<1, 1>>>(STEP_NS);
		OK(cudaMemcpyAsync(p, host, WORDS * sizeof(int), cudaMemcpyHostToDevice));
		OK(cudaDeviceSynchronize());
		say("step", n, is_filled(p, n));
	}
	OK(cudaFreeHost(host));
}

static void globals()
{
	for (int n = 1; n <= STEPS; n++) {
		int value = 0;

		OK(cudaMemcpyToSymbol(module_global, &n, sizeof(n)));
		spin<<<1, 1>>>(STEP_NS);
		OK(cudaMemcpyFromSymbol(&value, module_global, sizeof(value)));
		say("step", n, value == n);
	}
}

static void threads()
{
	std::vector<std::thread> all;
	int wrong[4] = {};

	for (int &count : wrong)
		all.emplace_back([&count] {
			int *p = filled(0);

			for (int n = 1; n <= STEPS; n++) {
				spin<<<1, 1, 0, cudaStreamPerThread>>>(STEP_NS);
				add<<<64, 256, 0, cudaStreamPerThread>>>(p, WORDS, 1);
				OK(cudaStreamSynchronize(cudaStreamPerThread));
				count += !is_filled(p, n);
			}
			OK(cudaFree(p));
		});
	for (std::thread &thread : all)
		thread.join();
	say("threads", 4, !(wrong[0] + wrong[1] + wrong[2] + wrong[3]));
}

/* Freed by a handler that runs when the runtime is already gone. */
static int *kept;
static void free_late()
{
	printf("freeing late: %s\n", cudaGetErrorName(cudaFree(kept)));
	fflush(stdout);
}

static void handler()
{
	atexit(free_late);
	kept = filled(1);
	plain();
}

static const struct {
	const char *name;
	void (*run)();
} kinds[] = {
	{ "plain", plain },
	{ "streams", streams },
	{ "graphs", graphs },
	{ "cooperative", cooperative },
	{ "printf", print },
	{ "assert", [] { fail(false); } },
	{ "assert-reset", [] { fail(true); } },
	{ "texture", texture },
	{ "managed", managed },
	{ "resets", resets },
	{ "async", async },
	{ "pinned", pinned },
	{ "globals", globals },
	{ "threads", threads },
	{ "handler", handler },
};

int main(int argc, char **argv)
{
	for (const auto &kind : kinds)
		if (argc == 2 && !strcmp(kind.name, argv[1])) {
			kind.run();
			return 0;
		}
	for (const auto &kind : kinds)
		fprintf(stderr, "%s\n", kind.name);
	return 2;
}
