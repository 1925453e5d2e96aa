// SPDX-License-Identifier: MIT
/*
 * `brumate verify` and `prune`: the care of checkpoints. They check every byte and every file, remove checkpoints
 * by a rule, and remove what interrupted writers left.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "job/request.h"

/* ---- verify ---- */

static int add_checkpoints(json_t *p, const struct invocation *in, struct brumate_error *err)
{
	json_t *words;
	int r = add_path(p, "dir", in->values[OPT_DIR], err);

	if ((in->n_operands > 0) == (in->values[OPT_ALL] != NULL)) {
		brumate_fail(err, EINVAL, "verify: expected either CHECKPOINT... or --all");
		brumate_hint(err, "`brumate ls` lists the checkpoints");
		return -EINVAL;
	}
	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	if (r < 0 || !in->n_operands)
		return r;
	words = json_array();
	for (int i = 0; i < in->n_operands; i++) {
		const char *word = in->operands[i];
		auto_free char *path = strchr(word, '/') ? absolute_path(word) : strdup(word);

		if (!path || json_array_append_new(words, json_string(path)) < 0)
			r = brumate_fail(err, EINVAL, "%s: is not UTF-8", word);
	}
	if (json_object_set_new(p, "checkpoints", words) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	return r;
}

/* Of the disk, say: nothing is known of the file. */
static bool is_failure(json_t *problem)
{
	return !strcmp(text_of(problem, "kind"), "failed");
}

static bool any_failed(json_t *results)
{
	json_t *result, *problem;
	size_t i, k;

	json_array_foreach (results, i, result)
		json_array_foreach (json_object_get(result, "problems"), k, problem)
			if (is_failure(problem))
				return true;
	return false;
}

static void print_problem(const char *id, json_t *problem)
{
	const char *want = text_of(problem, "expected_digest");
	const char *have = text_of(problem, "actual_digest");

	print_styled(stderr, STYLE_RED, is_failure(problem) ? "failed:" : "bad:");
	fprintf(stderr, " %s: %s: %s\n", id, text_of(problem, "file"), text_of(problem, "text"));
	if (*want && *have && strcmp(want, have))
		fprintf(stderr, "     digest %s, expected %s\n", have, want);
}

/* Ids of sound ones on stdout, what is wrong with the others on stderr. Returns how many are bad. */
static size_t print_results(json_t *results)
{
	json_t *result, *problem;
	size_t i, k, n_bad = 0;

	json_array_foreach (results, i, result) {
		json_t *problems = json_object_get(result, "problems");
		double seconds = json_number_value(json_object_get(result, "seconds"));
		double bytes = json_number_value(json_object_get(result, "bytes"));
		char size[WORD_BYTES];

		format_bytes(size, (uint64_t)bytes);
		json_array_foreach (problems, k, problem)
			print_problem(text_of(result, "id"), problem);
		fprintf(stderr, "%s: %s, %lld files, %s", text_of(result, "id"),
			json_array_size(problems) ? "BAD" : "ok",
			(long long)json_integer_value(json_object_get(result, "files")), size);
		if (seconds > 0)
			fprintf(stderr, ", %.3f s, %.2f GB/s", seconds, bytes / seconds / 1e9);
		putc('\n', stderr);
		if (json_array_size(problems))
			n_bad++;
		else
			puts(text_of(result, "id"));
	}
	return n_bad;
}

static size_t count_bad(json_t *results)
{
	json_t *result;
	size_t i, n = 0;

	json_array_foreach (results, i, result)
		n += !json_is_true(json_object_get(result, "ok"));
	return n;
}

int verb_verify(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_checkpoints(p, in, err);

	if (r == 0)
		r = client_call_shown("Verify", "verify", p, NULL, &reply, err);
	if (r < 0)
		return r;

	json_t *results = json_object_get(reply, "results");
	if (wants_json(in) && (r = print_json(reply, err)) < 0)
		return r;
	size_t n_bad = wants_json(in) ? count_bad(results) : print_results(results);
	if (!json_array_size(
		    results)) { /* as of a directory that is not the store that was meant */
		brumate_fail(err, ENOENT, "verify: there is no checkpoint in %s",
			     in->values[OPT_DIR] ? in->values[OPT_DIR] : "the store");
		brumate_hint(err, "`brumate ls` lists the checkpoints; --dir names another store");
		brumate_error_exit(err, EXIT_FAILED);
		return -ENOENT;
	}
	if (!n_bad)
		return EXIT_OK;
	if (any_failed(results)) {
		brumate_fail(err, EIO, "not all of %zu checkpoints could be read",
			     json_array_size(results));
		brumate_hint(err, "the disk reports errors, which says nothing of the checkpoints: "
				  "look at `dmesg`, and verify them again once it is well");
		return -EIO;
	}
	brumate_fail(err, EBADMSG, "%zu of %zu checkpoints are bad", n_bad,
		     json_array_size(results));
	brumate_hint(err, "they cannot be restored; `brumate rm` removes them");
	return -EBADMSG;
}

/* ---- prune ---- */

static void print_remarks(json_t *remarks, const char *what)
{
	json_t *remark;
	size_t i;

	json_array_foreach (remarks, i, remark) {
		print_styled(stderr, STYLE_YELLOW, "note:");
		fprintf(stderr, " %s %s: %s\n", what,
			json_string_value(json_object_get(remark, "id")),
			json_string_value(json_object_get(remark, "text")));
	}
}

static void print_ids(FILE *f, json_t *ids)
{
	json_t *id;
	size_t i;

	json_array_foreach (ids, i, id)
		fprintf(f, "%s\n", json_string_value(id));
}

/* Shows at a terminal what the rule would remove, and asks whether to do it. */
static int ask_to_prune(json_t *p, struct brumate_error *err)
{
	auto_json json_t *question = json_copy(p), *would = NULL;

	if (!question || json_object_set_new(question, "dry_run", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = client_ask("Prune", question, &would, err);
	json_t *ids = json_object_get(would, "removed");
	if (r < 0 || !json_array_size(ids))
		return r;
	print_ids(stderr, ids);
	return confirm("remove these %zu checkpoints?", json_array_size(ids))
		       ? 0
		       : brumate_fail(err, ECANCELED, "prune: nothing was removed");
}

static int remove_leftovers(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = in->values[OPT_KEEP_LAST] || in->values[OPT_KEEP_WITHIN] || in->values[OPT_JOB] ||
				in->values[OPT_DRY_RUN]
			? brumate_fail(err, EINVAL, "prune: --leftovers goes with no rule")
			: add_path(p, "dir", in->values[OPT_DIR], err);

	if (r == 0)
		r = client_ask("Sweep", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	const json_int_t n = json_integer_value(json_object_get(reply, "swept"));
	if (n)
		fprintf(stderr, "removed %" JSON_INTEGER_FORMAT " leftover%s of what was killed\n",
			n, n == 1 ? "" : "s");
	else
		fprintf(stderr,
			"there was nothing to remove: nothing is left of what was killed\n");
	printf("%" JSON_INTEGER_FORMAT "\n", n);
	return 0;
}

int verb_prune(const struct invocation *in, struct brumate_error *err)
{
	if (in->values[OPT_LEFTOVERS])
		return remove_leftovers(in, err);

	auto_json json_t *p = json_object(), *reply = NULL;
	bool asks = !in->values[OPT_YES] && !in->values[OPT_DRY_RUN] && can_ask();
	int r = add_retention(p, in, err);

	if (r == 0 && !in->values[OPT_KEEP_LAST] && !in->values[OPT_KEEP_WITHIN]) {
		brumate_fail(err, EINVAL, "prune: --keep-last or --keep-within is missing");
		brumate_hint(err, "say what to keep; --dry-run shows what would go");
		return -EINVAL;
	}
	if (r == 0)
		r = add_string(p, "job", in->values[OPT_JOB], err);
	if (r == 0)
		r = add_flag(p, "dry_run", in, OPT_DRY_RUN, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = asks ? ask_to_prune(p, err) : 0;
	if (r == 0)
		r = client_ask("Prune", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_remarks(json_object_get(reply, "kept"), "kept");
	print_remarks(json_object_get(reply, "damaged"), "damaged, kept");
	print_ids(stdout, json_object_get(reply, "removed"));
	return 0;
}
