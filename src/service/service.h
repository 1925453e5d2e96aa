// SPDX-License-Identifier: MIT
/*
 * The methods of io.brumate, implemented once: the command runs them in its own process with its user's permissions,
 * and brumated serves them to clients that may act as root. Keeps no state: that is in the jobs' directories and the
 * stores.
 */
#pragma once

#include <jansson.h>
#include <poll.h>
#include <sys/types.h>

#include "base/error.h"
#include "store/store.h"
#include "wire/wire.h"

enum { CANCEL_FDS = 2 };

/** Cancels a call: any of these fds (borrowed; -1: none) having its events, or being closed by its peer. */
struct cancel {
	struct pollfd fds[CANCEL_FDS];
};

#define CANCEL_NEVER ((struct cancel){ { { .fd = -1 }, { .fd = -1 } } })

/** One call: the caller, and the handlers of progress and cancellation. */
struct service_call {
	uid_t uid; /* of the caller: what the call starts runs as that user */
	gid_t gid;
	pid_t pid;		/* of the caller; 0: unknown */
	wire_reply_fn on_reply; /* streamed replies; may be NULL */
	void *arg;
	struct cancel cancel;
	const int *fd;	    /* fd of the call, for Export and Import; borrowed; NULL: none */
	const int *sockets; /* that go to the shim with the call; borrowed */
	size_t n_sockets;
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
	X(Swap, service_swap)                            \
	X(Checkpoint, service_checkpoint)                \
	X(Restore, service_restore)                      \
	X(Kill, service_kill)                            \
	X(Wait, service_wait)                            \
	X(Remove, service_remove)                        \
	X(Checkpoints, service_checkpoints)              \
	X(Inspect, service_inspect)                      \
	X(Verify, service_verify)                        \
	X(Rehearse, service_rehearse)                    \
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

/** Does what the records of groups of jobs say whose leader has died, as each call does first. What fails is logged, and tried again by the
 * next one. */
void groups_put_right(const struct service_call *call);

/** From now on this process only looks: nothing is put right, no shim is started. */
void service_only_looks(void);
bool service_may_put_right(void);

/** What the parameter "container" of Suspend and Resume names. */
struct service_found {
	pid_t pid;     /* of its first process */
	char name[64]; /* for its job; "": none that a job could have */
};

/** What an edge does for the methods, and in brumated; each may be NULL. */
struct service_edge {
	/* Errors to act on: -ENOENT, -EINVAL (several), -ESRCH (it does not run), -EACCES, -EBADMSG. */
	int (*find)(struct service_found *ret, const char *word, struct brumate_error *err);
	/* Begins what it does in brumated, in threads of its own. A failure is logged. */
	void (*start)(void);
};

/** Those of the edges that were built, made by meson; ends with NULL. Programs without them know no edge. */
extern const struct service_edge *const service_edges[] __attribute__((weak));

/** Calls a method by its name without the interface ("Suspend"). @ret may be NULL. */
int service_call(const char *method, const struct service_call *call, json_t *parameters,
		 json_t **ret, struct brumate_error *err);

/** Makes the reply of a method with json_pack(), where a NULL value means that memory ran out. 0 or -ENOMEM. */
int service_answer(json_t **ret, struct brumate_error *err, const char *fmt, ...);

/** Progress of the service's own work, as the type Progress of io.brumate. */
struct meter {
	const struct service_call *call;
	const char *phase;
	int step, steps;
	uint64_t start_ns, told_ns;
};

/** A meter of @steps steps, before the first one. @phase: a literal. */
struct meter meter_of(const struct service_call *call, const char *phase, int steps);

/** Begins the next step. */
void meter_step(struct meter *m);

/** A store_progress_fn: informs the caller from time to time; -ECANCELED once the call is cancelled. */
int meter_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** True once the call is cancelled. */
bool call_is_cancelled(const struct service_call *call);

/**
 * Calls another program of ours for @call, whose cancellation ends it. That closes the connection, upon which the other side undoes
 * what it began. A call with "timeout_ms" is given up a second after that at the latest, any other when the other
 * program has been stopped for @still_ms (0: never).
 * Errors to act on: -ECANCELED, -ETIMEDOUT, -EHOSTDOWN (it was stopped by a signal, or is frozen).
 */
int relay_call(struct wire *w, const char *method, json_t *parameters,
	       const struct service_call *call, uint32_t still_ms, json_t **ret,
	       struct brumate_error *err);
