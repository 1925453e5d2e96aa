// SPDX-License-Identifier: MIT
/* `brumate help`, `version` and `completion`. Help is made from the command table. */
#include "cli/command.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "wire/wire.h"

static const char *metavar(const struct option_spec *o)
{
	return o->value ? o->value : "";
}

static void print_synopsis(const struct command *c)
{
	printf("brumate %s%s%s%s\n", c->name, c->options->name ? " [OPTION...]" : "",
	       *c->operands ? " " : "", c->operands);
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
	print_synopsis(c);
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
	const struct command *c;

	printf("brumate: suspend, checkpoint, restore and move programs that use GPUs\n\n"
	       "usage: brumate COMMAND [OPTION...] [OPERAND...]\n\ncommands:\n");
	for (size_t i = 0; (c = command_at(i)); i++) {
		char names[64];

		if (c->hidden)
			continue;
		snprintf(names, sizeof(names), "%s%s%s%s", c->name, c->aliases ? " [" : "",
			 c->aliases ? c->aliases : "", c->aliases ? "]" : "");
		printf("  %-24s %s\n", names, c->summary);
	}
	printf("\n`brumate COMMAND --help` lists the options of a command; `brumate doctor` checks "
	       "this\n"
	       "machine. brumate(1) explains the exit codes.\n");
}

/* ---- the commands ---- */

int verb_help(const struct invocation *in, struct brumate_error *err)
{
	if (!in->n_operands) {
		help_print_all();
		return 0;
	}

	const struct command *command = command_find(in->operands[0]);
	if (!command) {
		brumate_fail(err, EINVAL, "unknown command \"%s\"", in->operands[0]);
		const char *meant = command_suggest(in->operands[0]);

		if (meant)
			brumate_hint(err, "did you mean `brumate help %.*s`?",
				     (int)strcspn(meant, " "), meant);
		else
			brumate_hint(err, "`brumate help` lists the commands");
		return -EINVAL;
	}
	help_print(command);
	return 0;
}

int verb_version(const struct invocation *in, struct brumate_error *err)
{
	struct utsname name;

	uname(&name);
	if (!wants_json(in)) {
		printf("brumate %s\n", BRUMATE_VERSION);
		return 0;
	}
	auto_json json_t *o = json_pack("{s:s,s:s,s:s}", "version", BRUMATE_VERSION, "kernel",
					name.release, "machine", name.machine);
	return print_json(o, err);
}

int verb_completion(const struct invocation *in, struct brumate_error *err)
{
	return completion_print(in->operands[0], err);
}
