// SPDX-License-Identifier: MIT
/*
 * The command table: every verb of `brumate`, its options and operands; those of edges have their rows there. Dispatch, help, completions
 * and the synopses of the man pages are derived from it; nothing else lists commands or options.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum option_id {
	OPT_HELP,
	OPT_NAME,
	OPT_LOG,
	OPT_ATTACH,
	OPT_SIMULATED,
	OPT_SLURM,
	OPT_FOLLOW,
	OPT_PID,
	OPT_CONTAINER,
	OPT_GPU_MAP,
	OPT_LEAVE_RUNNING,
	OPT_DIR,
	OPT_COMPRESS,
	OPT_TIMEOUT,
	OPT_FORCE,
	OPT_TCP_CLOSE,
	OPT_TCP_SKIP_IN_FLIGHT,
	OPT_DROP_EXTERNAL,
	OPT_WITH_FILES,
	OPT_KEEP_FILES,
	OPT_NEEDS,
	OPT_REHEARSE,
	OPT_FORMAT,
	OPT_NO_HEADERS,
	OPT_QUIET,
	OPT_SIGNAL,
	OPT_GRACE,
	OPT_JOB,
	OPT_CHECKPOINT,
	OPT_ALL,
	OPT_ALL_USERS,
	OPT_ENDED,
	OPT_COLUMNS,
	OPT_EVERY,
	OPT_KEEP_LAST,
	OPT_KEEP_WITHIN,
	OPT_DRY_RUN,
	OPT_OUTPUT,
	OPT_DATA_PATH,
	OPT_MANAGED,
	OPT_PARK,
	OPT_CPU_RUNS,
	OPT_KEEP_COPY,
	OPT_KEY_FILE,
	OPT_PULL,
	OPT_YES,
	OPT_STATS,
	OPT_FILTER,
	OPT_SORT,
	OPT_ALLOW_UNAUTHENTICATED,
	OPT_RESTORE,
	OPT_SINCE,
	OPT_TAIL,
	OPT_SELF,
	OPT_TIMESTAMPS,
	OPT_LABEL,
	OPT_HOOK,
	OPT_PRIORITY,
	OPT_WAKE,
	OPT_EXAMPLE,
	OPT_REMOVE,
	OPT_LEFTOVERS,
	OPT_OCI,
	OPT_BUNDLE,
	OPT_WHEN_READY,
	OPT_WAIT,
	OPT__EDGE, /* from here the options that an edge's commands alone have */
	OPT__MAX = OPT__EDGE + 16,
};

/** What a shell offers for a value. */
enum completes {
	COMPLETES_NOTHING,
	COMPLETES_FILE,
	COMPLETES_DIR,
	COMPLETES_JOB,
	COMPLETES_LIVING, /* jobs that are alive, */
	COMPLETES_RUNNING,
	COMPLETES_SUSPENDED,
	COMPLETES_CHECKPOINT,
	COMPLETES_WORDS,
	COMPLETES_COMMAND,
	COMPLETES_PID,
	COMPLETES_SIGNAL,
	COMPLETES_GPU_MAP,
	COMPLETES_LABEL,
	COMPLETES_FILTER,
};

struct option_spec {
	int id;
	const char *name;  /* long name without "--" */
	char letter;	   /* short name; 0: none */
	const char *value; /* what stands for the value in help; NULL: a flag */
	const char *help;
	enum completes completes;
	const char *words; /* the only values allowed, separated by spaces; NULL: any */
};

enum { GIVEN_LABELS_MAX = 64 };

/** A parsed command line. Strings are borrowed from argv. */
struct invocation {
	const struct command *command;
	const char *
		values[OPT__MAX]; /* NULL: not given; "" for a flag that was; of several the last */
	const char *labels[GIVEN_LABELS_MAX]; /* each --label */
	int n_labels;
	char *const *operands; /* NULL-terminated */
	int n_operands;
};

/** Runs one verb. Returns the exit code (>= 0), or <0 with @err filled. */
typedef int (*verb_fn)(const struct invocation *in, struct brumate_error *err);

struct command {
	const char *name;
	const char *aliases; /* separated by spaces; NULL: none */
	/* Words of other tools, for the error that names this command: separated by spaces; NULL: none. */
	const char *foreign;
	const char *operands;		    /* as in the synopsis; "" for none */
	const char *summary;		    /* one line */
	int n_operands_min, n_operands_max; /* max -1: any number */
	bool operands_last;	  /* options end at the first operand (a command line follows) */
	enum completes completes; /* the operands */
	const char *words;	  /* for COMPLETES_WORDS */
	const struct option_spec *options; /* ends with an empty name; --help is implied */
	verb_fn run;
	const char *program; /* of an edge, which runs it; NULL: any */
	bool hidden;	     /* from lists of commands: --pid of others does it on the way */
	const char *
		with_container; /* the program of an edge that runs it with --container; NULL: none */
};

/** The rows of the edges that were built, made by meson; ends with NULL. Programs without them know no edge. */
extern const struct command *const edge_commands[] __attribute__((weak));

/** The @i-th command; NULL after the last. */
const struct command *command_at(size_t i);

/** A command that the program of an edge runs. */
struct edge_verb {
	const char *name;
	verb_fn run;
};

/** main() of `brumate`, and of the programs of edges, which run @own (ends with NULL; may be NULL). */
int command_main(int argc, char **argv, const struct edge_verb *own);

/** A command of earlier versions, and what does the same now. */
struct former_command {
	const char *name, *now;
};

/** Ends with NULL. */
extern const struct former_command former_commands[];

/** Options of other tools, "" for an operand where we take none. The error says what to do instead. */
struct foreign_option {
	const char *command; /* "": any */
	const char *options; /* separated by spaces */
	const char *hint;
};

/** Ends with NULL. */
extern const struct foreign_option foreign_options[];

/** What `-h, --help` looks like in every command. */
extern const struct option_spec help_option;

/** By name or alias; NULL if there is none. */
const struct command *command_find(const char *name);

/** What does what @name did in an earlier version or does with other tools, or the command whose name is so near that a slip
 * is likely; or NULL. */
const char *command_suggest(const char *name);

/**
 * command_parse() - read the arguments that follow the verb
 * @argv: borrowed; @argv[0] is the first argument after the verb. Reordered in place.
 *
 * Return: 0 and @ret; -EINVAL with a text that says what is wrong and a hint. With --help given,
 * nothing else is checked.
 */
int command_parse(struct invocation *ret, const struct command *command, int argc, char **argv,
		  struct brumate_error *err);

/** Writes help: of all commands, and of one. */
void help_print_all(void);
void help_print(const struct command *command);

/** Refuses variables of the environment whose values mean nothing, by name: -EINVAL (environment.c). */
int check_environment(struct brumate_error *err);

/** Prints what fits in the place of the last of @n words that follow "brumate", for the scripts below. */
void completion_offer(int n, char **words);

/** Completion script for "bash", "zsh" or "fish" on stdout. 0 or -EINVAL. */
int completion_print(const char *shell, struct brumate_error *err);

/* The verbs, one function each. */
int verb_run(const struct invocation *in, struct brumate_error *err);
int verb_ps(const struct invocation *in, struct brumate_error *err);
int verb_logs(const struct invocation *in, struct brumate_error *err);
int verb_events(const struct invocation *in, struct brumate_error *err);
int verb_wait(const struct invocation *in, struct brumate_error *err);
int verb_kill(const struct invocation *in, struct brumate_error *err);
int verb_rm(const struct invocation *in, struct brumate_error *err);
int verb_pin(const struct invocation *in, struct brumate_error *err);
int verb_manage(const struct invocation *in, struct brumate_error *err);
int verb_release(const struct invocation *in, struct brumate_error *err);
int verb_suspend(const struct invocation *in, struct brumate_error *err);
int verb_resume(const struct invocation *in, struct brumate_error *err);
int verb_swap(const struct invocation *in, struct brumate_error *err);
int verb_checkpoint(const struct invocation *in, struct brumate_error *err);
int verb_restore(const struct invocation *in, struct brumate_error *err);
int verb_ls(const struct invocation *in, struct brumate_error *err);
int verb_inspect(const struct invocation *in, struct brumate_error *err);
int verb_verify(const struct invocation *in, struct brumate_error *err);
int verb_rehearse(const struct invocation *in, struct brumate_error *err);
int verb_diff(const struct invocation *in, struct brumate_error *err);
int verb_prune(const struct invocation *in, struct brumate_error *err);
int verb_export(const struct invocation *in, struct brumate_error *err);
int verb_import(const struct invocation *in, struct brumate_error *err);
int verb_push(const struct invocation *in, struct brumate_error *err);
int verb_pull(const struct invocation *in, struct brumate_error *err);
int verb_doctor(const struct invocation *in, struct brumate_error *err);
int verb_version(const struct invocation *in, struct brumate_error *err);
int verb_completion(const struct invocation *in, struct brumate_error *err);
int verb_help(const struct invocation *in, struct brumate_error *err);
