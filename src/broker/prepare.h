// SPDX-License-Identifier: MIT
/*
 * Memory that is made ready before a copy needs it: while clients want that for processes with device memory, a
 * thread gives the pool segments for a copy of all of it, one after the other. They are populated, and pinned if the
 * GPUs are kept open. They take at most half of the memory that the machine could give to others, and are freed as
 * that becomes less, or as soon as the kernel reports that a task waits for memory.
 */
#pragma once

#include "broker/driver.h"
#include "broker/gpus.h"

struct loop;
struct preparer;

struct prepare_options {
	struct driver *driver; /* borrowed, as is the next */
	struct pool *pool;
	struct gpus *gpus; /* borrowed; NULL: no GPU is opened */
	bool digests;	   /* load the kernels for digests, too */
	/* Closes GPUs once no copy uses them, if that is within the time. Returns whether none is open. */
	bool (*close)(void *arg, uint32_t timeout_ms);
	bool (*is_idle)(
		void *arg,
		uint64_t *
			ret_since_ns); /* whether no copy is under way, and since when (clock_now_ns) */
	void *arg;
	struct loop *
		loop; /* borrowed; its turn ends when no client is left, and when there are GPUs to be closed */
	uint64_t (*room_bytes)(void); /* available memory; NULL: machine_room_bytes() */
	int pressure_fd; /* reports pressure by POLLPRI (borrowed); 0: use the kernel's */
};

/** Returns 0 or -ENOMEM. */
int preparer_new(struct preparer **ret, const struct prepare_options *o, struct brumate_error *err);
/** Ends its thread: no more memory is made ready, and no GPU is kept open. */
void preparer_stop(struct preparer *p);
/** Memory that is ready stays in the pool. Accepts NULL. */
void preparer_free(struct preparer *p);

/** What is ready, or will be, for a client. */
struct prepared {
	uint64_t
		bytes; /* device memory of the processes; 0 if there is too little to be worth it */
	size_t n_open; /* GPUs that are kept open for it */
	struct prepared_gpu {
		char uuid[DEV_UUID_TEXT_BYTES];
		uint64_t bytes; /* of its memory that this takes; 0: unknown */
	} open[DEV_GPUS_MAX];
};

/** What a client says. */
struct prepare_request {
	const pid_t *pids; /* borrowed */
	size_t n;
	bool may_open;
	uint64_t kept_bytes; /* of a host copy that the client holds: then it wants no more */
	bool spare;	     /* which it releases when its connection is closed */
};

/**
 * Registers a client: memory is wanted for copies of the device memory of its processes as long as the other end of @fd
 * (taken) is open. Replaces an earlier request for the same processes. may_open: GPUs may be kept open for it, as
 * programs that run short of the memory that this takes call preparer_yield(). Our end of @fd is closed when the
 * client should ask again because the answer has changed. The driver is initialised.
 */
int preparer_add(struct preparer *p, int fd, const struct prepare_request *request,
		 struct prepared *ret, struct brumate_error *err);

/** Bytes of host copies that clients would release. */
uint64_t preparer_spare_bytes(struct preparer *p);
/** Has all of them released, which takes a moment. Returns how much that is. */
uint64_t preparer_recall_spare(struct preparer *p);

/** Closes the GPUs that are kept open, as a program is short of their memory. Returns whether none is open. */
bool preparer_yield(struct preparer *p);

/** How many clients there are, and when the last one left. */
size_t preparer_busy(struct preparer *p, uint64_t *ret_last_end_ns);

/** How much memory may be ready, given what others could have and what is ready already (@held_bytes). Pure. */
uint64_t prepare_budget(uint64_t room_bytes, uint64_t held_bytes);

/** After how many milliseconds to check again, so that @room_bytes cannot be used up in between. Pure. */
int prepare_pause_ms(uint64_t room_bytes);
