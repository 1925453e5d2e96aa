// SPDX-License-Identifier: MIT
/*
 * A job: what `run` started or `manage` took in. The truth is its directory on disk,
 * $BRUMATE_STATE_DIR/jobs/ID (0700), holding
 *
 *	job.json    its record (record.h), replaced atomically
 *	job.json.spare  room for the next record, where the disk is full
 *	log.marks   how far its log had grown when (log.h)
 *	turns       which job has left its GPUs for this one last (engine/neighbours.c)
 *	last.json   the summary of its last operation
 *	counts.json what its operations came to (counts.h)
 *	asked       how the last checkpoint went that a member asked for, as the text of a symbolic link
 *	shim.sock   socket of its shim, shim.lock flock'ed while one lives, keeper.lock while a keeper does
 *
 * The record is written by the job's shim alone (and by its creator before there is one); anybody
 * may read it. States and transitions: docs/states.md.
 */
#pragma once

#include "base/conf.h"
#include "job/record.h"

/** What a new job is made of. Strings borrowed. */
struct job_spec {
	const char *id;	  /* NULL: a new random one (a restore on another machine gives the old) */
	const char *name; /* NULL: made from the command and the id */
	char *const *argv;
	char *const *labels; /* labels.h; NULL: none */
	struct job_attributes attributes;
	const char *cwd;
	const char *log; /* NULL: $BRUMATE_LOG_DIR/ID.log, none with by_pid */
	uid_t uid;
	gid_t gid;
	const char *vendor; /* of its GPUs, an id; NULL: whose are here */
	bool simulated, by_pid;
	enum job_data_path data_path;
	struct proc_id root;  /* by_pid */
	struct proc_id owner; /* the process that the job ends with; pid 0: none */
};

/** Creates the directory and the record, state created. Errors to act on: -EEXIST (name or id is
 * taken: the text says by what), -EINVAL (name, labels). */
int job_create(struct job *ret, const struct job_spec *spec, struct brumate_error *err);

/** Loads the record of exactly this id. -ENOENT, -EBADMSG. */
int job_load(struct job *ret, const char *id, struct brumate_error *err);

/** With less, a word that was typed by mistake would be the beginning of some id. */
enum { JOB_PREFIX_BYTES_MIN = 2 };

/** Finds by id, unique prefix of an id of at least that length, or name. Errors to act on: -ENOENT, -ENOTUNIQ. */
int job_find(struct job *ret, const char *word, struct brumate_error *err);

/** Finds the job that the calling process is of, from inside the pid namespace of that job, where numbers of processes in
 * records mean nothing. 0, or -ENOENT: it is in none. */
int job_find_by_init(struct job *ret, struct brumate_error *err);

/** Finds the job whose tree holds @pid. 0, or -ENOENT. */
int job_find_by_pid(struct job *ret, pid_t pid, struct brumate_error *err);

/** Calls @fn for each job, oldest first; one whose record is damaged is given as NULL with its id
 * and the reason. Where not all of them can be looked at, it is called for none. */
int job_list(void (*fn)(void *arg, const struct job *j, const char *id,
			const struct brumate_error *why),
	     void *arg, struct brumate_error *err);

/** The same, without those that ended before @since_ms of the wall clock, whose number is @ret_n_before. */
int job_list_since(uint64_t since_ms, size_t *ret_n_before,
		   void (*fn)(void *arg, const struct job *j, const char *id,
			      const struct brumate_error *why),
		   void *arg, struct brumate_error *err);

/**
 * The label that says so of a job of `run --wake`: a call of its processes that waits for the GPU resumes it. A label, as it
 * is to stay with the job, its checkpoints and its copies.
 */
#define JOB_WAKE_LABEL	   "brumate.wake"
#define JOB_WAKE_LABEL_YES "yes"
bool job_wakes(const struct job *j);

/** A label, "yes" of a job of `run --wake` that is never asked to leave its GPUs, unless @conf says of it whether. */
#define JOB_PIN_LABEL "brumate.pin"
bool job_is_pinned(const struct job *j, const struct brumate_conf *conf);

/** Its priority among jobs that share GPUs: as @conf says, or else as its `run --priority`. */
int job_priority(const struct job *j, const struct brumate_conf *conf);

/* target.h has what these do. */
static inline bool job_has_ended(const struct job *j)
{
	return target_has_ended(&j->target);
}
static inline struct proc_id job_command(const struct job *j)
{
	return target_command(&j->target);
}
static inline struct proc_members job_members(const struct job *j)
{
	return target_members(&j->target);
}
static inline int job_set_state(struct job *j, enum job_state state, struct brumate_error *err)
{
	return target_set_state(&j->target, state, err);
}

/**
 * The Job type of io.brumate (owned). Where the record says alive but nothing of it is, and no shim
 * lives to record why, state is given as "lost"; and so where it is suspended, and neither shim nor keeper
 * live to hold what is the only copy of its device memory.
 */
json_t *job_to_json(const struct job *j);
/** The same, with the living processes of the job, its reaper too, as far as they could be read: @ret_tree is what proc_members_read()
 * makes, and empty otherwise. */
json_t *job_and_processes_to_json(const struct job *j, struct proc_tree *ret_tree);

/** When the record was last written, which is when it came to say that the job has ended, by the wall clock. False: it does not
 * say so. */
bool job_ended_ms(uint64_t *ret_ms, const struct job *j);

/** Removes the directory of a job that is not alive, and @with_log its log if that is in our log directory.
 * 1: it is gone, but what is left of the directory, which @err names, could not be removed; the next removal tries
 * again. -EBUSY while it is alive. */
int job_remove(struct job *j, bool with_log, struct brumate_error *err);

/** Removes the directory of a job whose processes run on as nobody's job. Its log stays. */
int job_release(const struct job *j, struct brumate_error *err);

/** Whether the process is gone that the job was to end with, so that nobody asks for the job any more. */
bool job_is_abandoned(const struct job *j);

/** Whether the record names the checkpoint at @path, by this path or another: then it must stay. */
bool job_names_checkpoint(const struct job *j, const char *path);

/** Milliseconds from @now_ms, by the clock of next_ms, until a checkpoint is due; 0: never. A first time in the past
 * (no shim lived then) is now; one beyond a period (the machine was restarted) is a period away. Pure. */
uint64_t schedule_left_ms(const struct job_schedule *schedule, uint64_t now_ms);

/** Summary of the last operation (owned), NULL if there is none. */
json_t *job_last_summary(const struct job *j);

/** Milliseconds since its last operation; UINT64_MAX: there was none. */
uint64_t job_since_last_ms(const struct job *j);

/* ---- for the shim ---- */

/** Where the agents of the job's processes listen: $BRUMATE_RUNTIME_DIR/agents/ID. Owned. */
char *job_agent_dir(const struct target *t);

/** Where those processes go for it: of a copy, they take it for the directory of the job as which they were started. Owned. */
char *job_agent_place(const struct target *t);

/** Refuses (-EBUSY) where another job that lives has that place, for a copy that is to live next to our own
 * processes. */
int job_check_agent_place(const struct target *t, struct brumate_error *err);

/** Puts a link to the directory of a copy in its place. */
int job_take_agent_place(const struct target *t, struct brumate_error *err);

/** Makes that directory for the job's user alone, who may go through its parents. */
int job_make_agent_dir(const struct target *t, struct brumate_error *err);

/** Writes the record; on a full disk, where room is put by for it. Where that fails, @j->unsaved says so until it succeeds. */
int job_save(struct job *j, struct brumate_error *err);

/** The file in the job's directory that the keeper holds a lock on. */
#define JOB_KEEPER_LOCK "keeper.lock"

/** True once it is certain that the only copy of a suspended job's device memory is gone: shim and keeper held it, and
 * neither lives. */
bool job_has_lost_memory(const struct job *j);

/** From now on no shim comes up for the job, until the descriptor is closed (owned). -EWOULDBLOCK: one is there; -ENOENT: there
 * has been none; -errno. */
int job_keep_shims_out(const struct job *j);

/** True once it is certain that no shim holds the job's lock. */
bool shim_has_ended(const struct job *j);
