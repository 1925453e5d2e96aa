// SPDX-License-Identifier: MIT
/*
 * Whose rights an operation needs. The job of a user other than root is saved and restored by a CRIU that runs as that
 * user with CAP_CHECKPOINT_RESTORE alone, also where root asks for it: the paths in its images and the memory of its
 * processes are the user's to write, so what they lead to has to be the user's to reach.
 */
#pragma once

#include "engine/op.h"

/**
 * Reads the tree again and refuses it where a member has rights which the job's user has not. What a tree is may change
 * until its members stand still, so this is asked again then. Errors to act on: -EPERM, -ESRCH, -EIO.
 */
int rights_check(struct op *op, struct brumate_error *err);

/**
 * rights_check_images() - refuse CRIU's images in which a thread asks for more than its process had
 * @m: says what it had, and whose job it is
 * @is_forced: as --force says, a job of root's may have processes of other users
 *
 * CRIU has it from code of its own inside the processes, where everybody of the same user can change the answer.
 * Errors to act on: -EBADMSG, also of an image that cannot be read.
 */
int rights_check_images(int images_dir_fd, const struct manifest *m, bool is_forced,
			struct brumate_error *err);

/**
 * rights_check_dump() - as rights_check(), for members that CRIU is to save
 *
 * Nobody outside the tree lives in their memory. Where CRIU works as the job's user, all are in the groups of the root,
 * and none has a filter of system calls, which the kernel shows to root's CRIU alone. What each may do is put into the
 * manifest of the checkpoint, and stands once they stand still.
 */
int rights_check_dump(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_FROZEN, after rights_check_dump(): puts the filters of system calls into the manifest as well, which only
 * CRIU's tracing shows. Errors to act on: -EOPNOTSUPP. */
int rights_read_filters(struct op *op, struct brumate_error *err);

/**
 * rights_check_users() - refuse to restore a job of root's that has processes of other users, without --force
 *
 * Root's CRIU restores all of it, and opens their files by paths that are theirs to change. Asked before the restore
 * begins, as far as the manifest tells; rights_check_images() asks it of a checkpoint that does not tell.
 * Errors to act on: -EPERM names the process.
 */
int rights_check_users(const struct op *op, struct brumate_error *err);

/** Says as whom CRIU works (criu_options.user). NULL in *@ret: as we are. Lasts as long as @op. Errors to act on:
 * -ESRCH. */
int rights_for_dump(struct op *op, struct criu_user **ret, struct brumate_error *err);
int rights_for_restore(struct op *op, struct criu_user **ret, struct brumate_error *err);

/** Puts a copy of the images at op->images.dir_fd in its place, which may be given to that user; one that is in
 * memory already stays. */
int rights_copy_images(struct op *op, struct brumate_error *err);
