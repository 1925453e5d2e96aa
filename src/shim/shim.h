// SPDX-License-Identifier: MIT
/*
 * The shim of one job: it starts the job, takes in what is left if the reaper dies, owns the record, runs the plans.
 * Its main thread watches the job, and each connection has a thread of its own. One operation runs at a time, and
 * meanwhile it alone uses the record.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/loop.h"
#include "engine/engine.h"
#include "datapath/vault.h"
#include "job/job.h"
#include "wire/wire.h"

enum { SHIM_EXITS = 64 };

/* How children ended, the last ones. */
struct shim_exits {
	struct shim_exit {
		pid_t pid;
		int code; /* 0..255 or JOB_EXIT_UNKNOWN */
	} ring[SHIM_EXITS];
	size_t n;	    /* that ever ended */
	bool command_ended; /* what it left behind goes on as the job */
	int command_code;   /* then: how it ended */
};

/* What the main thread knows of the record, which is of the last look without an operation under way. */
struct shim_view {
	enum shim_use {
		SHIM_FREE,
		SHIM_BUSY, /* an operation has the record */
		SHIM_LEFT, /* there is none any more */
	} use;
	struct proc_members members;
	enum job_state state;
	enum job_data_path data_path;
	struct gpu_kind gpu_kind;
	bool unsaved;		    /* the record is not on disk */
	bool wakes;		    /* a job of `run --wake` */
	bool listens;		    /* checkpointed, with ports that are held or to be */
	bool mends;		    /* something has to be tried again */
	uint64_t every_ms, next_ms; /* of its schedule */
	uint64_t spare_bytes; /* of a host copy that the running job keeps, and could be without */
	uint64_t kept_bytes;  /* of a host copy that it keeps */
	int keeper_fd;	      /* readable when the keeper has gone; -1: none, or an operation's */
};

/* What a predecessor left of the job's memory. */
struct shim_held {
	bool unknown;		  /* it has yet to be read */
	struct brumate_error why; /* then: why that has failed so far */
};

struct shim {
	pthread_mutex_t lock;  /* of shim.c alone */
	struct job job;	       /* under the lock; while busy, the operation's */
	struct vault vault;    /* used as the record is */
	struct shim_held held; /* under the lock */
	const char *busy;      /* kind of the operation under way; NULL: none */
	atomic_bool ending;    /* it will end soon: it is done, or its caller has gone */
	json_t *unsaved; /* under the lock, while that is tried again: a record that is not on disk yet, as a Job; owned */
	json_t *progress; /* under the lock: its Progress, as last reported; owned, NULL: not reported yet */
	pthread_cond_t freed;	 /* busy has become NULL; waits by CLOCK_MONOTONIC */
	struct shim_exits exits; /* under the lock */
	struct loop *loop;	 /* of the main thread; borrowed */
	bool left;	 /* under the lock: the record is gone, and this shim only has to end */
	int life_fds[2]; /* a pipe for Wait, which is closed when the job is over; -1: it is */
	int lock_fd;	 /* locked with flock() as long as this shim lives */
	struct listeners listeners; /* ports that are held, listen.c. Used as the record is */
	int need_fd; /* where allocations that find no room connect, need.c; -1: nowhere. Used as the record is */
	bool returns_spare; /* a host copy that the job could be without is released on demand, prepare.c */
	atomic_bool stopping; /* what the shim itself has begun is to be given up */
	struct shim_view view;
	struct shim_hooks { /* of failures, which nobody waits for: hooks.c */
		pthread_mutex_t lock;
		pthread_cond_t ended;
		unsigned n; /* that are running */
	} hooks;
};

/** Updates the main thread's view; and the vault, which is useless once the job is over, and for which a keeper is
 * needed until then. */
void shim_look(struct shim *s);

extern const struct wire_method shim_methods[];
extern const size_t shim_n_methods;

/** Takes the record for an operation that needs one of the states in @states (bits 1 << JOB_*; 0: any). Waits a
 * moment for an operation under way, as callers read its end in the record just before shim_end(), and 10 s for one that is
 * done, or whose caller has gone. -EBUSY. */
int shim_begin(struct shim *s, const char *kind, unsigned states, struct brumate_error *err);
/** Like shim_begin(), but waits up to @wait_ms for the operation under way to end, while that of @progress may go on. */
int shim_begin_within(struct shim *s, const char *kind, unsigned states, uint32_t wait_ms,
		      struct progress *progress, struct brumate_error *err);
/** Like shim_begin(), but waits for the operation under way until it ends, or until the caller hangs up: -ECANCELED. */
int shim_begin_after(struct shim *s, const char *kind, unsigned states,
		     const struct wire_call_context *call, struct brumate_error *err);
/** Like shim_begin(), but never waits, for the main loop. */
int shim_begin_now(struct shim *s, const char *kind, unsigned states, struct brumate_error *err);
/** Begins a recovery if something has to be tried again, and nothing is under way. Whether it has begun. */
bool shim_begin_recovery(struct shim *s);
/** Whether what the shim itself has begun is to be given up. @shim: a struct shim. */
bool shim_is_stopping(void *shim);
/** Notes how far the operation under way is, for status. @shim: a struct shim. */
void shim_note_progress(void *shim, const struct progress_sample *sample);
/** Gives the record back. If the job ended meanwhile, that is recorded now. */
void shim_end(struct shim *s);

/** Makes the main thread look at what is to be done. */
void shim_wake(struct shim *s);

/** Has *@fd (-1: not yet) listen at @name in the directory of the job's agents, which a restore makes again; @type and
 * @backlog as in beside_listen(). 0: it does, or there is no such directory now; -errno, and *@fd is -1. */
int shim_listen_beside_agents(const struct shim *s, int *fd, const char *name, int type,
			      int backlog);

/** The record has been removed by an operation that has begun: no other begins any more, and the shim ends. */
void shim_leave(struct shim *s);

/** Notes how a process ended, and records the end of the job if it was the root. Takes the lock. */
void shim_note_exit(struct shim *s, pid_t pid, int code);

/** Whether shim_note_exit() has been called for @pid, and it is one of the last. */
bool shim_knows_exit(struct shim *s, pid_t pid);

/** Records the end of the job if the root has ended and no operation is under way. Takes the lock. */
void shim_settle(struct shim *s);

/** A descriptor (owned) that hangs up when the job is over; -1: it is. */
int shim_life_fd(struct shim *s);

/** The job's record as it is on disk, or, if it could not be written, as it would be there: a Job (owned). */
int shim_job_json(json_t **ret, struct shim *s, struct brumate_error *err);

/** From now on the job lives, and Wait waits. How processes ended is forgotten: what is restored has their pids again.
 * Takes the lock. */
void shim_life_begins(struct shim *s);

/** Starts the job's command as our child, fills in job->root, and saves the record before the command runs. @env:
 * NULL-terminated. @tool: of driver_job_tool(), with an environment of driver_job_environment(), or NULL. Returns 0, or
 * -errno of exec(3) with EXIT_NO_COMMAND or EXIT_NOT_EXECUTABLE in @err. */
int spawn_job(struct job *job, char *const *env, const char *tool, struct brumate_error *err);

/** The program (owned) that makes the file of a job of the driver; NULL: the driver has no jobs, or the program is not
 * there. @env: of the job's command. */
char *driver_job_tool(const struct job *job, char *const *env);

/** Makes the environment of a job that is to be one of the driver's; @ret and @ret_own as of agent_environment(). */
int driver_job_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
			   struct brumate_error *err);

/** Makes the environment of the job: @env, and what lets its agents be loaded and found. @ret: NULL-terminated; it and
 * the strings from the index @ret_own on are owned, the others borrowed from @env. */
int agent_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
		      struct brumate_error *err);

/** Runs the keeper of the owner whose directory @dir is (NULL: of none). @heir: the program that is started in the place of a shim; NULL: the shim. Returns its exit code. */
int keep_run(const char *dir, const char *heir);

/** Runs @argv as a child of ours (reap_wait()) with the rights of the user of the job @of, not as part of it: @out_fd is its
 * output, @env all of its environment, "/" its directory. What it starts is below it until all have ended. -ENOENT, -EACCES:
 * it is no program. It is not waited for beyond the deadline: 0 then, too. */
int spawn_hook(pid_t *ret, const struct job *of, char **argv, char *const *env, int out_fd,
	       uint64_t deadline_ns, struct brumate_error *err);

/** The exit code that a wait status comes to: 128+N after signal N. */
int spawn_exit_code(int status);

/* ---- what a member asks for, asked.c ---- */

/** Checkpoint with "self": answers the member of the job that calls, and makes the checkpoint when its process has
 * gone. How that went is in the link "asked" of the job's directory: "ID ERRNO TEXT". */
int asked_checkpoint(struct shim *s, struct wire_call_context *call, json_t *parameters,
		     struct brumate_error *err);

/** Tells a member that waits for a checkpoint of a shim that has died. */
void asked_recover(const struct job *job);

/* ---- what is tried again, mend.c ---- */

/** Puts right what a predecessor, or an operation whose undo failed, has left half done, as the operation that has
 * begun. @kind: "recover", or RECOVER_UNDO. What could not be done is tried again by the main loop. */
void mend_job(struct shim *s, const char *kind);

/** Whether the job is to have a keeper: something of it is held, or it is between two states, or has a schedule that
 * would end with this shim. The caller has the lock, or the operation. */
bool mend_wants_keeper(const struct shim *s);
/** Whether something could not be finished. The caller has the lock, and no operation is under way. */
bool mend_is_wanted(const struct shim *s);

/** Tries to get a keeper, which starts the next shim if this one dies during the operation that has begun. */
void mend_secure(struct shim *s);

/** Before the command of a job of `run --wake` runs, whose first allocation may find no room: need.c. */
void need_begin(struct shim *s);

/* ---- programs that are run around operations, hooks.c ---- */

enum hook { HOOK_BEFORE_SUSPEND, HOOK_AFTER_RESUME, HOOK_AFTER_RESTORE, HOOK_FAILURE };

/** Runs what is to come before @operation, which has begun and touched nothing. -EOPNOTSUPP: it is forbidden. */
int hooks_before(struct shim *s, const struct brumate_conf *conf, const char *operation,
		 struct brumate_error *err);

/** Runs what is to come after @op, which is done. One that fails is a note of it. */
void hooks_after(struct shim *s, const struct brumate_conf *conf, struct op *op);

/** Adds the event of a failure, and has its hook run, for which nobody waits. The caller has the operation. */
void hooks_failed(struct shim *s, const char *operation, const char *reason);

/* ---- what the shim does by itself ---- */

/* A part of the main thread, which has its state in a struct of its own, and learns of the record by the view. */
struct shim_part {
	size_t size_bytes; /* of that struct, which begins as zeroes */
	void (*start)(void *part, struct shim *s);
	void (*update)(
		void *part); /* after each turn of the loop, with a new view; NULL: nothing to do */
	bool (*needs_shim)(const void *part); /* whether the shim must not end yet; NULL: it may */
	void (*stop)(void *part);	      /* its tasks have ended; NULL: nothing to do */
};

extern const struct shim_part schedule_part, mend_part, owner_part, marks_part, prepare_part,
	wake_part, listen_part, need_part, hooks_part;

/** The method Hold. */
int listen_hold_method(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err);
/** The method Schedule. */
int schedule_method(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err);

/** Gives @op what it needs of the shim: the vault, how long the driver may take, and the GPU map out of
 * @request. */
void shim_prepare_op(struct shim *s, struct op *op, struct request *request,
		     const struct brumate_conf *conf);

/** Makes @op one that only looks at the job, or ends it: for nobody, with the vault. */
void shim_op_init(struct shim *s, struct op *op, const char *kind);

/* An operation that the shim begins by itself. */
struct shim_own {
	struct request request;
	struct brumate_conf conf;
	struct op op;
};

/** Makes the operation @kind, once it has begun: as @asked (copied, its key handed over), and of the options for @where as the
 * configuration says. The caller calls shim_own_fini() even after a failure. */
int shim_own_init(struct shim_own *ret, struct shim *s, const char *kind,
		  const struct request *asked, unsigned where, struct brumate_error *err);
void shim_own_fini(struct shim_own *own);
DEFINE_AUTO_FINI(struct shim_own, shim_own_fini)

/** Replies with the job's record as it is on disk. */
int shim_reply_job(struct shim *s, struct wire_call_context *call, struct brumate_error *err);
