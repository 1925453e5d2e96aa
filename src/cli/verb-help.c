// SPDX-License-Identifier: MIT
/* `brumate help`, `version` and `completion`. */
#include "cli/arguments.h"
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
#include <sys/utsname.h>

#include "wire/wire.h"

int verb_help(const struct invocation *in, struct brumate_error *err)
{
	if (!in->n_operands) {
		help_print_all();
		return 0;
	}

	const struct command *command = command_find(in->operands[0]);
	if (!command) {
		brumate_fail(err, EINVAL, "unknown command \"%s\"", in->operands[0]);
		if (command_suggest(in->operands[0]))
			brumate_hint(err, "did you mean %s?", command_suggest(in->operands[0]));
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
