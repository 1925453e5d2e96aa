// SPDX-License-Identifier: MIT
/*
 * One operation on a job: a plan (a table of steps with undo), the state its steps share, and what
 * was measured. An operation belongs to one thread; a ticker thread of its own only samples progress.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "client/agent.h"
#include "client/transfer.h"
#include "engine/gpu-set.h"
#include "job/job.h"
#include "job/request.h"
#include "image/manifest.h"
#include "criu/criu.h"
#include "process/process.h"
#include "process/scan.h"
#include "chunks/chunks.h"
#include "store/store.h"

enum { OP_LOCK_TIMEOUT_MS = 10000 };

/** A process of the job whose device memory its agent gives out (engine/park.c). */
struct op_agent {
	struct agent agent;
	int result; /* of the last request, with its text */
	struct brumate_error error;
	struct agent_piece *pieces; /* as last listed */
	size_t n_pieces;
	int *fds; /* of them, while they are exported; may be NULL */
};
void op_agent_fini(struct op_agent *a);

struct op {
	const char *kind; /* "suspend" … */
	struct job *job;  /* borrowed; the operation alone uses it while it runs */
	struct progress progress;
	uint32_t lock_timeout_ms; /* of the driver's lock, where the operation has no deadline */
	const struct request *request; /* borrowed; never NULL */

	bool touched; /* something was done to the job that undo must take back */

	struct proc_tree tree;
	struct gpu_set gpus;
	bool was_suspended;

	/* the data path; all empty where the driver alone moves memory */
	struct vault *vault; /* borrowed; NULL: this operation has nothing to do with it */
	struct op_agent *agents;
	size_t n_agents;
	struct copy *copy;	      /* under way */
	struct chunks_writer *memory; /* of the checkpoint being written */
	struct host_memory *host;     /* beside CRIU's images; read by @memory */
	struct host_copy saved;	      /* host copy that it reads, where it is held no more */
	struct spilled *spilled;      /* what it reads of host copies on a disk */
	uint64_t disk_bytes;	      /* of what was moved: not in memory */
	bool keep_copy;		      /* the host copy stays held when the job runs again */
	bool live_base; /* what is kept was made by this operation, for itself */
	bool drop_kept; /* resume: one that was kept before does not */
	struct transfer_spared spared; /* of data_bytes: not copied */
	uint64_t data_bytes;	       /* moved, or parked */
	double data_seconds;
	bool ahead; /* pieces that agents have mapped are of what is held */

	uint64_t gpu_bytes, image_bytes;

	/* checkpoint and restore */
	struct criu_program criu;
	struct store_writer writer;
	struct store_image image;
	struct fetched *fetched;  /* @image is in an object store (fetched.h); NULL: it is here */
	struct manifest manifest; /* of the checkpoint being written */
	struct store_key key;	  /* of @writer or @image, where they are encrypted */
	bool committed;
	uint64_t criu_start_ns;
	int criu_dir_fd, criu_work_fd;
	struct criu_dump *dump; /* CRIU has been started for it */
	char **externals;	/* of @dump */
	bool use_pid_ns;
	bool root_restored; /* the restored tree exists */
	uint64_t log_bytes; /* in the job's log before it was restored */
};

/** @request: borrowed, as long as @op lives, but for its GPU map, which is the caller's to hand over; NULL:
 * nothing is asked for. */
void op_init(struct op *op, const char *kind, struct job *job, const struct progress_caller *caller,
	     const struct request *request);
void op_fini(struct op *op);
DEFINE_AUTO_FINI(struct op, op_fini)

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

/** Hangs up at the agents and forgets them. */
void op_drop_agents(struct op *op);

/** The Progress type of io.brumate (owned). */
json_t *op_progress_to_json(const struct progress_sample *sample);

/** The Summary type of io.brumate (owned); also stored as the job's last.json by op_finish(). */
json_t *op_summary(const struct op *op);
void op_finish(struct op *op);

/** Reads the job's tree and asks the driver which of its processes have GPU state. */
int op_find_gpus(struct op *op, struct brumate_error *err);

/* ---- preflight, engine/preflight.c ---- */

/** Refuses what cannot work before the job is touched; what may fail needs --force. @scopes: SCAN_*. */
int preflight(struct op *op, unsigned scopes, struct brumate_error *err);

/** Whether there is memory for what the operation will take off the GPUs: the machine's, and what the cgroups
 * of its processes leave for that which the driver saves, or the kernel would end the job. */
int preflight_memory(struct op *op, struct brumate_error *err);

/** The findings of a job's tree, the driver's view included. @scopes: as scan_tree()'s. */
int preflight_scan(struct op *op, unsigned scopes, struct scan_report *ret,
		   struct brumate_error *err);
