// SPDX-License-Identifier: MIT
/* Command lines against the real command table. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "cli/command.h"

enum { ARGS_MAX = 16 };

/* Parses "VERB ARG ARG…" split at blanks. @line must live as long as the result. */
static int parse(struct invocation *ret, char *line, struct brumate_error *err)
{
	static char *argv[ARGS_MAX + 1];
	int argc = 0;

	for (char *word = strtok(line, " "); word && argc < ARGS_MAX; word = strtok(NULL, " "))
		argv[argc++] = word;
	argv[argc] = NULL;
	const struct command *c = command_find(argv[0]);
	CHECK(c);
	*err = BRUMATE_ERROR_NONE;
	return command_parse(ret, c, argc - 1, argv + 1, err);
}

static void check_options(void)
{
	char attached[] = "run -nx --log=out.log --attach -- prog --name y -z";
	char mixed[] = "suspend job-1 --timeout 30s --format json";
	char letters[] = "checkpoint -Rnsaved -t 5 job-1";
	struct brumate_error err;
	struct invocation in;

	CHECK(parse(&in, attached, &err) == 0);
	CHECK_STR(in.values[OPT_NAME], "x");
	CHECK_STR(in.values[OPT_LOG], "out.log");
	CHECK(in.values[OPT_ATTACH]);
	CHECK(in.n_operands == 4);
	CHECK_STR(in.operands[0], "prog");
	CHECK_STR(in.operands[3], "-z");
	CHECK(in.operands[4] == NULL);

	CHECK(parse(&in, mixed, &err) == 0);
	CHECK(in.n_operands == 1);
	CHECK_STR(in.operands[0], "job-1");
	CHECK_STR(in.values[OPT_TIMEOUT], "30s");
	CHECK_STR(in.values[OPT_FORMAT], "json");
	CHECK(!in.values[OPT_FORCE]);

	CHECK(parse(&in, letters, &err) == 0);
	CHECK(in.values[OPT_LEAVE_RUNNING]);
	CHECK_STR(in.values[OPT_NAME], "saved");
	CHECK_STR(in.values[OPT_TIMEOUT], "5");
}

/* The command's own options are its own, with or without "--". */
static void check_command_line(void)
{
	char bare[] = "run python3 -c pass --attach";
	char nested[] = "run prog -- -x";
	struct brumate_error err;
	struct invocation in;

	CHECK(parse(&in, bare, &err) == 0);
	CHECK(in.n_operands == 4);
	CHECK_STR(in.operands[3], "--attach");
	CHECK(!in.values[OPT_ATTACH]);

	CHECK(parse(&in, nested, &err) == 0);
	CHECK(in.n_operands == 3);
	CHECK_STR(in.operands[1], "--");
}

static void check_refused(char *line, const char *text, const char *hint)
{
	struct brumate_error err;
	struct invocation in = { .n_operands = -7 };

	CHECK(parse(&in, line, &err) == -EINVAL);
	CHECK_STR(err.text, text);
	CHECK_STR(err.hint, hint);
	CHECK(brumate_exit_code(&err) == EXIT_USAGE);
	CHECK(in.n_operands == -7);
}

static void check_refusals(void)
{
	char typo[] = "checkpoint --leave-runing job", unknown[] = "ps --zzzzzzzzz",
	     letter[] = "ps -z";
	char no_value[] = "run --name", too_much[] = "logs a b", missing[] = "release";
	char no_value_wanted[] = "ps --quiet=1", word[] = "ps --format xml";

	check_refused(typo, "checkpoint: unknown option --leave-runing",
		      "did you mean --leave-running?");
	check_refused(unknown, "ps: unknown option --zzzzzzzzz", "see `brumate ps --help`");
	check_refused(letter, "ps: unknown option -z", "see `brumate ps --help`");
	check_refused(no_value, "run: --name needs a value: NAME", "see `brumate run --help`");
	check_refused(too_much, "logs: unexpected operand \"b\"", "see `brumate logs --help`");
	check_refused(missing, "release: missing operand, expected JOB...",
		      "see `brumate release --help`");
	check_refused(no_value_wanted, "ps: --quiet takes no value", "see `brumate ps --help`");
	check_refused(word, "ps: --format: \"xml\": expected table or json",
		      "see `brumate ps --help`");
}

static void check_help(void)
{
	char line[] = "restore -h", dump[] = "dump -h";
	struct brumate_error err;
	struct invocation in;

	CHECK(parse(&in, line, &err) == 0); /* although its operand is missing */
	CHECK(in.values[OPT_HELP]);
	CHECK(parse(&in, dump, &err) == 0);
	CHECK_STR(in.command->name, "checkpoint");
}

static void check_names(void)
{
	CHECK_STR(command_suggest("supend"), "suspend");
	CHECK_STR(command_suggest("chekpoint"), "checkpoint");
	CHECK_STR(command_suggest("jobs"), "ps");
	CHECK_STR(command_suggest("pause"), "suspend");
	CHECK_STR(command_suggest("load"), "restore");
	CHECK(!command_suggest("exec")); /* of podman, which means something else */
	CHECK_STR(command_suggest("SUSPEND"), "suspend");
	CHECK(!command_suggest("frobnicate"));
	CHECK(!command_find("freeze"));
	CHECK_STR(command_suggest("freeze"), "suspend");
	CHECK_STR(command_suggest("thaw"), "resume");
	CHECK_STR(command_suggest("unpin"), "pin --remove");
	CHECK_STR(command_suggest("attach"), "logs --follow");
	CHECK_STR(command_suggest("gc"), "prune --leftovers");
	CHECK_STR(command_suggest("unfreeze"), "resume");
	CHECK_STR(command_find("dump")->name, "checkpoint");
	CHECK(!command_find("un"));
	CHECK(!command_find(""));
}

/* What the table promises to those who derive from it. */
static void check_table(void)
{
	const char *letters[256] = { NULL };
	const struct command *c;

	for (size_t i = 0; (c = command_at(i)); i++) {
		bool seen[OPT__MAX] = { false };

		CHECK(!c->run != !c->program && c->summary && c->operands);
		CHECK(command_find(c->name) == c);
		for (const struct option_spec *o = c->options; o->name; o++) {
			CHECK(o->id < OPT__MAX && !seen[o->id]);
			seen[o->id] = true;
			CHECK(o->help && o->letter != help_option.letter);
			if (o->letter) { /* means the same in all commands */
				const char **meaning = &letters[(unsigned char)o->letter];

				*meaning = *meaning ? *meaning : o->name;
				CHECK_STR(*meaning, o->name);
			}
			CHECK(o->completes != COMPLETES_WORDS || o->words);
		}
	}
}

int main(void)
{
	check_options();
	check_command_line();
	check_refusals();
	check_help();
	check_names();
	check_table();
	return 0;
}
