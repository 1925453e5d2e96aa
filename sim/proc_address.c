// SPDX-License-Identifier: MIT
/*
 * Entry points by name. A name without suffix stands for several functions: the newest that the
 * asked-for CUDA version knows is meant. There are no variants for the per-thread default stream:
 * who asks for them gets the ones whose NULL stream waits for more.
 */
#include <string.h>

#include "sim.h"

/* Name, CUDA version (major * 1000 + minor * 10) that brought the function, function. */
#define ENTRIES(X)                                                                               \
	X(cuInit, 2000, cuInit)                                                                  \
	X(cuDriverGetVersion, 2020, cuDriverGetVersion)                                          \
	X(cuGetErrorName, 6000, cuGetErrorName)                                                  \
	X(cuGetErrorString, 6000, cuGetErrorString)                                              \
	X(cuGetProcAddress, 11030, cuGetProcAddress)                                             \
	X(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                          \
	X(cuGetExportTable, 3000, cuGetExportTable)                                              \
	X(cuDeviceGet, 2000, cuDeviceGet)                                                        \
	X(cuDeviceGetCount, 2000, cuDeviceGetCount)                                              \
	X(cuDeviceGetName, 2000, cuDeviceGetName)                                                \
	X(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                                \
	X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                            \
	X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                           \
	X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                      \
	X(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                                        \
	X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                                    \
	X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                              \
	X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                        \
	X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                            \
	X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                          \
	X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)                      \
	X(cuCtxCreate, 3020, cuCtxCreate_v2)                                                     \
	X(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                                   \
	X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                           \
	X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                             \
	X(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                \
	X(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                \
	X(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                  \
	X(cuCtxSynchronize, 2000, cuCtxSynchronize)                                              \
	X(cuCtxGetLimit, 3010, cuCtxGetLimit)                                                    \
	X(cuCtxSetLimit, 3010, cuCtxSetLimit)                                                    \
	X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess)                                    \
	X(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess)                                  \
	X(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                   \
	X(cuMemAlloc, 3020, cuMemAlloc_v2)                                                       \
	X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                             \
	X(cuMemFree, 3020, cuMemFree_v2)                                                         \
	X(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                               \
	X(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                  \
	X(cuMemFreeHost, 2000, cuMemFreeHost)                                                    \
	X(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                         \
	X(cuMemHostUnregister, 4000, cuMemHostUnregister)                                        \
	X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                         \
	X(cuMemAllocManaged, 6000, cuMemAllocManaged)                                            \
	X(cuMemAdvise, 8000, cuMemAdvise)                                                        \
	X(cuMemAdvise, 12020, cuMemAdvise_v2)                                                    \
	X(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync)                                          \
	X(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2)                                      \
	X(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute)                                  \
	X(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes)                                \
	X(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync)                                  \
	X(cuMemAllocAsync, 11020, cuMemAllocAsync)                                               \
	X(cuMemFreeAsync, 11020, cuMemFreeAsync)                                                 \
	X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                   \
	X(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                    \
	X(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                                  \
	X(cuPointerSetAttribute, 6000, cuPointerSetAttribute)                                    \
	X(cuMemcpy, 4000, cuMemcpy)                                                              \
	X(cuMemcpyAsync, 4000, cuMemcpyAsync)                                                    \
	X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                                   \
	X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                         \
	X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                                   \
	X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                         \
	X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                                   \
	X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                                         \
	X(cuMemcpyPeer, 4000, cuMemcpyPeer)                                                      \
	X(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)                                            \
	X(cuMemcpy2D, 3020, cuMemcpy2D_v2)                                                       \
	X(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2)                                     \
	X(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                                             \
	X(cuMemsetD8, 3020, cuMemsetD8_v2)                                                       \
	X(cuMemsetD16, 3020, cuMemsetD16_v2)                                                     \
	X(cuMemsetD32, 3020, cuMemsetD32_v2)                                                     \
	X(cuMemsetD8Async, 3020, cuMemsetD8Async)                                                \
	X(cuMemsetD16Async, 3020, cuMemsetD16Async)                                              \
	X(cuMemsetD32Async, 3020, cuMemsetD32Async)                                              \
	X(cuMemsetD2D8, 3020, cuMemsetD2D8_v2)                                                   \
	X(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async)                                            \
	X(cuStreamCreate, 2000, cuStreamCreate)                                                  \
	X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                          \
	X(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                             \
	X(cuStreamSynchronize, 2000, cuStreamSynchronize)                                        \
	X(cuStreamQuery, 2000, cuStreamQuery)                                                    \
	X(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                            \
	X(cuStreamAddCallback, 5000, cuStreamAddCallback)                                        \
	X(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                                             \
	X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                  \
	X(cuStreamEndCapture, 10000, cuStreamEndCapture)                                         \
	X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)           \
	X(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                       \
	X(cuEventCreate, 2000, cuEventCreate)                                                    \
	X(cuEventRecord, 2000, cuEventRecord)                                                    \
	X(cuEventQuery, 2000, cuEventQuery)                                                      \
	X(cuEventSynchronize, 2000, cuEventSynchronize)                                          \
	X(cuEventElapsedTime, 2000, cuEventElapsedTime)                                          \
	X(cuEventDestroy, 4000, cuEventDestroy_v2)                                               \
	X(cuModuleLoadData, 2000, cuModuleLoadData)                                              \
	X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                                          \
	X(cuModuleUnload, 2000, cuModuleUnload)                                                  \
	X(cuModuleGetFunction, 2000, cuModuleGetFunction)                                        \
	X(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2)                                         \
	X(cuLaunchKernel, 4000, cuLaunchKernel)                                                  \
	X(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                                          \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050,                                     \
	  cuOccupancyMaxActiveBlocksPerMultiprocessor)                                           \
	X(cuGraphCreate, 10000, cuGraphCreate)                                                   \
	X(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode)                                     \
	X(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2)                                  \
	X(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode)                                     \
	X(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode)                                     \
	X(cuGraphInstantiate, 11000, cuGraphInstantiate_v2)                                      \
	X(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags)                                \
	X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                       \
	X(cuGraphLaunch, 10000, cuGraphLaunch)                                                   \
	X(cuGraphDestroy, 10000, cuGraphDestroy)                                                 \
	X(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                         \
	X(cuMemAddressReserve, 10020, cuMemAddressReserve)                                       \
	X(cuMemAddressFree, 10020, cuMemAddressFree)                                             \
	X(cuMemCreate, 10020, cuMemCreate)                                                       \
	X(cuMemRelease, 10020, cuMemRelease)                                                     \
	X(cuMemMap, 10020, cuMemMap)                                                             \
	X(cuMemUnmap, 10020, cuMemUnmap)                                                         \
	X(cuMemSetAccess, 10020, cuMemSetAccess)                                                 \
	X(cuMemGetAccess, 10020, cuMemGetAccess)                                                 \
	X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)                   \
	X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle)                     \
	X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle)                 \
	X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                       \
	X(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
	X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)                                            \
	X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2)                                      \
	X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)                                        \
	X(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle)                                        \
	X(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle)                                      \
	X(cuCheckpointProcessGetState, 12080, cuCheckpointProcessGetState)                       \
	X(cuCheckpointProcessGetRestoreThreadId, 12080, cuCheckpointProcessGetRestoreThreadId)   \
	X(cuCheckpointProcessLock, 12080, cuCheckpointProcessLock)                               \
	X(cuCheckpointProcessCheckpoint, 12080, cuCheckpointProcessCheckpoint)                   \
	X(cuCheckpointProcessRestore, 12080, cuCheckpointProcessRestore)                         \
	X(cuCheckpointProcessUnlock, 12080, cuCheckpointProcessUnlock)

static const struct entry {
	const char *base, *symbol;
	int version;
	void *fn;
} entries[] = {
#define X(base, version, fn) { #base, #fn, version, (void *)fn },
	ENTRIES(X)
#undef X
};

static CUdriverProcAddressQueryResult find(const char *name, int cuda_version, void **ret)
{
	CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

	for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
		const struct entry *entry = &entries[i];

		/* A full name is one function, for any version. */
		if (strcmp(entry->base, name) && strcmp(entry->symbol, name))
			continue;
		if (entry->version <= cuda_version) {
			*ret = entry->fn; /* later ones of a name are newer */
			result = CU_GET_PROC_ADDRESS_SUCCESS;
		} else if (result != CU_GET_PROC_ADDRESS_SUCCESS) {
			result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		}
	}
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int cuda_version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult result;
	void *found = NULL;

	if (!symbol || !*symbol || !fn || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	result = find(symbol, cuda_version, &found);
	if (status)
		*status = result;
	*fn = found;
	return result == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **fn, int cuda_version, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, fn, cuda_version, flags, NULL);
}
