// SPDX-License-Identifier: MIT
/*
 * The record of a job: what is known of it, and how that stands in its file job.json. Decoding is pure and
 * takes foreign bytes. States and transitions: docs/states.md.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "job/request.h"
#include "job/target.h"
#include "process/process.h"
#include "wire/wire.h"

enum { JOB_PRIORITY_MIN = -1000, JOB_PRIORITY_MAX = 1000 };

/** What a user says of a job at its start: one row of a table each, for record, List, Inspect and Run (record.c). */
struct job_attributes {
	char hook[1024]; /* path of its own program of hooks (shim/hooks.c); empty: none */
	int priority;	 /* the higher, the sooner, of jobs that share GPUs */
};

/** Adds them to an object. 0 or -ENOMEM. */
int job_attributes_encode(json_t *o, const struct job_attributes *a);

/** Reads what @o says of them; what it does not stays as it is in @ret. -EBADMSG. */
int job_attributes_decode(struct job_attributes *ret, json_t *o, struct brumate_error *err);

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
	/* What operations need; its members are the job's own. */
	union {
		struct target target;
		struct target;
	};
	char created[32]; /* RFC 3339 */
	char **argv;	  /* NULL-terminated */
	char **labels;	  /* labels.h; NULL: none */
	struct job_attributes attributes;
	char *cwd;
	bool by_pid;	      /* was running when it was taken in, and has no log */
	struct proc_id owner; /* the job ends with this process; pid 0: with none */
	struct job_schedule schedule;
	int unsaved; /* errno of why what stands here could not be written to disk; 0: it could */
};

/** What a job is as the owner of its target. */
extern const struct target_owner job_target_owner;

#define JOB_EMPTY ((struct job){ .owned_by = &job_target_owner })

/** The job whose target it is; NULL: it is of something else. */
static inline const struct job *job_of_target(const struct target *t)
{
	_Static_assert(!offsetof(struct job, target), "a job begins with its target");
	return t->owned_by == &job_target_owner ? (const struct job *)t : NULL;
}

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

/** Whether a record says that its job has ended ("exited" or "lost"): for lists of many, in a tenth of the time of
 * record_decode(). Pure, of any bytes; false where it is not certain. */
bool record_says_ended(const char *text, size_t len_bytes);
