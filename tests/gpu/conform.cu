// SPDX-License-Identifier: MIT
/*
 * Uses the CUDA runtime in many ways and prints what it sees: results, error codes, attributes; never
 * an address or a time. Run with and without brumate's library, the output must be the same.
 * At its end it prints "ready done" and, with memory in its hands, waits for the end of its input, so that
 * the library can be asked what it manages.
 * With --hold it makes objects of every kind, prints "ready", waits for SIGUSR1 (while it may be
 * suspended, saved and brought back) and then uses them all.
 */
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace cg = cooperative_groups;

#define OK(call)                                                                              \
	do {                                                                                  \
		cudaError_t e_ = (call);                                                      \
		if (e_ != cudaSuccess) {                                                      \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); \
			fflush(stdout);                                                       \
			_exit(1);                                                             \
		}                                                                             \
	} while (0)
#define DRIVER(call)                                                                     \
	do {                                                                             \
		CUresult e_ = (call);                                                    \
		if (e_ != CUDA_SUCCESS) {                                                \
			printf("%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)e_);   \
			fflush(stdout);                                                  \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)

__device__ int module_global = 7;
__constant__ int constant_value[4];

__global__ void add(int *p, size_t n, int value)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		p[i] += value;
}

__global__ void read_texture(cudaTextureObject_t texture, int *out, int width)
{
	int x = threadIdx.x, y = blockIdx.x;

	out[y * width + x] = tex2D<int>(texture, x, y);
}

__global__ void use_globals(int *out)
{
	out[0] = module_global;
	out[1] = constant_value[3];
	module_global += 1;
}

__global__ void cooperative(int *p)
{
	cg::grid_group grid = cg::this_grid();

	atomicAdd(&p[0], 1);
	grid.sync();
	if (grid.thread_rank() == 0)
		p[1] = p[0];
}

/* Of 12 KB, which the driver knows. */
__global__ void large_frame(int *out, int seed)
{
	int frame[3000];
	unsigned x = seed + threadIdx.x + blockIdx.x * blockDim.x;

	for (int i = 0; i < 3000; i++)
		frame[i] = i;
	for (int i = 0; i < 100; i++) {
		x = x * 1664525 + 1013904223;
		frame[(x >> 8) % 3000] += (int)(x & 0xff);
	}
	int s = 0;
	for (int i = 0; i < 3000; i++)
		s = s * 31 + frame[i];
	out[blockIdx.x * blockDim.x + threadIdx.x] = s;
}

/* Frames that only the limit makes room for. */
__device__ __noinline__ int fall(int depth, int x)
{
	volatile int frame[28];

	for (int i = 0; i < 28; i++)
		frame[i] = x + i;
	int below = depth ? fall(depth - 1, x * 3 + 1) : 0;
	return below + frame[(unsigned)below % 28];
}

__global__ void recurse(int *out, int depth)
{
	out[blockIdx.x * blockDim.x + threadIdx.x] = fall(depth, (int)threadIdx.x);
}

static uint64_t sum(const int *device, size_t n)
{
	std::vector<int> host(n);
	uint64_t s = 0;

	OK(cudaMemcpy(host.data(), device, n * sizeof(int), cudaMemcpyDefault));
	for (size_t i = 0; i < n; i++)
		s += (uint64_t)host[i] * (i + 1);
	return s;
}

static int *filled(size_t n, int first)
{
	std::vector<int> host(n);
	int *p;

	for (size_t i = 0; i < n; i++)
		host[i] = first + (int)i;
	OK(cudaMalloc(&p, n * sizeof(int)));
	OK(cudaMemcpy(p, host.data(), n * sizeof(int), cudaMemcpyHostToDevice));
	/* From pageable memory it may return before all is on the device, and other streams do not wait. */
	OK(cudaStreamSynchronize(0));
	return p;
}

static void errors()
{
	void *p = nullptr;
	int on_stack;
	cudaPointerAttributes a;

	printf("malloc 0: %d %d\n", cudaMalloc(&p, 0), p == nullptr);
	printf("malloc too much: %d\n", cudaMalloc(&p, (size_t)1 << 46));
	printf("last error: %d %d\n", cudaGetLastError(), cudaGetLastError());
	printf("free null: %d\n", cudaFree(nullptr));
	printf("free of the stack: %d\n", cudaFree(&on_stack));
	cudaGetLastError();
	OK(cudaMalloc(&p, 1 << 20));
	printf("free inside: %d\n", cudaFree((char *)p + 512));
	cudaGetLastError();
	printf("free: %d, again: %d\n", cudaFree(p), cudaFree(p));
	cudaGetLastError();
	OK(cudaPointerGetAttributes(&a, &on_stack));
	printf("attributes of the stack: type %d\n", a.type);
	printf("memcpy from nowhere: %d\n", cudaMemcpy(&on_stack, (void *)64, 4, cudaMemcpyDeviceToHost) != cudaSuccess);
	cudaGetLastError();
}

static void attributes()
{
	static const size_t sizes[] = { 1, 255, 4096, 65536, 1 << 20, (1 << 20) + 1, 2 << 20, 5 << 20, 600u << 20 };

	for (size_t bytes : sizes) {
		cudaPointerAttributes a;
		CUdeviceptr p, base = 0, start = 0;
		size_t size = 0, range = 0;
		int legacy = -1, ordinal = -1, mapped = -1, managed = -1;
		unsigned type = 0;
		CUcontext ctx = nullptr, mine;

		OK(cudaMalloc((void **)&p, bytes));
		OK(cudaPointerGetAttributes(&a, (void *)(p + bytes / 2)));
		DRIVER(cuMemGetAddressRange(&base, &size, p + bytes / 2));
		DRIVER(cuCtxGetCurrent(&mine));
		DRIVER(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p));
		DRIVER(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
		DRIVER(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
		DRIVER(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + bytes - 1));
		DRIVER(cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + bytes - 1));
		DRIVER(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
		DRIVER(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, p));
		DRIVER(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
		printf("%zu bytes: type %d device %d pointer %d host %d | base %d size %zu | ctx %d type %u ordinal %d start %d "
		       "range %zu legacy %d mapped %d managed %d | aligned %d\n",
		       bytes, a.type, a.device, a.devicePointer == (void *)(p + bytes / 2), a.hostPointer != nullptr,
		       base == p, size, ctx == mine, type, ordinal, start == p, range, legacy, mapped, managed,
		       p % 256 == 0);
		OK(cudaFree((void *)p));
		printf("  after free: type %d\n", (cudaPointerGetAttributes(&a, (void *)p), a.type));
		cudaGetLastError();
	}
}

static void copies()
{
	const size_t n = 1 << 20;
	int *a = filled(n, 1), *b = filled(n, 5);
	size_t pitch;
	int *rect;

	OK(cudaMemcpy(b + 100, a, (n - 100) * sizeof(int), cudaMemcpyDeviceToDevice));
	printf("device to device: %llx\n", (unsigned long long)sum(b, n));
	OK(cudaMemset(a, 0x11, 4000));
	OK(cudaMemset2D(a, 4096, 3, 1024, 100));
	printf("memset: %llx\n", (unsigned long long)sum(a, n));
	OK(cudaMallocPitch(&rect, &pitch, 1000, 37));
	OK(cudaMemset2D(rect, pitch, 0, 1000, 37));
	OK(cudaMemcpy2D(rect, pitch, b, 1200, 1000, 37, cudaMemcpyDeviceToDevice));
	std::vector<int> host(37 * 250);
	OK(cudaMemcpy2D(host.data(), 1000, rect, pitch, 1000, 37, cudaMemcpyDeviceToHost));
	uint64_t s = 0;
	for (int v : host)
		s = s * 31 + (unsigned)v;
	printf("pitched: %zu %llx\n", pitch, (unsigned long long)s);

	cudaExtent extent = make_cudaExtent(64 * sizeof(int), 16, 8);
	cudaPitchedPtr box;
	OK(cudaMalloc3D(&box, extent));
	OK(cudaMemset3D(box, 0x22, extent));
	cudaMemcpy3DParms copy = {};
	copy.srcPtr = box;
	std::vector<int> flat(64 * 16 * 8);
	copy.dstPtr = make_cudaPitchedPtr(flat.data(), 64 * sizeof(int), 64, 16);
	copy.extent = extent;
	copy.kind = cudaMemcpyDeviceToHost;
	OK(cudaMemcpy3D(&copy));
	s = 0;
	for (int v : flat)
		s = s * 31 + (unsigned)v;
	printf("3D: %zu %llx\n", box.pitch, (unsigned long long)s);
	for (void *p : { (void *)a, (void *)b, (void *)rect, box.ptr })
		OK(cudaFree(p));
}

static void fresh_memory_is_usable_after_much_churn()
{
	std::vector<int *> kept;
	uint32_t x = 1;

	for (int i = 0; i < 4000; i++) {
		x = x * 1664525 + 1013904223;
		if (kept.size() > 100 || (x >> 30) == 0) {
			if (!kept.empty()) {
				size_t k = (x >> 8) % kept.size();
				OK(cudaFree(kept[k]));
				kept[k] = kept.back();
				kept.pop_back();
			}
			continue;
		}
		int *p;
		size_t bytes = (size_t)1 << (2 + (x >> 8) % 22);
		OK(cudaMalloc(&p, bytes));
		OK(cudaMemset(p, 0, bytes));
		add<<<1, 1>>>(p, 1, i);
		kept.push_back(p);
	}
	uint64_t s = 0;
	for (int *p : kept) {
		int v;
		OK(cudaMemcpy(&v, p, sizeof(v), cudaMemcpyDeviceToHost));
		s += (unsigned)v;
		OK(cudaFree(p));
	}
	printf("churn: %zu left, sum %llu\n", kept.size(), (unsigned long long)s);
}

static void memory_info()
{
	size_t free0, free1, free2, total;
	void *p;

	OK(cudaMemGetInfo(&free0, &total));
	OK(cudaMalloc(&p, (size_t)1 << 30));
	OK(cudaMemGetInfo(&free1, &total));
	OK(cudaFree(p));
	OK(cudaMemGetInfo(&free2, &total));
	printf("memory info: took %d back %d\n", free0 - free1 >= ((size_t)1 << 30) && free0 - free1 < ((size_t)1 << 30) + (64 << 20),
	       free2 > free1 && free2 + (64 << 20) >= free0);
}

static void out_of_memory()
{
	std::vector<void *> all;
	size_t free_bytes, total;
	void *p;

	OK(cudaMemGetInfo(&free_bytes, &total));
	while (cudaMalloc(&p, (size_t)4 << 30) == cudaSuccess)
		all.push_back(p);
	printf("out of memory: %d after %d\n", cudaGetLastError(),
	       all.size() >= (free_bytes >> 32) - 1 && all.size() <= (free_bytes >> 32) + 1);
	for (void *q : all)
		OK(cudaFree(q));
	printf("and room again: %d\n", cudaMalloc(&p, (size_t)4 << 30));
	OK(cudaFree(p));
}

static void threads()
{
	std::vector<std::thread> all;
	std::vector<uint64_t> sums(8);

	for (int t = 0; t < 8; t++)
		all.emplace_back([t, &sums] {
			cudaStream_t s;
			OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
			for (int i = 0; i < 50; i++) {
				int *p = filled(1000 + t, t);
				add<<<4, 64, 0, s>>>(p, 1000 + t, i);
				OK(cudaStreamSynchronize(s));
				sums[t] += sum(p, 1000 + t);
				OK(cudaFree(p));
			}
			OK(cudaStreamDestroy(s));
		});
	for (auto &t : all)
		t.join();
	uint64_t s = 0;
	for (uint64_t v : sums)
		s = s * 31 + v;
	printf("threads: %llx\n", (unsigned long long)s);
}

static void free_waits()
{
	int *p = filled(1 << 22, 0), *result = filled(1, 0);
	cudaStream_t s;

	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (int i = 0; i < 200; i++)
		add<<<64, 256, 0, s>>>(p, 1 << 22, 1);
	OK(cudaMemcpyAsync(result, p, sizeof(int), cudaMemcpyDeviceToDevice, s));
	OK(cudaFree(p));
	printf("free waits for work: %d, result %llu\n", cudaStreamQuery(s), (unsigned long long)sum(result, 1));
	OK(cudaFree(result));
	OK(cudaStreamDestroy(s));
}

static void contexts()
{
	CUcontext first, second, popped;
	CUdevice device;
	CUdeviceptr p;
	unsigned char byte = 0;

	DRIVER(cuCtxGetCurrent(&first));
	DRIVER(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
	DRIVER(cuCtxCreate(&second, nullptr, 0, device));
#else
	DRIVER(cuCtxCreate(&second, 0, device));
#endif
	DRIVER(cuMemAlloc(&p, 3 << 20));
	DRIVER(cuMemsetD8(p, 9, 3 << 20));
	DRIVER(cuCtxSynchronize()); /* the streams of the first do not wait for it */
	DRIVER(cuCtxPopCurrent(&popped));
	DRIVER(cuMemcpyDtoH(&byte, p + 12345, 1));
	CUcontext owner = nullptr;
	DRIVER(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
	printf("other context: byte %d owner %d\n", byte, owner == second);
	printf("freed from the first: %d\n", cuMemFree(p));
	DRIVER(cuCtxPushCurrent(second));
	DRIVER(cuMemAlloc(&p, 100));
	DRIVER(cuCtxPopCurrent(&popped));
	DRIVER(cuCtxDestroy(second));
	printf("freed after its context: %d\n", cuMemFree(p));
}

static void child_before_cuda()
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		int *p = filled(100, 3);
		printf("child: %llu\n", (unsigned long long)sum(p, 100));
		fflush(stdout);
		_exit(0);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	printf("child ended with %d\n", status);
}

/* What is made in one moment and used in another. */
struct Held {
	int *plain, *small, *pooled, *pinned, *registered_host;
	int *vmm;
	cudaArray_t array;
	cudaTextureObject_t texture;
	cudaStream_t stream, other;
	cudaEvent_t event;
	cudaGraph_t graph;
	cudaGraphExec_t exec, with_memory;
	int *coop, *deep;
	cudaGraphExec_t stacks;
	size_t granule;
};

/* STACK: a limit of the program's own; DEEP: what nearly fills it. */
enum { N = 1 << 20, SIDE = 64, STACK = 3072, DEEP = 14 };

static void make_graphs(Held &h)
{
	OK(cudaStreamBeginCapture(h.stream, cudaStreamCaptureModeThreadLocal));
	add<<<32, 128, 0, h.stream>>>(h.plain, N, 1);
	add<<<1, 32, 0, h.stream>>>(h.small, 16, 2);
	OK(cudaMemcpyAsync(h.pinned, h.plain, 64 * sizeof(int), cudaMemcpyDeviceToHost, h.stream));
	OK(cudaStreamEndCapture(h.stream, &h.graph));
	OK(cudaGraphInstantiate(&h.exec, h.graph, 0));

	cudaGraph_t graph;
	int *inside;
	OK(cudaStreamBeginCapture(h.stream, cudaStreamCaptureModeThreadLocal));
	OK(cudaMallocAsync(&inside, N * sizeof(int), h.stream));
	OK(cudaMemcpyAsync(inside, h.plain, N * sizeof(int), cudaMemcpyDeviceToDevice, h.stream));
	add<<<32, 128, 0, h.stream>>>(inside, N, 100);
	OK(cudaMemcpyAsync(h.coop, inside, 2 * sizeof(int), cudaMemcpyDeviceToDevice, h.stream));
	OK(cudaFreeAsync(inside, h.stream));
	OK(cudaStreamEndCapture(h.stream, &graph));
	OK(cudaGraphInstantiate(&h.with_memory, graph, 0));
	OK(cudaGraphDestroy(graph));
}

static void make_stacks(Held &h)
{
	cudaGraph_t graph;

	h.deep = filled(2 * SIDE * SIDE, 0);
	OK(cudaDeviceSetLimit(cudaLimitStackSize, STACK));
	OK(cudaStreamBeginCapture(h.stream, cudaStreamCaptureModeThreadLocal));
	large_frame<<<SIDE, SIDE, 0, h.stream>>>(h.deep, 5);
	recurse<<<SIDE, SIDE, 0, h.stream>>>(h.deep + SIDE * SIDE, DEEP);
	OK(cudaStreamEndCapture(h.stream, &graph));
	OK(cudaGraphInstantiate(&h.stacks, graph, 0));
	OK(cudaGraphDestroy(graph));
}

static void use_stacks(Held &h, int round)
{
	size_t limit = 0;

	OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
	OK(cudaGraphLaunch(h.stacks, h.stream));
	OK(cudaStreamSynchronize(h.stream));
	uint64_t of_graph = sum(h.deep, 2 * SIDE * SIDE);
	large_frame<<<SIDE, SIDE>>>(h.deep, round);
	recurse<<<SIDE, SIDE>>>(h.deep + SIDE * SIDE, DEEP - 1);
	OK(cudaDeviceSynchronize());
	printf("stacks of %zu: graph %llx kernels %llx\n", limit, (unsigned long long)of_graph,
	       (unsigned long long)sum(h.deep, 2 * SIDE * SIDE));
}

static void make_vmm(Held &h)
{
	CUmemAllocationProp prop = {};
	CUmemAccessDesc access = {};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location = prop.location;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	DRIVER(cuMemGetAllocationGranularity(&h.granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	DRIVER(cuMemAddressReserve(&p, 4 * h.granule, 0, 0, 0));
	DRIVER(cuMemCreate(&handle, h.granule, &prop, 0));
	DRIVER(cuMemMap(p, h.granule, 0, handle, 0));
	DRIVER(cuMemMap(p + 2 * h.granule, h.granule, 0, handle, 0)); /* seen twice */
	DRIVER(cuMemSetAccess(p, h.granule, &access, 1));
	DRIVER(cuMemSetAccess(p + 2 * h.granule, h.granule, &access, 1));
	DRIVER(cuMemRelease(handle));
	DRIVER(cuMemsetD32(p, 4, h.granule / 4));
	h.vmm = (int *)p;
}

static Held make()
{
	Held h = {};
	cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
	std::vector<int> image(SIDE * SIDE);

	for (int i = 0; i < SIDE * SIDE; i++)
		image[i] = i * 3;
	h.plain = filled(N, 1);
	h.small = filled(16, 50);
	h.coop = filled(2, 0);
	OK(cudaStreamCreate(&h.stream));
	OK(cudaStreamCreateWithFlags(&h.other, cudaStreamNonBlocking));
	OK(cudaEventCreate(&h.event));
	OK(cudaMallocHost(&h.pinned, N * sizeof(int)));
	memset(h.pinned, 0, N * sizeof(int));
	h.registered_host = (int *)aligned_alloc(4096, N * sizeof(int));
	memset(h.registered_host, 1, N * sizeof(int));
	OK(cudaHostRegister(h.registered_host, N * sizeof(int), cudaHostRegisterMapped));
	OK(cudaMallocAsync(&h.pooled, N * sizeof(int), h.stream));
	OK(cudaMemsetAsync(h.pooled, 0, N * sizeof(int), h.stream));
	OK(cudaMallocArray(&h.array, &format, SIDE, SIDE));
	OK(cudaMemcpy2DToArray(h.array, 0, 0, image.data(), SIDE * sizeof(int), SIDE * sizeof(int), SIDE, cudaMemcpyHostToDevice));
	cudaResourceDesc resource = {};
	cudaTextureDesc texture = {};
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = h.array;
	OK(cudaCreateTextureObject(&h.texture, &resource, &texture, nullptr));
	int constants[4] = { 1, 2, 3, 44 };
	OK(cudaMemcpyToSymbol(constant_value, constants, sizeof(constants)));
	make_graphs(h);
	make_vmm(h);
	make_stacks(h);
	OK(cudaDeviceSynchronize());
	return h;
}

static void use(Held &h, int round)
{
	int *out = filled(SIDE * SIDE, 0), *on_device;
	int host_calls = 0;
	float ms;

	printf("round %d plain %llx small %llx\n", round, (unsigned long long)sum(h.plain, N), (unsigned long long)sum(h.small, 16));
	OK(cudaGraphLaunch(h.exec, h.stream));
	OK(cudaGraphLaunch(h.with_memory, h.stream));
	OK(cudaEventRecord(h.event, h.stream));
	OK(cudaStreamWaitEvent(h.other, h.event, 0));
	add<<<8, 128, 0, h.other>>>(h.pooled, N, 3);
	OK(cudaLaunchHostFunc(h.other, [](void *p) { ++*(int *)p; }, &host_calls));
	OK(cudaStreamSynchronize(h.other));
	OK(cudaStreamSynchronize(h.stream));
	printf("graphs %llx %d coop memory %llx pooled %llx host calls %d\n", (unsigned long long)sum(h.plain, N), h.pinned[5],
	       (unsigned long long)sum(h.coop, 2), (unsigned long long)sum(h.pooled, N), host_calls);
	read_texture<<<SIDE, SIDE>>>(h.texture, out, SIDE);
	printf("texture %llx\n", (unsigned long long)sum(out, SIDE * SIDE));
	use_globals<<<1, 1>>>(out);
	printf("globals %llx\n", (unsigned long long)sum(out, 2));
	OK(cudaHostGetDevicePointer(&on_device, h.registered_host, 0));
	add<<<8, 128>>>(on_device, N, 1);
	OK(cudaDeviceSynchronize());
	printf("registered %x %x\n", h.registered_host[0], h.registered_host[N - 1]);
	add<<<8, 128>>>(h.vmm, h.granule / 4, 5);
	printf("vmm %llx seen twice %d\n", (unsigned long long)sum(h.vmm, h.granule / 4),
	       sum(h.vmm, h.granule / 4) == sum(h.vmm + h.granule / 2, h.granule / 4));
	OK(cudaMemset(h.coop, 0, 2 * sizeof(int)));
	void *args[] = { &h.coop };
	OK(cudaLaunchCooperativeKernel((void *)cooperative, dim3(8), dim3(64), args, 0, 0));
	printf("cooperative %llx\n", (unsigned long long)sum(h.coop, 2));
	OK(cudaEventRecord(h.event, h.stream));
	OK(cudaEventSynchronize(h.event));
	printf("elapsed of an unrelated event: %d\n", cudaEventElapsedTime(&ms, h.event, h.event));
	OK(cudaFree(out));
	use_stacks(h, round);
}

static void reset()
{
	void *p;

	OK(cudaMalloc(&p, 1 << 20));
	OK(cudaDeviceReset());
	printf("free after a reset: %d\n", cudaFree(p) != cudaSuccess);
	cudaGetLastError();
	int *q = filled(100, 1);
	printf("after the reset: %llu\n", (unsigned long long)sum(q, 100));
}

int main(int argc, char **argv)
{
	bool hold = argc > 1 && !strcmp(argv[1], "--hold");

	setvbuf(stdout, nullptr, _IOLBF, 0);
	if (!hold)
		child_before_cuda();
	Held h = make();
	use(h, 0);
	if (hold) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &set, nullptr);
		for (int round = 1;; round++) {
			int sig;
			printf("ready pid %d\n", (int)getpid());
			sigwait(&set, &sig);
			use(h, round);
		}
	}
	errors();
	attributes();
	copies();
	fresh_memory_is_usable_after_much_churn();
	memory_info();
	out_of_memory();
	threads();
	free_waits();
	contexts();
	use(h, 1);
	reset();
	printf("ready done\n");
	while (getchar() != EOF)
		;
	return 0;
}
