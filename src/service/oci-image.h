// SPDX-License-Identifier: MIT
/*
 * The archive of a container's checkpoint as an OCI image, which registries take and engines restore: a directory in the
 * layout of the OCI image specification 1.0, with the archive as its only layer. Annotations say what it is, in the words of
 * podman, CRI-O and containerd.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

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
