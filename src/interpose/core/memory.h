// SPDX-License-Identifier: MIT
/*
 * The tables behind the memory wrappers: what physical memory there is (pieces), where it is mapped
 * (mappings), which addresses are ours (regions), and what the program got (blocks). One mutex guards
 * them; the driver is never called with it held. While the gate is closed nobody but the agent is in
 * here.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "interpose/cuda/interpose.h"
#include "interpose/core/tree.h"
#include "wire/agent.h"

enum {
	DEVICES_MAX = 64,
	SLAB_UNIT_BYTES = 512,	    /* alignment of everything in a slab */
	SLAB_FIRST_BYTES = 2 << 20, /* each next slab of a context is twice as large, up to */
	SLAB_EVEN_BYTES = 64 << 20, /* this, and to the next only as a part of all its slabs */
	SLAB_LAST_BYTES = 256 << 20,
	SLAB_PART = 8,
	SLAB_BLOCK_BYTES = 2 << 20, /* smaller allocations come from slabs */
	PIECES_OWN_MAX = 16,	    /* at a time */
};

/** A GPU as this process numbers it. */
struct device {
	bool known, usable; /* usable: has virtual memory management and handles that are fds */
	bool rdma;	    /* memory is made ready for GPUDirect */
	size_t granule_bytes;
	uint64_t total_bytes;
	uint64_t piece_max_bytes; /* of memory that we make ourselves */
	uint64_t kept_bytes;	  /* of freed memory that is kept for the next allocation */
	uint8_t uuid[AGENT_UUID_BYTES];
};

/** One physical allocation. Lives while mapped or while the program has a handle of it. */
struct piece {
	struct node node;		     /* start: its id */
	uint64_t bytes;			     /* as far as known, where another process made it */
	CUmemGenericAllocationHandle handle; /* the driver's; 0 while it is taken away */
	CUmemAllocationProp asked;	     /* as the program did */
	struct mapping *mappings;
	int device;
	unsigned int refs;  /* handles the program has */
	unsigned int pins;  /* calls under way that use the driver's handle */
	unsigned int lent;  /* processes that opened an IPC handle of it */
	bool away;	    /* taken by UNMAP; MAP brings it back */
	bool imported;	    /* by MAP: the driver does not export it again */
	const char *shared; /* how it got to other processes; NULL: it did not */
};

/** A piece at an address. */
struct mapping {
	struct node node;
	struct piece *piece;
	struct mapping *next; /* of the piece */
	uint64_t offset;
	uint8_t access[DEVICES_MAX]; /* CUmemAccess_flags by device */
	bool mapped;
};

/** A context that has, or could have, memory or work. */
struct context {
	struct context *next;
	CUcontext handle;
	int device;
	struct tree by_size, by_address; /* free extents of its slabs */
	uint64_t free_bytes;		 /* in them */
	uint64_t slab_bytes;		 /* of all slabs */
	size_t next_slab_bytes;
	unsigned int empty_slabs;
	bool green;			/* of a part of a GPU */
	size_t stack_bytes, lowered_to; /* the program's limit, 0: in force; and what is instead */
};

/** Reserved addresses that allocations of ours fill. */
struct region {
	struct node node;
	struct context *context;
	bool slab, busy; /* busy: being made or unmade, not for others */
	uint64_t used_bytes;
};

/** Reserved addresses that nothing uses. */
struct spare {
	struct node node;
	struct spare *next;  /* was let go before it */
	struct piece *piece; /* what was mapped there, pinned; NULL: that is gone */
};

/** What cuMemAlloc gave the program. */
struct block {
	struct node node;      /* bytes: as asked for */
	struct region *region; /* NULL: another process's, opened here */
	CUcontext context;
	int device;
	uint64_t id;
	unsigned int sync_memops;
	struct block *next; /* on the list of those to be freed later */
};

/** Another GPU's contexts that may reach the memory of a context. */
struct peer {
	struct peer *next;
	CUcontext from, to;
	int from_device;
};

struct memory {
	pthread_mutex_t lock;
	struct tree pieces, mappings, regions, blocks, opened, spares;
	struct spare *newest_spare;
	struct context *contexts;
	struct peer *peers;
	struct device devices[DEVICES_MAX];
	uint64_t last_id, piece_bytes, spare_bytes;
	unsigned int n_spares;
	_Atomic uint64_t driver_bytes;
	unsigned int away;	     /* pieces that are taken away */
	int first_device;	     /* + 1; of the first region */
	atomic_bool several_devices; /* have, or had, regions */
};
extern struct memory memory;

static inline void memory_lock(void)
{
	pthread_mutex_lock(&memory.lock);
}

static inline void memory_unlock(void)
{
	pthread_mutex_unlock(&memory.lock);
}

/** Whether this process makes its memory so that it can be taken away (it has an agent). */
bool memory_managed(void);

/** What a device can do; NULL: no such device. Asks the driver the first time. */
const struct device *device_get(int ordinal);
void devices_refresh(void); /* another GPU may be behind an ordinal after a restore */

/* ---- context.c ---- */

/** The calling thread's context; NULL and the driver's own answer where it has none that works. */
struct context *context_current(CUresult *ret_error);
struct context *context_find(CUcontext handle);	 /* with the lock */
void context_note(CUcontext handle, bool green); /* the program made or got it */
void context_drop(CUcontext handle);		 /* it is gone: and so is its memory */

/** Makes a context of @device current for the calling thread, until context_leave(). */
CUresult context_enter(int device, CUcontext *ret_retained);
/** The same if there is one; says so, for context_leave(device, NULL). */
bool context_enter_known(int device);
void context_leave(int device, CUcontext retained);

/** Waits for all work in @handle. */
CUresult context_synchronize(CUcontext handle);

/* ---- capture.c ---- */

/** Whether some stream is being captured: then nothing may wait for work. */
bool capture_active(void);

/** Waits for no capture being under way; -ETIMEDOUT. */
int capture_wait(uint64_t deadline_ns);
void capture_forget(void);

/** Lets the calling thread make calls that a capture of others would forbid; returns what to put
 * back. */
CUstreamCaptureMode capture_relax(void);
void capture_restore(CUstreamCaptureMode mode);

/* ---- piece.c: each may be called without the lock ---- */

/** Makes a piece as @asked for by the program in the tables, with no handle of the program. */
CUresult piece_new(struct piece **ret, size_t bytes, const CUmemAllocationProp *asked);
/** Takes over @handle of the driver. */
struct piece *piece_adopt(CUmemGenericAllocationHandle handle, size_t bytes,
			  const CUmemAllocationProp *asked);
CUresult piece_map(struct piece *piece, CUdeviceptr va, size_t bytes, size_t offset);
/** Unmaps all of [va, va + bytes) at the driver, and frees what nothing holds any more. */
CUresult range_unmap(CUdeviceptr va, size_t bytes);
CUresult range_access(CUdeviceptr va, size_t bytes, const CUmemAccessDesc *desc, size_t count);
/** Drops a reference or pin taken with the lock held, and the piece with the last. */
void piece_unref(struct piece *piece);
void piece_unpin(struct piece *piece);
struct piece *piece_at(CUdeviceptr va); /* with the lock */
CUmemAllocationProp piece_prop(const struct device *device, int ordinal);

/* ---- move.c: with the gate closed ---- */

CUresult piece_take(struct piece *piece);	   /* unmaps and releases it */
CUresult piece_bring(struct piece *piece, int fd); /* maps it where it was */
/** Replaces imported memory of pieces of one device, as far as it goes; who still is imported after that is
 * for the first error. 2: no room. */
CUresult pieces_own(struct piece *const pieces[], size_t n);

/* ---- stack.c: with the gate closed ---- */

/** Lowers what each context keeps for the stacks of kernels, as far as the driver does it. */
void stacks_lower(void);
/** Sets it back to what the program had, where that is not so; the first error, after trying all. */
CUresult stacks_set_back(void);

/* ---- addresses.c: each may be called without the lock ---- */

/** Addresses for a mapping of ours; fills @ret on success only. */
CUresult addresses_reserve(CUdeviceptr *ret, size_t bytes);
/** Takes back what addresses_reserve() gave. @unmapped: how unmapping went; where something may be left
 * they are not for others. */
void addresses_release(CUdeviceptr va, size_t bytes, CUresult unmapped);
/** The same, with memory that is kept: @ret_piece is as long and of device @ordinal, the caller's to map and to
 * unpin, or NULL. And the piece that is all of [va, va + bytes), pinned, if others may have it once it is
 * unmapped, or NULL: addresses_release_with() takes it. */
CUresult addresses_reserve_with(CUdeviceptr *ret, struct piece **ret_piece, size_t bytes,
				int ordinal);
struct piece *addresses_keep(CUdeviceptr va, size_t bytes);
void addresses_release_with(CUdeviceptr va, size_t bytes, CUresult unmapped, struct piece *piece);
/** Whether @va is among those that are kept for the next: to the program nobody's. */
bool addresses_are_spare(CUdeviceptr va);
/** Gives the driver back what is kept of [va, va + bytes), or all; true if there was some. */
bool addresses_drop(CUdeviceptr va, size_t bytes);
bool addresses_drop_all(void);
/** Gives the driver back all memory that is kept, but no addresses; true if there was some. */
bool addresses_drop_memory(void);

/* ---- region.c ---- */

CUresult region_new(struct region **ret, struct context *context, size_t bytes, bool slab);
void region_free(struct region *region);
/** Has every region of @to, present and future, reachable as memory.peers says. */
CUresult regions_grant(CUcontext to, int device, CUmemAccess_flags flags);

/* ---- slab.c: with the lock ---- */

size_t slab_next_bytes(const struct context *context);
void slab_add(struct region *region); /* its room becomes available */
bool slab_take(struct context *context, size_t bytes, CUdeviceptr *ret, struct region **ret_region);
/** Returns true where @region is empty and not to be kept: the caller frees it, marked busy. */
bool slab_give(struct region *region, CUdeviceptr va, size_t bytes);
struct region *slab_spare(struct context *context); /* an empty one, marked busy; NULL */
void slab_forget(struct context *context);	    /* all extents */

/* ---- agent.c ---- */

/** What names this process to others of its job. */
uint64_t agent_token(void);

/** What names this job to processes of others; 0: nothing does. */
uint32_t neighbour_here(void);

/** As the client of another process's agent, in the job that calls itself @there: connects (returns the
 * socket, owned, or -errno), and asks. The descriptors in @fds are the caller's. */
int neighbour_connect(uint32_t there, int pid);
int neighbour_ask(int conn, const struct agent_request *request, struct agent_reply *reply,
		  int fds[static AGENT_PIECES_MAX], size_t *ret_n_fds);

/** In a forked child: the parent's agent is not ours. */
void agent_forget(void);
