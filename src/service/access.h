// SPDX-License-Identifier: MIT
/*
 * What a call may reach. The service has the rights of the program that it runs in, a user's or root's, and the
 * kernel decides by them; whoever is let at brumated's socket may what root may. What is asked here is said before
 * anything is touched.
 */
#pragma once

#include "job/job.h"
#include "process/process.h"
#include "service/service.h"
#include "store/authentic.h"
#include "store/store.h"

/** Refuses a socket at @path that all users may use, as an older unit made it: it would make everybody root.
 * -EACCES, -ENOENT or another of stat(2). */
int access_check_socket(const char *path, struct brumate_error *err);

/** Identifies a process and reads its tree; where we are not root every one of it must be ours: -EACCES. */
int access_tree(struct proc_tree *ret, pid_t pid, struct brumate_error *err);

/** The same for the first process of a container, whose users are its own affair: where we are root, none of them is
 * refused for having rights that the first process has not. */
int access_container(struct proc_tree *ret, pid_t pid, struct brumate_error *err);

/** The store to use: the one that "dir" of @parameters (may be NULL) says, or the default. Owned. */
int access_store(char **ret, json_t *parameters, struct brumate_error *err);

/** As access_store(), for what makes the directory if it is missing: that above one that "dir" says must be there.
 * Errors to act on: -ENOENT. */
int access_store_to_write(char **ret, json_t *parameters, struct brumate_error *err);

/** As access_store(), to read from: one that somebody chose must be there. The usual one need not, as the first
 * checkpoint makes it. Errors to act on: -ENOENT, -ENOTDIR. */
int access_store_there(char **ret, json_t *parameters, struct brumate_error *err);

/** Opens a checkpoint of the store @dir, by id, prefix, job's name, or absolute path. */
int access_image(struct store_image *ret, const char *dir, const char *word,
		 struct brumate_error *err);

/** By what checkpoints are believed, as the options of REQUEST_READ in @parameters and the configuration say. The key
 * in @parameters is wiped. @ret: owned. */
int access_authority(struct authority *ret, json_t *parameters, struct brumate_error *err);

/** access_image() for one that must be authentic. */
int access_believed_image(struct store_image *ret, const char *dir, const char *word,
			  json_t *parameters, struct brumate_error *err);
