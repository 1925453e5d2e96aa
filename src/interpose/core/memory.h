// SPDX-License-Identifier: MIT
/*
 * Memory in pieces, and the tables of it: what physical memory there is (pieces), where it is mapped
 * (mappings), which addresses are ours (regions), and what the program got (blocks). One mutex guards them.
 * The driver is never called with it held. While the gate is closed nobody but the agent is in here.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "interpose/core/backend.h"
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
	bool rdma;	    /* memory is made ready for network cards to register it */
	size_t granule_bytes;
	uint64_t total_bytes;
	uint64_t piece_max_bytes; /* of memory that we make ourselves */
	uint64_t kept_bytes;	  /* of freed memory that is kept for the next allocation */
	uint64_t held_bytes; /* next to the program's own, and free soon: the snapshot (room.h) */
	uint8_t uuid[AGENT_UUID_BYTES];
};

/** Whose memory a piece is that another process made. */
struct origin {
	uint64_t token,
		piece; /* its agent_token(), and the id there; token 0: nobody can be asked for it */
	int32_t pid;   /* 0: this process itself; -1: it is not known */
	uint32_t job;  /* the result of neighbour_here() */
};

/** One physical allocation. Lives while mapped or while the program has a handle of it. */
struct piece {
	struct node node;	 /* start: its id */
	uint64_t bytes;		 /* as far as known, where another process made it */
	uint64_t handle;	 /* the driver's; 0 while it is taken away */
	struct memory_kind kind; /* as the program asked for it */
	struct mapping *mappings;
	unsigned int refs; /* handles the program has */
	unsigned int pins; /* calls under way that use the driver's handle */
	struct origin origin;
	int fd;		   /* descriptor + 1 of imported memory that others may ask for; else 0 */
	bool given;	   /* others of the job may have it */
	unsigned int lent; /* processes outside the job that have it open */
	int32_t borrower;  /* one of them */
	bool away;	   /* taken by UNMAP; MAP brings it back */
	bool imported;	   /* by MAP: the driver does not export it again */
	const char
		*shared; /* how it got to other processes that nobody can ask; NULL: it did not */
};

/** A piece at an address. */
struct mapping {
	struct node node;
	struct piece *piece;
	struct mapping *next; /* of the piece */
	uint64_t offset;
	uint8_t access[DEVICES_MAX]; /* the flags of struct access by device */
	bool mapped;
};

/** A context that has, or could have, memory or work. */
struct context {
	struct context *next;
	void *handle; /* the driver's */
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
	struct spare *next;  /* released before it */
	struct piece *piece; /* what was mapped there, pinned; NULL: that is gone */
};

/** What the program got by an allocation. */
struct block {
	struct node node;      /* bytes: as asked for */
	struct region *region; /* NULL: another process's, opened here; or on_host */
	bool on_host;	       /* managed memory that is the process's own (backend's) */
	void *context;	       /* the handle of it */
	int device;
	uint64_t id;
	unsigned int sync_memops;
	struct block *next; /* on the list of those to be freed later */
};

/** Another GPU's contexts that may reach the memory of a context. */
struct peer_access {
	struct peer_access *next;
	void *from, *to; /* handles */
	int from_device;
};

struct question;

struct memory {
	pthread_mutex_t lock;
	struct tree pieces, mappings, regions, blocks, opened, managed, spares, events;
	struct spare *newest_spare;
	struct block *managed_later; /* freed while a stream was being captured */
	struct context *contexts;
	struct peer_access *peers;
	struct question *questions; /* to other processes, under way (lend.c) */
	struct device devices[DEVICES_MAX];
	uint64_t last_id, piece_bytes, spare_bytes;
	unsigned int n_spares;
	_Atomic uint64_t driver_bytes;
	_Atomic(const char *) shared_by_driver; /* the first of what is; NULL: nothing */
	atomic_bool peers_by_driver;
	atomic_uint n_events; /* in their tree */
	atomic_uint
		n_renamed; /* of them: the driver has another name for them than the program, or none */
	atomic_uint
		withheld; /* AGENT_WITHHELD_...: the program asked, and got the answer that there is none */
	unsigned int away;	     /* pieces that are taken away */
	int first_device;	     /* + 1; of the first region */
	atomic_bool several_devices; /* have, or had, regions */
	/* The handle of the context where there is but one, else NULL; and how many have gone, as handles come again. */
	_Atomic(void *) only_context;
	atomic_uint contexts_gone;
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

/** Whether this process makes its memory so that it can be taken away: it has an agent. */
bool memory_managed(void);

/* ---- allocations (memory.c): each may be called without the lock ---- */

/** In the child of a fork: the tables are the parent's memory, which the child cannot use. */
void memory_forget(void);

/** Allocates in @context. -ENOMEM: there is no room. -EOPNOTSUPP, and numbers of the driver: memory of the
 * device cannot be made in pieces. */
int block_alloc(struct context *context, uint64_t *ret, size_t bytes);

/** Waits for the work in @context, that of the block which starts at @va, and frees it. -EINVAL: nothing
 * starts there any more. */
int block_free(uint64_t va, void *context);

/** Whether a block starts at @va: then @ret_context is its context. @ret_ours: @va lies in memory of ours. */
bool block_starts(uint64_t va, void **ret_context, bool *ret_ours);

/** Forgets what waits to be freed in a context that is gone. */
void blocks_drop_deferred(void *context);

/** Counts what the driver allocated by itself, or is about to free. */
void memory_count_driver(uint64_t bytes, bool added);

/** Notes that something of this process is shared with another one in a way that the driver alone knows;
 * @how, which is static, says what. */
void memory_note_shared(const char *how);
/** The same of peer access between contexts of this process. */
void memory_note_peers(void);
/** Notes that the program asked for a feature of the driver, and got the answer that there is none; @what:
 * AGENT_WITHHELD_... */
void memory_note_withheld(unsigned int what);

/** What is free of our own memory on @device, in addition to what the driver says. */
uint64_t memory_free_bytes(int device);

/* ---- devices and contexts (context.c) ---- */

/** What a device can do; NULL: no such device. Asks the driver the first time. */
const struct device *device_get(int ordinal);
void devices_refresh(void); /* another GPU may be behind an ordinal after a restore */

/** The record of a context; NULL: none. */
struct context *context_find(void *handle);
/** Adds a context, unless there is a record of it: returns that. NULL: no memory for it. */
struct context *context_add(void *handle, int device, bool green);
/** It is gone, and so is its memory. */
void context_drop(void *handle);

/** Makes a context of @device current for the calling thread, until context_leave(). */
int context_enter(int device, void **ret_retained);
/** The same if there is one; says so, for context_leave(device, NULL). */
bool context_enter_known(int device);
void context_leave(int device, void *retained);

/* ---- piece.c: each may be called without the lock ---- */

/** Makes a piece in the tables, with no handle of the program; pinned. */
int piece_new(struct piece **ret, size_t bytes, const struct memory_kind *kind);
/** The same of memory that another process exported: @origin, or NULL where that is not known. @fd stays the
 * caller's. */
int piece_import(struct piece **ret, int fd, size_t bytes, const struct origin *origin);
int piece_map(struct piece *piece, uint64_t va, size_t bytes, size_t offset);
/** Unmaps all of [va, va + bytes) at the driver, and frees what nothing holds any more. */
int range_unmap(uint64_t va, size_t bytes);
int range_access(uint64_t va, size_t bytes, const struct access *access, size_t n);
/** The tables' half of range_access(), after the driver's. */
void range_note_access(uint64_t va, size_t bytes, const struct access *access, size_t n);
/** Drops a reference or pin taken with the lock held, and the piece with the last. */
void piece_unref(struct piece *piece);
void piece_unpin(struct piece *piece);
struct piece *piece_at(uint64_t va); /* with the lock */

/* ---- piece.c: with the gate closed ---- */

void pieces_abandon(void);	     /* the driver has shut down: none is away any more */
int piece_take(struct piece *piece); /* unmaps and releases it */
/** Gets it again; it is mapped by pieces_own() or pieces_settle(). */
int piece_bring(struct piece *piece, int fd);
/** Maps all pieces that were brought, where they were. */
int pieces_settle(void);
/** A descriptor of it. -EOPNOTSUPP: it is imported, and nobody knew that it would be given to others. */
int piece_export(struct piece *piece, int *ret_fd);
/** A descriptor of a copy of it, which is made for that. -ENOMEM: no room. */
int piece_copy(struct piece *piece, int *ret_fd);
/** Replaces imported memory of pieces of one device, as far as it goes; who still is imported after that is
 * for the first error. -ENOMEM: no room. */
int pieces_own(struct piece *const pieces[], size_t n);

/* ---- addresses.c: each may be called without the lock ---- */

/** Addresses for a mapping of ours; fills @ret on success only. */
int addresses_reserve(uint64_t *ret, size_t bytes);
/** Takes back what addresses_reserve() gave. @unmapped: how unmapping went; where something may be left
 * they are not for others. */
void addresses_release(uint64_t va, size_t bytes, int unmapped);
/** The same, with memory that is kept: @ret_piece is as long and of device @ordinal, the caller's to map and to
 * unpin, or NULL. And the piece that is all of [va, va + bytes), pinned, if others may have it once it is
 * unmapped, or NULL: addresses_release_with() takes it. */
int addresses_reserve_with(uint64_t *ret, struct piece **ret_piece, size_t bytes, int ordinal);
struct piece *addresses_keep(uint64_t va, size_t bytes);
void addresses_release_with(uint64_t va, size_t bytes, int unmapped, struct piece *piece);
/** Whether @va is among those that are kept for the next: to the program nobody's. */
bool addresses_are_spare(uint64_t va);
/** Gives the driver back what is kept of [va, va + bytes), or all; true if there was some. */
bool addresses_drop(uint64_t va, size_t bytes);
bool addresses_drop_all(void);
/** Gives the driver back all memory that is kept, but no addresses; true if there was some. */
bool addresses_drop_memory(void);

/* ---- region.c ---- */

int region_new(struct region **ret, struct context *context, size_t bytes, bool slab);
void region_free(struct region *region);
/** Has every region of @to, present and future, reachable as memory.peers says. */
int regions_grant(void *to, int device, unsigned int flags);

/* ---- slabs (region.c): with the lock ---- */

size_t slab_next_bytes(const struct context *context);
void slab_add(struct region *region); /* its room becomes available */
bool slab_take(struct context *context, size_t bytes, uint64_t *ret, struct region **ret_region);
/** Returns true where @region is empty and not to be kept: the caller frees it, marked busy. */
bool slab_give(struct region *region, uint64_t va, size_t bytes);
struct region *slab_spare(struct context *context); /* an empty one, marked busy; NULL */
void slab_forget(struct context *context);	    /* all extents */

/* ---- memory of other processes (lend.c) ---- */

/** Whether @piece is another process's, of this job: its agent gives a descriptor of it any time. */
static inline bool piece_is_alias(const struct piece *piece)
{
	return piece->origin.token;
}

/** What an IPC handle of ours says: which process made it, and what it is of. */
struct ticket {
	uint64_t magic, token, block, id;
	uint64_t region_bytes, offset, bytes; /* the block in its region */
	int32_t pid;
	uint32_t job;
};

/** Makes a ticket of the block that has @va. -ENOENT: it is not in memory of ours. -EINVAL: it is another
 * process's. */
int ticket_make(struct ticket *ret, uint64_t va);
bool ticket_is_ours(const struct ticket *ticket);

/** Maps the memory of a ticket, which may be waited for. -EINVAL: it is not to be had. -ELOOP: it is this
 * process's own. -EAGAIN: it is still away. */
int lent_open(uint64_t *ret, const struct ticket *ticket, const struct context *context);
/** Undoes one lent_open(). -ENOENT: there was none at @va. */
int lent_close(uint64_t va);
/** Closes all that was opened in a context that is gone. */
void lent_drop(void *context);

/** A file that stands for @piece, as a descriptor of its memory would, and is good as long as the piece lives;
 * or -errno. */
int lent_file(int *ret_fd, struct piece *piece);
/** The piece that the file @fd stands for, pinned. -ENODATA: it is no such file. Else as lent_open(). */
int lent_import(struct piece **ret, int fd);

/** With the gate closed: what other processes have answered and nobody has taken yet may be of memory that is
 * taken away next. It is dropped; they are asked again. */
void lent_void(void);
/** The driver's handle, of this moment, of the event that a ticket is of, which may be waited for. -EINVAL: it is not
 * to be had. -EAGAIN: its process is still suspended. */
int lent_event(uint8_t ret[static AGENT_EVENT_BYTES], const struct ticket *ticket);
/** Tells its maker that this process does not have it open any more. */
void lent_event_back(const struct ticket *ticket);

/* ---- events that processes share (lend.c) ---- */

bool ticket_is_of_event(const struct ticket *ticket);

/** Makes a ticket of the event that is the driver's @handle, of @context; the same each time. -ENOMEM. */
int event_give(struct ticket *ret, void *handle, void *context);
/** Notes that the driver's @handle is the event of @ticket, which another process made. -ENOMEM. */
int event_note_taken(void *handle, void *context, const struct ticket *ticket);
/** The program is about to destroy *@handle, which becomes the driver's (NULL: there is none). False: the driver's event is
 * destroyed later, not by the caller. */
bool event_drop(void **handle);
/** Forgets those of a context that is gone. */
void events_drop(void *context);

/** Whether the program has an event of that name, which the driver calls otherwise by now. */
bool event_is_renamed(void *name);
/** What the driver calls the program's event *@name now. Returns 0; -ENXIO: it is another process's and has to be opened again in
 * @ret_context, by @ret_ticket, for event_bring(). */
int event_resolve(void **name, void **ret_context, struct ticket *ret_ticket);
/** The driver's @handle is the event @name again. False: another thread was first, or the event is gone: the handle is the caller's. */
bool event_bring(void *name, void *handle);
/** The driver keeps @name, where it is another process's, in a graph: it stays open, and is shared. */
void event_fix(void *name);
/** With the gate closed over idle contexts: closes all events of other processes of this job. event_resolve() opens them again. */
void events_take_away(void);

/** The process that made an event that is open here permanently, and one outside the job that has an event of this process open; 0:
 * none. With the lock. */
int32_t event_find_open(int32_t *ret_borrower);
