// SPDX-License-Identifier: MIT
/*
 * GPUs that stay open while jobs run on them, so that host memory for their copies is not only there but pinned, and
 * nothing has to be opened, compiled or pinned when a copy begins. An open GPU takes device memory. So it is opened
 * only where plenty is left, and closed as that becomes less, or as soon as somebody misses it; then it is not opened
 * again for a while. Any thread may call.
 */
#pragma once

#include "broker/driver.h"
#include "broker/gpus.h"

struct keeping;

struct keeping_options {
	struct driver *driver; /* borrowed, as is the next */
	struct gpus *gpus;
	/* Closes GPUs once no copy uses them, if that is within the time. Returns whether none is open. */
	bool (*close)(void *arg, uint32_t timeout_ms);
	void *arg;
	int wake_fd;  /* eventfd, borrowed: told when GPUs are left to be closed */
	bool digests; /* their kernels are loaded, too */
};

/** Returns 0 or -ENOMEM. */
int keeping_new(struct keeping **ret, const struct keeping_options *o, struct brumate_error *err);
/** Lets go of all. Accepts NULL. */
void keeping_free(struct keeping *k);

/** Whether all of these are open and kept. */
bool keeping_has(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n);
/** Whether keeping_open() would open some of them: not all are, each has plenty of memory, and nobody missed any
 * lately. */
bool keeping_would_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n);
/** Opens these, as far as keeping_would_open(). Returns whether all are kept. It may take a second. */
bool keeping_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n);
/** Pins a segment of the pool that is ready. Returns whether there may be another. */
bool keeping_pin(struct keeping *k);
/** Whether a GPU that is kept has little memory left. */
bool keeping_is_short(struct keeping *k);
/** Nobody wants them any more: they are closed when no copy has needed them for a while. */
void keeping_let_go(struct keeping *k);
/** Somebody misses the memory: they are closed as soon as no copy uses them, for which it waits so long, and not opened
 * for a while. Returns whether none is open. */
bool keeping_yield(struct keeping *k, uint32_t timeout_ms);
