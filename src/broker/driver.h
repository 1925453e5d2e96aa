// SPDX-License-Identifier: MIT
/*
 * The vendor driver of a broker: loaded and initialised once, in a thread of its own while the first client connects;
 * and driver calls on processes, each in a thread of its own.
 *
 * At most one call is under way for a process: the driver is never asked to do two things to it at once. A process
 * can load one driver, so all brokers in it share the library, and nothing else.
 */
#pragma once

#include "gpu/vendor.h"
#include "wire/broker-answers.h"

struct loop;
struct driver;

/** Starts to load and initialise the driver. @vendor, whose driver it is, is borrowed and never returned, the paths of @libraries are
 * borrowed until driver_free(). @loop (borrowed) ends its turn if that fails. */
int driver_new(struct driver **ret, const struct gpu_vendor *vendor,
	       const struct dev_libraries *libraries, struct loop *loop, struct brumate_error *err);
/** No call may be under way. Waits until the driver is initialised. Accepts NULL. */
void driver_free(struct driver *d);
/** Waits until the driver is initialised. @ret_info may be NULL. Returns its error each time if it failed. */
int driver_wait(struct driver *d, const struct dev_backend **ret, struct dev_info *ret_info,
		struct brumate_error *err);
bool driver_has_failed(struct driver *d);
const struct gpu_vendor *driver_vendor(const struct driver *d);

enum { DRIVER_PIDS_MAX = 4096 };

/** A call on processes. */
struct driver_call {
	enum dev_action action;
	uint32_t timeout_ms;
	struct dev_gpu_pair pairs[DEV_GPUS_MAX]; /* of all visible GPUs, for DEV_RESTORE */
	size_t n_pairs;
};

/**
 * Makes the call on each of @pids (distinct) at the same time; @ret has room for @n. Returns when all have ended or
 * the timeout has passed: a driver call cannot be cancelled, so a late one continues by itself, and its process
 * counts as busy until it ends. The driver is initialised. Returns 0, or <0 if no call was made.
 */
int driver_run(struct driver *d, const struct driver_call *call, const pid_t *pids, size_t n,
	       struct broker_outcome *ret, struct brumate_error *err);
/**
 * Queries the state of each of @pids, in the same way. The driver does not answer for a process that is stopped or
 * has another call under way: its state is then unknown.
 */
int driver_look(struct driver *d, const pid_t *pids, size_t n, uint32_t timeout_ms,
		struct dev_process *ret, struct brumate_error *err);
/** How many calls of @action have ended so far, counted per process. */
uint64_t driver_done(struct driver *d, enum dev_action action);
/** Calls under way now, and when the last one ended (clock_now_ns). */
size_t driver_busy(struct driver *d, uint64_t *ret_last_end_ns);
/** Waits until no call is under way at all. Returns 0 or -ETIMEDOUT. */
int driver_drain(struct driver *d, uint64_t deadline_ns);
