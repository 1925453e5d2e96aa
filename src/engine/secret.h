// SPDX-License-Identifier: MIT
/*
 * Checkpoints that are encrypted ([Store] EncryptionKey…=, brumate.conf(5)). CRIU writes and reads plain
 * files: they are on a file system in memory, which goes away with this process, and are sealed into the
 * checkpoint before it is committed, or opened out of it before CRIU restores.
 */
#pragma once

#include "engine/op.h"

/** Reads the key, of the request or the configured one, if there is one, and makes the checkpoint's writer
 * encrypt by it. */
int secret_begin(struct op *op, struct brumate_error *err);

/** The directory for the images that CRIU writes: "criu" of the checkpoint, or one in memory. Returns its
 * fd (owned) or -errno. */
int secret_images_to(struct op *op, struct brumate_error *err);

/** Seals the images into the checkpoint. Nothing without a key. */
int secret_seal(struct op *op, struct brumate_error *err);

/** Unlocks the image, if it is encrypted, by the key of the request or the configured one: -ENOKEY,
 * -EKEYREJECTED. */
int secret_unlock(struct op *op, struct brumate_error *err);

/** The directory with the images that CRIU reads. Returns its fd (owned) or -errno. */
int secret_images_from(struct op *op, struct brumate_error *err);
