// SPDX-License-Identifier: MIT
/*
 * Memory made ready before it is asked for: while somebody wants it for processes that have device memory, the
 * pool gets segments for a copy of all of that, one after the other, in a thread of its own. They are populated,
 * and pinned where the GPUs are kept open. They take at most half of what the machine could give to
 * others, and are given back as that becomes less, or as soon as the kernel says that somebody waits for memory.
 */
#pragma once

#include "broker/driver.h"
#include "broker/gpus.h"

struct preparer;

struct prepare_options {
	struct driver *driver; /* borrowed, as is the next */
	struct pool *pool;
	struct gpus *gpus; /* borrowed; NULL: none is opened */
	bool digests;	   /* their kernels are loaded, too */
	/* Closes GPUs once no copy uses them, if that is within the time. Returns whether none is open. */
	bool (*close)(void *arg, uint32_t timeout_ms);
	bool (*is_idle)(
		void *arg,
		uint64_t *ret_since_ns); /* no copy is under way, since when (clock_now_ns) */
	void *arg;
	int wake_fd; /* eventfd, borrowed: told when nobody wants any more, and when GPUs are left to be closed */
	uint64_t (*room_bytes)(void); /* that the machine could give; NULL: machine_room_bytes() */
	int pressure_fd; /* tells of pressure by POLLPRI (borrowed); 0: the kernel is to */
};

/** Returns 0 or -ENOMEM. */
int preparer_new(struct preparer **ret, const struct prepare_options *o, struct brumate_error *err);
/** Ends its thread: nothing is made ready any more, and no GPU is kept open. */
void preparer_stop(struct preparer *p);
/** What is ready stays in the pool. Accepts NULL. */
void preparer_free(struct preparer *p);

/** What is ready, or will be, for who wants it. */
struct prepared {
	uint64_t
		bytes; /* that the processes have; little is not worth it: then nothing is kept, and it is 0 */
	size_t n_open; /* GPUs that are open for that */
	struct prepared_gpu {
		char uuid[DEV_UUID_TEXT_BYTES];
		uint64_t bytes; /* of its memory that this takes; 0: it cannot be told */
	} open[DEV_GPUS_MAX];
};

/**
 * Wants memory for copies of what @pids have on GPUs, for as long as the other end of @fd (taken) is open, in place of
 * what was wanted for the same ones before. @may_open: GPUs may be open for that, as whoever misses the memory that this
 * takes calls preparer_yield(). The fd is closed here when the caller is to ask again, as there is another answer.
 * The driver is initialised.
 */
int preparer_add(struct preparer *p, int fd, const pid_t *pids, size_t n, bool may_open,
		 struct prepared *ret, struct brumate_error *err);

/** Closes the GPUs that are open ahead of copies, as somebody misses their memory. Returns whether none is open. */
bool preparer_yield(struct preparer *p);

/** How many clients want memory, and when the last of them went. */
size_t preparer_busy(struct preparer *p, uint64_t *ret_last_end_ns);

/** Of memory that others could have, with what is ready (@held_bytes), how much may be ready. Pure. */
uint64_t prepare_budget(uint64_t room_bytes, uint64_t held_bytes);

/** After how many milliseconds to look again, so that nobody could take @room_bytes meanwhile. Pure. */
int prepare_pause_ms(uint64_t room_bytes);
