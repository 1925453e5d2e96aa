// SPDX-License-Identifier: MIT
/*
 * Builds the sources of the man pages: fills the marks "@…@" in a hand-written page from the command
 * table, so that no page says other than the program does. Used while building, not installed.
 *
 *	brumate-docs VERB FROM TO   a page of one command: "@SYNOPSIS@", "@OPTIONS@"
 *	brumate-docs all FROM TO    brumate(1): "@COMMANDS@"
 */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

static void print_option(const struct option_spec *o)
{
	if (o->letter)
		printf("*-%c*, ", o->letter);
	printf("*--%s*", o->name);
	if (o->value)
		printf(" _%s_", o->value);
	printf("\n\t%s.\n\n", o->help);
}

static void print_options(const struct command *c)
{
	printf("# OPTIONS\n\n");
	for (const struct option_spec *o = c->options; o->name; o++)
		print_option(o);
	print_option(&help_option);
}

static void print_synopsis(const struct command *c)
{
	printf("brumate-%s(1)\n\n# NAME\n\nbrumate-%s - %s\n\n# SYNOPSIS\n\n*brumate %s*", c->name,
	       c->name, c->summary, c->name);
	printf("%s%s%s\n\n", c->options->name ? " [_OPTION_...]" : "", *c->operands ? " " : "",
	       c->operands);
	if (c->aliases)
		printf("Also called: %s.\n\n", c->aliases);
}

static void print_commands(void)
{
	const struct command *c;

	for (size_t i = 0; (c = command_at(i)); i++) {
		if (c->hidden)
			continue;
		printf("*brumate-%s*(1)", c->name);
		if (c->aliases)
			printf(", also called %s", c->aliases);
		printf("\n\t%s.\n\n", c->summary);
	}
}

int main(int argc, char **argv)
{
	const struct command *c = argc == 4 ? command_find(argv[1]) : NULL;
	char line[4096];

	if (argc != 4 || (!c && strcmp(argv[1], "all"))) {
		fprintf(stderr, "usage: brumate-docs VERB|all FROM TO\n");
		return EXIT_USAGE;
	}
	for (int i = 0; i < 2; i++)
		if (!freopen(argv[2 + i], i ? "w" : "r", i ? stdout : stdin)) {
			perror(argv[2 + i]);
			return EXIT_FAILED;
		}
	while (fgets(line, sizeof(line), stdin)) {
		if (c && !strcmp(line, "@SYNOPSIS@\n"))
			print_synopsis(c);
		else if (c && !strcmp(line, "@OPTIONS@\n"))
			print_options(c);
		else if (!c && !strcmp(line, "@COMMANDS@\n"))
			print_commands();
		else
			fputs(line, stdout);
	}
	return fflush(stdout) == EOF ? EXIT_FAILED : EXIT_OK;
}
