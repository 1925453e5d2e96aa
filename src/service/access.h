// SPDX-License-Identifier: MIT
/* Who may touch what: root everything, others the jobs, processes and checkpoints of their own uid. */
#pragma once

#include "job/job.h"
#include "process/process.h"
#include "service/service.h"
#include "store/authentic.h"
#include "store/store.h"

/** Refuses callers that are neither root nor @uid: -EACCES. @what, such as "job 1a2b3c4d", is for the text. */
int access_check(const struct service_call *call, uid_t uid, const char *what,
		 struct brumate_error *err);

/** Refuses callers that are not root: -EACCES. @what, such as "restore a checkpoint", is for the text. */
int access_root(const struct service_call *call, const char *what, struct brumate_error *err);

/** Refuses a socket at @path that all users may use, as an older unit made it: it would make everybody root.
 * -EACCES, -ENOENT or another of stat(2). */
int access_check_socket(const char *path, struct brumate_error *err);

/** Finds a job by id, prefix or name, and checks that the caller may touch it. */
int access_job(struct job *ret, const struct service_call *call, const char *word,
	       struct brumate_error *err);

/** Identifies a process and reads its tree; every one of it must be the caller's. */
int access_tree(struct proc_tree *ret, const struct service_call *call, pid_t pid,
		struct brumate_error *err);

/** The store to use: the one that "dir" of @parameters (may be NULL) says, which only root may, or the default.
 * Owned. */
int access_store(char **ret, const struct service_call *call, json_t *parameters,
		 struct brumate_error *err);

/** Opens a checkpoint of the store @dir, by id, prefix, job's name, or (root only) path. */
int access_image(struct store_image *ret, const struct service_call *call, const char *dir,
		 const char *word, struct brumate_error *err);

/** By what checkpoints are believed, as the options of REQUEST_READ in @parameters and the configuration say. The key
 * in @parameters is wiped. @ret: owned. */
int access_authority(struct authority *ret, json_t *parameters, struct brumate_error *err);

/** access_image() for one that must be authentic. */
int access_believed_image(struct store_image *ret, const struct service_call *call, const char *dir,
			  const char *word, json_t *parameters, struct brumate_error *err);
