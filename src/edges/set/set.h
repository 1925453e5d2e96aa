// SPDX-License-Identifier: MIT
/*
 * A set as its coordinator sees it: members on nodes, each at the other end of a channel, the stdin and stdout of `brumate
 * set member` that some launcher (ssh, srun, kubectl exec) started there: its authentication, its user, no port of ours. A
 * line is a JSON object:
 *
 *	to the member    {"do": "checkpoint" or "restore", "parameters": {...}, "limit_ms": N, after which it gives up by itself}, then
 *			 {"go": "", "limit_ms": N as from now} for each meeting; its end gives up
 *			 or {"again": "", "limit_ms": N}: it looks at its connections once more, or lets work
 *			 through, and comes to the same meeting
 *	of the member    {"connections": "open LOCAL PEER WHO\n..."}, as often as it takes, before the meetings of a job that is saved,
 *			 {"at": "ready"} at each meeting (engine/together.h), then {"done": {...}} or {"failed": {...}}
 *
 * A member is not believed more than its user may: it names nothing that the coordinator opens.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/set.h"

enum { LINE_BYTES_MAX = 1 << 20, AT_BYTES = 16, SAID_BYTES = 512 };

struct member {
	char *node;	    /* owned; "": here */
	char *what;	    /* the job, or the checkpoint; owned */
	json_t *parameters; /* owned */
	pid_t pid;
	int in, out;		    /* of the channel; -1: closed */
	int said;		    /* the stderr of what speaks for it; -1: closed */
	char last_said[SAID_BYTES]; /* a line of it that was not passed on yet */
	char *buf;		    /* owned: what of a line has come */
	size_t len;
	char at[AT_BYTES];
	char *connections;	  /* owned: lines, since the last meeting; NULL: none */
	json_t *outside;	  /* owned: "LOCAL PEER" of those to others than the members */
	json_t *done;		  /* owned */
	struct brumate_error why; /* code 0: it has not failed */
	bool has_met;		  /* it has come to a meeting */
	bool comes_again;	  /* it has come to this one, and is to do so again */
	bool drains;		  /* its connections are drained, and made again */
	bool ended;		  /* nothing is to be heard of it any more */
};

/* Connections to others than the members. */
enum outside {
	OUTSIDE_REFUSED,
	OUTSIDE_CLOSED, /* a restore finds them closed */
	OUTSIDE_KEPT,	/* a restore finds them as they were */
};

struct set {
	struct member *members; /* owned */
	size_t n;
	const char *via; /* a command, in which %n is the node */
	uint64_t deadline_ns;
	int cancel_fd;
	enum outside outside;
	bool touched;	      /* the first meeting is over */
	bool drains;	      /* all do that */
	bool some_are_silent; /* that were to give up, and have not said how that ended */
};
void set_fini(struct set *s);
DEFINE_AUTO_FINI(struct set, set_fini)

/** Adds a member. @parameters: taken. NULL without memory. */
struct member *set_add(struct set *s, const char *node, size_t node_len, const char *what,
		       json_t *parameters);

/**
 * set_run() - have all members do the same, as one
 * @word: "checkpoint" or "restore"
 * @meetings: NULL-terminated; at the last one @commit decides; "frozen" and "drained" are those of members that drain
 *
 * Any failure before that, here or there, makes all give up. Returns 0; <0 with the reason of the first member that has
 * one. After the decision @ret_decided is true, and later failures are in the members.
 */
int set_run(struct set *s, const char *word, const char *const *meetings, struct set_writer *w,
	    int (*commit)(struct set *s, struct set_writer *w, void *arg,
			  struct brumate_error *err),
	    void *arg, bool *ret_decided, struct brumate_error *err);

/** Names @m for people. */
void set_name_member(char *ret, size_t room, const struct member *m);

/**
 * connections_check() - find the connections of the members that have no other end in another one (member.outside)
 * @is_still: all stand still; else only what was so at the last call, too, is no connection that is just being made
 *
 * Errors to act on: -EOPNOTSUPP (there are some, and they are refused).
 */
int connections_check(struct set *s, bool is_still, struct brumate_error *err);

/** `brumate set member`: the other end. */
int member_run(struct brumate_error *err);
