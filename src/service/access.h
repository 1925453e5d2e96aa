// SPDX-License-Identifier: MIT
/*
 * Checks what a call may access. The service has the permissions of the program that it runs in, a user's or root's,
 * and the kernel enforces them; every client of brumated's socket may do what root may. The checks here refuse a call
 * before it has any effect.
 */
#pragma once

#include "job/job.h"
#include "process/process.h"
#include "service/service.h"
#include "store/authentic.h"
#include "store/store.h"

/** Refuses a socket at @path that is open to all users, as an older unit made it: it would make everybody root.
 * -EACCES, -ENOENT or another error of stat(2). */
int access_check_socket(const char *path, struct brumate_error *err);

/** Identifies a process and reads its tree; if we are not root, all its processes must be ours: -EACCES. */
int access_tree(struct proc_tree *ret, pid_t pid, struct brumate_error *err);

/** The same for the first process of a container, which may have any users inside: if we are root, no process is
 * refused for having permissions that the first one lacks. */
int access_container(struct proc_tree *ret, pid_t pid, struct brumate_error *err);

/** The store to use: "dir" of @parameters (may be NULL), or the default. Owned. */
int access_store(char **ret, json_t *parameters, struct brumate_error *err);

/** Like access_store(), for methods that create the directory if it is missing: the one above "dir" must exist.
 * Errors to act on: -ENOENT. */
int access_store_to_write(char **ret, json_t *parameters, struct brumate_error *err);

/** Like access_store(), for reading: a store that the caller chose must exist. The default one need not, as the first
 * checkpoint creates it. Errors to act on: -ENOENT, -ENOTDIR. */
int access_store_there(char **ret, json_t *parameters, struct brumate_error *err);

/** Opens a checkpoint of the store @dir, by id, prefix, job's name, or absolute path. */
int access_image(struct store_image *ret, const char *dir, const char *word,
		 struct brumate_error *err);

/** Which proof of origin checkpoints need, according to the options of REQUEST_READ in @parameters and the
 * configuration. The key in @parameters is wiped. @ret: owned. */
int access_authority(struct authority *ret, json_t *parameters, struct brumate_error *err);

/** Like access_image(), for one that must be authentic. */
int access_believed_image(struct store_image *ret, const char *dir, const char *word,
			  json_t *parameters, struct brumate_error *err);
