// SPDX-License-Identifier: MIT
/*
 * The shim of one job: parent and subreaper of its processes, owner of its record, runner of its
 * plans. Its main thread watches the job; each connection has a thread of its own; one operation runs
 * at a time and alone uses the record while it does.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/engine.h"
#include "datapath/vault.h"
#include "job/job.h"
#include "wire/wire.h"

enum { SHIM_EXITS = 64 };

struct shim {
	pthread_mutex_t lock;
	struct job job;	      /* under lock, or the operation's while busy */
	struct vault vault;   /* memory outside the job's processes; used as the record is */
	const char *busy;     /* kind of the operation under way; NULL: none */
	pthread_cond_t freed; /* busy has become NULL; waits by CLOCK_MONOTONIC */
	struct shim_exit {
		pid_t pid;
		int code;    /* 0..255 or JOB_EXIT_UNKNOWN */
	} exits[SHIM_EXITS]; /* the latest ends of children, the root's maybe among them */
	size_t n_exits;	     /* ever seen; the ring holds the last SHIM_EXITS */
	int wake_fd;	     /* eventfd: the main thread shall look anew */
	int life_fds[2]; /* pipe whose write end closes when the job is over, for Wait; -1: over */
	int lock_fd;	 /* flock'ed for as long as this shim lives */
	struct shim_timer {
		int fd;		  /* timerfd: a checkpoint of the schedule is due; -1: cannot be */
		bool changed;	  /* under lock: the schedule is another one than the timer's */
		bool started;	  /* there is a thread to be joined */
		pthread_t thread; /* makes the checkpoint */
		atomic_bool working; /* that thread still does */
		atomic_bool stop;    /* it shall give up */
	} timer;
};

extern const struct wire_method shim_methods[];
extern const size_t shim_n_methods;

/** Takes the record for an operation that needs one of the states in @states (bits 1 << JOB_*; 0:
 * any). Waits a moment for the one under way, whose end others read in the record just before shim_end(). -EBUSY. */
int shim_begin(struct shim *s, const char *kind, unsigned states, struct brumate_error *err);
/** Gives it back, and records an end of the job that happened meanwhile. */
void shim_end(struct shim *s);

/** Notes that a process ended; settles where it was the root. Takes the lock. */
void shim_note_exit(struct shim *s, pid_t pid, int code);

/** Records the end of the root, unless an operation is under way that will. Call with lock held. */
void shim_settle(struct shim *s);

/** The job lives (again): Wait has something to wait for. Takes the lock. */
void shim_life_begins(struct shim *s);

/** Makes the main thread look at the job anew. */
void shim_wake(struct shim *s);

/** Starts the job's command as our child; fills job.root. @env: NULL-terminated. Errors: the exec's
 * errno with EXIT_NO_COMMAND or EXIT_NOT_EXECUTABLE. */
int spawn_job(struct job *job, char *const *env, struct brumate_error *err);

/** The job's environment with what lets its agents be loaded and found. @ret: NULL-terminated; it and
 * the strings from the index @ret_own on are owned, the others borrowed from @env. */
int agent_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
		      struct brumate_error *err);

/** The keeper's whole life; its exit code. */
int keep_run(void);

/** Raises RLIMIT_NOFILE to its hard limit. */
void shim_raise_files(void);
/** For a child of ours: back to what it was. Async-signal-safe. */
void shim_restore_files(void);

/** Exit code of a wait status. */
int spawn_exit_code(int status);

/* ---- checkpoints by schedule, schedule.c ---- */

/** Milliseconds from @now_ms until a checkpoint is due; 0: never. A first time in the past (no shim lived then) is
 * now; one beyond a period (the clock was set back) is a period away. Pure. */
uint64_t schedule_left_ms(const struct job_schedule *schedule, uint64_t now_ms);

/** Makes the timer and sets it as the job's record says. */
void schedule_init(struct shim *s);

/** For the main loop: after it was woken, and when the timer is readable. */
void schedule_update(struct shim *s);
void schedule_due(struct shim *s);

/** Gives up what is under way and waits for its end. */
void schedule_fini(struct shim *s);

/** Method Schedule. */
int schedule_method(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err);

/** Gives @op what it needs of the shim: the vault, how long the driver may take, and the GPU map out of
 * @request. */
void shim_prepare_op(struct shim *s, struct op *op, struct request *request,
		     const struct brumate_conf *conf);

/** Answers with the job's record as it is on disk. */
int shim_reply_job(struct shim *s, struct wire_call_context *call);
