// SPDX-License-Identifier: MIT
/*
 * Checks the variables of the environment that have few values, before a command is carried out: a program that reads
 * one later, in the background, could only pass over what it does not know. Variables of places and of object stores are
 * checked where they are read.
 */
#include "cli/arguments.h"
#include "cli/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	const char *words; /* separated by spaces; NULL: seconds */
} variables[] = {
	{ "BRUMATE_GPU", "simulated real" },
	{ "BRUMATE_IO", "uring posix" },
	{ "BRUMATE_LOG_LEVEL", "error warn info debug" },
	{ "BRUMATE_MANAGED", "driver host" },
	{ "BRUMATE_BROKER_IDLE_S", NULL },
};

static int fail_variable(const char *name, const char *value, const char *expected,
			 struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "%s=%s: expected %s", name, value, expected);
	brumate_hint(err, "unset it for the default");
	return -EINVAL;
}

static int check_variable(const char *name, const char *words, struct brumate_error *err)
{
	const char *value = getenv(name);
	char list[WORDS_LISTED_BYTES];

	if (!value || !*value)
		return 0;
	if (!words)
		return value[strspn(value, "0123456789.")]
			       ? fail_variable(name, value, "a number of seconds", err)
			       : 0;
	if (words_contain(words, value))
		return 0;
	words_list(list, words);
	return fail_variable(name, value, list, err);
}

int check_environment(struct brumate_error *err)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		int r = check_variable(variables[i].name, variables[i].words, err);

		if (r < 0)
			return r;
	}
	return 0;
}
