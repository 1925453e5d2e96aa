// SPDX-License-Identifier: MIT
/* Checkpoints of containers as files to be moved elsewhere: a tar archive (archive.c), and an OCI image of it
 * (oci-image.c). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * ---- archives ----
 *
 * One tar archive, in the format of podman and CRI-O: checkpoint/ has CRIU's images, config.dump and spec.dump
 * describe the container. Those that brumate makes begin with brumate.json, which says how the container's runtime
 * restores it; only these can be read here.
 */

/** A small file of an archive. */
struct archive_text {
	const char *name;
	const char *text; /* borrowed */
	size_t len_bytes;
};

/** Writes @texts, and the files of @images_dir as checkpoint/…, into @path, which must not exist; mode 0600, synced.
 * After a failure the caller has to remove the file. */
int archive_write(const char *path, const struct archive_text *texts, size_t n_texts,
		  const char *images_dir, struct brumate_error *err);

/** The content of brumate.json (owned). 1; 0: the archive does not begin with it; -EBADMSG: it is damaged. */
int archive_about(json_t **ret, const char *path, struct brumate_error *err);

/** Unpacks checkpoint/ of an archive with a brumate.json into the empty directory @images_dir. -EBADMSG. */
int archive_unpack(const char *path, const char *images_dir, struct brumate_error *err);

/*
 * ---- OCI images ----
 *
 * The form that registries and engines accept: a directory in the layout of the OCI image specification 1.0, with the
 * archive as its only layer. Annotations describe it, with the keys of podman, CRI-O and containerd.
 */

/** The origin of the checkpoint. All borrowed; NULL: unknown. */
struct oci_about {
	const char *container;
	const char *engine;
	const char *runtime; /* podman only: an image with it is taken for podman's own */
	const char *pod, *namespace;
	const char *image; /* of the container */
};

/** Refuses what oci_image_write() would refuse: a path that exists, or has no directory above it. */
int oci_image_check(const char *dir, struct brumate_error *err);

/**
 * Makes the directory @dir, completely or not at all, with mode 0700. The archive, which must be plain tar, stays in
 * its place, and must not be changed afterwards. Errors to act on: -EEXIST, -EBADMSG.
 */
int oci_image_write(const char *dir, const char *archive, const struct oci_about *about,
		    struct brumate_error *err);

/** The path of the only layer of an image (owned). -EBADMSG: it is not such an image. */
int oci_image_layer(char **ret, const char *dir, struct brumate_error *err);
