// SPDX-License-Identifier: MIT
/*
 * What memory in pieces asks of the vendor's driver: the only way from here to there. A folder next to this one, which
 * takes the place of the vendor's driver, implements it and is linked with it: plain functions of one library, as the
 * program allocates by way of them.
 *
 * Results are 0; or -errno, where this folder makes or acts on the failure; or the driver's own number,
 * which is positive. -ENOMEM: no room. -EINVAL: not allowed with these arguments. -ESHUTDOWN: the driver has
 * shut down. Other -errno are this folder's own. The wrappers turn them into the driver's numbers for the program.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/agent.h"

struct device;

/** What a piece is to be made of. Only the backend looks into @vendors: its driver's own description. */
struct memory_kind {
	int device;
	bool rdma; /* network cards can register it */
	uint64_t vendors[4];
};

/** A device that may use memory, and how: a set of bits. */
struct access {
	int device;
	unsigned int flags;
};
enum { ACCESS_NONE = 0, ACCESS_READ_WRITE = 3 };

/** The driver's own number for a result, for the agent's reply. */
int backend_number(int result);

/* ---- devices ---- */

/** Fills in what @ordinal is, where there is such a device: usable, rdma, granule_bytes, total_bytes, uuid; and
 * piece_max_bytes, beyond which a larger piece is handled no faster. */
void backend_learn_device(int ordinal, struct device *ret);
void backend_read_uuid(int ordinal, uint8_t *ret);

/* ---- memory ---- */

/** What allocations of ours on @ordinal are made of. */
struct memory_kind backend_kind(int ordinal, bool rdma);

/** Addresses that nothing else uses, and back. */
int backend_reserve(uint64_t *ret, size_t bytes);
void backend_unreserve(uint64_t va, size_t bytes);

/** Memory that can be exported as a descriptor. Returns the driver's handle of it. */
int backend_create(uint64_t *ret, size_t bytes, const struct memory_kind *kind);
int backend_release(uint64_t handle);
/** How much memory the GPU of the current context has. */
int backend_free(uint64_t *ret_free, uint64_t *ret_total);
int backend_map(uint64_t va, size_t bytes, size_t offset, uint64_t handle);
int backend_unmap(uint64_t va, size_t bytes);
int backend_set_access(uint64_t va, size_t bytes, const struct access *access, size_t n);

/** A descriptor of the memory, the caller's; and memory of a descriptor, which stays the caller's. */
int backend_export(int *ret_fd, uint64_t handle);
int backend_import(uint64_t *ret, int fd);
int backend_kind_of(uint64_t handle, struct memory_kind *ret);

/** Starts a copy on the GPU of the current context. */
int backend_copy(uint64_t to, uint64_t from, size_t bytes);

/* ---- contexts: handles are the driver's ---- */

/** Makes a context the calling thread's current one, and the one before it that again. */
int backend_enter(void *context);
void backend_leave(void);

/** The context of a device that all of the process may share. */
int backend_retain(void **ret, int device);
void backend_release_retained(int device);

/** Waits for all work in @context, or in the current one. */
int backend_wait(void *context);
int backend_wait_current(void);

/* ---- events ---- */

/** The driver's handle of an event of @context that another process may open, as it is now. */
int backend_event_export(void *context, void *event, uint8_t ret[static AGENT_EVENT_BYTES]);
void backend_event_destroy(void *event);

/* ---- with the gate closed ---- */

/** Lowers what each context keeps for the stacks of kernels, as far as the driver does it. */
void backend_lower_stacks(void);
/** Sets it back to what the program had, where that is not so. Returns the first error, after trying all. */
int backend_set_stacks_back(void);

/** Whether the driver is still there: it has not shut down. */
bool backend_is_there(void);

/** Whether a result of waiting is of something that went wrong in the context and stays. */
bool backend_is_lasting(int result);

/** Says in words why the gate could not be closed. */
const char *backend_why_busy(void);

/* ---- captures of streams into graphs ---- */

/** Whether some stream is being captured: then nothing may wait for work. */
bool capture_active(void);

/** Keeps captures from beginning, for a wait for work that would end them, until capture_permit(). False: one
 * is under way, and nothing is kept. */
bool capture_forbid(void);
void capture_permit(void);

/** Waits until no capture is under way. Returns 0 or -ETIMEDOUT. */
int capture_wait(uint64_t deadline_ns);
void capture_forget(void);

/** Lets the calling thread make calls that a capture of others would forbid. Returns what
 * capture_restore() takes. */
int capture_relax(void);
void capture_restore(int mode);
