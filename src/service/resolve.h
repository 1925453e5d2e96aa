// SPDX-License-Identifier: MIT
/*
 * Resolves the words of a caller. If a word may name a job or a checkpoint (Remove, Inspect, Restore), there is one
 * rule for all methods: an exact name, a job's id or name or a checkpoint's id, takes precedence over the latest
 * checkpoint of a job whose record is gone, and that over a prefix. If a word means a job and a checkpoint equally
 * well, it is refused as ambiguous. Destructive methods (Remove, Kill, Release) accept exact names only. In a map of
 * old to new GPUs, these may be given by number.
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
	const char *kind; /* "job" or "checkpoint", if the caller specifies it; may be NULL */
	const char *dir;  /* the store */
	bool dir_given;	  /* only checkpoints are possible */
	bool by_latest; /* a job stands for its latest checkpoint, so both meanings are the same */
};

/** Finds the store by "dir" of @parameters, for @q. @ret_dir: owned, must exist as long as @q is used. */
int resolve_in_store(struct resolve_question *q, json_t *parameters, char **ret_dir,
		     struct brumate_error *err);

enum { MEANS_CHECKPOINT, MEANS_JOB };

/**
 * MEANS_JOB and @ret; or MEANS_CHECKPOINT, also if nothing has that name: the store then reports it. Errors to act
 * on: -ENOTUNIQ, -EACCES, -EINVAL (kind).
 */
int resolve_word(struct job *ret, const struct resolve_question *q, struct brumate_error *err);

/** Like resolve_word(), for a removal: the word must be exact. Errors to act on: the same, and -ENOENT. */
int resolve_exactly(struct job *ret, const struct resolve_question *q, struct brumate_error *err);

/** Finds a job by its full id or its name. Errors to act on: -ENOENT, -EINVAL (a prefix of an id). */
int resolve_job_exactly(struct job *ret, const char *word, struct brumate_error *err);

/** Fails with -ENOENT: the word is neither a job nor a checkpoint; the hint says which of these were possible. */
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

/** Whether @map has any GPU by number. */
bool gpu_map_has_numbers(json_t *map);
