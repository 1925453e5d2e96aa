// SPDX-License-Identifier: MIT
/*
 * Several sessions at a time. The caller's thread does no work but report progress and take the order to
 * stop; signals stay with it too. Private to this layer.
 */
#pragma once

#include "remote/http.h"
#include "store/store.h"

/** Does unit @i. From several threads. <0 ends the others. */
typedef int (*pool_fn)(void *arg, struct session *s, size_t i, struct brumate_error *err);

/** Whom to tell of progress. */
struct pool_watch {
	store_progress_fn progress; /* may be NULL */
	void *arg;
	uint64_t total_bytes;
};

/**
 * Does units 0 to @n - 1 with as many threads as the configuration allows, in that order of beginning.
 * The failure that came first is reported; -errno of @watch's function if that ended it.
 */
int pool_run(struct client *c, size_t n, pool_fn fn, void *arg, const struct pool_watch *watch,
	     struct brumate_error *err);
