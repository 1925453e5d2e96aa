// SPDX-License-Identifier: MIT
/*
 * What a process shares with others. IPC handles of memory in pieces and of events are tickets of ours. What is shared
 * through calls that are left to the driver cannot be taken apart, and the driver does not say which processes it is
 * shared with: it is noted that there is some.
 */
#include <errno.h>
#include <string.h>

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

/* ---- IPC handles of memory ---- */

_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "one fits in the other");

CUresult ipc_get(CUipcMemHandle *ret, CUdeviceptr ptr)
{
	struct ticket ticket;
	int r = ticket_make(&ticket, ptr);

	if (r == -ENOENT)
		return note(driver.cuIpcGetMemHandle(ret, ptr),
			    "memory of the driver's with an IPC handle");
	if (r || !ret)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(ret, &ticket, sizeof(ticket));
	return CUDA_SUCCESS;
}

CUresult ipc_open(CUdeviceptr *ret, CUipcMemHandle wire, unsigned int flags)
{
	const struct context *context;
	struct ticket ticket;
	uint64_t va;
	CUresult r;

	memcpy(&ticket, &wire, sizeof(ticket));
	if (!ticket_is_ours(&ticket) || !memory_managed())
		return note(driver.cuIpcOpenMemHandle_v2(ret, wire, flags),
			    "memory of another process");
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || flags & ~(unsigned int)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	r = to_driver(lent_open(&va, &ticket, context));
	if (!r)
		*ret = va;
	return r;
}

CUresult ipc_close(CUdeviceptr ptr)
{
	int r = lent_close(ptr);

	return r == -ENOENT ? driver.cuIpcCloseMemHandle(ptr) : to_driver(r);
}

/* ---- IPC handles of events ---- */

_Static_assert(sizeof(struct ticket) == sizeof(CUipcEventHandle), "one fits in the other");
_Static_assert(sizeof(CUipcEventHandle) == AGENT_EVENT_BYTES, "so does what the agent says");

int backend_event_export(void *context, void *event, uint8_t ret[static AGENT_EVENT_BYTES])
{
	CUipcEventHandle handle;
	CUresult r = driver.cuCtxPushCurrent_v2(context);

	if (r)
		return (int)r;
	r = driver.cuIpcGetEventHandle(&handle, event);
	driver.cuCtxPopCurrent_v2(NULL);
	if (!r)
		memcpy(ret, &handle, sizeof(handle));
	return (int)r;
}

void backend_event_destroy(void *event)
{
	driver.cuEventDestroy_v2(event);
}

/* Where something is wrong with the event the driver says best what. */
CUresult event_get(CUipcEventHandle *ret, CUevent event)
{
	const struct context *context;
	struct ticket ticket;
	CUipcEventHandle handle;
	CUresult r = driver.cuIpcGetEventHandle(ret ? &handle : NULL, event);

	if (r)
		return r;
	context = memory_managed() ? context_current(&r) : NULL;
	if (!context) {
		memory_note_shared("an event with an IPC handle");
		*ret = handle;
		return CUDA_SUCCESS;
	}
	r = to_driver(event_give(&ticket, event, context->handle));
	if (!r)
		memcpy(ret, &ticket, sizeof(ticket));
	return r;
}

static CUresult open_lent(CUevent *ret, const struct ticket *ticket, const struct context *context)
{
	CUipcEventHandle handle;
	CUevent event;
	CUresult r = to_driver(lent_event((uint8_t *)&handle, ticket));

	if (r)
		return r;
	r = driver.cuIpcOpenEventHandle(&event, handle);
	if (!r && event_note_taken(event, context->handle, ticket)) {
		driver.cuEventDestroy_v2(event);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r)
		lent_event_back(ticket);
	else
		*ret = event;
	return r;
}

CUresult event_open(CUevent *ret, CUipcEventHandle wire)
{
	const struct context *context;
	struct ticket ticket;
	CUresult r;

	memcpy(&ticket, &wire, sizeof(ticket));
	if (!memory_managed() || !ticket_is_of_event(&ticket))
		return note(driver.cuIpcOpenEventHandle(ret, wire), "an event of another process");
	context = context_current(&r);
	if (!context)
		return r;
	return ret ? open_lent(ret, &ticket, context) : CUDA_ERROR_INVALID_VALUE;
}

CUresult event_destroy(CUevent event)
{
	return event_drop(event) ? driver.cuEventDestroy_v2(event) : CUDA_SUCCESS;
}
