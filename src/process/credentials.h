// SPDX-License-Identifier: MIT
/*
 * The rights of processes, as the kernel tells them from outside: what a process says of itself, or lets CRIU's
 * code say in its place, can be forged by everybody who may write to its memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

enum { CREDENTIALS_LABEL_BYTES = 256 };

enum credentials_id {
	CREDENTIALS_REAL,
	CREDENTIALS_EFFECTIVE,
	CREDENTIALS_SAVED,
	CREDENTIALS_FILES,
	CREDENTIALS_ID__MAX,
};

enum credentials_set {
	CREDENTIALS_INHERITABLE,
	CREDENTIALS_PERMITTED,
	CREDENTIALS_IN_EFFECT,
	CREDENTIALS_BOUNDING,
	CREDENTIALS_AMBIENT,
	CREDENTIALS_SET__MAX,
};

/** The rights of a thread. */
struct credentials {
	uid_t uids[CREDENTIALS_ID__MAX];
	gid_t gids[CREDENTIALS_ID__MAX];
	gid_t *groups; /* supplementary ones, sorted; owned */
	size_t n_groups;
	uint64_t capabilities[CREDENTIALS_SET__MAX];
	bool no_new_privs;
	unsigned seccomp;		     /* mode: 0 none, 1 strict, 2 filters */
	char label[CREDENTIALS_LABEL_BYTES]; /* of a security module; empty where there is none */
};
#define CREDENTIALS_EMPTY ((struct credentials){ 0 })
void credentials_fini(struct credentials *c);
DEFINE_AUTO_FINI(struct credentials, credentials_fini)

/** Gives it these supplementary groups, in any order. 0 or -ENOMEM. */
int credentials_set_groups(struct credentials *c, const gid_t *groups, size_t n);

bool credentials_are_same(const struct credentials *one, const struct credentials *other);

/** Whether they are those of user @uid and of nobody else: all ids are the user's, and there is no capability but in
 * the bounding set. */
bool credentials_are_of_user(const struct credentials *c, uid_t uid);

/** Reads those of the first thread of process @pid. -ESRCH, -EBADMSG, -errno. */
int credentials_read(struct credentials *ret, pid_t pid);

/** As the kernel's file "status" tells them, without the label. Pure. 0, -EBADMSG, -ENOMEM. */
int credentials_parse(struct credentials *ret, const char *status);

/** The rights of the threads of a process; equal ones are there once. The label is that of its first thread. */
struct credentials_of_process {
	struct proc_info info;
	struct credentials *items;
	size_t n;
};

/** Those of a tree, zombies left out. */
struct credentials_of_tree {
	struct credentials_of_process *items; /* the root first */
	size_t n;
};
#define CREDENTIALS_OF_TREE_EMPTY ((struct credentials_of_tree){ 0 })
void credentials_of_tree_fini(struct credentials_of_tree *t);
DEFINE_AUTO_FINI(struct credentials_of_tree, credentials_of_tree_fini)

/**
 * credentials_of_tree() - read those of all threads of a tree
 *
 * They only hold for as long as the tree is frozen. Processes that end meanwhile are left out. Errors to act on: -EIO
 * (cannot be read).
 */
int credentials_of_tree(struct credentials_of_tree *ret, const struct proc_tree *tree,
			struct brumate_error *err);

/**
 * credentials_check() - refuse a tree that has rights which user @uid has not
 *
 * What is done to the job of a user shows the memory of its processes, and makes them run again. So none of them may
 * be more than that user: no setuid program, none with capabilities, none of another user, and none that lets nobody
 * read its memory (prctl(2), PR_SET_DUMPABLE). A tree of root is root's affair.
 * Errors to act on: -EPERM names the process; -EIO (cannot be read).
 */
int credentials_check(const struct credentials_of_tree *t, uid_t uid, struct brumate_error *err);

/** The same for a tree that is read now. */
int credentials_check_tree(const struct proc_tree *tree, uid_t uid, struct brumate_error *err);
