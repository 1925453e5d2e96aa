// SPDX-License-Identifier: MIT
/*
 * What the words of a caller mean. Where a word may name a job or a checkpoint (Remove, Inspect, Restore), there is
 * one rule for all: what it names exactly, a job's id or name or a checkpoint's id, comes before the latest
 * checkpoint of a job whose record is gone, and that before what the word only begins; where it means a job and a
 * checkpoint alike, neither is guessed. What destroys (Remove, Kill, Release) takes exact names alone. GPUs may be named by their numbers in a map of old to new ones.
 */
#pragma once

#include "service/service.h"

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "gpu/gpu.h"
#include "job/job.h"

struct resolve_question {
	const struct service_call *call;
	const char *word;
	const char *kind; /* "job" or "checkpoint", where the caller says which; may be NULL */
	const char *dir;  /* the store */
	bool dir_given;	  /* then checkpoints alone are meant */
	bool by_latest;	  /* a job stands for its latest checkpoint: that has but one meaning */
};

/** Finds the store that is meant, by "dir" of @parameters, for @q. @ret_dir: owned, as long as @q is used. */
int resolve_in_store(struct resolve_question *q, json_t *parameters, char **ret_dir,
		     struct brumate_error *err);

enum { MEANS_CHECKPOINT, MEANS_JOB };

/**
 * MEANS_JOB and @ret; MEANS_CHECKPOINT, also where nothing of that name is
 * known: the store has the word on that. Errors to act on: -ENOTUNIQ, -EACCES, -EINVAL (kind).
 */
int resolve_word(struct job *ret, const struct resolve_question *q, struct brumate_error *err);

/** As resolve_word(), for what is to be removed: the word must be exact. Errors to act on: as there, and -ENOENT. */
int resolve_exactly(struct job *ret, const struct resolve_question *q, struct brumate_error *err);

/** Finds a job by its whole id or its name. Errors to act on: -ENOENT, -EINVAL (a beginning of an id). */
int resolve_job_exactly(struct job *ret, const char *word, struct brumate_error *err);

/** Says in @err that the word is neither a job nor a checkpoint, and which of them may be meant. Returns -ENOENT. */
int resolve_fail_unknown(struct brumate_error *err, const struct resolve_question *q);

/**
 * gpu_map_resolve() - replace numbers by UUIDs
 * @map: [{from, to}], borrowed
 * @gpus: as the broker lists them, borrowed; their order gives the numbers
 *
 * Pure. Return: 0 and @ret (owned) with UUIDs only; -EINVAL names the pair that is wrong.
 */
int gpu_map_resolve(json_t **ret, json_t *map, const struct dev_gpu *gpus, size_t n_gpus,
		    struct brumate_error *err);

/** Whether @map names any GPU by its number. */
bool gpu_map_has_numbers(json_t *map);
