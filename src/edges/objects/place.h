// SPDX-License-Identifier: MIT
/*
 * Where in an object store checkpoints are: "s3://bucket/prefix". Below the prefix, a checkpoint is
 *
 *	ID/PATH			its files, as the manifest names them
 *	packs/NAME		files of chunks, which checkpoints may share: their names are unique
 *	ID/manifest.json	written last: without it, the checkpoint is not there
 *
 * Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "image/manifest.h"

enum { REMOTE_BUCKET_BYTES = 64, REMOTE_PREFIX_BYTES_MAX = 512 };

struct remote_place {
	char bucket[REMOTE_BUCKET_BYTES];
	char *prefix; /* no '/' at either end; may be empty; owned */
};
#define REMOTE_PLACE_EMPTY ((struct remote_place){ 0 })
void remote_place_fini(struct remote_place *p);
DEFINE_AUTO_FINI(struct remote_place, remote_place_fini)

/** Parses "s3://bucket[/prefix]". -EINVAL, with the reason. */
int remote_place_parse(struct remote_place *ret, const char *url, struct brumate_error *err);

/**
 * Splits off the last part of the prefix: @ret_word (owned) names the checkpoint. -EINVAL if @p has no prefix.
 */
int remote_place_split(struct remote_place *p, char **ret_word, struct brumate_error *err);

/** The key of something below the prefix. Owned; NULL if out of memory. */
char *place_key(const struct remote_place *p, const char *below);

/** A file or a pack of a manifest. Borrows from it. */
struct place_file {
	const char *path;
	uint64_t len_bytes;
	const struct digest *digest; /* NULL: a pack, whose chunks have digests */
};

/** The number of files and packs of @m, and number @i of them. Files come first. */
size_t place_n_files(const struct manifest *m);
struct place_file place_file(const struct manifest *m, size_t i);

/** The key of @f of the checkpoint @id. Owned; NULL if out of memory. */
char *place_file_key(const struct remote_place *p, const char *id, const struct place_file *f);

/** The name of a pack, which is unique. */
const char *place_pack_name(const struct place_file *f);

#define PLACE_PACKS "packs"

/** Percent-encodes all but [A-Za-z0-9-._~], and '/' if @keep_slash. Owned; NULL if out of memory. */
char *place_encode(const char *text, bool keep_slash);
