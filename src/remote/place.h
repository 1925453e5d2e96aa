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

/** Whether @word names a place in an object store rather than a file or an id. */
bool remote_is_url(const char *word);

/** Reads "s3://bucket[/prefix]". -EINVAL says what is wrong. */
int remote_place_parse(struct remote_place *ret, const char *url, struct brumate_error *err);

/**
 * Splits the last part of the prefix off: @ret_word (owned) is the checkpoint that is meant. -EINVAL
 * if @p has no prefix.
 */
int remote_place_split(struct remote_place *p, char **ret_word, struct brumate_error *err);

/** Returns the key of something below the prefix. Owned; NULL without memory. */
char *place_key(const struct remote_place *p, const char *below);

/** A file or a pack of a manifest, which it is borrowed from. */
struct place_file {
	const char *path;
	uint64_t len_bytes;
	const struct digest *digest; /* NULL: a pack, whose chunks have theirs */
};

/** Tells how many files and packs @m has, and which is number @i of them. Files come first. */
size_t place_n_files(const struct manifest *m);
struct place_file place_file(const struct manifest *m, size_t i);

/** Returns the key of @f of the checkpoint @id. Owned; NULL without memory. */
char *place_file_key(const struct remote_place *p, const char *id, const struct place_file *f);

/** Returns the name of a pack, which no other pack has. */
const char *place_pack_name(const struct place_file *f);

#define PLACE_PACKS "packs"

/** Percent-encodes all but [A-Za-z0-9-._~], and '/' if @keep_slash. Owned; NULL without memory. */
char *place_encode(const char *text, bool keep_slash);
