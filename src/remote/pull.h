// SPDX-License-Identifier: MIT
/* Files of a checkpoint on their way here. Private to this layer. */
#pragma once

#include <pthread.h>

#include "remote/find.h"
#include "remote/staging.h"

/* A file on its way; see struct item of push.c. */
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
int pull_files(struct pull *p, const char *dir, struct pool_watch *watch,
	       struct brumate_error *err);

/** Gets once more what is damaged in the packs of @p, which are in their places; whether that helped, it does
 * not say. Packs that this store's checkpoints share stay as they are. */
int pull_mend(struct pull *p, const struct pool_watch *watch, struct brumate_error *err);
