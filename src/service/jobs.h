// SPDX-License-Identifier: MIT
/* What the methods of the service share about jobs. */
#pragma once

#include "base/cleanup.h"
#include "job/job.h"
#include "service/service.h"

/** Calls "io.brumate.job.@method" of the job's shim, and passes on progress and cancellation. */
int shim_relay(const struct service_call *call, const struct job *j, const char *method,
	       json_t *parameters, json_t **ret, struct brumate_error *err);

/** Reads the parameter "gpu": "" or "simulated"; missing: from the configuration. */
int get_simulated(json_t *parameters, bool *ret, struct brumate_error *err);

/** A process that will become a job. */
struct newcomer {
	pid_t pid;
	const char *name;  /* NULL: make one up */
	bool is_container; /* @pid is the first process of a container: the job belongs to the caller, regardless of the users inside */
	bool simulated;
};

/** Makes it a new job (@ret_new), unless it belongs to one already: then returns that. Errors to act on: -EINVAL (its
 * tree contains the caller, or brumate's own programs), -EACCES, -ESRCH. */
int take_in(struct job *ret, bool *ret_new, const struct service_call *call,
	    const struct newcomer *newcomer, struct brumate_error *err);

/** Ends and removes the jobs whose owner and shim are both gone. Returns how many. */
int end_abandoned_jobs(const struct service_call *call);

/** Releases a process that was taken in for an operation that failed or was cancelled, if it runs. @j is read again. */
void give_back(const struct service_call *call, struct job *j);

/** The Job type of io.brumate, including what is not in the record (observe_job()). Owned, NULL if out of memory. */
json_t *describe_job(const struct job *j);

/** Removes the record of a job that never started, after its shim has undone a failed or cancelled operation.
 * @with_log: its log, too, which may be older than the record. */
void forget_settled_job(const struct service_call *call, struct job *j, bool with_log);

/*
 * ---- what is observed of jobs, in addition to their records (observe.c) ----
 *
 * Their processes and the memory of these, the GPUs that they use, and the resources that they need for a resume.
 * This reads /proc and asks the broker, if there is one, about all jobs in one call. It does not start one.
 */

/** GPU processes for whose GPUs brokers have to be asked, each with its Job. */
struct observation {
	struct observed *items;
	size_t n;
};
#define OBSERVATION_EMPTY ((struct observation){ 0 })
void observation_fini(struct observation *l);
DEFINE_AUTO_FINI(struct observation, observation_fini)

/** Adds to @o, the Job of @j: gpu_processes, host_bytes, needs, idle_ms and last_checkpoint; and gpus, if no broker has to be
 * asked: null is unknown. @tree: its processes, which are read if it is empty, and are without the reaper then. 0 or -ENOMEM. */
int observe_job(struct observation *l, json_t *o, const struct job *j, struct proc_tree *tree);

/** Asks the brokers that run, and adds the answers to the gpus of all observed jobs. If a broker does not know, or
 * does not answer in time, they stay null. */
void observe_gpus(struct observation *l);

/** The processes of the job, as the type JobProcess of io.brumate (owned). NULL if they cannot be read. */
json_t *observe_processes(const struct job *j);

/** The files that they have open, as the type JobFile of io.brumate (owned), each once. NULL if they cannot be read. */
json_t *observe_files(const struct job *j);
