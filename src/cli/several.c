// SPDX-License-Identifier: MIT
/* What --all and --latest choose; see several.h. */
#include "cli/several.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void several_fini(struct several *s)
{
	free(s->words);
	json_decref(s->list);
	*s = (struct several){ 0 };
}

static int check_alone(const struct invocation *in, struct brumate_error *err)
{
	int ways = (in->n_operands > 0) + !!in->values[OPT_PID] + !!in->values[OPT_CONTAINER] +
		   !!in->values[OPT_ALL] + !!in->values[OPT_LATEST];

	return ways == 1
		       ? 0
		       : brumate_fail(err, EINVAL, "%s: %s cannot be combined with %s",
				      in->command->name, in->values[OPT_ALL] ? "--all" : "--latest",
				      in->values[OPT_ALL] && in->values[OPT_LATEST] ? "--latest"
				      : in->n_operands	    ? "the name of a job"
				      : in->values[OPT_PID] ? "--pid"
							    : "--container");
}

static int fail_none(const struct invocation *in, const char *choice, struct brumate_error *err)
{
	if (in->values[OPT_ALL]) {
		fprintf(stderr, "%s: nothing to do: no job is %s\n", in->command->name, choice);
		return 0;
	}
	brumate_fail(err, ENOENT, "%s: no job is %s", in->command->name, choice);
	brumate_hint(err, "`brumate ps` lists the jobs");
	return -ENOENT;
}

/* The ids of the jobs that are in one of @states, oldest first. Returns how many. */
static size_t pick_words(char **ret, json_t *jobs, const char *states)
{
	size_t i, n = 0;
	json_t *job;

	json_array_foreach (jobs, i, job)
		if (words_contain(states, text_of(job, "state")))
			ret[n++] = (char *)text_of(job, "id");
	return n;
}

int several_choose(struct several *ret, struct invocation *in, const char *states,
		   const char *choice, struct brumate_error *err)
{
	if (!in->values[OPT_ALL] && !in->values[OPT_LATEST])
		return 0;
	int r = check_alone(in, err);
	if (r == 0)
		r = client_ask("List", NULL, &ret->list, err);
	if (r < 0)
		return r;

	json_t *jobs = json_object_get(ret->list, "jobs");
	ret->words = calloc(json_array_size(jobs) + 1, sizeof(*ret->words));
	if (!ret->words)
		return brumate_fail(err, ENOMEM, "%m");
	size_t n = pick_words(ret->words, jobs, states);
	size_t skipped = in->values[OPT_LATEST] && n ? n - 1 : 0;
	in->operands = ret->words + skipped;
	in->n_operands = (int)(n - skipped);
	return n ? 0 : fail_none(in, choice, err);
}
