// SPDX-License-Identifier: MIT
/*
 * A checkpoint that is restored from an object store, without a copy of it here: CRIU's images and the other
 * files are fetched into the job's directory for as long as the restore takes, the chunks of memory come
 * straight from there into host copies and processes. How to get there and as whom is known to the operation
 * alone, and forgotten with it.
 */
#pragma once

#include <jansson.h>

#include "base/progress.h"
#include "job/job.h"
#include "store/store.h"

/** Where its files are meanwhile, in the job's directory. */
#define REMOTE_RESTORE_DIR "fetched"

struct remote_restore;

/** What a remote restore is for. All borrowed until it is closed. */
struct remote_restore_job {
	const struct job *job;
	const char *of; /* id of the job whose checkpoint it must be */
	struct progress *progress;
	struct store_image *image; /* is filled */
};

/**
 * Finds the checkpoint @url ("s3://BUCKET/PREFIX/ID"), which must be of the job that @what names, by @remote (type Remote of
 * io.brumate). Fills the image so far as is known: its manifest, and @url as its path. @ret: owned.
 */
int remote_restore_open(struct remote_restore **ret, const struct remote_restore_job *what,
			const char *url, json_t *remote, struct brumate_error *err);

/** Gets its files, each compared with its digest. -EBADMSG, -ENOSPC, those of the network. */
int remote_restore_files(struct remote_restore *r, store_progress_fn progress, void *arg,
			 struct brumate_error *err);

/** Lets go of it and of its files; before that of the image. Accepts NULL. */
void remote_restore_close(struct remote_restore *r);

/** Removes what a dead shim left of one. */
void remote_restore_sweep(const struct job *job);
