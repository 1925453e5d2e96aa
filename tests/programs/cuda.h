// SPDX-License-Identifier: MIT
/*
 * What the test programs share: the driver loaded as any program loads it (dlopen of libcuda.so.1,
 * dlsym), a GPU with its context and the kernels of kernels.ptx, and checked arrays. Every failure
 * ends the program with one line that names the call; these programs have nothing to clean up that
 * the kernel does not.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver-abi.h"

#define CUDA_CALLS(X)                     \
	X(cuInit)                         \
	X(cuGetErrorName)                 \
	X(cuDeviceGet)                    \
	X(cuDeviceGetCount)               \
	X(cuDeviceGetUuid_v2)             \
	X(cuDevicePrimaryCtxRetain)       \
	X(cuDevicePrimaryCtxReset_v2)     \
	X(cuCtxCreate_v2)                 \
	X(cuCtxDestroy_v2)                \
	X(cuCtxSetCurrent)                \
	X(cuCtxGetCurrent)                \
	X(cuCtxSynchronize)               \
	X(cuCtxGetLimit)                  \
	X(cuCtxSetLimit)                  \
	X(cuCtxEnablePeerAccess)          \
	X(cuMemGetInfo_v2)                \
	X(cuMemAlloc_v2)                  \
	X(cuMemFree_v2)                   \
	X(cuMemAllocAsync)                \
	X(cuMemFreeAsync)                 \
	X(cuMemAllocManaged)              \
	X(cuMemAdvise_v2)                 \
	X(cuMemPrefetchAsync_v2)          \
	X(cuMemRangeGetAttribute)         \
	X(cuStreamAttachMemAsync)         \
	X(cuPointerGetAttribute)          \
	X(cuMemHostAlloc)                 \
	X(cuMemFreeHost)                  \
	X(cuMemHostRegister_v2)           \
	X(cuMemHostGetDevicePointer_v2)   \
	X(cuMemcpyDtoH_v2)                \
	X(cuMemcpyDtoHAsync_v2)           \
	X(cuMemcpyHtoDAsync_v2)           \
	X(cuMemcpyHtoD_v2)                \
	X(cuMemcpyDtoD_v2)                \
	X(cuMemcpyDtoDAsync_v2)           \
	X(cuMemcpyPeerAsync)              \
	X(cuMemsetD8_v2)                  \
	X(cuMemsetD8Async)                \
	X(cuStreamCreate)                 \
	X(cuStreamDestroy_v2)             \
	X(cuStreamSynchronize)            \
	X(cuStreamWaitEvent)              \
	X(cuLaunchHostFunc)               \
	X(cuStreamBeginCapture_v2)        \
	X(cuStreamEndCapture)             \
	X(cuGraphInstantiateWithFlags)    \
	X(cuGraphLaunch)                  \
	X(cuGraphExecDestroy)             \
	X(cuGraphDestroy)                 \
	X(cuEventCreate)                  \
	X(cuEventRecord)                  \
	X(cuEventSynchronize)             \
	X(cuEventQuery)                   \
	X(cuEventDestroy_v2)              \
	X(cuModuleLoadData)               \
	X(cuModuleUnload)                 \
	X(cuModuleGetFunction)            \
	X(cuLaunchKernel)                 \
	X(cuMemAddressReserve)            \
	X(cuMemAddressFree)               \
	X(cuMemCreate)                    \
	X(cuMemMap)                       \
	X(cuMemUnmap)                     \
	X(cuMemRelease)                   \
	X(cuMemSetAccess)                 \
	X(cuMemGetAllocationGranularity)  \
	X(cuMemExportToShareableHandle)   \
	X(cuMemImportFromShareableHandle) \
	X(cuMemRetainAllocationHandle)    \
	X(cuIpcGetMemHandle)              \
	X(cuIpcGetEventHandle)            \
	X(cuIpcOpenEventHandle)           \
	X(cuIpcCloseMemHandle)            \
	X(cuIpcOpenMemHandle_v2)

/** The driver's entry points; filled by cuda_load(). */
extern struct cuda {
#define X(sym) __typeof__(sym) *sym;
	CUDA_CALLS(X)
#undef X
} cuda;

/** Loads the driver; calls nothing in it. */
void cuda_load(void);

/** Ends the program unless @result is success, naming @call and its place. */
void cuda_checked(CUresult result, const char *call, const char *file, int line);
#define CHECKED(call) cuda_checked(cuda.call, #call, __FILE__, __LINE__)

/** Prints one line on stdout ("ERR …") and ends the program with 1. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

enum { GPU_UUID_TEXT_BYTES = 48 };

struct gpu {
	CUdevice device;
	CUcontext ctx;
	CUmodule kernels;
	CUfunction fill_u64, random_u64, add_u64, add_array_u64, sum_u64, inc_u32, copy_u32,
		spin_ns, store_u32, await_u32;
};

/** Initialises the driver if need be, makes the GPU's primary context current, loads the kernels. */
void gpu_open(struct gpu *ret, int ordinal);

/** Loads the kernels in the current context, which is that of @gpu. */
void gpu_load_kernels(struct gpu *gpu);

/** "GPU-xxxxxxxx-…" of the card the device is now. */
void gpu_uuid(const struct gpu *gpu, char ret[static GPU_UUID_TEXT_BYTES]);

void gpu_launch(CUfunction fn, unsigned int blocks, CUstream stream, void **params);
#define LAUNCH(fn, blocks, stream, ...) gpu_launch(fn, blocks, stream, (void *[]){ __VA_ARGS__ })

/**
 * Device memory as n_chunks arrays of 64-bit words that hold (i * 2654435761 + added) at their
 * running index i, so that the sum of all is known in closed form.
 */
struct array {
	const struct gpu *gpu;
	CUdeviceptr *chunks;	/* owned */
	size_t n_chunks, words; /* words of each chunk */
	uint64_t added;
	CUdeviceptr sum;
};

/** Takes @n_chunks of @chunk_bytes with cuMemAlloc and fills them. */
void array_alloc(struct array *ret, const struct gpu *gpu, size_t n_chunks, size_t chunk_bytes);
/** Gives the memory back. */
void array_free(struct array *array);
/** As array_alloc() over one piece of memory that is there already. */
void array_over(struct array *ret, const struct gpu *gpu, CUdeviceptr memory, size_t bytes);
/** The sum of @words words of which the first has the running index @base. */
uint64_t array_sum(uint64_t base, uint64_t words);
/** Adds 1 everywhere, on @stream; does not wait. */
void array_add(struct array *array, CUstream stream);
/** Sums all words on @stream, waits, and says whether the sum is the right one. */
bool array_check(const struct array *array, CUstream stream);
