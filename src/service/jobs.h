// SPDX-License-Identifier: MIT
/* What the methods of the service share about jobs. */
#pragma once

#include "base/cleanup.h"
#include "job/job.h"
#include "service/service.h"

/** Calls "io.brumate.job.@method" of the job's shim, passing on progress and cancellation. */
int shim_relay(const struct service_call *call, const struct job *j, const char *method,
	       json_t *parameters, json_t **ret, struct brumate_error *err);

/** Reads the parameter "gpu": "" or "simulated"; missing: as the configuration says. */
int get_simulated(json_t *parameters, bool *ret, struct brumate_error *err);

/** What is to become a job. */
struct newcomer {
	pid_t pid;
	const char *name; /* NULL: one is made up */
	bool is_container; /* @pid is the first process of one: the job is of who asks, whatever users there are inside */
	bool simulated;
};

/** Takes it in as a new job (@ret_new), unless it belongs to one: then that. Errors to act on: -EINVAL (its tree holds the
 * caller, or brumate's own programs), -EACCES, -ESRCH. */
int take_in(struct job *ret, bool *ret_new, const struct service_call *call,
	    const struct newcomer *newcomer, struct brumate_error *err);

/** Ends and removes the jobs whose owner is gone, but whose shim too, so that nothing did it before. Returns how many. */
int end_abandoned_jobs(const struct service_call *call);

/** Gives back a process that was taken in for an operation that failed, or was cancelled, if it runs. @j is read
 * again. */
void give_back(const struct service_call *call, struct job *j);

/** The Job type of io.brumate with what is not in the record (observe_job()). Owned, NULL without memory. */
json_t *describe_job(const struct job *j);

/** Removes the record of a job that never came to life, when its shim has taken back what a failed or cancelled
 * operation had begun. @with_log: its log, too, which may have been there before the record. */
void forget_settled_job(const struct service_call *call, struct job *j, bool with_log);

/*
 * ---- what is seen of jobs beside their records (observe.c) ----
 *
 * Their processes and the memory of these, on which GPUs they are, what they need again. /proc is read and, where there is a
 * broker, the broker is asked, for all jobs in one call. It starts none.
 */

/** GPU processes whose GPUs are to be asked for, each with the Job that it belongs to. */
struct observation {
	struct observed *items;
	size_t n;
};
#define OBSERVATION_EMPTY ((struct observation){ 0 })
void observation_fini(struct observation *l);
DEFINE_AUTO_FINI(struct observation, observation_fini)

/** Adds to @o, the Job of @j, gpu_processes, host_bytes, needs and last_checkpoint; and gpus, as far as they need not be
 * asked for: null is not known. 0 or -ENOMEM. */
int observe_job(struct observation *l, json_t *o, const struct job *j);

/** Asks the brokers that are there, and adds what they say to the gpus of all jobs looked at. What they cannot tell, or do
 * not at once, stays null. */
void observe_gpus(struct observation *l);

/** The processes of the job, as the type JobProcess of io.brumate (owned). NULL where they cannot be read. */
json_t *observe_processes(const struct job *j);

/** The files that they have open, as the type JobFile of io.brumate (owned), each once. NULL where they cannot be read. */
json_t *observe_files(const struct job *j);
