// SPDX-License-Identifier: MIT
/*
 * A broker: it owns all that serving io.brumate.broker needs, and nothing of it is anywhere else but the
 * vendor's library, of which a process has one. It decides no policy.
 */
#pragma once

#include "gpu/gpu.h"
#include "wire/wire.h"

struct broker;

struct broker_options {
	const struct dev_backend *backend; /* borrowed for good; NULL: that of this build */
	struct dev_libraries libraries;	   /* their paths are borrowed until the end */
	uint64_t pool_bytes;		   /* host memory that may be pinned; 0: the default */
	uint64_t memory_bytes;		   /* host memory of all copies; 0: what the machine has */
	const char *spill_dir;		   /* for what does not fit (copied); NULL: the default */
	bool digests;			   /* are computed where they are asked for */
	bool open_gpus; /* GPUs stay open while jobs run on them that yield their memory */
	/* Called, maybe again and at the same time, before a caller is told that the driver failed: nobody is to find this
	 * broker any more. May be NULL. */
	void (*withdraw)(void *arg);
	void *withdraw_arg;
};

/** Begins to load the driver. */
int broker_new(struct broker **ret, const struct broker_options *o, struct brumate_error *err);
/** broker_drain() succeeded, and no server offers it any more. Accepts NULL. */
void broker_free(struct broker *b);

/** What a server is to offer. The broker outlives the server. */
struct wire_service broker_service(struct broker *b);

/** Readable when the owner is to look again (borrowed). */
int broker_wake_fd(const struct broker *b);
/** Takes note of having been told. */
void broker_awake(const struct broker *b);
/** Whether it is to end: a caller wants that, or was told that the driver could not be loaded. */
bool broker_is_unwanted(const struct broker *b);
/** Whether it is of no use, as the driver could not be loaded. */
bool broker_has_failed(struct broker *b);
/** Whether calls or sessions are under way, and when the last one ended (clock_now_ns). */
bool broker_is_busy(struct broker *b, uint64_t *ret_last_end_ns);
/** Lets go of what it has not needed for a while. Returns the milliseconds until it wants to be called again,
 * -1: not before something changes. */
int broker_rest(struct broker *b);
/** Ends idle sessions, waits for the others and for driver calls. Returns 0 or -ETIMEDOUT. */
int broker_drain(struct broker *b, uint64_t timeout_ms);
