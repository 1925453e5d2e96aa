// SPDX-License-Identifier: MIT
/* Checkpoints of containers as files that go elsewhere: a tar archive (archive.c), and an OCI image of it (oci-image.c). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * ---- archives ----
 *
 * One tar archive, in the form of podman and CRI-O: checkpoint/ has CRIU's images, config.dump and spec.dump say what the
 * container is. Those that brumate makes begin with brumate.json, which says how the container's runtime restores it; what
 * is read is of that kind alone.
 */

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

/*
 * ---- OCI images ----
 *
 * What registries take and engines restore: a directory in the layout of the OCI image specification 1.0, with the archive as
 * its only layer. Annotations say what it is, in the words of podman, CRI-O and containerd.
 */

/** What the checkpoint is of. All borrowed; NULL: not known. */
struct oci_about {
	const char *container;
	const char *engine;
	const char *runtime; /* of podman alone: what has it takes the image for one of its own */
	const char *pod, *namespace;
	const char *image; /* of which the container is */
};

/** Refuses what oci_image_write() would: a path where something is, or with no directory above it. */
int oci_image_check(const char *dir, struct brumate_error *err);

/**
 * Makes the directory @dir, all of it or nothing, with mode 0700. The archive, which must be plain tar, stays where it
 * is, and must not be changed afterwards. Errors to act on: -EEXIST, -EBADMSG.
 */
int oci_image_write(const char *dir, const char *archive, const struct oci_about *about,
		    struct brumate_error *err);

/** The path of the only layer of an image (owned). -EBADMSG: it is no such image. */
int oci_image_layer(char **ret, const char *dir, struct brumate_error *err);
