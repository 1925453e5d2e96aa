// SPDX-License-Identifier: MIT
/*
 * `brumate suspend`, `resume`, `swap`, `checkpoint` and `restore`: a progress line while they run, a summary
 * afterwards, the id alone on stdout. Ctrl-C cancels: the job is then as it was. With --every, checkpoints are
 * made by the job's shim from then on.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "job/request.h"
#include "store/source.h"

/* ---- jobs that --all means ---- */

void several_fini(struct several *s)
{
	free(s->words);
	json_decref(s->list);
	*s = (struct several){ 0 };
}

static int check_alone(const struct invocation *in, struct brumate_error *err)
{
	const char *other = in->n_operands		? "the name of a job"
			    : in->values[OPT_PID]	? "--pid"
			    : in->values[OPT_CONTAINER] ? "--container"
							: NULL;

	return other ? brumate_fail(err, EINVAL, "%s: --all cannot be combined with %s",
				    in->command->name, other)
		     : 0;
}

/* The ids of the jobs that are in one of @states, oldest first. Returns how many. */
static size_t pick_words(char **ret, json_t *jobs, const char *states)
{
	size_t i, n = 0;
	json_t *job;

	json_array_foreach (jobs, i, job)
		if (words_contain(states, text_of(job, "state")))
			ret[n++] = (char *)text_of(job, "id");
	return n;
}

int several_choose(struct several *ret, struct invocation *in, const char *states,
		   const char *choice, struct brumate_error *err)
{
	if (!in->values[OPT_ALL])
		return 0;
	int r = check_alone(in, err);
	if (r == 0)
		r = client_ask("List", NULL, &ret->list, err);
	if (r < 0)
		return r;

	json_t *jobs = json_object_get(ret->list, "jobs");
	ret->words = calloc(json_array_size(jobs) + 1, sizeof(*ret->words));
	if (!ret->words)
		return brumate_fail(err, ENOMEM, "%m");
	in->operands = ret->words;
	in->n_operands = (int)pick_words(ret->words, jobs, states);
	if (!in->n_operands)
		fprintf(stderr, "%s: nothing to do: no job is %s\n", in->command->name, choice);
	return 0;
}

/* Waits until no operation on the job is under way, and tells its state; the exit code goes with that. */
static int report_cancelled(const struct invocation *in, json_t *parameters,
			    struct brumate_error *err)
{
	const char *word = json_string_value(json_object_get(parameters, "job"));
	auto_json json_t *ask = word ? json_pack("{s:s,s:b}", "job", word, "settled", 1) : NULL;
	auto_json json_t *reply = NULL;

	if (!ask || client_ask("Status", ask, &reply, NULL) < 0) {
		brumate_fail(err, ECANCELED, "%s: cancelled", in->command->name);
		brumate_hint(err, "`brumate ps` says what became of the job");
		return -ECANCELED;
	}

	json_t *job = json_object_get(reply, "job");
	const char *state = json_string_value(json_object_get(job, "state"));
	bool running = state && !strcmp(state, "running");
	brumate_fail(err, ECANCELED, "%s: cancelled; job %s is %s", in->command->name, word,
		     state ? state : "gone");
	brumate_error_exit(err, running ? EXIT_STILL_RUNNING : EXIT_FAILED);
	return -ECANCELED;
}

static int operate(json_t **ret, const struct invocation *in, const char *method,
		   json_t *parameters, struct brumate_error *err)
{
	int r = client_call_shown(method, in->command->name, parameters, NULL, ret, err);

	return r == -ECANCELED && interrupt_take() ? report_cancelled(in, parameters, err) : r;
}

/* Nothing was done; what is printed is the job alone. */
static int print_foreseen(const struct invocation *in, json_t *o, struct brumate_error *err)
{
	auto_json json_t *all = json_pack("{s:O}", "foreseen", o);

	print_foreseen_line(o);
	if (wants_json(in))
		return print_json(all, err);
	puts(text_of(o, "job"));
	return 0;
}

static int print_outcome(const struct invocation *in, json_t *reply, const char *id_key,
			 struct brumate_error *err)
{
	json_t *summary = json_object_get(reply, "summary");
	json_t *foreseen = json_object_get(reply, "foreseen");
	const char *id = json_string_value(json_object_get(summary, id_key));

	if (json_is_object(foreseen))
		return print_foreseen(in, foreseen, err);
	if (!json_is_object(summary))
		return brumate_fail(err, EPROTO, "%s: the reply has no summary", in->command->name);
	summary_print(in, summary);
	if (wants_json(in)) {
		auto_json json_t *o = json_pack("{s:O}", "summary", summary);

		return print_json(o, err);
	}
	puts(id ? id : "");
	return 0;
}

static int restore_one(const struct invocation *in, struct brumate_error *err);

static bool has_ended(const char *id)
{
	auto_json json_t *reply = NULL;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (client_ask_about("Status", "job", id, &reply, &why) < 0)
		return brumate_exit_code(&why) == EXIT_NOT_FOUND;
	return words_contain(STATES_ENDED, text_of(json_object_get(reply, "job"), "state"));
}

/* Calls @fn for each job that is named, or chosen out of those in @states, in order; the first failure is the command's,
 * the others are printed as they come. Ctrl-C ends it. */
static int operate_each(const struct invocation *given, const char *states, const char *choice,
			verb_fn fn, struct brumate_error *err)
{
	auto_(several_fini) struct several several = { 0 };
	struct invocation chosen = *given, *in = &chosen;
	int result = several_choose(&several, in, states, choice, err), r = 0;

	if (result < 0)
		return result;
	if (in->n_operands <= 1 && !in->values[OPT_ALL])
		return fn(in, err);
	if (!in->values[OPT_ALL] && fn != restore_one) /* which has looked for more than jobs */
		result = for_each_operand(in, look_for_job, NULL, err);
	if (result < 0)
		return result;
	for (int i = 0; i < in->n_operands && r != -ECANCELED; i++) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		struct invocation one = *in;

		one.operands = in->operands + i;
		one.n_operands = 1;
		r = fn(&one, &why);
		if (r < 0 && r != -ECANCELED && in->values[OPT_ALL] && fn != restore_one &&
		    has_ended(in->operands[i])) {
			print_note("job %s has ended meanwhile", in->operands[i]);
			r = 0;
			continue;
		}
		/* What is wrong with an option is so for each. */
		if (r < 0 && strcmp(why.text, err->text) != 0)
			add_failure(err, &why);
		result = result ? result : r;
	}
	return result;
}

static int suspend_one(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_target(p, in, err);

	if (r == 0)
		r = add_request(p, in, REQUEST_SUSPEND, err);
	if (r == 0)
		r = add_gpu(p, in, err);
	if (r == 0)
		r = operate(&reply, in, "Suspend", p, err);
	return r < 0 ? r : print_outcome(in, reply, "job", err);
}

int verb_suspend(const struct invocation *in, struct brumate_error *err)
{
	return operate_each(in, "running", "running", suspend_one, err);
}

static int resume_one(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_target(p, in, err);

	if (r == 0)
		r = add_request(p, in, REQUEST_RESUME, err);
	if (r == 0)
		r = operate(&reply, in, "Resume", p, err);
	return r < 0 ? r : print_outcome(in, reply, "job", err);
}

int verb_resume(const struct invocation *in, struct brumate_error *err)
{
	return operate_each(in, "suspended", "suspended", resume_one, err);
}

/* ---- swap ---- */

int verb_swap(const struct invocation *in, struct brumate_error *err)
{
	static const char *const parts[] = { "gone", "come" };
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_string(p, "leaves", in->operands[0], err);

	if (r == 0)
		r = add_string(p, "comes", in->operands[1], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_SUSPEND, err);
	if (r == 0)
		r = client_call_shown("Swap", "swap", p, NULL, &reply, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		json_t *summary = json_object_get(reply, parts[i]);

		if (json_is_object(summary))
			summary_print(in, summary);
		else
			print_note("job %s is as it was to be", in->operands[i]);
	}
	return wants_json(in) ? print_json(reply, err) : 0;
}

/* ---- checkpoint ---- */

static int check_schedule_options(const struct invocation *in, struct brumate_error *err)
{
	static const struct {
		int id;
		const char *name;
	} others[] = { { OPT_NAME, "--name" },
		       { OPT_PID, "--pid" },
		       { OPT_DRY_RUN, "--dry-run" },
		       { OPT_WAKE, "--wake" },
		       { OPT_WAIT, "--wait" } };

	if (!in->values[OPT_EVERY])
		return brumate_fail(err, EINVAL,
				    "checkpoint: --keep-last and --keep-within need --every");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (in->values[others[i].id])
			return brumate_fail(err, EINVAL,
					    "checkpoint: %s cannot be combined with --every",
					    others[i].name);
	return 0;
}

/* What the checkpoints are to be like says nothing where there are to be none. */
static int check_end_of_schedule(const struct invocation *in, struct brumate_error *err)
{
	const char *other = in->values[OPT_KEEP_LAST]	  ? "--keep-last"
			    : in->values[OPT_KEEP_WITHIN] ? "--keep-within"
							  : NULL;

	return other ? brumate_fail(err, EINVAL, "checkpoint: %s cannot be combined with --every 0",
				    other)
		     : 0;
}

static void print_schedule(json_t *job)
{
	json_t *schedule = json_object_get(job, "schedule");
	const char *id = json_string_value(json_object_get(job, "id"));
	const char *next = json_string_value(json_object_get(schedule, "next"));
	const char *name = text_of(job, "name");

	if (next)
		fprintf(stderr, "job %s: the next checkpoint is made at %s\n", name, next);
	else
		fprintf(stderr, "job %s: the schedule is off\n", name);
	puts(id ? id : "");
}

static int parse_period(uint64_t *ret_ms, const char *text, struct brumate_error *err)
{
	int r = parse_span(ret_ms, "--every", text,
			   "write it as 30s, 10m, 1h or 1d; 0 ends the schedule", err);

	if (r < 0)
		return r;
	if (*ret_ms && *ret_ms < 1000)
		return brumate_fail(err, EINVAL,
				    "--every: expected a second or more, or 0 to stop");
	return 0;
}

static int schedule_checkpoints(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	uint64_t every_ms = 0;
	int r = check_schedule_options(in, err);

	if (r == 0)
		r = add_target(p, in, err);
	if (r == 0)
		r = parse_period(&every_ms, in->values[OPT_EVERY], err);
	if (r == 0 && !every_ms)
		r = check_end_of_schedule(in, err);
	if (r == 0)
		r = add_retention(p, in, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_SCHEDULE, err);
	if (r < 0)
		return r;
	if (json_object_set_new(p, "every_ms", json_integer((json_int_t)every_ms)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = client_ask("Schedule", p, &reply, err);
	if (r < 0 || wants_json(in))
		return r < 0 ? r : print_json(reply, err);
	print_schedule(json_object_get(reply, "job"));
	return 0;
}

static int checkpoint_one(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;

	if (in->values[OPT_EVERY] || in->values[OPT_KEEP_LAST] || in->values[OPT_KEEP_WITHIN])
		return schedule_checkpoints(in, err);

	int r = add_target(p, in, err);
	if (r == 0)
		r = add_request(p, in, REQUEST_CHECKPOINT, err);
	if (r == 0)
		r = add_string(p, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_gpu(p, in, err);
	if (r == 0)
		r = operate(&reply, in, "Checkpoint", p, err);
	return r < 0 ? r : print_outcome(in, reply, "checkpoint", err);
}

/* The job of this process: what is printed says where it can be seen how it went. */
static int checkpoint_self(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:b}", "self", 1), *reply = NULL;
	int r = p ? add_request(p, in, REQUEST_CHECKPOINT, err) : -ENOMEM;

	if (in->n_operands || in->values[OPT_PID] || in->values[OPT_ALL] || in->values[OPT_EVERY] ||
	    in->values[OPT_DRY_RUN])
		return brumate_fail(err, EINVAL,
				    "checkpoint: --self takes no job, and cannot be combined with "
				    "--every or --dry-run");
	if (r == 0)
		r = add_string(p, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = client_ask("Checkpoint", p, &reply, err);
	if (r < 0)
		return r;
	json_t *asked = json_object_get(reply, "asked");
	if (wants_json(in))
		return print_json(asked, err);
	puts(text_of(asked, "checkpoint"));
	return 0;
}

int verb_checkpoint(const struct invocation *in, struct brumate_error *err)
{
	if (in->values[OPT_OUTPUT] || in->values[OPT_OCI] || in->values[OPT_WHEN_READY])
		return brumate_fail(err, EINVAL, "checkpoint: --%s goes with --container",
				    in->values[OPT_OCI]	     ? "oci"
				    : in->values[OPT_OUTPUT] ? "output"
							     : "when-ready");
	if (in->values[OPT_SELF])
		return checkpoint_self(in, err);
	if (in->values[OPT_NAME] && (in->n_operands > 1 || in->values[OPT_ALL]))
		return brumate_fail(err, EINVAL, "checkpoint: --name takes one job");
	return operate_each(in, "running suspended", "running or suspended", checkpoint_one, err);
}

/* ---- restore ---- */

/* Adds which checkpoint: one that is here, one that is pulled first, or one that stays in its object store. */
static int pack_image(json_t *p, const struct invocation *in, struct brumate_error *err)
{
	const char *word = in->operands[0];
	auto_free char *pulled = NULL;
	int r = 0;

	if (!source_is_url(word) && in->values[OPT_PULL])
		return brumate_fail(err, EINVAL, "restore: --pull needs s3://...");
	if (source_is_url(word) && !in->values[OPT_PULL]) {
		if (in->values[OPT_DIR])
			return brumate_fail(err, EINVAL,
					    "restore: with s3://..., --dir needs --pull");
		return add_remote(p, word, err);
	}
	if (source_is_url(word)) {
		r = pull_path(&pulled, in, word, err);
		word = pulled;
	}
	if (r < 0)
		return r;
	return add_operand(p, "checkpoint", word, err);
}

static int pack_restore(json_t *p, const struct invocation *in, struct brumate_error *err)
{
	const char *kind = NULL;
	int r = add_request(p, in, REQUEST_RESTORE, err);

	if (r == 0)
		r = get_kind(&kind, in, err);
	if (r == 0)
		r = add_string(p, "kind", kind, err);
	if (r == 0)
		r = add_string(p, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	return r < 0 ? r : pack_image(p, in, err);
}

static int restore_one(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = pack_restore(p, in, err);

	if (r == 0)
		r = operate(&reply, in, "Restore", p, err);
	if (r < 0)
		return r;
	if (!in->values[OPT_ATTACH])
		return print_outcome(in, reply, "job", err);
	summary_print(in, json_object_get(reply, "summary"));
	/* It is shown from where it ended before the job wrote to it again, so that nothing is missed. */
	off_t offset = (off_t)json_integer_value(json_object_get(reply, "log_bytes"));
	return follow_to_end(json_object_get(reply, "job"), offset, FOLLOW_FORWARDS, err);
}

/* Whether there is something here that could be restored; what is elsewhere is not asked for. */
static int look_for_image(const struct invocation *in, json_t *parameters, const char *word,
			  struct brumate_error *err)
{
	auto_json json_t *p = json_object();
	const char *kind = NULL;
	int r = p ? get_kind(&kind, in, err) : brumate_fail(err, ENOMEM, "%m");

	if (r < 0 || source_is_url(word))
		return r;
	r = add_operand(p, "what", word, err);
	if (r == 0)
		r = add_string(p, "kind", kind, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	return r < 0 ? r : client_ask("Inspect", p, NULL, err);
}

static int check_several(const struct invocation *in, struct brumate_error *err)
{
	if (!in->n_operands && !in->values[OPT_ALL]) {
		brumate_fail(err, EINVAL,
			     "restore: missing operand, expected CHECKPOINT, JOB or --all");
		brumate_hint(err, "see `brumate restore --help`");
		return -EINVAL;
	}
	const char *alone = in->values[OPT_NAME]     ? "--name"
			    : in->values[OPT_ATTACH] ? "--attach"
						     : NULL;
	return alone && (in->n_operands > 1 || in->values[OPT_ALL])
		       ? brumate_fail(err, EINVAL, "restore: %s takes one job", alone)
		       : 0;
}

int verb_restore(const struct invocation *in, struct brumate_error *err)
{
	if (in->values[OPT_BUNDLE])
		return brumate_fail(err, EINVAL, "restore: --bundle goes with --container");
	int r = check_several(in, err);

	if (r == 0 && in->n_operands > 1)
		r = for_each_operand(in, look_for_image, NULL, err);
	return r < 0 ? r : operate_each(in, "checkpointed", "checkpointed", restore_one, err);
}
