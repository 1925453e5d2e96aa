// SPDX-License-Identifier: MIT
/*
 * Checkpoints that are encrypted ([Store] EncryptionKey…=, brumate.conf(5)). CRIU writes and reads plain
 * files: they are on a file system in memory, which goes away with this process, and are sealed into the
 * checkpoint before it is committed, or opened out of it before CRIU restores.
 */
#pragma once

#include "engine/op.h"

/** Uses the key that the caller gave instead of the configured one: @text is 64 hexadecimal digits, and is
 * forgotten where it stands; or it is in the file @path. Before what follows. -EINVAL, -ENOKEY, -EACCES. */
int secret_give(struct op *op, char *text, struct brumate_error *err);
int secret_give_file(struct op *op, const char *path, struct brumate_error *err);

/** Reads the configured key, if there is one, and makes op->writer encrypt by it. */
int secret_begin(struct op *op, struct brumate_error *err);

/** The directory for the images that CRIU writes: "criu" of the checkpoint, or one in memory. Returns its
 * fd (owned) or -errno. */
int secret_images_to(struct op *op, struct brumate_error *err);

/** Seals the images in op->criu_dir_fd into the checkpoint. Nothing without a key. */
int secret_seal(struct op *op, struct brumate_error *err);

/** Unlocks op->image, if it is encrypted, by the configured key: -ENOKEY, -EKEYREJECTED. */
int secret_unlock(struct op *op, struct brumate_error *err);

/** The directory with the images that CRIU reads. Returns its fd (owned) or -errno. */
int secret_images_from(struct op *op, struct brumate_error *err);
