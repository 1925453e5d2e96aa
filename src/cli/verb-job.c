// SPDX-License-Identifier: MIT
/* `brumate run`, `kill`, `rm`, `pin`, `manage` and `release`: jobs begin and end, and what is removed. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "store/source.h"

/* ---- run ---- */

static int add_argv(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *argv = json_array();

	for (int i = 0; i < in->n_operands; i++)
		if (json_array_append_new(argv, json_string(in->operands[i])) < 0)
			return brumate_fail(err, EINVAL, "argument %d of the command is not UTF-8",
					    i);
	return json_object_set(parameters, "argv", argv) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

/* What its processes wait at is the library's gate. */
static int check_wake(const struct invocation *in, struct brumate_error *err)
{
	const char *path = in->values[OPT_DATA_PATH];

	if (in->values[OPT_WAKE] && path && !strcmp(path, "driver"))
		return brumate_fail(
			err, EINVAL,
			"--wake needs the library, which --data-path driver leaves out");
	return 0;
}

/* The library in the job's processes reads it there. */
static int set_managed(const struct invocation *in, struct brumate_error *err)
{
	const char *where = in->values[OPT_MANAGED], *path = in->values[OPT_DATA_PATH];

	if (!where)
		return 0;
	if (!strcmp(where, "host") && path && !strcmp(path, "driver"))
		return brumate_fail(err, EINVAL,
				    "--managed host needs the library, which --data-path driver "
				    "leaves out");
	return setenv("BRUMATE_MANAGED", where, 1) < 0 ? brumate_fail(err, errno, "%m") : 0;
}

static int pack_run(json_t **ret, const struct invocation *in, struct brumate_error *err)
{
	int r = check_wake(in, err);
	if (r == 0)
		r = set_managed(in, err);
	if (r < 0)
		return r;

	auto_free char *cwd = getcwd(NULL, 0);
	auto_json json_t *p = json_pack("{s:o}", "env", pack_environment());

	r = p ? 0 : brumate_fail(err, ENOMEM, "%m");
	if (r == 0 && !cwd)
		r = brumate_fail(err, errno, "working directory: %m");
	if (r == 0)
		r = add_argv(p, in, err);
	if (r == 0)
		r = add_string(p, "cwd", cwd, err);
	if (r == 0)
		r = add_string(p, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_path(p, "log", in->values[OPT_LOG], err);
	if (r == 0)
		r = add_string(p, "data_path", in->values[OPT_DATA_PATH], err);
	if (r == 0)
		r = add_labels(p, in, err);
	if (r == 0)
		r = add_gpu(p, in, err);
	if (r < 0)
		return r;
	*ret = take_ptr(&p);
	return 0;
}

/* Gives a failure of brumate itself an exit code that no job's status is taken for, as env(1) does. */
static void mark_as_ours(struct brumate_error *err)
{
	enum exit_code code = brumate_exit_code(err);

	if (code != EXIT_NOT_EXECUTABLE && code != EXIT_NO_COMMAND && code != EXIT_JOB_LOST)
		brumate_error_exit(err, EXIT_OURS);
}

int verb_run(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = NULL, *reply = NULL;
	bool attach = in->values[OPT_ATTACH];
	off_t offset = log_size(in->values[OPT_LOG]);
	int r = pack_run(&parameters, in, err);
	if (r < 0)
		return r;

	r = client_ask("Run", parameters, &reply, err);
	json_t *job = json_object_get(reply, "job");
	if (r == 0 && attach)
		r = follow_to_end(job, offset, FOLLOW_FORWARDS, err);
	else if (r == 0)
		puts(json_string_value(json_object_get(job, "id")));
	if (r < 0 && attach)
		mark_as_ours(err);
	return r;
}

/* ---- kill, rm, manage and release ---- */

enum { GRACE_MS_DEFAULT = 10000 };

/* Does to what @word names what the command is for, and prints its id. @parameters: of the call, but for the word. */
typedef int (*operand_fn)(const struct invocation *in, json_t *parameters, const char *word,
			  struct brumate_error *err);

/* Calls @fn for each operand, in order. Failures are printed in that order, and the first gives the exit code. */
static int for_each_operand(const struct invocation *in, operand_fn fn, json_t *parameters,
			    struct brumate_error *err)
{
	int result = 0;

	for (int i = 0; i < in->n_operands; i++) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = fn(in, parameters, in->operands[i], &why);

		if (r == 0)
			continue;
		add_failure(err, &why);
		result = result ? result : r;
	}
	return result;
}

static int kill_or_release(const struct invocation *in, json_t *parameters, const char *word,
			   struct brumate_error *err)
{
	int r = add_string(parameters, "job", word, err);

	if (r == 0)
		r = client_ask(in->command->run == verb_kill ? "Kill" : "Release", parameters, NULL,
			       err);
	if (r == 0)
		puts(word);
	return r;
}

static int kill_each(const struct invocation *in, json_t *parameters, struct brumate_error *err)
{
	auto_(several_fini) struct several several = { 0 };
	struct invocation chosen = *in;
	int r = several_choose(&several, &chosen,
			       "created running suspending suspended resuming checkpointing "
			       "restoring",
			       "alive", err);

	if (r == 0 && !in->n_operands && !in->values[OPT_ALL]) {
		brumate_fail(err, EINVAL, "kill: missing operand, expected JOB...");
		brumate_hint(err, "see `brumate kill --help`");
		return -EINVAL;
	}
	return r < 0 ? r : for_each_operand(&chosen, kill_or_release, parameters, err);
}

int verb_kill(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();
	uint64_t grace_ms = GRACE_MS_DEFAULT;
	int number = 0, r = 0;

	if (in->values[OPT_SIGNAL])
		r = parse_signal(&number, in->values[OPT_SIGNAL], err);
	if (r == 0 && in->values[OPT_GRACE])
		r = parse_duration(&grace_ms, "--grace", in->values[OPT_GRACE], err);
	if (r < 0)
		return r;
	if (json_object_set_new(parameters, "signal", json_integer(number)) < 0 ||
	    json_object_set_new(parameters, "grace_ms", json_integer((json_int_t)grace_ms)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return kill_each(in, parameters, err);
}

/* "checkpoint train-1 of job train (1a2b3c4d)", as Remove answers. */
static void describe_removal(char *ret, size_t room, json_t *removal)
{
	bool checkpoint = !strcmp(text_of(removal, "kind"), "checkpoint");
	const char *id = text_of(removal, "id"), *job = text_of(removal, "job"),
		   *name = text_of(removal, "job_name");

	if (!checkpoint)
		snprintf(ret, room, "job %s (%s)", id, name);
	else if (*job)
		snprintf(ret, room, "checkpoint %s of job %s (%s)", id, name, job);
	else
		snprintf(ret, room, "checkpoint %s, which is damaged", id);
}

static int refused_by_user(const char *word, struct brumate_error *err)
{
	return brumate_fail(err, ECANCELED, "%s: not removed", word);
}

/* Asks at a terminal whether the checkpoint is to go that @parameters name. */
static int ask_to_remove(json_t *parameters, const char *word, struct brumate_error *err)
{
	auto_json json_t *question = json_copy(parameters), *would = NULL;
	char text[512];

	if (!question || json_object_set_new(question, "dry_run", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = client_ask("Remove", question, &would, err);
	if (r < 0 || strcmp(text_of(would, "kind"), "checkpoint") != 0)
		return r;
	describe_removal(text, sizeof(text), would);
	return confirm("remove %s?", text) ? 0 : refused_by_user(word, err);
}

static int remove_one(const struct invocation *in, json_t *parameters, const char *word,
		      struct brumate_error *err)
{
	const char *key = in->values[OPT_JOB]	       ? "job"
			  : in->values[OPT_CHECKPOINT] ? "checkpoint"
						       : "what";
	bool asks = !in->values[OPT_YES] && can_ask();
	auto_json json_t *removed = NULL;
	char text[512];
	int r = 0;

	if (source_is_url(word)) {
		if (asks && !confirm("remove %s?", word))
			return refused_by_user(word, err);
		r = remove_remote(word, err);
		if (r == 0)
			puts(word);
		return r;
	}
	r = add_string(parameters, key, word, err);
	if (r == 0 && asks)
		r = ask_to_remove(parameters, word, err);
	if (r == 0)
		r = client_ask("Remove", parameters, &removed, err);
	if (r < 0)
		return r;
	describe_removal(text, sizeof(text), removed);
	fprintf(stderr, "removed %s\n", text);
	if (*text_of(removed, "left"))
		fprintf(stderr, "brumate: what is left of it is removed later: %s\n",
			text_of(removed, "left"));
	puts(text_of(removed, "id"));
	return 0;
}

int verb_rm(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();
	const char *kind;
	int r = get_kind(&kind, in, err);

	if (r == 0)
		r = add_path(parameters, "dir", in->values[OPT_DIR], err);
	return r < 0 ? r : for_each_operand(in, remove_one, parameters, err);
}

static int pin_one(const struct invocation *in, json_t *parameters, const char *word,
		   struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = add_string(parameters, "checkpoint", word, err);

	if (r == 0)
		r = client_ask(in->values[OPT_REMOVE] ? "Unpin" : "Pin", parameters, &reply, err);
	if (r == 0)
		puts(text_of(reply, "checkpoint"));
	return r;
}

int verb_pin(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();
	int r = add_path(parameters, "dir", in->values[OPT_DIR], err);

	return r < 0 ? r : for_each_operand(in, pin_one, parameters, err);
}

int verb_release(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();

	return for_each_operand(in, kill_or_release, parameters, err);
}

int verb_manage(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	int r = add_pid(parameters, in, err);

	if (r == 0 && !in->values[OPT_PID]) {
		brumate_fail(err, EINVAL, "manage: --pid PID is missing");
		brumate_hint(err, "see `brumate manage --help`");
		return -EINVAL;
	}
	if (r == 0)
		r = add_string(parameters, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_gpu(parameters, in, err);
	if (r == 0)
		r = client_ask("Manage", parameters, &reply, err);
	if (r == 0)
		puts(json_string_value(json_object_get(json_object_get(reply, "job"), "id")));
	return r;
}
