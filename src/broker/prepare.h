// SPDX-License-Identifier: MIT
/*
 * Memory made ready before it is asked for: while somebody wants it for processes that have device memory, the
 * pool gets segments for a copy of all of that, one after the other, in a thread of its own. They are populated
 * and not pinned, as no GPU is open meanwhile. They take at most half of what the machine could give to others, and
 * are given back as that becomes less, or as soon as the kernel says that somebody waits for memory.
 */
#pragma once

#include "broker/driver.h"
#include "broker/pool.h"

struct preparer;

struct prepare_options {
	struct driver *driver; /* borrowed, as are the next two */
	struct pool *pool;
	bool (*is_idle)(
		void *arg,
		uint64_t *ret_since_ns); /* no copy is under way, since when (clock_now_ns) */
	void *arg;
	int wake_fd;		      /* eventfd, borrowed: told when nobody wants any more */
	uint64_t (*room_bytes)(void); /* that the machine could give; NULL: machine_room_bytes() */
	int pressure_fd; /* tells of pressure by POLLPRI (borrowed); 0: the kernel is to */
};

/** Returns 0 or -ENOMEM. */
int preparer_new(struct preparer **ret, const struct prepare_options *o, struct brumate_error *err);
/** What is ready stays in the pool. Accepts NULL. */
void preparer_free(struct preparer *p);

/**
 * Wants memory for copies of what @pids have on GPUs, for as long as the other end of @fd (taken) is open. *ret_bytes
 * is how much they have now; little is not worth it: then nothing is kept, and it is 0. The driver is initialised.
 */
int preparer_add(struct preparer *p, int fd, const pid_t *pids, size_t n, uint64_t *ret_bytes,
		 struct brumate_error *err);

/** How many want some, and when the last of them went. */
size_t preparer_busy(struct preparer *p, uint64_t *ret_last_end_ns);

/** Of memory that others could have, with what is ready (@held_bytes), how much may be ready. Pure. */
uint64_t prepare_budget(uint64_t room_bytes, uint64_t held_bytes);

/** After how many milliseconds to look again, so that nobody could take @room_bytes meanwhile. Pure. */
int prepare_pause_ms(uint64_t room_bytes);
