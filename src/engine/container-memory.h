// SPDX-License-Identifier: MIT
/*
 * Device memory of a container beside the images of its CRIU: a checkpoint by itself ("brumate-memory/", docs/image-format.md)
 * that holds device memory alone. So whatever takes the images elsewhere takes it too.
 */
#pragma once

#include "engine/op.h"

#define CONTAINER_MEMORY_NAME "brumate-memory"

/** Begins it in the directory op->images.dir_fd, in the place of an old one, where there are agents whose memory goes there;
 * else returns 1. */
int container_memory_begin(struct op *op, struct brumate_error *err);

/** Refuses agents that tell of more memory than their GPUs have, before room is made for it. */
int container_memory_check(struct op *op, struct brumate_error *err);

/** Gives up what is not complete; nothing is copied any more. */
void container_memory_abort(struct op *op);

/** Waits for the transfer and completes it. @ret: the digest of its manifest, empty where none was begun. */
int container_memory_commit(struct op *op, char ret[static DIGEST_TEXT_BYTES],
			    struct brumate_error *err);

/** Opens that of the digest @digest in @dir_fd, and starts filling device memory from it, on the GPUs that op->gpus
 * says. -EBADMSG: it is not there, or another, or damaged as far as can be seen so soon. */
int container_memory_load(struct op *op, int dir_fd, const char *digest, struct brumate_error *err);
