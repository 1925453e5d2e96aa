// SPDX-License-Identifier: MIT
/*
 * A checkpoint that is restored from elsewhere (store/source.h), without a copy of it here: CRIU's images and the other
 * files are fetched into the job's directory for as long as the restore takes, the chunks of memory are read from the
 * source into host copies and processes. Address and credentials are known to the operation alone, and forgotten with it.
 */
#pragma once

#include <jansson.h>

#include "base/progress.h"
#include "job/target.h"
#include "store/store.h"

/** Where its files are meanwhile, in the job's directory. */
#define FETCHED_DIR "fetched"

struct fetched;

/** What it is fetched for. All borrowed until it is closed. */
struct fetched_for {
	const struct target *target;
	const char *of; /* id of the job whose checkpoint it must be */
	struct progress *progress;
	struct store_image *image; /* is filled */
};

/**
 * Finds the checkpoint @url by @remote (type Remote of io.brumate). Fills the image so far as is known: its manifest, and
 * @url as its path. @ret: owned.
 */
int fetched_open(struct fetched **ret, const struct fetched_for *what, const char *url,
		 json_t *remote, struct brumate_error *err);

/** Gets its files, each compared with its digest. -EBADMSG, -ENOSPC, those of the network. */
int fetched_files(struct fetched *f, store_progress_fn progress, void *arg,
		  struct brumate_error *err);

/** Closes it and removes its files; the image is closed before. Accepts NULL. */
void fetched_close(struct fetched *f);

/** Removes what a dead shim left of one. */
void fetched_sweep(const struct target *target);
