// SPDX-License-Identifier: MIT
/* IPC handles of events: tickets of ours, as those of memory are. */
#include <string.h>

#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

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

/* What is wrong with the event the driver says best. */
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

	if (!r)
		r = driver.cuIpcOpenEventHandle(&event, handle);
	else
		return r;
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
	if (!memory_managed() || !ticket_is_of_event(&ticket)) {
		r = driver.cuIpcOpenEventHandle(ret, wire);
		if (!r)
			memory_note_shared("an event of another process");
		return r;
	}
	context = context_current(&r);
	if (!context)
		return r;
	return ret ? open_lent(ret, &ticket, context) : CUDA_ERROR_INVALID_VALUE;
}

CUresult event_destroy(CUevent event)
{
	return event_drop(event) ? driver.cuEventDestroy_v2(event) : CUDA_SUCCESS;
}
