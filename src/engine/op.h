// SPDX-License-Identifier: MIT
/*
 * One operation on a target: what was asked for, and the state that the steps of its plan share. It belongs to one
 * thread.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "cpumem/image.h"
#include "criu/criu.h"
#include "datapath/datapath.h"
#include "engine/device-image.h"
#include "engine/gpu-set.h"
#include "engine/turn.h"
#include "image/manifest.h"
#include "job/target.h"
#include "job/request.h"
#include "process/attributes.h"
#include "process/connections.h"
#include "process/listeners.h"
#include "process/locks.h"
#include "process/socket-options.h"
#include "process/process.h"
#include "process/scan.h"
#include "chunks/chunks.h"
#include "store/authentic.h"
#include "store/store.h"

enum { OP_LOCK_TIMEOUT_MS = 10000 };

/** CRIU's images of an operation. */
struct op_images {
	struct criu_program criu;
	int dir_fd;			     /* where CRIU writes or reads them */
	struct authority authority;	     /* of the checkpoint; its key encrypts it, too */
	struct signing_key *signing;	     /* owned; NULL: it is not signed */
	struct cpu_memory_image *cpu_memory; /* next to them */
	struct criu_user user; /* as whom CRIU works (engine/rights.h); uid 0: as we are */
};

/** What only a checkpoint needs. */
struct op_checkpoint {
	struct store_writer writer;
	struct manifest manifest;
	struct chunks_writer *memory;	   /* of @writer */
	struct device_image_writer device; /* writes to @memory */
	struct criu_dump *dump;		   /* CRIU has been started for it */
	char **externals;		   /* of @dump */
	struct attributes attributes;	   /* of the frozen tree */
	struct socket_options sockets;	   /* likewise */
	struct file_locks locks;	   /* likewise */
	char *timer_queues;	 /* owned; ALARM_QUEUES, while the tree is frozen; NULL: not read */
	size_t n_timers_unknown; /* that may be set to a time of day */
	struct connections connections; /* while the job stands still, which CRIU cannot save */
	struct job_files_ahead *ahead;	/* digests of files that have begun (engine/job-files.h) */
	int work_fd;			/* of @dump */
	uint64_t criu_start_ns;
	bool committed;
};

/** What only a restore needs. */
struct op_restore {
	struct store_image image;
	char of[MANIFEST_ID_BYTES]; /* the job whose checkpoint @image must be; empty: this one */
	struct fetched *fetched;    /* @image is elsewhere (engine/fetched.h); NULL: it is here */
	struct device_image_reader device;
	struct attributes attributes;
	struct socket_options sockets;
	struct file_locks locks;
	struct connections connections; /* made for what does not run yet */
	struct comparing *comparing;	/* the files of @image with its manifest, in a thread */
	struct finding *finding;	/* CRIU, in a thread */
	bool use_pid_ns;
	bool root_restored;	     /* the restored tree exists */
	uint64_t log_bytes;	     /* in the job's log before it was restored */
	struct files_restore *files; /* what was done to the job's files (engine/job-files.h) */
};

struct op {
	const char *kind;	       /* "suspend" … */
	struct target *target;	       /* borrowed; the operation alone uses it while it runs */
	const struct request *request; /* borrowed; never NULL */
	struct progress progress;
	struct proc_tree tree;
	struct gpu_set gpus;
	struct room_turn turn; /* of a job that comes in the place of another: until it is there */
	struct datapath data;
	bool was_suspended;
	bool touched; /* something was done to the job that undo must take back */
	uint64_t gpu_bytes, image_bytes;
	bool knows_zeros;
	uint64_t zero_bytes; /* of the memory in pieces, before it is copied: op_zero_bytes() */
	struct digest_table *counted; /* owned: the digests that showed it; NULL: there are none */
	struct op_images images;
	struct op_checkpoint checkpoint;
	struct op_restore restore;
	struct listeners *
		listeners; /* borrowed: that are held while the job is checkpointed; NULL: none may be */
	int together_fd; /* to the coordinator of several operations (engine/together.h); -1: none */
	bool together_idle; /* the meeting of that name is over */
	struct connection_others together_others; /* the operations that make the other ends of connections */
	char *together_closes; /* owned: connections that a restored member finds closed (sockets_close) */
};

/** @caller: NULL: nobody watches it. @request: borrowed, as long as @op lives, but for its GPU map, which is the caller's to hand over; NULL:
 * nothing is asked for. A caller with a vault hands that over too. */
void op_init(struct op *op, const char *kind, struct target *target,
	     const struct progress_caller *caller, const struct request *request);
void op_fini(struct op *op);
DEFINE_AUTO_FINI(struct op, op_fini)

/** Reads the job's tree and asks the driver which of its processes have GPU state. */
int op_find_gpus(struct op *op, struct brumate_error *err);

/** Puts whose GPUs they are into the record, which is not saved by it. */
void op_note_vendor(struct op *op);

/** Finds out which of them have agents. What has none is noted if @tell. */
int op_find_agents(struct op *op, bool tell, struct brumate_error *err);

/** Refuses a job with a process in a frozen cgroup, and names that: a frozen process does not answer. -EBUSY with
 * EXIT_FROZEN. What cannot be looked at is not refused. */
int op_check_thawed(const struct op *op, struct brumate_error *err);

/** Removes what is outside the processes: they have ended. */
void op_clear_vault(struct op *op);

/** The Progress type of io.brumate (owned). */
json_t *op_progress_to_json(const struct progress_sample *sample);

/** The Summary type of io.brumate (owned); also stored as the job's last.json by op_finish(). */
json_t *op_summary(const struct op *op);
/** Counts the operation, which ended with @result (0 or -errno), for monitoring (job/counts.h), and stores the summary of one that is done. */
void op_finish(struct op *op, int result);

/* ---- the plan ---- */

struct step {
	const char *name;	 /* fault points are "KIND.NAME.begin" and "KIND.NAME.end" */
	const char *waiting_for; /* for the progress line */
	/* 0 done; 1 nothing to do here (no phase is recorded); <0 failed. */
	int (*run)(struct op *op, struct brumate_error *err);
	/* Takes the step back; may be NULL. Also called for a step that failed, so it copes with half
	 * of it. Never cancelled, never fails: what it cannot undo shows in the job's state. */
	void (*undo)(struct op *op);
};

/**
 * Runs the steps in order. The first that fails (or a cancellation, or the deadline) makes the undos
 * of it and of all before it run, last first. Returns 0 or the step's error, prefixed by its name.
 */
int plan_run(const struct step *steps, size_t n, struct op *op, struct brumate_error *err);

/* ---- preflight, engine/preflight.c ---- */

/** How much of the device memory in pieces is zero, as far as that is known or a GPU can tell; at most what it was a moment
 * ago. Takes a pass of digests once, so it is for what would be refused without. */
uint64_t op_zero_bytes(struct op *op);

/** Refuses what cannot work before the job is touched; what may fail needs --force. @scopes: SCAN_*. */
int preflight(struct op *op, unsigned scopes, struct brumate_error *err);

/** Whether there is memory for what the operation will take off the GPUs: the machine's, and what the cgroups
 * of its processes leave for that which the driver saves, or the kernel would end the job. */
int preflight_memory(struct op *op, struct brumate_error *err);

/** Refuses checkpoints after which the job of @op continues, as by a schedule, while it has TCP connections to outside: it would come back
 * at another moment than the other end. -EOPNOTSUPP. What cannot be looked at is not refused: each checkpoint looks again. */
int preflight_connections(struct op *op, struct brumate_error *err);

/** The findings of a job's tree, the driver's view included. @scopes: as scan_tree()'s. */
int preflight_scan(struct op *op, unsigned scopes, struct scan_report *ret,
		   struct brumate_error *err);
