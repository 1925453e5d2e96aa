// SPDX-License-Identifier: MIT
/*
 * Completion scripts for bash, zsh and fish, from the command table. What a value may be is written
 * into the script; jobs, by id and name, checkpoints and GPUs are asked for when they are needed.
 */
#include "cli/arguments.h"
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "job/record.h"

static void print_names(const char *separator)
{
	for (size_t i = 0; command_at(i); i++)
		if (!command_at(i)->hidden)
			printf("%s%s", i ? separator : "", command_at(i)->name);
}

/* "checkpoint|dump": a command with its aliases, for a case in a shell. */
static void print_pattern(const struct command *c)
{
	fputs(c->name, stdout);
	for (const char *p = c->aliases; p && *p;) {
		size_t n = strcspn(p, " ");

		printf("|%.*s", (int)n, p);
		p += n;
		p += strspn(p, " ");
	}
}

static void print_signals(void)
{
	for (size_t i = 0; signal_name(i); i++)
		printf("%s%s", i ? " " : "", signal_name(i));
}

/* Ids and names of jobs with their states behind a tab, one a line, in any shell: of those in the states @args, or of all.
 * A damaged job has no name. */
#define PRINT_JOBS(args)                                                       \
	"brumate ps -a --no-headers 2>/dev/null | awk -v want=\" " args " \" " \
	"'want !~ /[a-z]/ || index(want, \" \" $3 \" \") "                     \
	"{ print $1 \"\\t\" $3; if ($2 != \"-\") print $2 \"\\t\" $3 }'"

/* States by what fits; NULL: any. */
static const char *states_for(enum completes what)
{
	switch (what) {
	case COMPLETES_RUNNING:
		return "running";
	case COMPLETES_SUSPENDED:
		return "suspended";
	case COMPLETES_LIVING:
		return "created running suspending suspended resuming checkpointing restoring";
	default:
		return "";
	}
}

/* Processes that can be jobs: a thread of the kernel has no command line. One a line, in any shell. */
#define PRINT_PIDS "grep -las . /proc/[0-9]*/cmdline | cut -d/ -f3"

static void print_states(void)
{
	for (enum job_state s = 0; s < JOB_STATE__MAX; s++)
		printf(" %s", job_state_name(s));
}

/* Each pair of two GPUs by their numbers, "0=1", one a line, in any shell. */
#define PRINT_GPU_MAPS                                \
	"brumate doctor --format json 2>/dev/null | " \
	"awk -F'\"' '$2 == \"uuid\" { n++ } "         \
	"END { for (i = 0; i < n; i++) for (k = 0; k < n; k++) if (i != k) print i \"=\" k }'"

/* The labels that jobs have, "KEY=VALUE" one a line, in any shell. */
#define PRINT_LABELS                                                           \
	"brumate ps -a --format json 2>/dev/null | "                           \
	"awk -F'\"' '/^ *\"labels\": \\{$/ { on = 1; next } /\\}/ { on = 0 } " \
	"on { print $2 \"=\" $4 }' | sort -u"

/* What --filter of ps takes, one a line: each state, name, and label that there is. */
static void print_filters(void)
{
	fputs("printf 'state=%s\\n'", stdout);
	print_states();
	fputs("; printf '%s=\\n' id gpu; brumate ps -a --no-headers 2>/dev/null | "
	      "awk '$2 != \"-\" { print \"name=\" $2 }'; _brumate_labels | sed 's/^/label=/'",
	      stdout);
}

/* ---- bash ---- */

static bool is_of_jobs(enum completes what)
{
	return what == COMPLETES_JOB || what == COMPLETES_LIVING || what == COMPLETES_RUNNING ||
	       what == COMPLETES_SUSPENDED;
}

/* States are shown where bash only lists, as after a second Tab: what it would type is the names alone. */
static const char bash_offer_jobs[] =
	"_brumate_offer_jobs()\n{\n"
	"\tlocal jobs=$(_brumate_jobs \"$@\")\n"
	"\tlocal IFS=$'\\n'\n"
	"\tCOMPREPLY=($(compgen -W \"$(cut -f1 <<<\"$jobs\")\" -- \"$cur\"))\n"
	"\tif [[ ${COMP_TYPE-} == 63 ]] && ((${#COMPREPLY[@]} > 1)); then\n"
	"\t\tCOMPREPLY=($(compgen -W \"$(sed 's/\\t\\(.*\\)/ (\\1)/' <<<\"$jobs\")\" -- "
	"\"$cur\"))\n"
	"\tfi\n}\n";

static void bash_reply(enum completes what, const char *words)
{
	static const char *const commands_for[] = {
		[COMPLETES_NOTHING] = "COMPREPLY=()",
		[COMPLETES_FILE] = "COMPREPLY=($(compgen -f -- \"$cur\"))",
		[COMPLETES_DIR] = "COMPREPLY=($(compgen -d -- \"$cur\"))",
		[COMPLETES_CHECKPOINT] = "COMPREPLY=($(compgen -W \"$(brumate ls -q 2>/dev/null; "
					 "_brumate_jobs | cut -f1)\" -- \"$cur\"))",
		[COMPLETES_COMMAND] = "COMPREPLY=($(compgen -c -- \"$cur\"))",
		[COMPLETES_PID] = "COMPREPLY=($(compgen -W \"$(" PRINT_PIDS ")\" -- \"$cur\"))",
		[COMPLETES_GPU_MAP] = "COMPREPLY=($(compgen -P \"${cur%\"${cur##*,}\"}\" -W "
				      "\"$(_brumate_gpu_maps)\" -- \"${cur##*,}\"))",
		[COMPLETES_LABEL] = "COMPREPLY=($(compgen -W \"$(_brumate_labels)\" -- \"$cur\"))",
		[COMPLETES_FILTER] =
			"COMPREPLY=($(compgen -W \"$(_brumate_filters)\" -- \"$cur\"))",
	};

	if (what == COMPLETES_WORDS) {
		printf("COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))", words);
	} else if (what == COMPLETES_SIGNAL) {
		fputs("COMPREPLY=($(compgen -W \"", stdout);
		print_signals();
		fputs("\" -- \"$cur\"))", stdout);
	} else if (is_of_jobs(what)) {
		printf("_brumate_offer_jobs %s", states_for(what));
	} else {
		fputs(commands_for[what], stdout);
	}
}

static void bash_command(const struct command *c)
{
	printf("\t");
	print_pattern(c);
	printf(")\n\t\tcase $prev in\n");
	for (const struct option_spec *o = c->options; o->name; o++) {
		if (!o->value)
			continue;
		printf("\t\t--%s", o->name);
		if (o->letter)
			printf("|-%c", o->letter);
		printf(") ");
		bash_reply(o->completes, o->words);
		printf("; return ;;\n");
	}
	printf("\t\tesac\n\t\tif [[ $cur == -* ]]; then\n\t\t\tCOMPREPLY=($(compgen -W \"--help");
	for (const struct option_spec *o = c->options; o->name; o++)
		printf(" --%s", o->name);
	printf("\" -- \"$cur\"))\n\t\telse\n\t\t\t");
	bash_reply(c->completes, c->words);
	printf("\n\t\tfi ;;\n");
}

/* Where '=' ends a word, as in a plain bash, "--option=value" and "0=1" come in three: they are joined to be looked
 * at, and what is offered is for the last part. */
static void bash_join(void)
{
	fputs("_brumate()\n{\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev i=$COMP_CWORD\n"
	      "\twhile ((i > 1)) && [[ ${COMP_WORDS[i]} == = || ${COMP_WORDS[i-1]} == = ]]; do\n"
	      "\t\tcur=${COMP_WORDS[--i]}$cur\n\tdone\n"
	      "\tprev=${COMP_WORDS[i-1]}\n"
	      "\tif ((i < COMP_CWORD)) && [[ $cur == --*=* ]]; then\n"
	      "\t\tprev=${cur%%=*} cur=${cur#*=}\n\tfi\n"
	      "\t_brumate_offer\n"
	      "\tif [[ $COMP_WORDBREAKS == *=* && $cur == *=* ]]; then\n"
	      "\t\tCOMPREPLY=(\"${COMPREPLY[@]#\"${cur%\"${cur##*=}\"}\"}\")\n\tfi\n"
	      "}\ncomplete -F _brumate brumate\n",
	      stdout);
}

static void print_bash(void)
{
	printf("# bash completion of brumate; made from its command table\n"
	       "_brumate_jobs() { " PRINT_JOBS("$*") "; }\n"
						     "_brumate_gpu_maps() { " PRINT_GPU_MAPS "; }\n"
						     "_brumate_labels() { " PRINT_LABELS "; }\n"
						     "_brumate_filters() { ");
	print_filters();
	printf("; }\n%s_brumate_offer()\n{\n"
	       "\tif ((COMP_CWORD == 1)); then\n\t\tCOMPREPLY=($(compgen -W \"--help --version ",
	       bash_offer_jobs);
	print_names(" ");
	printf("\" -- \"$cur\"))\n\t\treturn\n\tfi\n\tcase ${COMP_WORDS[1]} in\n");
	for (size_t i = 0; command_at(i); i++)
		bash_command(command_at(i));
	printf("\tesac\n}\n");
	bash_join();
}

/* ---- zsh ---- */

/* Text inside '...[...]' of an _arguments specification. */
static void zsh_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (strchr("[]:`\\", *text))
			printf("\\%c", *text);
		else
			putchar(*text);
	}
}

static void zsh_action(enum completes what, const char *words)
{
	static const char *const actions[] = {
		[COMPLETES_NOTHING] = " ",
		[COMPLETES_FILE] = "_files",
		[COMPLETES_DIR] = "_files -/",
		[COMPLETES_CHECKPOINT] = "_brumate_checkpoints",
		[COMPLETES_COMMAND] = "_normal",
		[COMPLETES_PID] = "_brumate_offer_pids",
		[COMPLETES_GPU_MAP] = "_brumate_gpu_maps",
		[COMPLETES_LABEL] = "_brumate_offer_labels",
		[COMPLETES_FILTER] = "_brumate_offer_filters",
	};

	if (what == COMPLETES_WORDS) {
		printf("(%s)", words);
	} else if (what == COMPLETES_SIGNAL) {
		putchar('(');
		print_signals();
		putchar(')');
	} else if (is_of_jobs(what)) {
		printf("{_brumate_offer_jobs %s}", states_for(what));
	} else {
		fputs(actions[what], stdout);
	}
}

static void zsh_option(const struct option_spec *o)
{
	if (o->letter)
		printf(" \\\n\t\t\t'(-%c --%s)'{-%c,--%s}'[", o->letter, o->name, o->letter,
		       o->name);
	else
		printf(" \\\n\t\t\t'--%s[", o->name);
	zsh_text(o->help);
	printf("]");
	if (o->value) {
		printf(":");
		zsh_text(o->value);
		printf(":");
		zsh_action(o->completes, o->words);
	}
	printf("'");
}

static void zsh_command(const struct command *c)
{
	printf("\t");
	print_pattern(c);
	printf(")\n\t\t_arguments");
	for (const struct option_spec *o = c->options; o->name; o++)
		zsh_option(o);
	zsh_option(&help_option);
	if (c->completes != COMPLETES_NOTHING) {
		printf(" \\\n\t\t\t'*:");
		zsh_text(c->operands);
		printf(":");
		zsh_action(c->completes, c->words);
		printf("'");
	}
	printf(" ;;\n");
}

static void print_zsh(void)
{
	printf("#compdef brumate\n# made from the command table of brumate\n"
	       "_brumate_jobs() { " PRINT_JOBS(
		       "$*") " }\n"
			     "_brumate_offer_jobs() {\n\tlocal -a jobs\n"
			     "\tjobs=(${${(f)\"$(_brumate_jobs $*)\"}/$'\\t'/:})\n"
			     "\t_describe job jobs\n}\n"
			     "_brumate_offer_pids() { compadd -- ${(f)\"$(" PRINT_PIDS ")\"} }\n"
			     "_brumate_gpu_maps() { compset -P '*,'; "
			     "compadd -- ${(f)\"$(" PRINT_GPU_MAPS ")\"} }\n"
			     "_brumate_labels() { " PRINT_LABELS " }\n"
			     "_brumate_filters() { ");
	print_filters();
	printf(" }\n"
	       "_brumate_offer_labels() { compadd -- ${(f)\"$(_brumate_labels)\"} }\n"
	       "_brumate_offer_filters() { compadd -- ${(f)\"$(_brumate_filters)\"} }\n"
	       "_brumate_checkpoints() { compadd -- ${(f)\"$(brumate ls -q 2>/dev/null)\"}; "
	       "_brumate_offer_jobs }\n"
	       "_brumate() {\n\tlocal -a verbs\n\tverbs=(\n");
	for (size_t i = 0; command_at(i); i++) {
		if (command_at(i)->hidden)
			continue;
		printf("\t\t'%s:", command_at(i)->name);
		zsh_text(command_at(i)->summary);
		printf("'\n");
	}
	printf("\t)\n\tif ((CURRENT == 2)); then\n\t\t_describe command verbs\n\t\treturn\n\tfi\n"
	       "\tlocal verb=$words[2]\n\tshift words\n\t((CURRENT--))\n\tcase $verb in\n");
	for (size_t i = 0; command_at(i); i++)
		zsh_command(command_at(i));
	printf("\tesac\n}\n_brumate \"$@\"\n");
}

/* ---- fish ---- */

static void fish_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '\'' || *text == '\\')
			putchar('\\');
		putchar(*text);
	}
}

static void fish_value(enum completes what, const char *words)
{
	switch (what) {
	case COMPLETES_WORDS:
		printf(" -f -a '%s'", words);
		break;
	case COMPLETES_JOB:
	case COMPLETES_LIVING:
	case COMPLETES_RUNNING:
	case COMPLETES_SUSPENDED:
		printf(" -f -a '(__brumate_jobs %s)'", states_for(what));
		break;
	case COMPLETES_SIGNAL:
		printf(" -f -a '");
		print_signals();
		putchar('\'');
		break;
	case COMPLETES_CHECKPOINT:
		printf(" -f -a '(brumate ls -q 2>/dev/null; __brumate_jobs)'");
		break;
	case COMPLETES_GPU_MAP:
		printf(" -f -a '(__fish_complete_list , __brumate_gpu_maps)'");
		break;
	case COMPLETES_LABEL:
		printf(" -f -a '(_brumate_labels)'");
		break;
	case COMPLETES_FILTER:
		printf(" -f -a '(_brumate_filters)'");
		break;
	case COMPLETES_PID:
		printf(" -f -a '(__brumate_pids)'");
		break;
	case COMPLETES_DIR:
		printf(" -f -a '(__fish_complete_directories)'");
		break;
	case COMPLETES_COMMAND:
		printf(" -f -a '(__fish_complete_subcommand)'");
		break;
	case COMPLETES_FILE:
		printf(" -F");
		break;
	default:
		printf(" -f");
	}
}

static void fish_command(const struct command *c)
{
	if (!c->hidden) {
		printf("complete -c brumate -f -n __fish_use_subcommand -a %s -d '", c->name);
		fish_text(c->summary);
		printf("'\n");
	}
	for (const struct option_spec *o = c->options; o->name; o++) {
		printf("complete -c brumate -n '__fish_seen_subcommand_from %s %s' -l %s", c->name,
		       c->aliases ? c->aliases : "", o->name);
		if (o->letter)
			printf(" -s %c", o->letter);
		if (o->value) {
			printf(" -r");
			fish_value(o->completes, o->words);
		}
		printf(" -d '");
		fish_text(o->help);
		printf("'\n");
	}
	printf("complete -c brumate -n '__fish_seen_subcommand_from %s %s'", c->name,
	       c->aliases ? c->aliases : "");
	fish_value(c->completes, c->words);
	printf("\n");
}

static void print_fish(void)
{
	printf("# fish completion of brumate; made from its command table\n"
	       "function __brumate_jobs\n\t" PRINT_JOBS(
		       "$argv") "\nend\n"
				"function __brumate_pids\n\tfor pid in (" PRINT_PIDS ")\n"
				"\t\tprintf '%%s\\t%%s\\n' $pid (cat /proc/$pid/comm "
				"2>/dev/null)\n\tend\nend\n"
				"function __brumate_gpu_maps\n\t" PRINT_GPU_MAPS "\nend\n"
				"function _brumate_labels\n\t" PRINT_LABELS "\nend\n"
				"function _brumate_filters\n\t");
	print_filters();
	printf("\nend\n"
	       "complete -c brumate -s h -l help -d 'show help'\n");
	for (size_t i = 0; command_at(i); i++)
		fish_command(command_at(i));
}

int completion_print(const char *shell, struct brumate_error *err)
{
	if (!strcmp(shell, "bash"))
		print_bash();
	else if (!strcmp(shell, "zsh"))
		print_zsh();
	else if (!strcmp(shell, "fish"))
		print_fish();
	else
		return brumate_fail(err, EINVAL, "completion: \"%s\": expected bash, zsh or fish",
				    shell);
	return 0;
}
