// SPDX-License-Identifier: MIT
/*
 * Jobs that a command is for beside those it names: all, or the latest, of those in a state in which it makes sense.
 */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"
#include "cli/command.h"

/** What --all or --latest chose. Zeros are nothing. */
struct several {
	json_t *list; /* what List replied; owns the strings of @words */
	char **words; /* ids, NULL-terminated; owned */
};
void several_fini(struct several *s);
DEFINE_AUTO_FINI(struct several, several_fini)

/**
 * several_choose() - put the jobs that --all or --latest means in place of operands
 * @states: in which jobs are meant, separated by spaces
 * @choice: these in a sentence, as in "no job is running or suspended"
 * @ret: zeros before; the operands of @in are borrowed from it
 *
 * Without these options @in stays as it is. That --all finds none is said on standard error and is no failure.
 * Errors to act on: -EINVAL (operands beside them), -ENOENT (--latest finds none).
 */
int several_choose(struct several *ret, struct invocation *in, const char *states,
		   const char *choice, struct brumate_error *err);
