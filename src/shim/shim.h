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

#include "client/broker.h"
#include "client/room.h"
#include "engine/engine.h"
#include "engine/turn.h"
#include "datapath/vault.h"
#include "job/job.h"
#include "wire/wire.h"

enum { SHIM_EXITS = 64 };

enum shim_task_state {
	TASK_NONE,
	TASK_WORKING,
	TASK_DONE, /* its thread has yet to be joined */
};

/* What the main thread has a thread of its own do, and joins in the end. The thread itself says when it is done. */
struct shim_task {
	_Atomic enum shim_task_state state;
	pthread_t thread;
};

/* What could not be finished is tried again: mend.c. Used by the main thread, but where it says otherwise. */
struct shim_mend {
	int fd;		   /* timerfd, readable when it is time to try */
	uint32_t pause_ms; /* before the next try */
	bool armed;
	struct shim_task task;
};

struct shim {
	pthread_mutex_t lock;
	struct job job;	    /* under the lock; while busy, the operation's */
	struct vault vault; /* used as the record is */
	bool held_unknown;  /* under the lock: what a predecessor left has yet to be read */
	struct brumate_error held_why; /* then: why that has failed so far */
	const char *busy;	       /* kind of the operation under way; NULL: none */
	atomic_bool ending;	       /* it will end soon: it is done, or its caller has gone */
	json_t *unsaved; /* under the lock, while that is tried again: a record that is not on disk yet, as a Job; owned */
	json_t *progress; /* under the lock: its Progress, as last reported; owned, NULL: not reported yet */
	pthread_cond_t freed; /* busy has become NULL; waits by CLOCK_MONOTONIC */
	struct shim_exit {
		pid_t pid;
		int code;    /* 0..255 or JOB_EXIT_UNKNOWN */
	} exits[SHIM_EXITS]; /* of the children that ended last */
	size_t n_exits;	     /* how many ever ended; @exits is a ring */
	bool command_ended;  /* what it left behind goes on as the job */
	int command_code;    /* then: how it ended */
	int wake_fd;	     /* eventfd; wakes the main thread */
	bool left;	     /* the record is gone: this shim only has to end */
	int life_fds[2];     /* a pipe for Wait, which is closed when the job is over; -1: it is */
	int lock_fd;	     /* locked with flock() as long as this shim lives */
	struct shim_mend mend;
	struct shim_timer {
		int fd;	      /* timerfd, readable when a checkpoint is due; -1: there is none */
		bool changed; /* under the lock: the timer is to be set again */
		atomic_bool stop;      /* the checkpoint is to be given up */
		struct shim_task task; /* makes it */
	} timer;
	struct shim_prepare { /* of the main thread, but for what the thread has */
		int fd;	      /* timerfd, readable when it is time to look; -1: it is never */
		bool armed;
		uint32_t pause_ms; /* before the next look */
		struct shim_task task;
		int kept_fd; /* as long as it is open the broker has memory ready; -1: it has none */
		pid_t *pids; /* for these */
		size_t n_pids;
		uint64_t kept_bytes; /* of the job's host copy, as the broker knows them */
		bool unwatched;	 /* the broker does not know of a spare host copy */
		bool little;	 /* they have too little for it */
		bool may_open;	 /* GPUs for that */
		bool listens;	 /* processes that may need the memory which this takes can ask for it */
		bool gives_back; /* GPUs were open, and are to be no more */
		bool asked, answered;
		struct broker_prepared answer;
		struct shim_room { /* what of device memory is taken so, room.c */
			struct room at;
			bool simulated;
			struct shim_task task; /* gives it back */
		} room;
	} prepare;
	struct shim_marks { /* of the main thread alone */
		int fd;	    /* timerfd, readable when the log is to be looked at; -1: it is not */
		char *log, *path;    /* owned; NULL: there is no log */
		uint64_t size;	     /* of the log, at the last mark */
		uint64_t keep_bytes; /* of its end, on disk; 0: all of it */
		size_t n;	     /* marks in the file */
		unsigned every_s;
		bool armed;
	} marks;
	struct shim_wake {	   /* of the main thread, but for what the thread has */
		int listen_fd;	   /* calls that wait say so there; -1: nobody listens */
		int timer_fd;	   /* readable when it is time to try again */
		bool armed, waits; /* a call waits, as far as is known */
		uint64_t since_ns,
			heard_ns;  /* since when, and when that came last; 0: it has not */
		uint32_t pause_ms; /* before the next try */
		bool lacks_room;   /* the last one failed for want of it */
		bool stuck;	   /* for longer than WakeWait= */
		struct room_turn turn;  /* among those that wait for it */
		char call[AGENT_CALL_BYTES];
		pid_t pid;	       /* whose it is, in its own pid namespace */
		atomic_bool stop;      /* the resume is to be given up */
		struct shim_task task; /* resumes the job */
	} wake;
	struct shim_need { /* of the main thread, but for what the thread has */
		int listen_fd; /* allocations that find no room connect there; -1: nobody listens */
		uint64_t since_ns, last_ns; /* when the first of several came, and the last */
		int asking_fd; /* the one that is served; -1: none */
		atomic_bool stop;
		struct shim_task task; /* serves it */
	} need;
	struct shim_owner {
		int fd; /* pidfd of the process that the job ends with; -1: there is none */
		struct shim_task task; /* ends the job */
	} owner;
};

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
/** Notes how far the operation under way is, for who asks. */
void shim_note_progress(struct shim *s, const struct progress_sample *sample);
/** Gives the record back. If the job ended meanwhile, that is recorded now. */
void shim_end(struct shim *s);

/** Makes the main thread look at what is to be done. */
void shim_wake(struct shim *s);

/** Has *@fd (-1: not yet) listen at @name in the directory of the job's agents, which a restore makes again; @type and
 * @backlog as in beside_listen(). 0: it does, or there is no such directory now; -errno, and *@fd is -1. */
int shim_listen_beside_agents(const struct shim *s, int *fd, const char *name, int type,
			      int backlog);

/** Has a thread of its own run @fn, which sets the state of @t to TASK_DONE. The last one has been joined. Returns 0, or
 * -errno: there is no thread. */
int task_start(struct shim_task *t, void *(*fn)(void *shim), struct shim *s);
/** Waits for the end of a thread where there is one. */
void task_join(struct shim_task *t);

/** Has the timerfd @fd run out in @first_ms (0: never), and every @every_ms (0: not again) from then on. Returns 0, or -1
 * and errno. */
int timer_set(int fd, uint64_t first_ms, uint64_t every_ms);

/** The record has been removed by an operation that has begun: no other begins any more, and the shim ends. */
void shim_leave(struct shim *s);

/** Notes how a process ended, and records the end of the job if it was the root. Takes the lock. */
void shim_note_exit(struct shim *s, pid_t pid, int code);

/** Records the end of the job if the root has ended and no operation is under way. The caller has the lock. */
void shim_settle(struct shim *s);

/** Forgets how processes ended: what is restored has their pids again. Takes the lock. */
void shim_forget_exits(struct shim *s);

/** From now on the job lives, and Wait waits. Takes the lock. */
void shim_life_begins(struct shim *s);

/** Starts the job's command as our child, fills in job->root, and saves the record before the command runs. @env:
 * NULL-terminated. @tool: of driver_job_tool(), with an environment of driver_job_environment(), or NULL. Returns 0, or
 * -errno of exec(3) with EXIT_NO_COMMAND or EXIT_NOT_EXECUTABLE in @err. */
int spawn_job(struct job *job, char *const *env, const char *tool, struct brumate_error *err);

/** The program (owned) that makes the file of a job of the driver; NULL: the driver has no jobs, or the program is not
 * there. @env: of the job's command. */
char *driver_job_tool(const struct job *job, char *const *env);

/** Makes the environment of a job that is to be one of the driver's; @ret and @ret_own as of agent_environment(). */
int driver_job_environment(char ***ret, size_t *ret_own, char *const *env,
			   struct brumate_error *err);

/** Makes the environment of the job: @env, and what lets its agents be loaded and found. @ret: NULL-terminated; it and
 * the strings from the index @ret_own on are owned, the others borrowed from @env. */
int agent_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
		      struct brumate_error *err);

/** Runs the keeper of the owner whose directory @dir is (NULL: of none). @heir: the program that is started in the place of a shim; NULL: the shim. Returns its exit code. */
int keep_run(const char *dir, const char *heir);

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

/** Tries to get a keeper, which starts the next shim if this one dies during the operation that has begun. */
void mend_secure(struct shim *s);

void mend_init(struct shim *s);
/** The main loop calls the first after each round, the second when the timer is readable. */
void mend_update(struct shim *s);
void mend_due(struct shim *s);
/** Waits for the end of a try that is under way. */
void mend_fini(struct shim *s);

/* ---- a job that ends with the process that asked for it, owner.c ---- */

/** Begins to watch that process. Where it is gone already, the job is ended. */
void owner_init(struct shim *s);

/** The main loop calls it when the process has gone. */
void owner_gone(struct shim *s);

/** Whether the shim must not end yet. */
bool owner_needs_shim(const struct shim *s);

void owner_fini(struct shim *s);

/* ---- when the log was written to, log-marks.c ---- */

void marks_init(struct shim *s);
/** The main loop calls the first after each round, the second when the timer is readable. */
void marks_update(struct shim *s);
void marks_due(struct shim *s);
void marks_fini(struct shim *s);

/* ---- memory for a copy, ready before it is wanted, prepare.c ---- */

void prepare_init(struct shim *s);
/** The main loop calls the first after each round, the second when the timer is readable, the third when the broker
 * has hung up on prepare_fd(). */
void prepare_update(struct shim *s);
void prepare_due(struct shim *s);
void prepare_hung_up(struct shim *s);
/** -1: there is none now. */
int prepare_fd(const struct shim *s);
void prepare_fini(struct shim *s);

/* ---- device memory that the broker takes for that, room.c ---- */

/** The main loop calls it when a process connects. */
void room_asked(struct shim *s);
/** Whether no thread is at work for a process that connected. */
bool room_settle(struct shim_room *room);
void room_fini(struct shim_room *room);

/* ---- a job of `run --wake` that is asked for while it is suspended, wake.c ---- */

void wake_init(struct shim *s);
/** The main loop calls the first after each round, the second when a packet came, the third when the timer is readable. */
void wake_update(struct shim *s);
void wake_asked(struct shim *s);
void wake_due(struct shim *s);
/** Gives a resume under way up and waits for its end. */
void wake_fini(struct shim *s);

/* ---- allocations of such a job that find no room, need.c ---- */

void need_init(struct shim *s);
/** Before the command of the job runs, whose first allocation may find no room. */
void need_begin(struct shim *s);
/** The main loop calls the first after each round, the second when a process connects. */
void need_update(struct shim *s);
void need_asked(struct shim *s);
void need_fini(struct shim *s);

/* ---- checkpoints by schedule, schedule.c ---- */

/** Makes the timer and sets it as the job's record says. */
void schedule_init(struct shim *s);

/** The main loop calls the first after each round, the second when the timer is readable. */
void schedule_update(struct shim *s);
void schedule_due(struct shim *s);

/** Cancels a checkpoint under way and waits for its end. */
void schedule_fini(struct shim *s);

/** The method Schedule. */
int schedule_method(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err);

/** Gives @op what it needs of the shim: the vault, how long the driver may take, and the GPU map out of
 * @request. */
void shim_prepare_op(struct shim *s, struct op *op, struct request *request,
		     const struct brumate_conf *conf);

/** Replies with the job's record as it is on disk. */
int shim_reply_job(struct shim *s, struct wire_call_context *call, struct brumate_error *err);
