// SPDX-License-Identifier: MIT
/*
 * Checkpoints that are encrypted ([Store] EncryptionKey…=, brumate.conf(5)). CRIU writes and reads plain
 * files: they are on a file system in memory, which goes away with this process, and are sealed into the
 * checkpoint before it is committed, or opened out of it before CRIU restores.
 */
#pragma once

#include "engine/op.h"

/** Reads the key, of the request or the configured one, and the one that signs, as far as there are any, and makes
 * the checkpoint's writer encrypt and sign by them. */
int secret_begin(struct op *op, struct brumate_error *err);

/** Whether there is a key, so that the checkpoint is going to be encrypted. */
bool secret_is_wanted(const struct request *request);

/** The directory for the images that CRIU writes: "criu" of the checkpoint, or one in memory. Returns its
 * fd (owned) or -errno. */
int secret_images_to(struct op *op, struct brumate_error *err);

/** Seals the images into the checkpoint. Nothing without a key. */
int secret_seal(struct op *op, struct brumate_error *err);

/** By what @request and the configuration believe checkpoints. @ret: owned. Errors to act on: those of
 * store_key_load() and trusted_keys_load(), -ETIMEDOUT. */
int secret_authority(struct authority *ret, const struct request *request,
		     struct brumate_error *err);

/** Unlocks the image that is to be restored, if it is encrypted, and refuses one that is not authentic or of another
 * job, before anything else of it is read: -ENOKEY, -EKEYREJECTED, -EBADMSG. */
int secret_believe(struct op *op, struct brumate_error *err);

/** The directory with the images that CRIU reads. Returns its fd (owned) or -errno. */
int secret_images_from(struct op *op, struct brumate_error *err);
