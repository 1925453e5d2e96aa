// SPDX-License-Identifier: MIT
/* The `brumate` program: finds the verb, runs it, prints its error, exits as brumate(1) says. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/paths.h"
#include "base/start.h"
#include "cli/command.h"
#include "cli/output.h"

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

static int run_command(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct invocation in;
	const struct command *command = command_find(verb_of(argv[1]));

	if (!command)
		return fail_unknown(argv[1]);
	if (command_parse(&in, command, argc - 2, argv + 2, &err) < 0)
		return print_error(&err);
	if (in.values[OPT_HELP]) {
		help_print(command);
		return EXIT_OK;
	}

	int r = is_configured(command) ? path_check_given(&err) : 0;
	if (r == 0 && is_configured(command))
		r = check_config(&err);
	if (r == 0)
		r = command->run(&in, &err);
	if (r < 0 && !err.code)
		brumate_fail(&err, -r, "%s: %m", command->name);
	return r < 0 ? print_error(&err) : r;
}

int main(int argc, char **argv)
{
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "brumate";

	log_init("brumate");
	children_wait_for_us();
	limits_raise_files();
	if (!strcmp(name, "cuda-checkpoint"))
		return cuda_checkpoint_main(argc, argv);
	if (argc < 2) {
		help_print_all();
		return EXIT_USAGE;
	}

	int status = run_command(argc, argv);
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fprintf(stderr, "brumate: stdout: %s\n", strerror(errno));
		return status ? status : EXIT_FAILED;
	}
	return status;
}
