// SPDX-License-Identifier: MIT
/* docs/states.md (given as argument) says the same of states and transitions as the code does. */
#include "job/job.h"

#include <string.h>

#include "check.h"

enum { LINE_BYTES = 512 };

static enum job_state state_of(const char *name)
{
	for (int i = 0; i < JOB_STATE__MAX; i++)
		if (!strcmp(name, job_state_name((enum job_state)i)))
			return (enum job_state)i;
	fprintf(stderr, "docs/states.md: no state \"%s\"\n", name);
	exit(1);
}

/* Splits "a, b" in place; returns a set of states. */
static unsigned states_of(char *list)
{
	unsigned set = 0;

	for (char *name = strtok(list, ", "); name; name = strtok(NULL, ", ")) {
		unsigned bit = 1u << state_of(name);

		CHECK(!(set & bit));
		set |= bit;
	}
	return set;
}

/* Reads "| left | right |" into its cells. False: no such line. */
static bool read_row(char *line, char **ret_left, char **ret_right)
{
	*ret_left = strtok(line, "|\n");
	*ret_right = *ret_left ? strtok(NULL, "|\n") : NULL;
	return *ret_right;
}

/* Goes on to the line after the head of the table that begins so. */
static void find_table(FILE *doc, const char *head)
{
	char line[LINE_BYTES];

	while (fgets(line, sizeof(line), doc))
		if (!strncmp(line, head, strlen(head))) {
			CHECK(fgets(line, sizeof(line), doc) && !strncmp(line, "| ---", 5));
			return;
		}
	fprintf(stderr, "docs/states.md: no table \"%s\"\n", head);
	exit(1);
}

static void check_names(FILE *doc)
{
	char line[LINE_BYTES], *left, *right;
	unsigned seen = 0;

	find_table(doc, "| state | meaning |");
	while (fgets(line, sizeof(line), doc) && line[0] == '|') {
		CHECK(read_row(line, &left, &right));
		seen |= states_of(left);
	}
	CHECK(seen == (1u << JOB_STATE__MAX) - 1);
}

static void check_transitions(FILE *doc)
{
	char line[LINE_BYTES], *left, *right;
	unsigned documented[JOB_STATE__MAX] = { 0 };
	int rows = 0;

	find_table(doc, "| from | to |");
	while (fgets(line, sizeof(line), doc) && line[0] == '|') {
		CHECK(read_row(line, &left, &right));
		unsigned to = states_of(right), from = states_of(left);

		CHECK(from && !(from & (from - 1)));
		documented[__builtin_ctz(from)] = to;
		rows++;
	}
	CHECK(rows == JOB_STATE__MAX);
	for (int from = 0; from < JOB_STATE__MAX; from++)
		for (int to = 0; to < JOB_STATE__MAX; to++) {
			bool says = documented[from] & 1u << to;

			if (says != job_may_go((enum job_state)from, (enum job_state)to))
				fprintf(stderr, "%s to %s: docs/states.md says %s\n",
					job_state_name((enum job_state)from),
					job_state_name((enum job_state)to), says ? "yes" : "no");
			CHECK(says == job_may_go((enum job_state)from, (enum job_state)to));
		}
}

/* What an operation under way is made of must be able to end, whatever happens to the job. */
static void check_ends(void)
{
	static const enum job_state under_way[] = { JOB_SUSPENDING, JOB_RESUMING, JOB_CHECKPOINTING,
						    JOB_RESTORING };

	for (size_t i = 0; i < sizeof(under_way) / sizeof(under_way[0]); i++) {
		CHECK(job_may_go(under_way[i], JOB_EXITED) && job_may_go(under_way[i], JOB_LOST));
		CHECK(job_may_go(under_way[i], JOB_RUNNING));
	}
	CHECK_STR(job_state_name(JOB_STATE__MAX), "?");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	auto_fclose FILE *doc = fopen(argv[1], "re");

	CHECK(doc);
	check_names(doc);
	check_transitions(doc);
	check_ends();
	return 0;
}
