// SPDX-License-Identifier: MIT
/* Help, from the command table. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

static const char *metavar(const struct option_spec *o)
{
	return o->value ? o->value : "";
}

void help_print_synopsis(const struct command *c)
{
	printf("brumate %s", c->name);
	for (const struct option_spec *o = c->options; o->name; o++)
		printf(" [--%s%s%s]", o->name, o->value ? " " : "", metavar(o));
	printf("%s%s\n", *c->operands ? " " : "", c->operands);
}

static void print_option(const struct option_spec *o)
{
	char left[64];
	int len;

	len = o->letter ? snprintf(left, sizeof(left), "-%c, ", o->letter)
			: snprintf(left, sizeof(left), "    ");
	snprintf(left + len, sizeof(left) - (size_t)len, "--%s%s%s", o->name, o->value ? " " : "",
		 metavar(o));
	printf("  %-28s %s\n", left, o->help);
}

void help_print(const struct command *c)
{
	printf("brumate %s: %s\n\nusage: ", c->name, c->summary);
	help_print_synopsis(c);
	if (c->aliases)
		printf("also called: %s\n", c->aliases);
	printf("\noptions:\n");
	for (const struct option_spec *o = c->options; o->name; o++)
		print_option(o);
	print_option(&help_option);
	printf("\nMore: man brumate-%s\n", c->name);
}

void help_print_all(void)
{
	printf("brumate: suspend, checkpoint, restore and move programs that use GPUs\n\n"
	       "usage: brumate COMMAND [OPTION...] [OPERAND...]\n\ncommands:\n");
	for (size_t i = 0; i < n_commands; i++) {
		char names[64];

		snprintf(names, sizeof(names), "%s%s%s%s", commands[i].name,
			 commands[i].aliases ? " [" : "",
			 commands[i].aliases ? commands[i].aliases : "",
			 commands[i].aliases ? "]" : "");
		printf("  %-24s %s\n", names, commands[i].summary);
	}
	printf("\n`brumate COMMAND --help` tells the options of a command; `brumate doctor` checks "
	       "this\n"
	       "machine. Exit codes are explained in brumate(1).\n");
}
