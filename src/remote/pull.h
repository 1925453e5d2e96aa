// SPDX-License-Identifier: MIT
/* Getting the files of a checkpoint. Private to this layer. */
#pragma once

#include <pthread.h>

#include "remote/find.h"
#include "store/store.h"

/*
 * Where a pull keeps files until all are there: ".ID.pulling" in the store, one file for each of the manifest,
 * under its number in it and its digest; a pack under the name it has. Complete ones have that name, verified
 * but for packs; others end in ".part". It outlives an interrupted pull, so that the next one goes on.
 */
struct staging {
	int dir_fd; /* locked (flock) while in use */
	int store_fd;
	char *name; /* owned */
};
#define STAGING_EMPTY ((struct staging){ .dir_fd = -1, .store_fd = -1 })

/* A file on its way. The thread that comes first begins it, and the one that does its last part ends it. */
struct pull_item {
	struct place_file file;
	pthread_mutex_t lock;
	char *key; /* owned */
	int fd;
	bool there;
	atomic_size_t n_left;
};

struct pull_unit;

/** The checkpoint that was found, and what has come of it. Owns its parts. */
struct pull {
	struct client client;
	struct found found;
	bool files_only; /* packs stay there, and nothing is kept of what is interrupted */
	struct store_writer writer; /* what is there of it, uncommitted */
	struct staging staging;
	struct pull_item *items;
	size_t n_items;
	struct pull_unit *units;
	size_t n_units;
	bool linked; /* packs of this store */
	atomic_uint_fast64_t moved_files, moved_bytes;
};
#define PULL_EMPTY      \
	((struct pull){ \
		.writer = STORE_WRITER_EMPTY, .staging = STAGING_EMPTY, .client.stop_fd = -1 })
void pull_fini(struct pull *p);
DEFINE_AUTO_FINI(struct pull, pull_fini)

/** Gets the files of @p->found into a checkpoint of the store @dir, each compared with its digest. */
int pull_files(struct pull *p, const char *dir, struct client_watch *watch,
	       struct brumate_error *err);
