// SPDX-License-Identifier: MIT
/*
 * A driver that is newer than driver.def: functions that are not in it, one with a version, arguments
 * in every kind of place, and functions that only cuGetProcAddress gives.
 */
#include <string.h>

#include "driver-abi.h"
#include "newer.h"

#pragma GCC visibility push(default)

CUresult cuInit(unsigned int flags)
{
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return CUDA_ERROR_NOT_READY;
}

CUresult cuTexRefSetMipmapLevelBias(void *texture, float bias)
{
	*(float *)texture = bias;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	*ptr = flags;
	for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++)
		*ptr = *ptr * 31 + (unsigned char)handle.reserved[i];
	return CUDA_SUCCESS;
}

CUresult cuNewSum(struct newer_sum *ret, long a, long b, long c, long d, long e, long f, long g,
		  double x, double y, struct newer_large large, long last)
{
	*ret = (struct newer_sum){
		.whole = a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + last * 8, .real = x - y
	};
	for (int i = 0; i < NEWER_WORDS; i++)
		ret->whole += large.words[i] * (i + 9);
	return CUDA_SUCCESS;
}

CUresult cuNewCall(void (*fn)(void *), void *arg)
{
	fn(arg);
	return CUDA_SUCCESS;
}

CUresult cuNewVersioned(void)
{
	return CUDA_ERROR_TIMEOUT;
}

int cudbgNewFunction(void)
{
	return 0;
}

static CUresult hidden(int *value)
{
	*value = 4711;
	return CUDA_SUCCESS;
}

static CUresult hidden_count(int *count)
{
	*count = 2;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int cuda_version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	*fn = NULL;
	if (!strcmp(symbol, "cuNewHidden"))
		*fn = (void *)hidden;
	else if (!strcmp(symbol, "cuDeviceGetCount"))
		*fn = cuda_version > 13000 ? (void *)hidden_count : (void *)cuDeviceGetCount;
	else if (!strcmp(symbol, "cuStreamQuery") && per_thread)
		*fn = (void *)cuStreamQuery_ptsz;
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
