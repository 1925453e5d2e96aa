// SPDX-License-Identifier: MIT
/*
 * CRIU through its RPC: `criu swrk FD`, one protobuf message a packet (SOCK_SEQPACKET). criu*.c are the
 * only files of the tree that speak it. CRIU's answer is not trusted for GPU state, and its
 * cr_errmsg is its *first* error line, often a harmless one: on failure the reason is taken from the
 * end of its log.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "criu/images.h"
#include "process/process.h"

/** The CRIU that is used, and why. */
struct criu_program {
	char path[4096];   /* the program, or a wrapper with its own loader and libraries */
	int version;	   /* 40201 for 4.2.1 */
	bool unprivileged; /* it runs as a user other than root, with CAP_CHECKPOINT_RESTORE alone */
	char why[256]; /* "BRUMATE_CRIU", "in PATH, version 4.2.1", "provisioned: PATH's 3.17 is too old" */
};

enum { CRIU_VERSION_MIN = 40200 };

/**
 * Finds a CRIU that is new enough: BRUMATE_CRIU, else PATH (and /usr/sbin), else our provisioned one
 * (helper "criu/criu", see tools/criu-provision). The version is asked for by running it. For a user other than root and
 * without CAP_CHECKPOINT_RESTORE it is what the launcher (criu-launch/) finds; names are ignored.
 * Errors to act on: -ENOENT (none), -EOPNOTSUPP (too old; text names versions and paths, hint says
 * what to do), -EPERM (a user can get no capability here; the hint says what root has to do). With EXIT_FAILED it is not
 * known whether there is one: it was killed, could not be started, or does not answer.
 */
int criu_find(struct criu_program *ret, struct brumate_error *err);

/** The same for a place apart (process/apart.h), in which a user has the capability, and the launcher lends none. */
int criu_find_apart(struct criu_program *ret, struct brumate_error *err);

/** `criu check` by RPC: whether the kernel offers what CRIU needs. */
int criu_check(const struct criu_program *program, struct brumate_error *err);

/**
 * Whether the plugin of a GPU's @vendor for CRIU is of the sources of @program. A VERSION in its folder says of which it is; without
 * one that is not known, which is no error. -EOPNOTSUPP: it is of another release.
 */
int criu_check_vendor(const struct criu_program *program, const char *vendor,
		      struct brumate_error *err);

/** Points in a dump or restore at which the caller is asked. At the first two the tree is frozen. */
enum criu_event {
	CRIU_EVENT_FROZEN,   /* dump: tree frozen, nothing dumped yet (query-ext-files) */
	CRIU_EVENT_DUMPED,   /* dump: images complete, tree still frozen (post-dump) */
	CRIU_EVENT_RESTORED, /* restore: tree complete, not yet running (post-restore) */
	CRIU_EVENT_RESUMING, /* restore: about to run (pre-resume), and now with the rights that it is to have */
	CRIU_EVENT__MAX,
};
/** Returns 0 to go on; <0 makes CRIU fail: a dump then lets the tree run on, a restore kills it. */
typedef int (*criu_event_fn)(void *arg, enum criu_event event, struct proc_id root,
			     struct brumate_error *err);

/** Called at least four times a second while CRIU works. <0 (with @err) cancels: CRIU is made to fail and takes
 * everything back, and the call fails with that error. May be NULL. */
typedef int (*criu_tick_fn)(void *arg, struct brumate_error *err);

/** A descriptor that is given to restored tasks in place of an external file. The key is as CRIU names the file:
 * "pipe:[123]", "socket:[123]", "tty[8803:6]", or a path without its leading slash. */
struct criu_inherit {
	char *key; /* owned */
	int fd;
};

/** Whose rights CRIU works with. */
struct criu_user {
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	size_t n_groups;
	bool net_admin; /* it may repair TCP connections, too */
};

/** What our plugin in CRIU leaves out of the images (cpumem/cpu-memory.h), and what it opens again. */
struct criu_plugin {
	int table_fd;	     /* hidden_table_new(); borrowed. A restore needs one too, empty */
	const char *devices; /* how paths of such devices begin, parted by colons */
	const char *vendor;  /* whose plugin for CRIU saves the GPUs; NULL: nobody's */
	const char *gpu_map; /* "FROM=TO,..." for that plugin; NULL: all stay */
};

/** The folder that holds our plugin and nothing else (owned); NULL where it is not installed. */
char *criu_plugin_dir(void);

struct criu_options {
	int images_dir_fd;    /* borrowed */
	int work_dir_fd;      /* borrowed; where the log goes */
	const char *log_name; /* "dump.log" */
	struct proc_id root;  /* dump: the root of the tree */
	bool leave_running;   /* dump */
	bool shell_job;	      /* session or terminal from outside the tree */
	struct criu_tcp {
		bool skip_in_flight; /* dump: leave out connections nobody has accepted */
		bool is_carried;     /* dump: by the caller (criu/carry.h) */
		bool is_held;	     /* dump: the caller lets no packet through */
		bool close;	     /* restore established connections as closed */
	} tcp;
	const char *const *externals;	     /* dump: NULL-terminated, or NULL */
	const struct criu_inherit *inherits; /* restore */
	size_t n_inherits;
	/* CRIU runs as this user, with CAP_CHECKPOINT_RESTORE and no more: the images and the processes cannot make it open,
	 * bind, link or become what the user may not. It must be able to read @images_dir_fd, or to write to it, and to
	 * @work_dir_fd (criu_lend_dir()). Borrowed; NULL: it runs as we do. Only root can ask for it. */
	struct criu_user *user;
	uint32_t timeout_s; /* CRIU's own alarm for collecting tasks */
	pid_t enter_ns_of;  /* run CRIU in this process's pid and mount namespaces; 0: our own */
	/* Restore: @enter_ns_of is the init of a place apart (process/apart.h). What is restored there never runs. */
	bool is_apart;
	const char
		*libdir; /* plugin directory; NULL: an empty one, so that no foreign plugin loads */
	const struct criu_plugin *plugin; /* of ours in @libdir; NULL: none */
	void (*on_spawned)(void *arg,
			   struct proc_id criu); /* the pid of CRIU, as soon as it runs */
	criu_event_fn on_event;
	criu_timer_fn on_timer; /* may be NULL */
	criu_tick_fn on_tick;
	/* CRIU, process @criu, was killed for the reason @why and does not end, as it waits in the kernel for what need not
	 * come. The session lasts until it does: it may hold the tree. Called once; may be NULL. */
	void (*on_stuck)(void *arg, pid_t criu, const struct brumate_error *why);
	void *arg;
};

struct criu_result {
	pid_t root_pid; /* restore: pid of the restored root as we see it */
	double seconds;
	double frozen_seconds; /* dump, from CRIU's statistics; 0 if unknown */
	uint64_t pages_bytes;  /* dump: memory written */
};

/** Gives the directory @dir_fd and the files in it, which are ours alone, to @user, for CRIU. One that the user has
 * already is left as it is. 0, -errno. */
int criu_lend_dir(int dir_fd, const struct criu_user *user);

/** Takes back the files that the CRIU of @user wrote to @dir_fd. -EBADMSG: what is there is no plain file of its own. */
int criu_take_back_dir(int dir_fd, const struct criu_user *user);

/** A dump whose CRIU has been started. */
struct criu_dump;

/**
 * Starts CRIU for a dump. It comes up by itself (30 to 150 ms, by the machine) and waits, before it looks
 * at the tree, for criu_dump_run(). @options is copied; what it points to, and its descriptors, are to
 * last until criu_dump_free(). @ret: owned.
 */
int criu_dump_start(struct criu_dump **ret, const struct criu_program *program,
		    const struct criu_options *options, struct brumate_error *err);

/** Dumps the tree, once. On failure the tree goes on running and @err holds the log line that matters, the hint
 * names the log's path. Errors to act on: -EPIPE (CRIU died), -ECANCELED. */
int criu_dump_run(struct criu_dump *d, struct criu_result *ret, struct brumate_error *err);

/** Where it has not been run, the CRIU that waits ends without having touched the tree. */
void criu_dump_free(struct criu_dump *d);
DEFINE_AUTO(struct criu_dump *, criu_dump_free)

/** Kills a CRIU that has not been reaped, with the helpers it forked, which would wait for it for ever; what it restored has left their group. */
void criu_kill_group(struct proc_id criu, uid_t uid);

/**
 * Releases the TCP connections of a dumped and killed tree, which are kept (their peers' packets dropped) until it is
 * restored: for a checkpoint that will not be. @log_name: the log of its dump.
 */
void criu_release_network(int work_dir_fd, const char *log_name);

/**
 * Makes a tree run on that was being dumped for a caller that has ended: kills @criu where it still runs,
 * takes the tree out of a stop (also one that it was in before), its sockets out of repair, and removes
 * the filter of its packets. Harmless where CRIU had released it. @log_name: the log of the dump. @uid: the tree's user,
 * with whose rights it is signalled; 0: with ours. Errors to act on: -ETIMEDOUT (CRIU was killed and has not ended, and the
 * tree stands still: call it again).
 */
int criu_heal(struct proc_id root, struct proc_id criu, uid_t uid, int work_dir_fd,
	      const char *log_name, struct brumate_error *err);

/** Restores; the restored root becomes a child of the calling process (rst_sibling), or, with
 * enter_ns_of, of the init of that namespace (pidns.h). Root pids are in our own numbering. Where
 * the caller waits for the root, it protects it in CRIU_EVENT_RESTORED (reap.h). Errors to act
 * on: -EEXIST (a pid is taken), -EPIPE. */
int criu_restore(const struct criu_program *program, const struct criu_options *options,
		 struct criu_result *ret, struct brumate_error *err);

/**
 * criu_log_reason() - the line of a CRIU log that says why it failed
 * Pure, for foreign bytes. Takes the last run of "Error (" lines before the final FAILED line, without the known harmless ones
 * (RLIMIT_NOFILE …) and those of callers, and of that run the first: what follows it says that something below failed. Returns 0 and text (one line, without time and pid
 * prefixes), or -ENOENT.
 */
int criu_log_reason(const char *log, size_t len_bytes, char *ret, size_t ret_bytes);

/** A hint for well-known reasons ("increase limit" → ghost files …); NULL if none is known. */
const char *criu_hint_for(const char *reason);
