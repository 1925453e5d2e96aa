// SPDX-License-Identifier: MIT
/* The main function of `brumate` and of the programs of edges: finds the verb, runs it or the program that does, prints its
 * error, exits as brumate(1) says. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/start.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/users.h"

static int fail_unknown(const char *name)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const char *meant = command_suggest(name);

	brumate_fail(&err, EINVAL, "unknown %s \"%s\"", name[0] == '-' ? "option" : "command",
		     name);
	if (!strcmp(name, "-v"))
		brumate_hint(&err, "did you mean `brumate --version`?");
	else if (name[0] == '-')
		brumate_hint(&err, "options follow the command: brumate COMMAND %s", name);
	else if (meant)
		brumate_hint(&err, "did you mean `brumate %s`?", meant);
	else
		brumate_hint(&err, "`brumate help` lists the commands");
	return print_error(&err);
}

/* Options before any verb. */
static const char *verb_of(const char *word)
{
	if (!strcmp(word, "-h") || !strcmp(word, "--help"))
		return "help";
	if (!strcmp(word, "-V") || !strcmp(word, "--version"))
		return "version";
	return word;
}

/* A configuration that was chosen and is not there is not the same as none. */
static int check_config(struct brumate_error *err)
{
	const char *path = getenv("BRUMATE_CONFIG");
	struct stat st;

	if (!path || !*path)
		return 0;
	int r = stat(path, &st) < 0 ? errno : S_ISDIR(st.st_mode) ? EISDIR : 0;
	if (!r)
		return 0;
	brumate_fail(err, r, "BRUMATE_CONFIG=%s: %s", path, strerror(r));
	brumate_hint(err, "name a file that exists, or unset it; /dev/null means the defaults");
	return -EINVAL;
}

static bool is_configured(const struct command *command)
{
	return command->run != verb_version && command->run != verb_completion &&
	       command->run != verb_help;
}

/* ---- commands that other programs run ---- */

/* Only returns if it cannot be run. */
static int exec_edge(const struct command *command, const char *program, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free char *path = path_find_helper(program);

	if (path)
		execv(path, argv);
	brumate_fail(&err, path ? errno : ENOENT, "%s: %s: %m", command->name, program);
	brumate_hint(&err, "the package that has it is not installed");
	return print_error(&err);
}

/* A command that nobody here knows may be a program "brumate-WORD" of $PATH, as git finds its own. Else it returns. */
static void exec_foreign(char **argv)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
	auto_free char *program = path_format("brumate-%s", argv[1]);

	if (program && isalnum((unsigned char)argv[1][0]) && !argv[1][strspn(argv[1], allowed)])
		execvp(program, argv + 1);
}

static verb_fn find_run(const struct command *command, const struct edge_verb *own)
{
	for (; own && own->name; own++)
		if (!strcmp(own->name, command->name))
			return own->run;
	return command->run;
}

/* An error in the line itself is printed in the form that the line asks for. */
static bool asks_for_json(int argc, char **argv)
{
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strcmp(argv[i], "--format=json") ||
		    (!strcmp(argv[i], "--format") && i + 1 < argc && !strcmp(argv[i + 1], "json")))
			return true;
	return false;
}

/* Parsing moves the operands to the front. Owned, its strings borrowed; NULL without memory. */
static char **copy_line(char **argv)
{
	size_t n = 0;

	while (argv[n])
		n++;
	char **line = calloc(n + 1, sizeof(*line));
	if (line)
		memcpy(line, argv, n * sizeof(*line));
	return line;
}

static int run_command(int argc, char **argv, const struct edge_verb *own)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct invocation in;
	const struct command *command = command_find(verb_of(argv[1]));
	const bool asks_json = asks_for_json(argc - 2, argv + 2);

	if (!command) {
		exec_foreign(argv);
		return fail_unknown(argv[1]);
	}
	verb_fn run = find_run(command, own);
	if (!run)
		return exec_edge(command, command->program, argv);
	auto_free char **given = copy_line(argv);
	if (!given)
		return brumate_fail(&err, ENOMEM, "%m"), print_error(&err);
	int parsed = command_parse(&in, command, argc - 2, argv + 2, &err);
	if (parsed < 0 ? asks_json : wants_json(&in))
		errors_are_json();
	if (parsed < 0)
		return print_error(&err);
	if (in.values[OPT_HELP]) {
		help_print(command);
		return EXIT_OK;
	}

	if (in.values[OPT_CONTAINER] && command->with_container && run == command->run)
		return exec_edge(command, command->with_container, given);
	int r = is_configured(command) ? path_check_given(&err) : 0;
	if (r == 0 && is_configured(command))
		r = check_config(&err);
	if (r == 0 && is_configured(command))
		r = check_environment(&err);
	int status = EXIT_OK;
	if (r == 0 && (r = users_act(&status, &in, given + 2, run, &err)) > 0)
		return status;
	if (r == 0)
		r = run(&in, &err);
	if (r < 0 && !err.code)
		brumate_fail(&err, -r, "%s: %m", command->name);
	return r < 0 ? print_error(&err) : r;
}

int command_main(int argc, char **argv, const struct edge_verb *own)
{
	log_init("brumate");
	children_wait_for_us();
	limits_raise_files();
	if (argc < 2) {
		help_print_all();
		return EXIT_USAGE;
	}

	int status = EXIT_OK;
	if (!strcmp(argv[1], "__complete"))
		completion_offer(argc - 2, argv + 2);
	else
		status = run_command(argc, argv, own);
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fprintf(stderr, "brumate: stdout: %s\n", strerror(errno));
		return status ? status : EXIT_FAILED;
	}
	return status;
}
