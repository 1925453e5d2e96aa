// SPDX-License-Identifier: MIT
/*
 * What allocating costs. It says "ready" and what it can measure; each line of its input that
 * names one of these is answered by "cost NAME SECONDS", of one call or pair of calls, measured once and
 * in a fraction of a second, so that two of these programs, with and without brumate's library, can be
 * asked in turn. It ends with its input.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#define OK(call)                                                                       \
	do {                                                                           \
		int e_ = (int)(call);                                                  \
		if (e_) {                                                              \
			printf("%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, e_); \
			fflush(stdout);                                                \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What a free has to wait for in any case, where there is nothing to wait for. */
static double wait_for_nothing()
{
	enum { WAITS = 10000 };
	double start = now();

	for (int i = 0; i < WAITS; i++)
		OK(cuCtxSynchronize());
	return (now() - start) / WAITS;
}

struct Churn {
	size_t bytes;
	int kept, repeats;

	double pairs(int n, double seconds) const
	{
		return seconds / ((double)n * repeats);
	}

	double runtime() const
	{
		std::vector<void *> all(kept);
		double start = now();

		for (int r = 0; r < repeats; r++) {
			for (void *&p : all)
				OK(cudaMalloc(&p, bytes));
			for (void *p : all)
				OK(cudaFree(p));
		}
		return pairs(kept, now() - start);
	}

	/*
	 * The driver's virtual memory calls, as a program would make them itself: at addresses that it keeps,
	 * and waiting, as cudaFree does, for what may still use the memory.
	 */
	double vmm() const
	{
		std::vector<CUdeviceptr> all(kept);
		CUmemAllocationProp prop = {};
		CUmemAccessDesc access = {};
		CUmemGenericAllocationHandle handle;

		prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access.location = prop.location;
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		for (CUdeviceptr &p : all)
			OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
		double start = now();
		for (int r = 0; r < repeats; r++) {
			for (CUdeviceptr p : all) {
				OK(cuMemCreate(&handle, bytes, &prop, 0));
				OK(cuMemMap(p, bytes, 0, handle, 0));
				OK(cuMemSetAccess(p, bytes, &access, 1));
				OK(cuMemRelease(handle));
			}
			for (CUdeviceptr p : all) {
				OK(cuCtxSynchronize());
				OK(cuMemUnmap(p, bytes));
			}
		}
		double seconds = now() - start;
		for (CUdeviceptr p : all)
			OK(cuMemAddressFree(p, bytes));
		return pairs(kept, seconds);
	}

	/* What the addresses alone would add. */
	double addresses() const
	{
		std::vector<CUdeviceptr> all(kept);
		double start = now();

		for (int r = 0; r < repeats; r++) {
			for (CUdeviceptr &p : all)
				OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
			for (CUdeviceptr p : all)
				OK(cuMemAddressFree(p, bytes));
		}
		return pairs(kept, now() - start);
	}
};

using Measure = std::pair<std::string, std::function<double()>>;

static std::vector<Measure> measures()
{
	static const Churn churns[] = { { 64u << 10, 100, 5 }, { 1u << 20, 100, 5 }, { 2u << 20, 100, 5 },
					{ 16u << 20, 100, 5 }, { 512u << 20, 10, 2 } };
	std::vector<Measure> all = { { "wait", wait_for_nothing } };

	for (const Churn &churn : churns) {
		std::string size = std::to_string(churn.bytes >> 10) + "-KiB";

		all.emplace_back("malloc-free-" + size, [&churn] { return churn.runtime(); });
		if (churn.bytes < (2u << 20))
			continue;
		all.emplace_back("vmm-pair-" + size, [&churn] { return churn.vmm(); });
		all.emplace_back("addresses-" + size, [&churn] { return churn.addresses(); });
	}
	return all;
}

int main()
{
	std::vector<Measure> all = measures();
	void *held; /* so that there is memory to manage, whenever that is asked about */
	char line[128];

	setvbuf(stdout, nullptr, _IOLBF, 0);
	OK(cudaMalloc(&held, 4 << 20));
	std::string names;
	for (const Measure &m : all) {
		m.second(); /* the first time is another thing */
		names += " " + m.first;
	}
	printf("ready%s\n", names.c_str());
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		for (const Measure &m : all)
			if (m.first == line)
				printf("cost %s %.10f\n", line, m.second());
	}
	OK(cudaGetLastError());
	return 0;
}
