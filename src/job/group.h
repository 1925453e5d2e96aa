// SPDX-License-Identifier: MIT
/*
 * A group: a record over several jobs with one intent, all or none. Its steps are acts that each have an undo, and are taken at
 * once; where one fails, or their leader dies, those that were begun are undone. The record is
 * $BRUMATE_STATE_DIR/groups/ID/group.json, replaced atomically before and after each step. That it is removed is the commit. Its leader
 * holds a lock there, so a record whose lock nobody holds is taken over by the next command, which undoes what it says.
 *
 * What a step does is its runner's: a method of a job. A step may be undone before it was begun: acts are states to be reached.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "job/target.h"

enum { GROUP_STEPS_MAX = 65536, GROUP_METHOD_BYTES = 24 };

enum group_way {
	GROUP_FORWARD, /* nothing is final: who takes it over undoes it */
	GROUP_BACK,
	GROUP_FINISH, /* committed: older versions wrote it before they removed the record */
	GROUP_WAY__MAX,
};

enum group_step_state {
	GROUP_STEP_WAITS,
	GROUP_STEP_BEGUN, /* may have been done */
	GROUP_STEP_DONE,
	GROUP_STEP_UNDONE,
	GROUP_STEP_STATE__MAX,
};

/** A call. */
struct group_act {
	char method[GROUP_METHOD_BYTES]; /* empty: nothing is to be done */
	char *parameters;		 /* a JSON object as text, owned; NULL: {} */
};

struct group_step {
	char job[JOB_ID_BYTES];
	struct group_act act, undo;
	enum group_step_state state;
};

struct group {
	char id[JOB_ID_BYTES];
	char created[32]; /* RFC 3339 */
	enum group_way way;
	char reason[JOB_MESSAGE_BYTES]; /* why it goes back; empty */
	struct group_step *steps;	/* owned */
	size_t n_steps;
	char *dir;   /* owned */
	int lock_fd; /* -1: not led by us */
};
#define GROUP_EMPTY ((struct group){ .lock_fd = -1 })

/** Frees it; the record stays where it is, for others to lead. */
void group_fini(struct group *g);
DEFINE_AUTO_FINI(struct group, group_fini)

/** Adds a step without acts, which the caller fills in, to a group that has yet to begin. NULL without memory. */
struct group_step *group_add(struct group *g, const char *job);

/** Sets what is to be done. @parameters: a JSON object (borrowed), NULL: {}. 0 or -ENOMEM. */
int group_act_set(struct group_act *ret, const char *method, json_t *parameters);

/** Writes the record of a group whose steps are all added, and leads it: nothing is done yet. */
int group_begin(struct group *g, struct brumate_error *err);

/** What runners are given; all borrowed. Each step has a thread. */
struct group_call {
	const struct group *group;
	const struct group_step *step;
	const struct group_act *act; /* the step's act or its undo */
	bool is_undo;
	bool is_rest; /* all others were undone by an earlier run */
	/* Readable once another step has failed, and this one need not succeed any more. On the way back that is not so where the other one
	 * stands still (-EHOSTDOWN), as it may have been undone. */
	int turn_fd;
	void *arg;
};
typedef int (*group_run_fn)(const struct group_call *call, struct brumate_error *err);

/**
 * group_run() - do what the record says, to its end
 * @g: led by the caller
 *
 * Return: 0: all is done, and the record gone. <0: what the first failure was, with all undone and the record gone; or, with
 * @g->dir still set, with some of it not undone yet: the record stays, and the next group_run() goes on.
 */
int group_run(struct group *g, group_run_fn run, void *arg, struct brumate_error *err);

/** Calls @fn for each group whose leader has died, led by us and loaded; one that was going forward goes back. A damaged record is
 * given as NULL, with its directory and why. */
int group_take_over(void (*fn)(void *arg, struct group *g, const char *dir,
			       const struct brumate_error *why),
		    void *arg, struct brumate_error *err);

/** Whether a group that has not ended is of this job. */
bool group_find_job(const char *job);

/** Reads a record. Pure; takes foreign bytes. -EBADMSG, -ENOMEM. */
int group_decode(struct group *ret, const char *text, size_t len_bytes, struct brumate_error *err);

/** Writes one (owned, NULL without memory). */
char *group_encode(const struct group *g);
