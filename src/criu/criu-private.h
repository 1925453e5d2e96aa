// SPDX-License-Identifier: MIT
/* What the files of this folder share: starting CRIU, reading its log, and healing a tree after its death. */
#pragma once

#include "base/cleanup.h"
#include "criu/criu.h"

/** A running `criu swrk`: our end of its socket, and the process, which is a protected child. */
struct criu_child {
	struct proc_id id;
	uid_t uid; /* as whom it runs, where that is not ourselves; 0: as we do */
	int socket_fd;
};
#define CRIU_CHILD_NONE ((struct criu_child){ .socket_fd = -1 })

/** What the environment of CRIU says of plugins. */
struct criu_plugin_env {
	const char *libdir; /* NULL: an empty one */
	int table_fd;	    /* as CRIU has it; -1: none */
	const char *devices, *vendor, *gpu_map;
};
#define CRIU_PLUGIN_ENV_NONE ((struct criu_plugin_env){ .table_fd = -1 })

enum { CRIU_FDS_MAX = 1024 };

/** Descriptors (owned) that CRIU gets, under the same numbers. */
struct criu_fds {
	int items[CRIU_FDS_MAX];
	size_t n;
};
void criu_fds_fini(struct criu_fds *f);
DEFINE_AUTO_FINI(struct criu_fds, criu_fds_fini)

/** Takes @fd, of @what; where it is <0 it is the -errno of what should have made it. Returns it. */
int criu_fds_take(struct criu_fds *f, int fd, const char *what, struct brumate_error *err);

/** Takes a copy of @fd, above the standard descriptors, which CRIU has for itself. Returns the copy. */
int criu_fds_add(struct criu_fds *f, int fd, const char *what, struct brumate_error *err);

/**
 * Starts `PROGRAM swrk` in a session of its own. It inherits @fds and its socket (under a higher number),
 * nothing else; the environment holds PATH, our runtime directory and what @plugin says alone. @o says as whom, and, by
 * its tick, how long that may take, and whether it enters a place apart (process/apart.h).
 */
int criu_spawn(struct criu_child *ret, const struct criu_program *program,
	       const struct criu_fds *fds, const struct criu_plugin_env *plugin,
	       const struct criu_options *o, struct brumate_error *err);

/* * Closes the socket and waits for the end of the process, killing it after a while. Returns its wait status, or -errno.
 * -ETIMEDOUT: not even that ends it, and the reaper of orphans gets it. */
int criu_reap(struct criu_child *child);

/** Opens CRIU's log to read it. Returns the descriptor (owned) or -errno. */
int criu_log_open(const struct criu_options *options);

/** The end of that log, allocated; NULL where it cannot be read. */
char *criu_log_tail(const struct criu_options *options, size_t *ret_len);

/** Whether the images beneath @dir_fd hold TCP connections. */
bool criu_images_have_tcp(int dir_fd);

/** A tree as it was before CRIU came, with a pidfd of each process. */
struct heal_state {
	struct proc_tree before;
	uid_t uid; /* whose tree it is: with that user's rights it is signalled and traced; 0: with ours */
	int *pid_fds;  /* -1 where a process had ended */
	int reader_fd; /* of the pipe whose end stops the tree; -1: none */
	int *stop_fds; /* its open files, one for each thread that is guarded */
	size_t n_stop;
};
#define HEAL_STATE_EMPTY ((struct heal_state){ .reader_fd = -1 })
void heal_state_fini(struct heal_state *h);
DEFINE_AUTO_FINI(struct heal_state, heal_state_fini)

int heal_prepare(struct heal_state *ret, struct proc_id root, uid_t uid, struct brumate_error *err);

/** Adds what the tree has got since. What had been stopped before, the earlier look tells. */
int heal_renew(struct heal_state *h, struct proc_id root, struct brumate_error *err);

/** True where the kernel and our rights allow CRIU's lock of TCP connections by nftables. */
bool heal_can_lock(void);

/* * True where a process of the tree has a TCP socket, or where that is unknown. */
bool heal_has_tcp(const struct heal_state *h);

/** Takes the TCP sockets of the stopped tree out of repair, in which the tree could not use them. For one that CRIU does by
 * itself later, that is nothing new. */
void heal_sockets(const struct heal_state *h);

/** Returns a descriptor (owned) that CRIU alone is to have, under that number: its end is what
 * heal_guard() waits for. -errno. */
int heal_arm(struct heal_state *h);

/**
 * For a tree that is frozen: when the descriptor closes, the kernel stops every thread of it before any
 * that CRIU traced runs on. Until heal_disarm(), which is for a CRIU that is about to let the tree run
 * and then end. -EMFILE: a descriptor is needed for each thread; -errno.
 */
int heal_guard(struct heal_state *h);
void heal_disarm(struct heal_state *h);

/** Sends @signal to every process of the tree but those that had been stopped before. */
void heal_signal(const struct heal_state *h, int signal);

/** Disarms the guard and makes the tree run on after a CRIU that failed; if it was armed until now, CRIU's code that is
 * left in it takes itself out. What had been stopped before stays so. */
void heal_continue(struct heal_state *h);

/** Takes back what a CRIU that has ended left in a tree that is stopped, and makes it run on.
 * @log_fd: CRIU's log, or -1. */
void heal_tree(struct heal_state *h, int log_fd);

/** Removes what a restore left in the file system when CRIU was killed. @log_fd: its log, or -1. @user: whose log it is;
 * NULL: ours. */
void heal_restore(int log_fd, const struct criu_user *user);
