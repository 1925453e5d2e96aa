// SPDX-License-Identifier: MIT
/*
 * The record of a job: what is known of it, and how that stands in its file job.json. Decoding is pure and
 * takes foreign bytes. States and transitions: docs/states.md.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "image/manifest.h"
#include "job/request.h"
#include "process/process.h"
#include "wire/wire.h"

enum job_state {
	JOB_CREATED, /* recorded, command not started yet */
	JOB_RUNNING,
	JOB_SUSPENDING,
	JOB_SUSPENDED, /* alive, its GPUs empty */
	JOB_RESUMING,
	JOB_CHECKPOINTING,
	JOB_CHECKPOINTED, /* saved on disk and stopped */
	JOB_RESTORING,
	JOB_EXITED,
	JOB_LOST, /* ended without anybody seeing how, or by a failed operation */
	JOB_STATE__MAX,
};

/** File in the job's directory where the init of its pid namespace notes how its root ended. */
#define JOB_NAMESPACE_STATUS "namespace-status"
/** File in the job's directory where CRIU logs the latest dump. */
#define JOB_DUMP_LOG "dump.log"

const char *job_state_name(enum job_state state);
/** Whether an operation is under way in that state. */
bool job_state_is_passing(enum job_state state);

enum { JOB_ID_BYTES = 16, JOB_NAME_BYTES = 64, JOB_MESSAGE_BYTES = 512, JOB_EXIT_UNKNOWN = -1 };

/** The program that moves the job's device memory. */
enum job_data_path {
	JOB_DATA_DRIVER, /* the driver alone */
	JOB_DATA_BROKER, /* the broker, as far as the job's agents manage it; the driver what is left */
	JOB_DATA_PATH__MAX,
};
const char *job_data_path_name(enum job_data_path path);

/** The operation under way, as a shim needs to know it that takes the job over. */
struct job_op {
	char kind[16];	    /* "suspend", "checkpoint" …; empty: none */
	bool was_suspended; /* the job was suspended when it began */
	bool leave_running;
	enum job_state before; /* restore: the state that the job goes back to where it fails */
	char image_path
		[1024]; /* checkpoint: where the committed image will be; restore: the image */
	struct proc_id criu;
};

/** Device memory that a suspended or saved job needs again. */
struct job_gpu {
	char uuid[MANIFEST_UUID_BYTES];
	char name[MANIFEST_NAME_BYTES];
	uint64_t bytes; /* 0: visible to the job, but not used */
};

/** A member that stands still while its job is suspended. */
struct job_stopped {
	struct proc_id id;
	bool gpu;	 /* the driver has put its GPU state away */
	bool goes_first; /* has GPU state or an agent: it runs again before the others do */
};

enum { JOB_SCHEDULE_MS_MIN = 1000, JOB_SCHEDULE_DIR_BYTES = 1024 };
#define JOB_SCHEDULE_MS_MAX (365ll * 86400 * 1000)

/** Checkpoints that the shim makes by itself while the job runs. */
struct job_schedule {
	uint64_t every_ms;	 /* 0: none */
	unsigned keep_last;	 /* of this job; 0: not given */
	uint64_t keep_within_ms; /* 0: not given */
	struct request request;	 /* for each checkpoint; the configuration says what is not given */
	uint64_t next_ms;	 /* since the machine was started: nobody sets that clock */
	char failure[JOB_MESSAGE_BYTES]; /* why the last of them failed; empty: it did not */
};

struct job {
	char id[JOB_ID_BYTES];	   /* 8 hexadecimal digits */
	char name[JOB_NAME_BYTES]; /* unique among jobs that are there */
	char *dir;		   /* absolute path of its directory */
	enum job_state state;
	char created[32]; /* RFC 3339 */
	uid_t uid;
	gid_t gid;
	char **argv;   /* NULL-terminated */
	char **labels; /* labels.h; NULL: none */
	char *cwd;
	char *log; /* absolute; NULL: none (taken in by pid) */
	bool simulated, by_pid;
	enum job_data_path data_path;
	bool parked;	     /* suspended, its device memory left on the GPU */
	uint64_t kept_bytes; /* running, with a host copy of what its memory was */
	bool restored;	     /* its processes came out of a checkpoint */
	char started_as
		[JOB_ID_BYTES]; /* of a copy: the job as which its processes were started, by whose id their
					   * agents and their environment go; empty: as this one */
	struct proc_id root;  /* pid 0: none */
	struct proc_id owner; /* the job ends with this process; pid 0: with none */
	struct proc_id
		command;     /* started by the root, which is our reaper; pid 0: the root is it */
	struct proc_id init; /* init of its pid namespace; pid 0: lives in ours */
	char boot_id[PROC_BOOT_ID_BYTES]; /* boot in which root and init are meant */
	uint64_t pid_ns;		  /* pid namespace in which they are; 0: not known */
	int exit_code;			  /* 0..255, 128+N after signal N; JOB_EXIT_UNKNOWN */
	char *checkpoint;		  /* id of the latest checkpoint, or NULL */
	char *checkpoint_path;		  /* its directory */
	uint64_t sequence;		  /* highest of its checkpoints; 0: not known here */
	char message[JOB_MESSAGE_BYTES];  /* why the last operation failed; empty */
	struct job_gpu *gpus; /* all that its processes could see when it was last suspended */
	size_t n_gpus;
	struct job_op op;
	struct job_stopped *stopped; /* by us, until it is resumed; written before they are */
	size_t n_stopped;
	struct job_schedule schedule;
	int unsaved; /* errno of why what stands here could not be written to disk; 0: it could */
};

#define JOB_EMPTY ((struct job){ 0 })
void job_fini(struct job *j);
DEFINE_AUTO_FINI(struct job, job_fini)

/** Whether it is 8 hexadecimal digits, and so no path. Pure. */
bool job_id_is_valid(const char *id);

/** Encodes the record (owned). NULL without memory. */
json_t *record_encode(const struct job *j);

/**
 * record_decode() - read a job's record
 * @text: borrowed, untrusted
 *
 * Pure. Leaves @ret->dir NULL. Return: 0 and @ret owned; -EBADMSG; -ENOMEM, which says nothing of the record.
 */
int record_decode(struct job *ret, const char *text, size_t len_bytes, struct brumate_error *err);
