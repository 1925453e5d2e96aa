// SPDX-License-Identifier: MIT
/*
 * The GPU state of a container that its engine checkpoints and restores by a CRIU of its own. A container is a tree of
 * processes that is not a job: nothing of it stands in our directories. What has to be known before its processes can be
 * asked again lies beside CRIU's images. Not for two threads at once.
 */
#pragma once

#include <sys/types.h>

#include "base/error.h"

struct container;

/** NULL without memory, and where the configuration cannot be read. */
struct container *container_new(struct brumate_error *err);
void container_free(struct container *c);

/**
 * container_save() - take all GPU state of the tree below @root into host memory, at once
 * @images_dir_fd: borrowed; where CRIU writes
 *
 * All its processes run. On failure they have their GPUs back, or container_return() is to be tried again. Return: 1, or
 * 0 where no process uses a GPU. Errors to act on: -EOPNOTSUPP, -EBUSY, -ENOMEM, -EIO.
 */
int container_save(struct container *c, pid_t root, int images_dir_fd, struct brumate_error *err);

/** Refuses a process, stopped by now, that has begun to use a GPU since container_save(). -EBUSY. */
int container_check(struct container *c, pid_t pid, struct brumate_error *err);

/** Says whose tree it is where another process has called container_save(). */
int container_adopt(struct container *c, pid_t root, struct brumate_error *err);

/** Waits until no process of the tree is held by CRIU, and gives all their GPUs back, whatever state they are in. Does
 * nothing where nothing was saved, or where the tree has ended. */
int container_return(struct container *c, struct brumate_error *err);

/**
 * container_load() - find the processes of a restored tree, stopped as yet, whose GPU state is to come back
 * @ret_tids: owned; the threads that have to run while container_restore() does
 *
 * Return: 1, 0 (there are none), -EBADMSG, -EOPNOTSUPP and -ENOSPC (not on the GPUs that are here).
 */
int container_load(struct container *c, pid_t root, int images_dir_fd, pid_t **ret_tids,
		   size_t *ret_n, struct brumate_error *err);

/** Gives them their GPUs. */
int container_restore(struct container *c, struct brumate_error *err);

/** Lets the restored container live: CRIU is done with it. Returns 0. */
int container_keep(struct container *c);

/** Ends what container_load() found and container_keep() was not called for: processes of a restore that was not brought
 * to its end, which nobody else knows of. */
void container_abandon(struct container *c);
