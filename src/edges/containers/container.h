// SPDX-License-Identifier: MIT
/*
 * The GPU state of a container that its engine checkpoints and restores by a CRIU of its own. A container is a tree of
 * processes that is not a job: our directories hold nothing of it. What has to be known before its processes can be
 * asked again is in a record next to CRIU's images. Not for two threads at once.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "process/process.h"

struct container;

/** An agent keeps the gate of its process closed: of that process the others may run, too, without coming to the driver. */
struct container_thread {
	pid_t tid;
	bool is_agent;
};

/** @criu: of the engine. NULL without memory, and where the configuration cannot be read. */
struct container *container_new(struct proc_id criu, struct brumate_error *err);
void container_free(struct container *c); /* accepts NULL */
DEFINE_AUTO(struct container *, container_free)

/**
 * container_save() - take all GPU state of the tree below process @pid off the GPUs, at once
 * @images_dir_fd: borrowed; where CRIU writes
 *
 * All its processes run. What their agents give out is on its way into that directory when this returns; the driver saves
 * the rest. On failure they have their GPUs back, or container_return() is to be tried again. Return: 1, or
 * 0 where no process uses a GPU. Errors to act on: -EOPNOTSUPP, -EBUSY, -ENOMEM, -EIO.
 */
int container_save(struct container *c, pid_t pid, int images_dir_fd, struct brumate_error *err);

/** Whose plugin in CRIU is to save the GPU state of what container_save() found; empty: none, it is saved. */
const char *container_plugin(const struct container *c);

/** Refuses a process, stopped by now, that has begun to use a GPU since container_save(). -EBUSY. */
int container_check(struct container *c, pid_t pid, struct brumate_error *err);

/** Takes large memory of processes, all stopped by now, into that directory, too, and tells CRIU by the table behind @table_fd
 * (criu-plugin/hidden.h) to leave it out, unless the configuration leaves all of it to CRIU. They stand still until
 * container_finish() has returned, or that fails. */
int container_take_memory(struct container *c, int table_fd, struct brumate_error *err);

/** Waits until all is in the directory of images, and completes it: before that there is nothing to be restored. The seal names
 * what was said there of GPUs; CRIU's own images are to have it. */
int container_finish(struct container *c, char ret_seal[static DIGEST_TEXT_BYTES],
		     struct brumate_error *err);

/** Says whose tree it is where another process has called container_save(), and died. */
int container_adopt(struct container *c, pid_t pid, struct brumate_error *err);

/** The same, of the directory @dir of a container, for the program that its keeper starts. -ENOENT: none is needed; -EBUSY:
 * another one does the work. */
int container_inherit(struct container *c, const char *dir, struct brumate_error *err);

/** The first process of the tree, and CRIU: before one of them has ended there is nothing to be given back. */
struct proc_id container_root(const struct container *c);
struct proc_id container_criu(const struct container *c);

/** Waits until no process of the tree is held by CRIU, and gives all their GPUs back, regardless of the state they are in.
 * Does nothing where nothing was saved; where the tree has ended, it releases what was saved. */
int container_return(struct container *c, struct brumate_error *err);

/** Reads what an image says of GPUs, and tells its seal. -EBADMSG, -EOPNOTSUPP, -ENOENT. */
int container_look(struct container *c, int images_dir_fd, char ret_seal[static DIGEST_TEXT_BYTES],
		   struct brumate_error *err);

/**
 * container_open() - compare an image that was looked at with the machine, and start filling device memory from it
 * @images_dir_fd: borrowed
 *
 * Return: 0, -EBADMSG, -EOPNOTSUPP and -ENOSPC (not on the GPUs that are here).
 */
int container_open(struct container *c, int images_dir_fd, struct brumate_error *err);

/** The same for what container_open() opened: whose plugin is to restore it, and "ID FROM=TO,..." where that is not onto the
 * same GPUs. Owned; NULL without memory. */
char *container_plugin_restore(const struct container *c);

/**
 * container_load() - fill memory of a restored tree, stopped as yet, and find the processes whose GPU state is to come back
 * @ret_threads: owned; those that have to run while container_restore() does
 *
 * Return: 1, 0 (there are none), -EBADMSG.
 */
int container_load(struct container *c, pid_t pid, struct container_thread **ret_threads,
		   size_t *ret_n, struct brumate_error *err);

/** Gives them their GPUs, and their memory there; all of it is compared with its digests before any of them gets it. */
int container_restore(struct container *c, struct brumate_error *err);

/** Lets the restored container live: CRIU is done with it. Returns 0. */
int container_keep(struct container *c);

/** Ends what container_load() found and container_keep() was not called for: processes of a restore that was not brought
 * to its end, which nobody else knows of. */
void container_abandon(struct container *c);
