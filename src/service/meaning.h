// SPDX-License-Identifier: MIT
/*
 * What a word means where it may name a job or a checkpoint (Remove, Inspect, Restore): one rule for all.
 * What it names exactly, a checkpoint's id or a job's id or name, comes before what it only begins; where
 * it means a job and a checkpoint alike, neither is guessed. Of what is another user's nothing is meant.
 */
#pragma once

#include "job/job.h"
#include "service/service.h"

struct meaning_question {
	const struct service_call *call;
	const char *word;
	const char *
		kind; /* "job" or "checkpoint": the caller says which; NULL: that is the question */
	const char *dir; /* the store */
	bool dir_given;	 /* then checkpoints alone are meant */
	bool by_latest;	 /* a job stands for its latest checkpoint: that has but one meaning */
};

/** Finds the store that is meant, by "dir" of @parameters, for @q. @ret_dir: owned, as long as @q is used. */
int meaning_in_store(struct meaning_question *q, json_t *parameters, char **ret_dir,
		     struct brumate_error *err);

enum { MEANS_CHECKPOINT, MEANS_JOB };

/**
 * MEANS_JOB and @ret, which the caller may touch; MEANS_CHECKPOINT, also where nothing of that name is
 * known: the store has the word on that. Errors to act on: -ENOTUNIQ, -EACCES, -EINVAL (kind).
 */
int meaning_find(struct job *ret, const struct meaning_question *q, struct brumate_error *err);

/** Starts @err for what is neither. Returns -ENOENT. */
int meaning_fail_unknown(struct brumate_error *err, const char *word);
