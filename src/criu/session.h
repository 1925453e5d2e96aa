// SPDX-License-Identifier: MIT
/* One run of CRIU: a request, its notifications and a response; see criu.c. */
#pragma once

#include "criu/images.h"
#include "criu/private.h"
#include "rpc.pb-c.h"

enum outcome { UNDECIDED, SUCCEEDED, FAILED, DIED };

struct session {
	const struct criu_options *options;
	Criu__ReqType type;
	struct criu_child child;
	int hold_fd;		     /* keeps the namespace it runs in; -1: none */
	struct criu_image_tree tree; /* restore: what is being built */
	struct heal_state heal;	     /* dump: what to put right if CRIU dies */
	enum outcome outcome;
	bool spares_lock;  /* dump: no connections whose packets CRIU would have to hold back */
	bool must_lock;	   /* dump: there were some after all */
	bool past_return;  /* the last question was answered with yes */
	bool is_cancelled; /* by the tick or an event; @why says so */
	uint64_t kill_at_ns;
	struct brumate_error why;
	int cr_errno;
	pid_t root_pid;
	struct proc_id root;	     /* restore: the root, once it is complete */
	unsigned ticks_without_root; /* since its end */
	char errmsg[512];
};
#define SESSION_EMPTY \
	((struct session){ .hold_fd = -1, .heal = HEAL_STATE_EMPTY, .child = CRIU_CHILD_NONE })

/** What dumps and restores both ask for; the directories are added to @fds. 0 or -errno. */
int session_set_common(Criu__Opts *opts, const struct criu_options *o, bool locks_network,
		       struct criu_fds *fds, struct brumate_error *err);

/**
 * Starts CRIU with @s's options and sends the request; @fds are CRIU's alone from then on. A dump gets
 * to its first notification by itself, before it looks at the tree, and waits there.
 */
int session_start(struct session *s, const struct criu_program *program, Criu__Opts *opts,
		  struct criu_fds *fds, struct brumate_error *err);

/** Carries the conversation on until it is over, and waits for CRIU's end. Its wait status, or -errno. */
int session_run(struct session *s);

/** Lets go of CRIU, which fails at its next word, and waits for its end. */
int session_end(struct session *s);

/** The process that a restore builds as its root, if it exists. */
struct proc_id session_half_built_root(const struct session *s);

/** Why the session did not succeed. @status: of session_run(). Returns -errno. */
int session_explain(const struct session *s, int status, struct brumate_error *err);
