// SPDX-License-Identifier: MIT
/* Loading one checkpoint of an open store, for the other files of this layer. */
#pragma once

#include <sys/stat.h>

#include "store/store.h"

/** Loads the checkpoint @id of the store @store_fd, whose path is @store. Takes no lock. */
int image_load(struct store_image *ret, int store_fd, const char *store, const char *id,
	       struct brumate_error *err);

/**
 * Keeps store_remove() away from @i until it is closed, by a shared lock of its directory. A file system
 * without locks goes without. -EBUSY: it is being removed just now.
 */
int image_hold(const struct store_image *i);
