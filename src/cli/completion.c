// SPDX-License-Identifier: MIT
/*
 * What a shell offers for the word that is being typed, from the command table, and the scripts by which bash, zsh and fish
 * ask for it. `brumate __complete WORD...`, whose last word is that one, prints for each possible word a line, with a tab
 * before what it means; or one line ":file", ":dir" or ":command N", which shells complete best: N words precede a command.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "job/record.h"
#include "process/process.h"

/* The word that is typed, and what was said of it. */
struct offer {
	const char *typed;
	int before_len;	 /* of its beginning that each offered word has, too: "--gpu-map=0=1," */
	int n_words;	 /* that precede it, or the command that it is an argument of */
	json_t *offered; /* owned; the words */
};

static void offer(const struct offer *o, const char *meaning, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Offers a word once, if it begins as the typed one does. */
static void offer(const struct offer *o, const char *meaning, const char *fmt, ...)
{
	char word[512];
	va_list ap;

	snprintf(word, sizeof(word), "%.*s", o->before_len, o->typed);
	va_start(ap, fmt);
	vsnprintf(word + strlen(word), sizeof(word) - strlen(word), fmt, ap);
	va_end(ap);
	if (strncmp(word, o->typed, strlen(o->typed)) != 0 || json_object_get(o->offered, word))
		return;
	json_object_set_new(o->offered, word, json_true());
	printf("%s%s%s\n", word, *meaning ? "\t" : "", meaning);
}

static void offer_words(const struct offer *o, const char *words)
{
	for (size_t n; (n = strcspn(words, " ")); words += n, words += strspn(words, " "))
		offer(o, "", "%.*s", (int)n, words);
}

/* ---- what there is ---- */

/* @states: separated by spaces; NULL: any. */
static void offer_jobs(const struct offer *o, const char *states)
{
	auto_json json_t *reply = NULL;
	json_t *job;
	size_t i;

	client_ask("List", NULL, &reply, NULL);
	json_array_foreach (json_object_get(reply, "jobs"), i, job) {
		const char *state = text_of(job, "state");

		if (states && !words_contain(states, state))
			continue;
		offer(o, state, "%s", text_of(job, "id"));
		if (*text_of(job, "name"))
			offer(o, state, "%s", text_of(job, "name"));
	}
}

static void offer_checkpoints(const struct offer *o)
{
	auto_json json_t *reply = NULL;
	json_t *checkpoint;
	size_t i;

	client_ask("Checkpoints", NULL, &reply, NULL);
	json_array_foreach (json_object_get(reply, "checkpoints"), i, checkpoint)
		offer(o, "checkpoint", "%s", text_of(checkpoint, "id"));
	offer_jobs(o, NULL);
}

/* "KEY=VALUE" behind @before, of the labels that jobs have; with names, their names behind "name=". */
static void offer_labels(const struct offer *o, const char *before, bool names)
{
	auto_json json_t *reply = NULL;
	json_t *job, *value;
	const char *key;
	size_t i;

	client_ask("List", NULL, &reply, NULL);
	json_array_foreach (json_object_get(reply, "jobs"), i, job) {
		if (names && *text_of(job, "name"))
			offer(o, "", "name=%s", text_of(job, "name"));
		json_object_foreach (json_object_get(job, "labels"), key, value)
			offer(o, "", "%s%s=%s", before, key, json_string_value(value));
	}
}

static void offer_filters(const struct offer *o)
{
	for (enum job_state s = 0; s < JOB_STATE__MAX; s++)
		offer(o, "", "state=%s", job_state_name(s));
	offer_words(o, "id= gpu=");
	offer_labels(o, "label=", true);
}

/* Processes that can be jobs: a thread of the kernel has no command line. */
static void offer_pids(const struct offer *o)
{
	auto_closedir DIR *proc = opendir("/proc");
	pid_t pid;

	while (proc && proc_next(proc, &pid) > 0) {
		auto_free char *line = NULL, *comm = NULL;
		size_t len = 0;

		if (proc_file_read(pid, "cmdline", 1 << 20, &line, &len) < 0 || !len ||
		    proc_file_read(pid, "comm", 64, &comm, NULL) < 0)
			continue;
		comm[strcspn(comm, "\n")] = '\0';
		offer(o, comm, "%d", pid);
	}
}

/* A pair of two GPUs by their numbers behind the last comma: "0=1". */
static void offer_gpu_maps(struct offer *o)
{
	auto_json json_t *reply = NULL, *asked = json_object();
	const struct invocation none = { 0 };
	const char *comma = strrchr(o->typed + o->before_len, ',');

	if (asked && add_gpu(asked, &none, NULL) == 0)
		client_ask("Doctor", asked, &reply, NULL);
	size_t n = json_array_size(json_object_get(json_object_get(reply, "facts"), "gpus"));
	if (comma)
		o->before_len = (int)(comma + 1 - o->typed);
	for (size_t from = 0; from < n; from++)
		for (size_t to = 0; to < n; to++)
			if (from != to)
				offer(o, "", "%zu=%zu", from, to);
}

/* Jobs in these states fit; NULL: in any, or something else than jobs is to be offered. */
static const char *const states[] = {
	[COMPLETES_LIVING] =
		"created running suspending suspended resuming checkpointing restoring",
	[COMPLETES_RUNNING] = "running",
	[COMPLETES_SUSPENDED] = "suspended",
	[COMPLETES_FILTER] = NULL, /* the last of all */
};

static void offer_value(struct offer *o, enum completes what, const char *words)
{
	if (what == COMPLETES_FILE || what == COMPLETES_DIR)
		puts(what == COMPLETES_FILE ? ":file" : ":dir");
	else if (what == COMPLETES_COMMAND)
		printf(":command %d\n", o->n_words);
	else if (what == COMPLETES_JOB || states[what])
		offer_jobs(o, states[what]);
	else if (what == COMPLETES_CHECKPOINT)
		offer_checkpoints(o);
	else if (what == COMPLETES_WORDS)
		offer_words(o, words);
	else if (what == COMPLETES_PID)
		offer_pids(o);
	else if (what == COMPLETES_GPU_MAP)
		offer_gpu_maps(o);
	else if (what == COMPLETES_LABEL)
		offer_labels(o, "", false);
	else if (what == COMPLETES_FILTER)
		offer_filters(o);
	else
		for (size_t i = 0; what == COMPLETES_SIGNAL && signal_name(i); i++)
			offer(o, "", "%s", signal_name(i));
}

/* ---- the line ---- */

static void offer_commands(const struct offer *o)
{
	for (size_t i = 0; command_at(i); i++)
		if (!command_at(i)->hidden)
			offer(o, command_at(i)->summary, "%s", command_at(i)->name);
	offer_words(o, "--help --version");
}

static void offer_options(const struct offer *o, const struct command *c)
{
	for (const struct option_spec *s = c->options; s->name; s++)
		offer(o, s->help, "--%s", s->name);
	offer(o, help_option.help, "--%s", help_option.name);
}

/* The option @word is of, "--name", "--name=value" or "-x"; NULL: of none. */
static const struct option_spec *option_of(const struct command *c, const char *word)
{
	for (const struct option_spec *s = c->options; s->name; s++)
		if (word[1] == '-' ? strcspn(word + 2, "=") == strlen(s->name) &&
					     !strncmp(word + 2, s->name, strlen(s->name))
				   : s->letter && word[1] == s->letter && !word[2])
			return s;
	return NULL;
}

static void offer_of_command(struct offer *o, const struct command *c, int n, char **words)
{
	const struct option_spec *needs = NULL;
	bool options_end = false;
	int n_operands = 0;

	for (int i = 1; i < n; i++) {
		const struct option_spec *s = NULL;

		if (!needs && !options_end && words[i][0] == '-' && words[i][1]) {
			s = option_of(c, words[i]);
			options_end = !strcmp(words[i], "--");
		} else if (!needs && n_operands++ == 0 && c->operands_last) {
			options_end = true;
			o->n_words = i + 1;
		}
		needs = s && s->value && !strchr(words[i], '=') ? s : NULL;
	}
	const char *equals =
		options_end || strncmp(o->typed, "--", 2) != 0 ? NULL : strchr(o->typed, '=');
	if (!needs && equals) {
		needs = option_of(c, o->typed);
		o->before_len = (int)(equals + 1 - o->typed);
	}
	if (needs && needs->value)
		offer_value(o, needs->completes, needs->words);
	else if (!options_end && *o->typed == '-')
		offer_options(o, c);
	else if (c->n_operands_max < 0 || n_operands < c->n_operands_max)
		offer_value(o, c->completes, c->words);
}

void completion_offer(int n, char **words)
{
	const struct command *c = n > 1 ? command_find(words[0]) : NULL;
	auto_json json_t *offered = json_object();
	struct offer o = { .typed = n ? words[n - 1] : "", .n_words = n, .offered = offered };

	if (n <= 1)
		offer_commands(&o);
	else if (c)
		offer_of_command(&o, c, n - 1, words);
}

/* ---- the scripts ---- */

static const char bash[] =
	"_brumate()\n{\n"
	"\tlocal words=() offered=() cur word list= i\n"
	/* Where '=' ends a word, as in a plain bash, "--option=value" and "0=1" come in three. */
	"\tfor ((i = 1; i <= COMP_CWORD; i++)); do\n"
	"\t\tif ((i > 1)) && [[ ${COMP_WORDS[i]} == = || ${COMP_WORDS[i-1]} == = ]]; then\n"
	"\t\t\twords[${#words[@]}-1]+=${COMP_WORDS[i]}\n"
	"\t\telse\n\t\t\twords+=(\"${COMP_WORDS[i]}\")\n\t\tfi\n"
	"\tdone\n"
	"\tcur=${words[${#words[@]}-1]} COMPREPLY=()\n"
	"\tmapfile -t offered < <(brumate __complete \"${words[@]}\" 2>/dev/null)\n"
	"\tcase ${offered[0]-} in\n"
	"\t:file) mapfile -t COMPREPLY < <(compgen -f -- \"${cur##*=}\"); return ;;\n"
	"\t:dir) mapfile -t COMPREPLY < <(compgen -d -- \"${cur##*=}\"); return ;;\n"
	"\t:command*) mapfile -t COMPREPLY < <(compgen -c -- \"$cur\"); return ;;\n"
	"\tesac\n"
	/* Meanings are shown where bash only lists, as after a second Tab: what it would type is the words alone. */
	"\t[[ ${COMP_TYPE-} == 63 ]] && ((${#offered[@]} > 1)) && list=1\n"
	"\tfor word in \"${offered[@]}\"; do\n"
	"\t\t[[ $list && $word == *$'\\t'* ]] && word=\"${word/$'\\t'/ (})\"\n"
	"\t\tCOMPREPLY+=(\"${word%%$'\\t'*}\")\n"
	"\tdone\n"
	"\tif [[ $COMP_WORDBREAKS == *=* && $cur == *=* ]]; then\n"
	"\t\tCOMPREPLY=(\"${COMPREPLY[@]#\"${cur%\"${cur##*=}\"}\"}\")\n\tfi\n"
	"}\ncomplete -F _brumate brumate\n";

static const char zsh[] =
	"#compdef brumate\n"
	"_brumate() {\n"
	"\tlocal -a offered\n"
	"\toffered=(${(f)\"$(brumate __complete \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"})\n"
	"\tcase ${offered[1]-} in\n"
	"\t:file) compset -P '--*='; _files ;;\n"
	"\t:dir) compset -P '--*='; _files -/ ;;\n"
	"\t:command*)\n"
	"\t\tshift ${offered[1]#:command } words\n"
	"\t\t((CURRENT -= ${offered[1]#:command }))\n"
	"\t\t_normal ;;\n"
	"\t*)\n"
	"\t\toffered=(${${offered//:/\\\\:}/$'\\t'/:})\n"
	"\t\t_describe brumate offered ;;\n"
	"\tesac\n"
	"}\n_brumate \"$@\"\n";

static const char fish[] =
	"function __brumate_offer\n"
	"\tset -l words (commandline -opc)\n"
	"\tset -l typed (commandline -ct)\n"
	"\tset -e words[1]\n"
	"\tset -l option (string match -r -- '^--[^=]*=' \"$typed\")\n"
	"\tset -l value (string replace -- \"$option\" '' \"$typed\")\n"
	"\tset -l offered (brumate __complete $words \"$typed\" 2>/dev/null)\n"
	"\tswitch \"$offered[1]\"\n"
	"\tcase :file\n\t\tstring replace -r '^' -- \"$option\" (__fish_complete_path \"$value\")\n"
	"\tcase :dir\n\t\tstring replace -r '^' -- \"$option\" "
	"(__fish_complete_directories \"$value\")\n"
	"\tcase ':command*'\n\t\t__fish_complete_subcommand\n"
	"\tcase '*'\n\t\tprintf '%s\\n' $offered\n"
	"\tend\nend\n"
	"complete -c brumate -f -a '(__brumate_offer)'\n";

int completion_print(const char *shell, struct brumate_error *err)
{
	const char *script = !strcmp(shell, "bash")   ? bash
			     : !strcmp(shell, "zsh")  ? zsh
			     : !strcmp(shell, "fish") ? fish
						      : NULL;

	if (!script)
		return brumate_fail(err, EINVAL, "completion: \"%s\": expected bash, zsh or fish",
				    shell);
	fputs(script, stdout);
	return 0;
}
