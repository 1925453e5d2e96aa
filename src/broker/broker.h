// SPDX-License-Identifier: MIT
/* What the files of the broker share. */
#pragma once

#include "gpu/gpu.h"
#include "wire/wire.h"

/* driver.c: the driver, initialised once, in the background */

/** Begins to load and initialise it. @on_failure is called from another thread if that fails. */
int driver_start(const struct dev_libraries *libraries, void (*on_failure)(void),
		 struct brumate_error *err);
/** Waits until it is done. @ret_info may be NULL. Returns its error each time if it failed. */
int driver_wait(const struct dev_backend **ret, struct dev_info *ret_info,
		struct brumate_error *err);
bool driver_has_failed(void);

/* acts.c: calls on processes, each in a thread of its own */

struct act_outcome {
	struct dev_result result;
	double seconds;
	enum dev_state state;
};

enum { ACT_PIDS_MAX = 4096 };

/**
 * Runs @action on each of @pids (distinct) at once; @ret has room for @n. Returns when all have ended
 * or @timeout_ms passed: a driver's call cannot be taken back, so one that is late goes on alone, and
 * its process counts as busy until it ends. Returns 0, or <0 when nothing was called.
 */
int acts_run(const struct dev_backend *backend, enum dev_action action, const pid_t *pids, size_t n,
	     uint32_t timeout_ms, const struct dev_gpu_pair *pairs, size_t n_pairs,
	     struct act_outcome *ret, struct brumate_error *err);
/**
 * Asks the driver about each of @pids, in the same way: about a process that is stopped, or that
 * another call works on, it does not answer. The state of one that is late is unknown.
 */
int acts_look(const struct dev_backend *backend, const pid_t *pids, size_t n, uint32_t timeout_ms,
	      struct dev_process *ret, struct brumate_error *err);
/** Calls under way now, and when the last one ended (clock_now_ns). */
size_t acts_busy(uint64_t *ret_last_end_ns);
/** Waits until no call is under way at all. Returns 0 or -ETIMEDOUT. */
int acts_drain(uint64_t deadline_ns);

/* data.c: sessions that move device memory, beside the acts */

/** Once. @pool_bytes: what may be pinned; 0: the default. @when_changed: called from any thread when a
 * session has ended. */
void data_init(uint64_t pool_bytes, void (*when_changed)(void));
/** Before any session: whether digests are computed where they are asked for. */
void data_use_digests(bool use);
/** Serves a session on @socket_fd (taken) in a thread of its own. */
int data_serve(int socket_fd, struct brumate_error *err);
/** Sessions now, and when the last one ended (clock_now_ns). */
size_t data_busy(uint64_t *ret_last_end_ns);
/** Closes GPUs that no session has needed for a while. Returns the milliseconds until it wants to be
 * called again, -1: not before something changes. */
int data_rest(void);
/** Ends idle sessions, waits for the others. Returns 0 or -ETIMEDOUT. */
int data_drain(uint64_t deadline_ns);

/* methods.c: the interface io.brumate.broker */

/** @on_quit is called from another thread when a caller wants the broker to end. */
struct wire_service methods_service(void (*on_quit)(void));

/* instance.c: one broker a node */

struct instance {
	int lock_fd;
	int listen_fd;
	char *path; /* of the socket */
	dev_t dev;  /* and which file it is: the directory may be made anew while we run */
	ino_t ino;
};

#define INSTANCE_EMPTY ((struct instance){ .lock_fd = -1, .listen_fd = -1 })

/**
 * Becomes the broker of this runtime directory. Returns 0; 1 if another one serves (nothing to do);
 * <0. Waits for one that is just ending.
 */
int instance_claim(struct instance *ret, bool simulated, struct brumate_error *err);
/**
 * Takes the socket out of the way of new clients. Returns 0 when it is gone for good; 1 if a client
 * came in between: then it is where it was, and the client waits to be served.
 */
int instance_retire(struct instance *i);
/** Removes the socket at once, whoever may be on the way in. */
void instance_withdraw(struct instance *i);
void instance_fini(struct instance *i);
DEFINE_AUTO_FINI(struct instance, instance_fini)
