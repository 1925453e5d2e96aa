// SPDX-License-Identifier: MIT
/*
 * What CRIU would do with the images of a checkpoint: whom it makes, as whom, and what it opens, binds, connects and
 * maps. For people to read before it is done. The images are foreign bytes: nothing in them is acted on.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"
#include "criu/entries.h"

enum { CRIU_CONTENTS_TEXT_MAX = 128 << 20 }; /* of all that is told, about */

/** Gives the image @name whole, at most CRIU_IMAGE_BYTES_MAX of it (@ret owned). 0, -ENOENT: there is none; another
 * -errno ends the reading with @err. */
typedef int (*criu_image_read_fn)(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
				  struct brumate_error *err);

/**
 * criu_contents_read() - tell what the images ask for
 *
 * Pure, but for @read. @ret (owned) is an object: processes, the root first; files and sockets, each with who has it.
 * What the members mean is in wire/io.brumate.varlink. Strings are escaped as image/escape.h does.
 * Errors to act on: -EBADMSG names the image that is damaged, -E2BIG (more than CRIU_CONTENTS_TEXT_MAX), -ENOMEM.
 */
int criu_contents_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err);

/** The same, but the array of sockets alone (owned), and not who has them: one image is read. */
int criu_sockets_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err);
