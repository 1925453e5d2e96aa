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
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "store/source.h"

/* ---- run ---- */

static int add_example(json_t *argv, struct brumate_error *err)
{
	auto_free char *program = path_find_helper("counter");

	if (!program) {
		brumate_fail(err, ENOENT, "run: --example: counter is not installed with brumate");
		brumate_hint(err, "name a program of your own: brumate run -- COMMAND");
		return -ENOENT;
	}
	return json_array_append_new(argv, json_string(program)) < 0
		       ? brumate_fail(err, ENOMEM, "%m")
		       : 0;
}

static int add_argv(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *argv = json_array();
	int r = in->values[OPT_EXAMPLE] ? add_example(argv, err) : 0;

	if (r < 0)
		return r;
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

/* One that cannot be run is refused now, and not when the job is to be suspended. */
static int add_hook(json_t *parameters, const char *path, struct brumate_error *err)
{
	struct stat st;

	if (!path)
		return 0;
	if (stat(path, &st) < 0 || access(path, X_OK) < 0) {
		int r = brumate_fail(err, errno, "--hook: %s: %m", path);

		brumate_error_exit(err, EXIT_USAGE);
		return r;
	}
	if (!S_ISREG(st.st_mode))
		return brumate_fail(err, EINVAL, "--hook: %s: not a program", path);
	return add_path(parameters, "hook", path, err);
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
	if (r == 0 && in->values[OPT_PRIORITY])
		r = add_number(p, "priority", in->values[OPT_PRIORITY], err);
	if (r == 0)
		r = add_hook(p, in->values[OPT_HOOK], err);
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

	if (attach && wants_json(in))
		return brumate_fail(err, EINVAL, "run: --format cannot be combined with --attach");
	int r = pack_run(&parameters, in, err);
	if (r < 0)
		return r;

	if (attach) /* what comes before the job is followed is passed on then; to come again it ends us */
		interrupt_watch(true);
	r = client_ask("Run", parameters, &reply, err);
	json_t *job = json_object_get(reply, "job");
	if (r == 0 && attach)
		r = follow_to_end(job, offset, FOLLOW_FORWARDS, err);
	else if (r == 0 && wants_json(in))
		r = print_json(reply, err);
	else if (r == 0)
		puts(text_of(job, "id"));
	if (r < 0 && attach)
		mark_as_ours(err);
	return r;
}

/* ---- kill, rm, manage and release ---- */

enum { GRACE_MS_DEFAULT = 10000 };

int for_each_operand(const struct invocation *in, operand_fn fn, json_t *parameters,
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

/* None is acted on unless all of them are there: a word that was mistyped changes what the others mean. */
static int look_then_act(const struct invocation *in, operand_fn look, operand_fn act,
			 json_t *parameters, struct brumate_error *err)
{
	int r = in->n_operands > 1 ? for_each_operand(in, look, parameters, err) : 0;

	return r < 0 ? r : for_each_operand(in, act, parameters, err);
}

int look_for_job(const struct invocation *in, json_t *parameters, const char *word,
		 struct brumate_error *err)
{
	return client_ask_about("Status", "job", word, NULL, err);
}

/* What Status says of the job that is exactly called @word. */
static int ask_exactly(json_t **ret, const char *word, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s,s:b}", "job", word, "exactly", 1);

	return p ? client_ask("Status", p, ret, err)
		 : brumate_fail(err, EINVAL, "\"%s\" is not UTF-8", word);
}

static int look_exactly(const struct invocation *in, json_t *parameters, const char *word,
			struct brumate_error *err)
{
	return ask_exactly(NULL, word, err);
}

/* The word, or with --format json @reply. */
static int print_done(const struct invocation *in, const char *word, json_t *reply,
		      struct brumate_error *err)
{
	if (wants_json(in))
		return print_json(reply, err);
	puts(word);
	return 0;
}

static int kill_one(const struct invocation *in, json_t *parameters, const char *word,
		    struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = add_string(parameters, "job", word, err);

	if (r == 0)
		r = client_ask("Kill", parameters, &reply, err);
	return r < 0 ? r : print_done(in, word, reply, err);
}

/* The answer is the job as it was last seen. */
static int release_one(const struct invocation *in, json_t *parameters, const char *word,
		       struct brumate_error *err)
{
	auto_json json_t *before = NULL;
	int r = add_string(parameters, "job", word, err);

	if (r == 0 && wants_json(in))
		r = ask_exactly(&before, word, err);
	if (r == 0)
		r = client_ask("Release", parameters, NULL, err);
	return r < 0 ? r : print_done(in, word, before, err);
}

/* Asks at a terminal whether all of them are to end: --all names none of them. */
static int ask_to_kill(const struct invocation *in, json_t *jobs, struct brumate_error *err)
{
	json_t *job;
	size_t i;

	if (!in->values[OPT_ALL] || in->values[OPT_YES] || in->values[OPT_SIGNAL] ||
	    !in->n_operands || !can_ask())
		return 0;
	json_array_foreach (jobs, i, job)
		for (int k = 0; k < in->n_operands; k++)
			if (!strcmp(in->operands[k], text_of(job, "id")))
				fprintf(stderr, "%s  %s\n", in->operands[k], text_of(job, "name"));
	return confirm("end these %d jobs?", in->n_operands)
		       ? 0
		       : brumate_fail(err, ECANCELED, "kill: no job was ended");
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
	if (r == 0)
		r = ask_to_kill(&chosen, json_object_get(several.list, "jobs"), err);
	return r < 0 ? r : look_then_act(&chosen, look_exactly, kill_one, parameters, err);
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

static int print_removed_url(const struct invocation *in, const char *url,
			     struct brumate_error *err)
{
	auto_json json_t *o = json_pack("{s:s,s:s}", "kind", "checkpoint", "url", url);

	return o ? print_done(in, url, o, err) : brumate_fail(err, ENOMEM, "%m");
}

/* The parameter of Remove that a word is given as. */
static const char *removal_key(const struct invocation *in)
{
	return in->values[OPT_JOB] ? "job" : in->values[OPT_CHECKPOINT] ? "checkpoint" : "what";
}

/* Whether it could be removed; what is in an object store is not asked for. */
static int look_to_remove(const struct invocation *in, json_t *parameters, const char *word,
			  struct brumate_error *err)
{
	auto_json json_t *question = json_copy(parameters);

	if (source_is_url(word))
		return 0;
	if (!question || json_object_set_new(question, "dry_run", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = add_string(question, removal_key(in), word, err);
	return r < 0 ? r : client_ask("Remove", question, NULL, err);
}

static int remove_one(const struct invocation *in, json_t *parameters, const char *word,
		      struct brumate_error *err)
{
	const char *key = removal_key(in);
	bool asks = !in->values[OPT_YES] && can_ask();
	auto_json json_t *removed = NULL;
	char text[512];
	int r = 0;

	if (source_is_url(word)) {
		if (asks && !confirm("remove %s?", word))
			return refused_by_user(word, err);
		r = remove_remote(word, err);
		return r < 0 ? r : print_removed_url(in, word, err);
	}
	r = add_string(parameters, key, word, err);
	if (r == 0 && asks)
		r = ask_to_remove(parameters, word, err);
	if (r == 0)
		r = client_ask("Remove", parameters, &removed, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(removed, err);
	describe_removal(text, sizeof(text), removed);
	fprintf(stderr, "removed %s\n", text);
	if (*text_of(removed, "left"))
		fprintf(stderr, "brumate: what is left of it is removed later: %s\n",
			text_of(removed, "left"));
	puts(text_of(removed, "id"));
	return 0;
}

static int check_removal(const struct invocation *in, struct brumate_error *err)
{
	const char *other = in->n_operands		 ? "names"
			    : in->values[OPT_CHECKPOINT] ? "--checkpoint"
			    : in->values[OPT_DIR]	 ? "--dir"
							 : NULL;

	if (in->values[OPT_ENDED] && other)
		return brumate_fail(err, EINVAL, "rm: --ended cannot be combined with %s", other);
	if (in->values[OPT_ENDED] || in->n_operands)
		return 0;
	brumate_fail(err, EINVAL, "rm: missing operand, expected %s or --ended",
		     in->command->operands);
	brumate_hint(err, "see `brumate rm --help`");
	return -EINVAL;
}

/* Jobs that were saved stay: their records lead to the checkpoints that bring them back. */
static int remove_ended(const struct invocation *in, json_t *parameters, struct brumate_error *err)
{
	auto_(several_fini) struct several several = { 0 };
	struct invocation ended = *in;

	ended.values[OPT_ALL] = ""; /* of the jobs in these states */
	int r = several_choose(&several, &ended, STATES_ENDED, "exited or lost", err);
	if (r < 0 || !ended.n_operands)
		return r;
	if (!in->values[OPT_YES] && can_ask() &&
	    !confirm("forget these %d jobs, with their logs?", ended.n_operands))
		return brumate_fail(err, ECANCELED, "rm: nothing was removed");
	ended.values[OPT_ALL] = NULL;
	ended.values[OPT_JOB] = "";
	return for_each_operand(&ended, remove_one, parameters, err);
}

int verb_rm(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();
	const char *kind;
	int r = check_removal(in, err);

	if (r == 0)
		r = get_kind(&kind, in, err);
	if (r == 0 && in->values[OPT_ENDED])
		return remove_ended(in, parameters, err);
	if (r == 0)
		r = add_path(parameters, "dir", in->values[OPT_DIR], err);
	return r < 0 ? r : look_then_act(in, look_to_remove, remove_one, parameters, err);
}

static int look_for_checkpoint(const struct invocation *in, json_t *parameters, const char *word,
			       struct brumate_error *err)
{
	auto_json json_t *question = json_copy(parameters);

	if (!question || json_object_set_new(question, "kind", json_string("checkpoint")) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = add_string(question, "what", word, err);
	return r < 0 ? r : client_ask("Inspect", question, NULL, err);
}

static int pin_one(const struct invocation *in, json_t *parameters, const char *word,
		   struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = add_string(parameters, "checkpoint", word, err);

	if (r == 0)
		r = client_ask(in->values[OPT_REMOVE] ? "Unpin" : "Pin", parameters, &reply, err);
	return r < 0 ? r : print_done(in, text_of(reply, "checkpoint"), reply, err);
}

int verb_pin(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();
	int r = add_path(parameters, "dir", in->values[OPT_DIR], err);

	return r < 0 ? r : look_then_act(in, look_for_checkpoint, pin_one, parameters, err);
}

int verb_release(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object();

	return look_then_act(in, look_exactly, release_one, parameters, err);
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
	return r < 0 ? r : print_done(in, text_of(json_object_get(reply, "job"), "id"), reply, err);
}
