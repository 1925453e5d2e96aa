// SPDX-License-Identifier: MIT
/*
 * The methods of io.brumate, once: the command runs them in its own process with its user's rights, and brumated
 * serves them to those who may be root.
 * Holds no state: the truth is in the jobs' directories and the stores.
 */
#pragma once

#include <jansson.h>
#include <poll.h>
#include <sys/types.h>

#include "base/error.h"
#include "store/store.h"
#include "wire/wire.h"

enum { CANCEL_FDS = 2 };

/** What cancels a call: any of these fds (borrowed; -1: none) showing its events, or a hang-up. */
struct cancel {
	struct pollfd fds[CANCEL_FDS];
};

#define CANCEL_NEVER ((struct cancel){ { { .fd = -1 }, { .fd = -1 } } })

/** One call: for whom, and what is done with progress and cancellation. */
struct service_call {
	uid_t uid; /* of the caller: what it starts runs as that user */
	gid_t gid;
	pid_t pid;		/* of the caller; 0: not known */
	wire_reply_fn on_reply; /* streamed replies; may be NULL */
	void *arg;
	struct cancel cancel;
	const int *fd; /* that came with the call, for Export and Import; borrowed; NULL: none */
};

/** @parameters borrowed; @ret owned, written only on success. */
typedef int (*service_method_fn)(const struct service_call *call, json_t *parameters, json_t **ret,
				 struct brumate_error *err);

/** Every method: its name on the wire and its function. */
#define SERVICE_METHODS(X)                               \
	X(Run, service_run)                              \
	X(List, service_list)                            \
	X(Status, service_status)                        \
	X(Manage, service_manage)                        \
	X(Release, service_release)                      \
	X(Suspend, service_suspend)                      \
	X(Resume, service_resume)                        \
	X(Checkpoint, service_checkpoint)                \
	X(Restore, service_restore)                      \
	X(Kill, service_kill)                            \
	X(Wait, service_wait)                            \
	X(Remove, service_remove)                        \
	X(Checkpoints, service_checkpoints)              \
	X(Inspect, service_inspect)                      \
	X(Verify, service_verify)                        \
	X(Diff, service_diff)                            \
	X(Pin, service_pin)                              \
	X(Unpin, service_unpin)                          \
	X(Prune, service_prune)                          \
	X(Sweep, service_sweep)                          \
	X(Export, service_export)                        \
	X(Import, service_import)                        \
	X(Push, service_push)                            \
	X(Pull, service_pull)                            \
	X(RemoteCheckpoints, service_remote_checkpoints) \
	X(RemoteRemove, service_remote_remove)           \
	X(Schedule, service_schedule)                    \
	X(Doctor, service_doctor)

#define X(name, fn)                                                               \
	int fn(const struct service_call *call, json_t *parameters, json_t **ret, \
	       struct brumate_error *err);
SERVICE_METHODS(X)
#undef X

/** Calls a method by its name without the interface ("Suspend"). @ret may be NULL. */
int service_call(const char *method, const struct service_call *call, json_t *parameters,
		 json_t **ret, struct brumate_error *err);

/** Makes the reply of a method as json_pack() does, which has no memory for what is NULL. 0 or -ENOMEM. */
int service_answer(json_t **ret, struct brumate_error *err, const char *fmt, ...);

/** Progress of what the service does itself, as the type Progress of io.brumate. */
struct meter {
	const struct service_call *call;
	const char *phase;
	int step, steps;
	uint64_t start_ns, told_ns;
};

/** A meter of @steps steps, before the first. @phase: a literal. */
struct meter meter_of(const struct service_call *call, const char *phase, int steps);

/** The next step begins. */
void meter_step(struct meter *m);

/** A store_progress_fn: tells the caller now and then; -ECANCELED once the call is cancelled. */
int meter_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** True once the call is cancelled. */
bool call_is_cancelled(const struct service_call *call);

/**
 * Calls another of our programs, given up as @cancel says. Giving up hangs up: the other side takes back what it began. A
 * call with "timeout_ms" is given up a second after that at the latest, any other when the other side has stood still for
 * @still_ms (0: never).
 * Errors to act on: -ECANCELED, -ETIMEDOUT, -EHOSTDOWN (it was stopped by a signal, or is frozen).
 */
int relay_call(struct wire *w, const char *method, json_t *parameters, wire_reply_fn on_reply,
	       void *arg, const struct cancel *cancel, uint32_t still_ms, json_t **ret,
	       struct brumate_error *err);
