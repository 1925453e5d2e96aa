// SPDX-License-Identifier: MIT
/* What the files of criu.c share: starting CRIU, its network lock, and what it leaves when killed. */
#pragma once

#include "base/cleanup.h"
#include "process/criu.h"

/** A running `criu swrk`: our end of its socket, and the process, which is a protected child. */
struct criu_child {
	struct proc_id id;
	int socket_fd;
};
#define CRIU_CHILD_NONE ((struct criu_child){ .socket_fd = -1 })

/** What the environment of CRIU says of plugins. */
struct criu_plugin_env {
	const char *libdir; /* NULL: an empty one */
	int table_fd;	    /* as CRIU has it; -1: none */
	const char *devices;
};
#define CRIU_PLUGIN_ENV_NONE ((struct criu_plugin_env){ .table_fd = -1 })

/**
 * Starts `PROGRAM swrk` in a session of its own. It inherits @fds (under the same numbers) and its
 * socket (under a higher one), nothing else; the environment holds PATH and what @plugin says alone.
 */
int criu_spawn(struct criu_child *ret, const struct criu_program *program, const int *fds,
	       size_t n_fds, const struct criu_plugin_env *plugin, pid_t enter_ns_of,
	       struct brumate_error *err);

/** Closes the socket and waits for the end of the process, killing it after a while. Returns its
 * wait status, or -errno. */
int criu_reap(struct criu_child *child);

/** CRIU's log, to read. -errno. */
int criu_log_open(const struct criu_options *options);

/** The end of that log, allocated; NULL where it cannot be read. */
char *criu_log_tail(const struct criu_options *options, size_t *ret_len);

/** True where the kernel and our rights allow CRIU's nftables lock of TCP connections. */
bool net_lock_is_possible(void);
/** Removes table inet @name, the lock that a killed CRIU left. 0, -ENOENT, -errno. */
int net_lock_remove(const char *name);

/** A tree as it was before CRIU came, with a pidfd of each process. */
struct heal_state {
	struct proc_tree before;
	int *pid_fds; /* -1 where a process had ended */
};
#define HEAL_STATE_EMPTY ((struct heal_state){ 0 })
void heal_state_fini(struct heal_state *h);
DEFINE_AUTO_FINI(struct heal_state, heal_state_fini)

int heal_prepare(struct heal_state *ret, struct proc_id root, struct brumate_error *err);

/** A descriptor (owned) that CRIU alone is to have, which slows down its death. -errno. */
int heal_brake(void);

/** As soon as CRIU's death is known: stops the tree before it sees what CRIU left. */
void heal_stop(const struct heal_state *h);

/** Then: takes back what CRIU left, and makes the tree run on (what had been stopped stays so).
 * @log_fd: CRIU's log, or -1. */
void heal_tree(const struct heal_state *h, int log_fd);

/** Removes what a restore left in the file system when CRIU was killed. @log_fd: its log, or -1. */
void heal_restore(int log_fd);

/** The process that has number @inner_pid in the pid namespace of @of (our numbering); 0: none. */
pid_t pidns_translate(pid_t of, pid_t inner_pid);

/** Keeps the init @init from ending, with which CRIU in its namespace would end too, for as long as
 * the returned descriptor is open. -errno. */
int pidns_hold(pid_t init);
