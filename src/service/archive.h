// SPDX-License-Identifier: MIT
/*
 * Checkpoints of containers in one file, a tar archive, in the form of podman and CRI-O: checkpoint/ has CRIU's images,
 * config.dump and spec.dump say what the container is. Those that brumate makes begin with brumate.json, which says how the
 * container's runtime restores it; what is read is of that kind alone.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

/** A small file of an archive. */
struct archive_text {
	const char *name;
	const char *text; /* borrowed */
	size_t len_bytes;
};

/** Writes @texts, and the files of @images_dir as checkpoint/…, into @path, which must not be there; mode 0600, synced. What
 * is left after a failure is the caller's to remove. */
int archive_write(const char *path, const struct archive_text *texts, size_t n_texts,
		  const char *images_dir, struct brumate_error *err);

/** What brumate.json says (owned). 1; 0: the archive does not begin with it; -EBADMSG: it is damaged. */
int archive_about(json_t **ret, const char *path, struct brumate_error *err);

/** Unpacks checkpoint/ of an archive with a brumate.json into the empty directory @images_dir. -EBADMSG. */
int archive_unpack(const char *path, const char *images_dir, struct brumate_error *err);
