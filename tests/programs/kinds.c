// SPDX-License-Identifier: MIT
/* kinds KIND: shows one way of using a GPU, a step at a time; see kinds.h. */
#include <stdio.h>
#include <string.h>

#include "kinds.h"

static const struct kind *const tables[] = { memory_kinds, shared_kinds, work_kinds,
					     process_kinds };
enum { N_TABLES = sizeof(tables) / sizeof(*tables) };

static const char usage[] =
	"kinds KIND [--mib 16] [--steps N] [--interval-ms 50] [--path FILE] [--busy-ms 3000]";

static const struct kind *find(const char *name)
{
	for (int t = 0; t < N_TABLES; t++)
		for (const struct kind *kind = tables[t]; kind->name; kind++)
			if (!strcmp(kind->name, name))
				return kind;
	return NULL;
}

static void list(FILE *out)
{
	fprintf(out, "usage: %s\n", usage);
	for (int t = 0; t < N_TABLES; t++)
		for (const struct kind *kind = tables[t]; kind->name; kind++)
			fprintf(out, "  %-13s %s\n", kind->name, kind->summary);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 16, .chunk_mib = 16, .interval_ms = 50, .busy_ms = 3000 };

	options_parse(&options, argc, argv, usage);
	const struct kind *kind = options.word ? find(options.word) : NULL;
	if (!kind) {
		list(stderr);
		return 2;
	}
	kind->setup(&options);
	steps_run(&options, kind->step, NULL, NULL);
	return 0;
}
