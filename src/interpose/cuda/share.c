// SPDX-License-Identifier: MIT
/*
 * What a process shares with others. IPC handles of memory in pieces and of events are tickets of ours. What is shared
 * through calls that are left to the driver cannot be taken apart, and the driver does not say which processes it is
 * shared with: it is noted that there is some.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "interpose/core/backend.h"
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
	CUresult r = event_is_renamed(event)
			     ? CUDA_ERROR_INVALID_HANDLE
			     : driver.cuIpcGetEventHandle(ret ? &handle : NULL, event);

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

/* Opens @handle, or creates an event where there is none. The driver may give a name again that the program still has for
 * another event: that one is kept while another is made. */
static CUresult make_event(CUevent *ret, const CUipcEventHandle *handle, unsigned int flags)
{
	CUresult r = handle ? driver.cuIpcOpenEventHandle(ret, *handle)
			    : driver.cuEventCreate(ret, flags);

	if (r || !event_is_renamed(*ret))
		return r;
	CUevent taken = *ret;
	r = make_event(ret, handle, flags);
	driver.cuEventDestroy_v2(taken);
	return r;
}

CUresult event_create(CUevent *ret, unsigned int flags)
{
	return make_event(ret, NULL, flags);
}

static CUresult open_lent(CUevent *ret, const struct ticket *ticket, const struct context *context)
{
	CUipcEventHandle handle;
	CUevent event;
	CUresult r = to_driver(lent_event((uint8_t *)&handle, ticket));

	if (r)
		return r;
	r = make_event(&event, &handle, 0);
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
	void *now = event;

	return event_drop(&now) && (now || !event) ? driver.cuEventDestroy_v2(now) : CUDA_SUCCESS;
}

/* Opens an event again that was closed while the gate was. */
static CUresult open_again(void *name, void *context, const struct ticket *ticket)
{
	CUipcEventHandle handle;
	CUevent event;
	int lent = lent_event((uint8_t *)&handle, ticket);

	if (lent)
		return lent == -EINVAL ? CUDA_ERROR_INVALID_HANDLE : to_driver(lent);
	CUresult r = driver.cuCtxPushCurrent_v2(context);
	if (r)
		return r;
	r = driver.cuIpcOpenEventHandle(&event, handle);
	driver.cuCtxPopCurrent_v2(NULL);
	if (!r && !event_bring(name, event))
		driver.cuEventDestroy_v2(event);
	return r;
}

/* What the driver calls the program's event now. CUDA_ERROR_INVALID_HANDLE: its maker has ended, and what it recorded was done. */
static CUresult find_now(CUevent *event)
{
	for (;;) {
		struct ticket ticket;
		void *now = *event, *context;

		if (!event_resolve(&now, &context, &ticket)) {
			*event = now;
			return CUDA_SUCCESS;
		}
		CUresult r = open_again(*event, context, &ticket);
		if (r)
			return r;
	}
}

/* What a capture takes in is in a graph. */
static CUresult find_to_use(CUevent *event)
{
	if (capture_active())
		event_fix(*event);
	return find_now(event);
}

static CUresult find_to_keep(CUevent *event)
{
	event_fix(*event);
	return find_now(event);
}

/* Where there is nothing left to wait for. */
static CUresult after_find(CUresult r)
{
	return r == CUDA_ERROR_INVALID_HANDLE ? CUDA_SUCCESS : r;
}

/* Programs record and ask often, and few share events. */
#define EVENT_CALL(name, find, failed, entry, params, args)                        \
	CUresult name params                                                       \
	{                                                                          \
		if (!atomic_load_explicit(&memory.n_events, memory_order_relaxed)) \
			return driver.entry args;                                  \
		CUresult r = find(&event);                                         \
                                                                                   \
		return r ? failed(r) : driver.entry args;                          \
	}
#define ADD_NODE \
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n_deps, CUevent event)

EVENT_CALL(event_record, find_to_use, , cuEventRecord, (CUevent event, CUstream stream),
	   (event, stream))
EVENT_CALL(event_record_ptsz, find_to_use, , cuEventRecord_ptsz, (CUevent event, CUstream stream),
	   (event, stream))
EVENT_CALL(event_record_flags, find_to_use, , cuEventRecordWithFlags,
	   (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags))
EVENT_CALL(event_record_flags_ptsz, find_to_use, , cuEventRecordWithFlags_ptsz,
	   (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags))
EVENT_CALL(event_record_context, find_to_use, , cuCtxRecordEvent, (CUcontext ctx, CUevent event),
	   (ctx, event))
EVENT_CALL(event_record_green, find_to_use, , cuGreenCtxRecordEvent, (void *ctx, CUevent event),
	   (ctx, event))
EVENT_CALL(event_wait, find_to_use, after_find, cuStreamWaitEvent,
	   (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))
EVENT_CALL(event_wait_ptsz, find_to_use, after_find, cuStreamWaitEvent_ptsz,
	   (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))
EVENT_CALL(event_wait_context, find_to_use, after_find, cuCtxWaitEvent,
	   (CUcontext ctx, CUevent event), (ctx, event))
EVENT_CALL(event_wait_green, find_to_use, after_find, cuGreenCtxWaitEvent,
	   (void *ctx, CUevent event), (ctx, event))
EVENT_CALL(event_query, find_now, after_find, cuEventQuery, (CUevent event), (event))
EVENT_CALL(event_synchronize, find_now, after_find, cuEventSynchronize, (CUevent event), (event))
EVENT_CALL(event_add_record, find_to_keep, , cuGraphAddEventRecordNode, ADD_NODE,
	   (node, graph, deps, n_deps, event))
EVENT_CALL(event_add_wait, find_to_keep, , cuGraphAddEventWaitNode, ADD_NODE,
	   (node, graph, deps, n_deps, event))
EVENT_CALL(event_set_record, find_to_keep, , cuGraphEventRecordNodeSetEvent,
	   (CUgraphNode node, CUevent event), (node, event))
EVENT_CALL(event_set_wait, find_to_keep, , cuGraphEventWaitNodeSetEvent,
	   (CUgraphNode node, CUevent event), (node, event))
EVENT_CALL(event_exec_record, find_to_keep, , cuGraphExecEventRecordNodeSetEvent,
	   (CUgraphExec exec, CUgraphNode node, CUevent event), (exec, node, event))
EVENT_CALL(event_exec_wait, find_to_keep, , cuGraphExecEventWaitNodeSetEvent,
	   (CUgraphExec exec, CUgraphNode node, CUevent event), (exec, node, event))
