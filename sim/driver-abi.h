/* SPDX-License-Identifier: MIT */
/*
 * What programs use of the driver and of the management library, and brumate does not: names, numbers and layouts as in
 * gpu/cuda/abi.h, for the simulated driver and for tests.
 */
#pragma once

#include "gpu/cuda/abi.h"

typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;

typedef enum CUfunction_attribute_enum {
	CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
	CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
} CUfunction_attribute;

typedef enum CUjit_option_enum { CU_JIT_MAX_REGISTERS = 0 } CUjit_option;

/* Copies of rectangles. */
typedef struct CUDA_MEMCPY2D_st {
	size_t srcXInBytes, srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D_st {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

/* For cuGraphAddKernelNode; cuGraphAddKernelNode_v2 takes the longer one. */
typedef struct CUDA_KERNEL_NODE_PARAMS_st {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
} CUDA_KERNEL_NODE_PARAMS_v1;

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

typedef struct CUDA_MEMSET_NODE_PARAMS_st {
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value;
	unsigned int elementSize; /* 1, 2 or 4 bytes */
	size_t width;		  /* elements in a row */
	size_t height;
} CUDA_MEMSET_NODE_PARAMS;

typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef void (*CUhostFn)(void *data);

_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "ABI");
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "ABI");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v1) == 56, "ABI");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == 72, "ABI");
_Static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "ABI");

#define CUDA_ERROR_DEVICE_UNAVAILABLE		  ((CUresult)46)
#define CUDA_ERROR_INVALID_IMAGE		  ((CUresult)200)
#define CUDA_ERROR_MAP_FAILED			  ((CUresult)205)
#define CUDA_ERROR_UNMAP_FAILED			  ((CUresult)206)
#define CUDA_ERROR_ALREADY_MAPPED		  ((CUresult)208)
#define CUDA_ERROR_NO_BINARY_FOR_GPU		  ((CUresult)209)
#define CUDA_ERROR_UNSUPPORTED_LIMIT		  ((CUresult)215)
#define CUDA_ERROR_CONTEXT_ALREADY_IN_USE	  ((CUresult)216)
#define CUDA_ERROR_PEER_ACCESS_UNSUPPORTED	  ((CUresult)217)
#define CUDA_ERROR_INVALID_PTX			  ((CUresult)218)
#define CUDA_ERROR_FILE_NOT_FOUND		  ((CUresult)301)
#define CUDA_ERROR_ILLEGAL_STATE		  ((CUresult)401)
#define CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES	  ((CUresult)701)
#define CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE	  ((CUresult)708)
#define CUDA_ERROR_CONTEXT_IS_DESTROYED		  ((CUresult)709)
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ((CUresult)712)
#define CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED	  ((CUresult)713)
#define CUDA_ERROR_NOT_PERMITTED		  ((CUresult)800)
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED	  ((CUresult)900)
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED	  ((CUresult)901)
#define CUDA_ERROR_STREAM_CAPTURE_MERGE		  ((CUresult)902)
#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED	  ((CUresult)904)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION	  ((CUresult)905)
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT	  ((CUresult)906)
#define CUDA_ERROR_CAPTURED_EVENT		  ((CUresult)907)
#define CUDA_ERROR_TIMEOUT			  ((CUresult)909)

#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK		 ((CUdevice_attribute)1)
#define CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X			 ((CUdevice_attribute)2)
#define CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y			 ((CUdevice_attribute)3)
#define CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z			 ((CUdevice_attribute)4)
#define CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X			 ((CUdevice_attribute)5)
#define CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y			 ((CUdevice_attribute)6)
#define CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z			 ((CUdevice_attribute)7)
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK		 ((CUdevice_attribute)8)
#define CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY		 ((CUdevice_attribute)9)
#define CU_DEVICE_ATTRIBUTE_WARP_SIZE				 ((CUdevice_attribute)10)
#define CU_DEVICE_ATTRIBUTE_MAX_PITCH				 ((CUdevice_attribute)11)
#define CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK		 ((CUdevice_attribute)12)
#define CU_DEVICE_ATTRIBUTE_CLOCK_RATE				 ((CUdevice_attribute)13)
#define CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT			 ((CUdevice_attribute)14)
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT		 ((CUdevice_attribute)16)
#define CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT			 ((CUdevice_attribute)17)
#define CU_DEVICE_ATTRIBUTE_INTEGRATED				 ((CUdevice_attribute)18)
#define CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY			 ((CUdevice_attribute)19)
#define CU_DEVICE_ATTRIBUTE_COMPUTE_MODE			 ((CUdevice_attribute)20)
#define CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS			 ((CUdevice_attribute)31)
#define CU_DEVICE_ATTRIBUTE_ECC_ENABLED				 ((CUdevice_attribute)32)
#define CU_DEVICE_ATTRIBUTE_PCI_BUS_ID				 ((CUdevice_attribute)33)
#define CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID			 ((CUdevice_attribute)34)
#define CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE			 ((CUdevice_attribute)36)
#define CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH		 ((CUdevice_attribute)37)
#define CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE			 ((CUdevice_attribute)38)
#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR	 ((CUdevice_attribute)39)
#define CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT			 ((CUdevice_attribute)40)
#define CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING			 ((CUdevice_attribute)41)
#define CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID			 ((CUdevice_attribute)50)
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR		 ((CUdevice_attribute)75)
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR		 ((CUdevice_attribute)76)
#define CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED		 ((CUdevice_attribute)78)
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR ((CUdevice_attribute)81)
#define CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR	 ((CUdevice_attribute)82)
#define CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY			 ((CUdevice_attribute)83)
#define CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS		 ((CUdevice_attribute)88)
#define CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS		 ((CUdevice_attribute)89)
#define CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED	 ((CUdevice_attribute)90)
#define CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH			 ((CUdevice_attribute)95)
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN	 ((CUdevice_attribute)97)
#define CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED		 ((CUdevice_attribute)99)
#define CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED		 ((CUdevice_attribute)115)
#define CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED			 ((CUdevice_attribute)125)
#define CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID			 ((CUdevice_attribute)134)

#define CU_MEMORYTYPE_HOST    ((CUmemorytype)1)
#define CU_MEMORYTYPE_UNIFIED ((CUmemorytype)4)

#define CU_STREAM_CAPTURE_STATUS_ACTIVE	     ((CUstreamCaptureStatus)1)
#define CU_STREAM_CAPTURE_STATUS_INVALIDATED ((CUstreamCaptureStatus)2)

#define CU_STREAM_CAPTURE_MODE_GLOBAL	    ((CUstreamCaptureMode)0)
#define CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ((CUstreamCaptureMode)1)

#define CU_MEM_LOCATION_TYPE_HOST_NUMA ((CUmemLocationType)3)

#define CU_MEM_HANDLE_TYPE_FABRIC ((CUmemAllocationHandleType)8)

#define CU_MEM_ACCESS_FLAGS_PROT_NONE ((CUmemAccess_flags)0)
#define CU_MEM_ACCESS_FLAGS_PROT_READ ((CUmemAccess_flags)1)

#define CU_MEM_ALLOC_GRANULARITY_RECOMMENDED ((CUmemAllocationGranularity_flags)1)

#define CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND	   ((CUdriverProcAddressQueryResult)1)
#define CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT ((CUdriverProcAddressQueryResult)2)

#pragma GCC visibility push(default)

CUresult cuGetExportTable(const void **table, const CUuuid *id);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags);
CUresult cuMemAllocHost_v2(void **ptr, size_t bytes);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret, void *ptr, unsigned int flags);
CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream);
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count);
CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t count);
CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream);
CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			 size_t height);
CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			   size_t height, CUstream stream);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *data, unsigned int flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n_options,
			    CUjit_option *options, void **values);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name);
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction fn);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction fn, int block_size,
						     size_t shared_bytes);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_KERNEL_NODE_PARAMS_v1 *params);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
				 size_t n_deps, const CUDA_KERNEL_NODE_PARAMS_v2 *params);
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_MEMCPY3D *copy, CUcontext ctx);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			       size_t log_bytes);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr);

nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);

#pragma GCC visibility pop
