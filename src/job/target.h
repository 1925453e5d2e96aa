// SPDX-License-Identifier: MIT
/*
 * Whose memory an operation saves and brings back: a tree of processes with its user, its directory and the state that it is in.
 * The plans (engine/) know this and no more. It is part of the record of its owner, a job (job/record.h) or what an edge
 * looks after, which writes it by the functions of its struct target_owner.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "gpu/vendor.h"
#include "image/manifest.h"
#include "process/listeners.h"
#include "process/process.h"

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

const char *job_state_name(enum job_state state);
extern const char *const job_state_names[JOB_STATE__MAX];
/** Whether an operation is under way in that state. */
bool job_state_is_passing(enum job_state state);
/** The transition table, for docs and tests. */
bool job_may_go(enum job_state from, enum job_state to);

enum { JOB_ID_BYTES = 16, JOB_NAME_BYTES = 64, JOB_MESSAGE_BYTES = 512, JOB_EXIT_UNKNOWN = -1 };

/** File in the directory where the init of its pid namespace notes how its root ended. */
#define JOB_NAMESPACE_STATUS "namespace-status"
/** File in the directory where CRIU logs the latest dump. */
#define JOB_DUMP_LOG "dump.log"

/** The program that moves device memory. */
enum job_data_path {
	JOB_DATA_DRIVER, /* the driver alone */
	JOB_DATA_BROKER, /* the broker, as far as agents manage it; the driver what is left */
	JOB_DATA_PATH__MAX,
};
const char *job_data_path_name(enum job_data_path path);
extern const char *const job_data_path_names[JOB_DATA_PATH__MAX];

/** The operation under way, as a successor needs to know it that takes over. */
struct job_op {
	char kind[16];	    /* "suspend", "checkpoint" …; empty: none */
	bool was_suspended; /* the target was suspended when it began */
	bool leave_running;
	enum job_state before; /* restore: the state to go back to where it fails */
	char image_path
		[1024]; /* checkpoint: where the committed image will be; restore: the image */
	struct proc_id criu;
	char together
		[1024]; /* what says whether the others did it, too (store/set.h); empty: it is alone */
};

/** Device memory that a suspended or saved target needs again. */
struct job_gpu {
	char uuid[MANIFEST_UUID_BYTES];
	char name[MANIFEST_NAME_BYTES];
	uint64_t bytes; /* 0: visible to it, but not used */
};

/** A member that stands still while its target is suspended. */
struct job_stopped {
	struct proc_id id;
	bool gpu;	 /* the driver has put its GPU state away */
	bool goes_first; /* has GPU state or an agent: it runs again before the others do */
};

struct target;

/** What only the owner knows. One constant for each kind of owner. */
struct target_owner {
	/* The program that is started where the owner dies while it is needed, with --heir and the directory; NULL:
	 * the shim of the directory, always. */
	const char *heir;
	/* Writes the owner's record. NULL: there is none. */
	int (*save)(struct target *t, struct brumate_error *err);
	/* The state has changed. NULL: nobody wants to know. */
	void (*changed)(const struct target *t, enum job_state from);
	/* Says in a manifest what else its record has. NULL: nothing. 0, -ENOMEM. */
	int (*describe)(const struct target *t, struct manifest *m);
	/* Where agents listen (owned); NULL without memory. */
	char *(*agent_dir)(const struct target *t);
	/* Whether brumate started it. What ran already has a parent that is not ours, and a place for agents that is not ours
	 * to make. */
	bool (*was_started)(const struct target *t);
	/* Whether its members may be stopped while it is suspended. */
	bool (*may_stand_still)(const struct target *t);
};

struct target {
	const struct target_owner *owned_by;
	char id[JOB_ID_BYTES];	   /* of a job 8 hexadecimal digits */
	char name[JOB_NAME_BYTES]; /* of a job unique among those that are there */
	char *dir; /* absolute path of the directory with the vault and the record */
	enum job_state state;
	uid_t uid;
	gid_t gid;
	char *log; /* absolute; NULL: none */
	/* Whose GPUs its processes had when they were looked at last. */
	union {
		struct gpu_kind gpu_kind;
		struct gpu_kind;
	};
	enum job_data_path data_path;
	bool parked;	     /* suspended, its device memory left on the GPU */
	uint64_t kept_bytes; /* running, with a host copy of what its memory was */
	bool restored;	     /* its processes came out of a checkpoint */
	char started_as
		[JOB_ID_BYTES]; /* of a copy: the job as which its processes were started, by whose id their
					   * agents and their environment go; empty: as this one */
	struct proc_id root; /* pid 0: none */
	struct proc_id
		command;     /* started by the root, which is our reaper; pid 0: the root is it */
	struct proc_id init; /* init of its pid namespace; pid 0: lives in ours */
	char boot_id[PROC_BOOT_ID_BYTES]; /* boot in which root and init are meant */
	uint64_t pid_ns;		  /* pid namespace in which they are; 0: not known */
	int exit_code;			  /* 0..255, 128+N after signal N; JOB_EXIT_UNKNOWN */
	char *checkpoint;		  /* id of the latest checkpoint, or NULL */
	char *checkpoint_path;		  /* its directory */
	/* Where it listens, held while it is checkpointed: who connects there has it restored; "": not. */
	char ports[LISTENERS_BYTES];
	uint64_t sequence;		  /* highest of its checkpoints; 0: not known here */
	char message[JOB_MESSAGE_BYTES];  /* why the last operation failed; empty */
	struct job_gpu *gpus; /* all that its processes could see when it was last suspended */
	size_t n_gpus;
	struct job_op op;
	struct job_stopped *stopped; /* by us, until it is resumed; written before they are */
	size_t n_stopped;
};

/** Frees what it owns. */
void target_fini(struct target *t);

/** Writes the owner's record, if there is one. */
int target_save(struct target *t, struct brumate_error *err);

/** Goes to @state if the transition table allows it (an assertion otherwise: our bug), and saves. */
int target_set_state(struct target *t, enum job_state state, struct brumate_error *err);

/** Notes that the processes of the record are those of this boot, numbered as they are here. Returns 0 or -errno. */
int target_set_place(struct target *t);

/** What the record says of a member that was stopped; NULL: it was not, by us. */
const struct job_stopped *target_find_stopped(const struct target *t, struct proc_id id);

/** The process that runs the command. It may have ended while others live. */
struct proc_id target_command(const struct target *t);

/** Looks for a process that the record names. PROC_UNKNOWN also in a process of a job that lives in a pid namespace of its own. */
enum proc_life target_look_for(const struct target *t, struct proc_id id);

/** True once it is certain that the root process runs no more: there is none, it is of another boot, gone, or a zombie.
 * That it could not be looked at is not an end. */
bool target_has_ended(const struct target *t);

/** The members: the root's tree, and what the shim, or the init of its pid namespace, got of it when parents ended. What
 * was running when it was taken in, or lost its shim, has nobody that gathers orphans. */
struct proc_members target_members(const struct target *t);

/** Ends all of them: proc_members_kill(). */
int target_kill_members(const struct target *t, uint64_t deadline_ns);

/** The directory where CRIU logs (owned): the target's, or, as CRIU works as its user, one in it that is that user's.
 * Made where it is not there. -errno. */
int target_open_criu_dir(const struct target *t, struct brumate_error *err);

/** The state that a target goes back to whose restore, which is under way, fails. One that had no life here yet is
 * checkpointed. */
enum job_state target_state_after_restore(const struct target *t);

/** Gives @t->sequence the value for another checkpoint: a higher one than before, and no less than the time in
 * milliseconds since 1970, so that it is comparable with that of checkpoints from before there was a sequence. */
void target_next_sequence(struct target *t);

/** From now on the record names the checkpoint @id in @path, both borrowed. 0, -ENOMEM. */
int target_name_checkpoint(struct target *t, const char *id, const char *path);

/** Nothing is left of its processes, and nothing under way. */
void target_forget_processes(struct target *t);
