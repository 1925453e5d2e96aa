// SPDX-License-Identifier: MIT
/*
 * Where a pull keeps files until all are there: ".ID.pulling" in the store, one file for each of the
 * manifest, under its number in it and its digest; of a pack, the name it has. Complete ones have that name,
 * verified but for packs; others end in ".part". It outlives an interrupted pull, so that the next one goes on. Private to this layer.
 */
#pragma once

#include "remote/place.h"
#include "store/store.h"

struct staging {
	int dir_fd; /* locked (flock) while in use */
	int store_fd;
	char *name; /* owned */
};
#define STAGING_EMPTY ((struct staging){ .dir_fd = -1, .store_fd = -1 })

/** Opens or makes that of @id in the store @w writes to. -EBUSY: another pull of it is under way. */
int staging_open(struct staging *ret, const struct store_writer *w, const char *id,
		 struct brumate_error *err);
void staging_close(struct staging *s); /* what is in it stays */
DEFINE_AUTO_FINI(struct staging, staging_close)

/** Removes it. */
void staging_remove(struct staging *s);

/** Whether file @i of the manifest is there, complete. */
bool staging_has(const struct staging *s, size_t i, const struct place_file *f);

/** Opens file @i for writing, empty, not yet complete. The fd (owned) or -errno. */
int staging_create(const struct staging *s, size_t i, const struct place_file *f);

/** Links @path of @dir_fd as file @i, not yet complete. 0 or -errno. */
int staging_link(const struct staging *s, size_t i, const struct place_file *f, int dir_fd,
		 const char *path);

/** Compares file @i with its size and its digest (if it has one), syncs it and calls it complete. -EBADMSG:
 * it is another. */
int staging_finish(const struct staging *s, size_t i, const struct place_file *f,
		   struct brumate_error *err);

/** Moves the first @n files to their places in @w. */
int staging_move(const struct staging *s, const struct manifest *m, size_t n,
		 struct store_writer *w, struct brumate_error *err);
