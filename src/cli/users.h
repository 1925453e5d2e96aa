// SPDX-License-Identifier: MIT
/*
 * The administrator's view: jobs of all users, and commands about them. Root looks and acts with each user's own rights, in
 * a child that has become that user: so it follows no link that the user could not follow, and trusts nothing that it is
 * given. A child that takes too long, or says too much, costs its user's jobs their place in a list, and nobody else's.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "cli/command.h"

/** Refuses what asks for the jobs of all users, unless root does. 0 or -EPERM. */
int users_refuse(struct brumate_error *err);

enum { USERS_LOOK_MS = 5000 };

/**
 * users_list() - the jobs of all users
 * @parameters: of List, borrowed
 * @look_ms: for how long some 30 users are looked at; USERS_LOOK_MS in all but `top`
 * @notes: an array (borrowed) that gets a line for each user whose jobs cannot be looked at; NULL: on standard error
 * @ret: as List replies (owned); each job has "user", the name of its user, too
 *
 * Errors to act on: -EPERM (not root).
 */
int users_list(json_t **ret, json_t *parameters, unsigned look_ms, json_t *notes,
	       struct brumate_error *err);

/**
 * users_act() - carry a command out for jobs of other users, if that is what it asks for
 * @argv: the arguments after the verb, as they were given; borrowed
 * @in: what command_parse() made of them, whose operands and values are strings of @argv
 * @run: what carries it out for the caller's own jobs
 *
 * It does by --all-users, by names as USER/JOB, and by a --pid of a process of another user's job. Return: 1 with @ret_status, the
 * exit status; 0: it asks for nothing of the kind; <0.
 */
int users_act(int *ret_status, const struct invocation *in, char *const *argv, verb_fn run,
	      struct brumate_error *err);
