// SPDX-License-Identifier: MIT
/*
 * What a process shares with others by calls that are left to the driver. Nothing of it can be taken apart, and
 * whom it is shared with the driver does not tell: it is noted that there is some.
 */
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

static CUresult note(CUresult r, const char *how)
{
	if (!r)
		memory_note_shared(how);
	return r;
}

CUresult share_pool(void *ret, CUmemoryPool pool, CUmemAllocationHandleType type,
		    unsigned long long flags)
{
	return note(driver.cuMemPoolExportToShareableHandle(ret, pool, type, flags),
		    "a memory pool that was exported");
}

CUresult share_pool_import(CUmemoryPool *ret, void *handle, CUmemAllocationHandleType type,
			   unsigned long long flags)
{
	return note(driver.cuMemPoolImportFromShareableHandle(ret, handle, type, flags),
		    "a memory pool of another process");
}

CUresult share_memory(void *ret, CUmemGenericAllocationHandle handle,
		      CUmemAllocationHandleType type, unsigned long long flags)
{
	return note(driver.cuMemExportToShareableHandle(ret, handle, type, flags),
		    "memory of the driver's that was exported");
}

CUresult share_memory_import(CUmemGenericAllocationHandle *ret, void *handle,
			     CUmemAllocationHandleType type)
{
	return note(driver.cuMemImportFromShareableHandle(ret, handle, type),
		    "memory of another process");
}

CUresult share_ipc(CUipcMemHandle *ret, CUdeviceptr ptr)
{
	return note(driver.cuIpcGetMemHandle(ret, ptr),
		    "memory of the driver's with an IPC handle");
}

CUresult share_ipc_open(CUdeviceptr *ret, CUipcMemHandle handle, unsigned int flags)
{
	return note(driver.cuIpcOpenMemHandle_v2(ret, handle, flags), "memory of another process");
}
