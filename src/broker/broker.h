// SPDX-License-Identifier: MIT
/*
 * A broker: owns everything that serving io.brumate.broker needs. The only state outside it is that of the vendor's
 * library, which exists once in a process. It decides no policy.
 */
#pragma once

#include "gpu/vendor.h"
#include "wire/wire.h"

struct broker;
struct loop;

struct broker_options {
	const struct gpu_vendor *vendor; /* borrowed, never returned; NULL: the default */
	struct dev_libraries libraries;	 /* their paths are borrowed until broker_free() */
	uint64_t pool_bytes;		 /* host memory that may be pinned; 0: the default */
	uint64_t memory_bytes; /* limit of host memory for all copies; 0: the machine's memory */
	const char *
		spill_dir; /* directory for what does not fit into memory (copied); NULL: the default */
	bool digests;	   /* compute digests when a client asks for them */
	bool open_gpus; /* keep GPUs open while jobs run on them that make room on request */
	/* Called before a client gets the error that the driver failed, perhaps several times and in several threads:
	 * new clients must not find this broker any more. May be NULL. */
	void (*withdraw)(void *arg);
	void *withdraw_arg;
	struct loop *loop; /* whose turn ends when the owner should check the broker; borrowed */
};

/** Starts to load the driver. */
int broker_new(struct broker **ret, const struct broker_options *o, struct brumate_error *err);
/** After broker_drain() succeeded, and no server offers it any more. Accepts NULL. */
void broker_free(struct broker *b);

/** The service for a server. The broker outlives the server. */
struct wire_service broker_service(struct broker *b);

/** Whether it should end: a caller asked for that, or got the error that the driver could not be loaded. */
bool broker_is_unwanted(const struct broker *b);
/** Whether it cannot work because the driver could not be loaded. */
bool broker_has_failed(struct broker *b);
/** Whether calls or sessions are under way, and when the last one ended (clock_now_ns). */
bool broker_is_busy(struct broker *b, uint64_t *ret_last_end_ns);
/** Releases what has not been needed for a while. Returns the milliseconds until the next call is due; -1: not before
 * something changes. */
int broker_rest(struct broker *b);
/** Ends idle sessions, waits for the others and for driver calls. Returns 0 or -ETIMEDOUT. */
int broker_drain(struct broker *b, uint64_t timeout_ms);
