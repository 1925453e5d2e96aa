// SPDX-License-Identifier: MIT
/* Resolves the words of a caller; see resolve.h. */
#include "service/resolve.h"
#include "service/access.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/nearest.h"
#include "base/paths.h"
#include "wire/wire.h"

/* ---- jobs and checkpoints ---- */

/* How well a word fits a name. The better fit is chosen. */
enum fit { FITS_NONE, FITS_BEGINNING, FITS_EXACTLY };

static enum fit fit_of_job(const struct job *j, int found, const char *word)
{
	if (found == -ENOENT || found == -EACCES)
		return FITS_NONE;
	if (found == 0 && (!strcmp(j->id, word) || !strcmp(j->name, word)))
		return FITS_EXACTLY;
	return FITS_BEGINNING;
}

/* How well the word fits names in the store. A job's name, which means its latest checkpoint, is an exact fit, too. */
enum in_store { IN_STORE_NOTHING, IN_STORE_BEGINNING, IN_STORE_OF_JOB };

static enum in_store look_in_store(const struct resolve_question *q)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, q->dir, q->word, NULL);
	const struct manifest *m = &image.manifest;

	if (r == -ENOENT || r == -EACCES || r == -ENOTDIR)
		return IN_STORE_NOTHING;
	if (r == 0 && (!strcmp(m->job.id, q->word) || !strcmp(m->job.name, q->word)))
		return IN_STORE_OF_JOB;
	return IN_STORE_BEGINNING;
}

/* Whether a checkpoint has exactly this name. One that cannot be opened counts, so that it can be removed. */
static int has_image(const struct resolve_question *q)
{
	auto_free char *path = path_format("%s/%s", q->dir, q->word);

	if (!path)
		return -ENOMEM;
	return manifest_id_is_valid(q->word) && access(path, F_OK) == 0;
}

static int fail_either(const char *word, struct brumate_error *err)
{
	brumate_fail(err, ENOTUNIQ, "\"%s\" may mean a job or a checkpoint", word);
	brumate_hint(err, "say which: --job or --checkpoint");
	brumate_error_exit(err, EXIT_USAGE);
	return -ENOTUNIQ;
}

static bool is_latest(const struct job *j, const struct resolve_question *q)
{
	return q->by_latest && j->checkpoint && !strcmp(j->checkpoint, q->word);
}

/* @found_job: the result of the search for @j. */
static int choose_meaning(const struct job *j, int found_job, const struct resolve_question *q,
			  struct brumate_error *err)
{
	enum fit job = fit_of_job(j, found_job, q->word);
	int exactly = has_image(q);

	if (exactly < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (exactly && job == FITS_EXACTLY && !is_latest(j, q))
		return fail_either(q->word, err);
	if (exactly)
		return MEANS_CHECKPOINT;
	if (job == FITS_EXACTLY)
		return MEANS_JOB;
	if (found_job == -ENOENT)
		return MEANS_CHECKPOINT;
	enum in_store there = look_in_store(q);
	if (there == IN_STORE_BEGINNING && job == FITS_BEGINNING)
		return fail_either(q->word, err);
	return there != IN_STORE_NOTHING ? MEANS_CHECKPOINT : found_job < 0 ? found_job : MEANS_JOB;
}

static int resolve_job(struct job *ret, const struct resolve_question *q, struct brumate_error *err)
{
	int r = job_find(ret, q->word, err);

	return r < 0 ? r : MEANS_JOB;
}

int resolve_in_store(struct resolve_question *q, json_t *parameters, char **ret_dir,
		     struct brumate_error *err)
{
	/* If no store is given, a job may be meant. */
	bool given = json_is_string(json_object_get(parameters, "dir"));
	int r = given ? access_store_there(ret_dir, parameters, err)
		      : access_store(ret_dir, parameters, err);

	if (r < 0)
		return r;
	q->dir = *ret_dir;
	q->dir_given = given;
	return 0;
}

int resolve_word(struct job *ret, const struct resolve_question *q, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (q->kind && !strcmp(q->kind, "job"))
		return resolve_job(ret, q, err);
	if (q->kind && strcmp(q->kind, "checkpoint"))
		return wire_fail_parameter(err, "kind", "expected job or checkpoint");
	if (q->kind || q->dir_given || strchr(q->word, '/'))
		return MEANS_CHECKPOINT;

	int found = job_find(&j, q->word, &why);
	int r = choose_meaning(&j, found, q, err);
	if (r < 0 && r == found && err)
		*err = why;
	if (r == MEANS_JOB)
		*ret = take_struct(j, JOB_EMPTY);
	return r;
}

/* ---- exact names ---- */

static int fail_beginning(const struct job *j, const char *word, struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "\"%s\" is only the beginning of job %s (%s)", word, j->id,
		     j->name);
	brumate_hint(err, "give the whole id, or the name");
	return -EINVAL;
}

int resolve_job_exactly(struct job *ret, const char *word, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = job_find(&j, word, err);

	if (r < 0)
		return r;
	if (fit_of_job(&j, 0, word) != FITS_EXACTLY)
		return fail_beginning(&j, word, err);
	*ret = take_struct(j, JOB_EMPTY);
	return 0;
}

/* Names the checkpoint that the word would mean if prefixes counted; that is not enough for removing it. */
static int fail_inexact(const struct resolve_question *q, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	const char *id = image.manifest.id;
	int r = access_image(&image, q->dir, q->word, err);

	if (r == -ENOENT && !q->kind && !q->dir_given)
		return resolve_fail_unknown(err, q);
	if (r < 0)
		return r; /* the prefix of a damaged one, or of several */
	if (look_in_store(q) == IN_STORE_BEGINNING) {
		brumate_fail(err, EINVAL, "\"%s\" is only the beginning of checkpoint %s", q->word,
			     id);
		brumate_hint(err, "give the whole id");
		return -EINVAL;
	}
	brumate_fail(err, ENOENT, "no job \"%s\"; checkpoint %s is of a job of that name", q->word,
		     id);
	brumate_hint(err, "to remove that: brumate rm --checkpoint %s", id);
	return -ENOENT;
}

static int resolve_exact_image(const struct resolve_question *q, struct brumate_error *err)
{
	int there = strchr(q->word, '/') ? 1 : has_image(q);

	if (there < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return there ? MEANS_CHECKPOINT : fail_inexact(q, err);
}

int resolve_exactly(struct job *ret, const struct resolve_question *q, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r;

	if (q->kind && !strcmp(q->kind, "job")) {
		r = resolve_job_exactly(ret, q->word, err);
		return r < 0 ? r : MEANS_JOB;
	}
	if (q->kind || q->dir_given || strchr(q->word, '/'))
		return resolve_exact_image(q, err);

	struct brumate_error why = BRUMATE_ERROR_NONE;
	int found = job_find(&j, q->word, &why);
	bool job = fit_of_job(&j, found, q->word) == FITS_EXACTLY;
	int image = has_image(q);
	if (image < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (image && job)
		return fail_either(q->word, err);
	if (image)
		return MEANS_CHECKPOINT;
	if (found == -ENOENT)
		return fail_inexact(q, err);
	if (found < 0) {
		if (err)
			*err = why;
		return found;
	}
	if (!job)
		return fail_beginning(&j, q->word, err);
	*ret = take_struct(j, JOB_EMPTY);
	return MEANS_JOB;
}

static void consider_job(void *arg, const struct job *j, const char *id,
			 const struct brumate_error *why)
{
	if (j)
		nearest_consider(arg, j->name);
}

static void consider_checkpoint(void *arg, const char *id, const struct store_image *i,
				const struct brumate_error *why)
{
	nearest_consider(arg, id);
}

int resolve_fail_unknown(struct brumate_error *err, const struct resolve_question *q)
{
	struct nearest n = { .word = q->word };

	job_list(consider_job, &n, NULL);
	store_list(q->dir, consider_checkpoint, &n, NULL);
	brumate_fail(err, ENOENT, "no job or checkpoint \"%s\"", q->word);
	if (n.found[0])
		brumate_hint(err, "did you mean %s?", n.found);
	else
		brumate_hint(err, "`brumate ps` lists the jobs, `brumate ls` the checkpoints");
	return -ENOENT;
}

/* ---- GPUs ---- */

static bool is_number(const char *text)
{
	return text && isdigit((unsigned char)text[0]);
}

bool gpu_map_has_numbers(json_t *map)
{
	json_t *pair;
	size_t i;

	json_array_foreach (map, i, pair)
		if (is_number(json_string_value(json_object_get(pair, "from"))) ||
		    is_number(json_string_value(json_object_get(pair, "to"))))
			return true;
	return false;
}

/* @ret is borrowed from @pair or @gpus. */
static int resolve_gpu(const char **ret, json_t *pair, const char *side, const struct dev_gpu *gpus,
		       size_t n_gpus, struct brumate_error *err)
{
	const char *name = json_string_value(json_object_get(pair, side));
	char *end;

	if (!name || !*name)
		return wire_fail_parameter(err, "gpu_map",
					   "expected [{from, to}] with UUIDs or numbers");
	if (!is_number(name)) {
		*ret = name;
		return 0;
	}

	unsigned long number = strtoul(name, &end, 10);
	if (*end || number >= n_gpus) {
		brumate_fail(err, EINVAL, "GPU map: there is no GPU %s (this machine has %zu)",
			     name, n_gpus);
		brumate_hint(err, "`brumate doctor` lists the GPUs");
		return -EINVAL;
	}
	*ret = gpus[number].uuid;
	return 0;
}

int gpu_map_resolve(json_t **ret, json_t *map, const struct dev_gpu *gpus, size_t n_gpus,
		    struct brumate_error *err)
{
	auto_json json_t *resolved = json_array();
	json_t *pair;
	size_t i;

	json_array_foreach (map, i, pair) {
		const char *from = NULL, *to = NULL;
		int r = resolve_gpu(&from, pair, "from", gpus, n_gpus, err);

		if (r == 0)
			r = resolve_gpu(&to, pair, "to", gpus, n_gpus, err);
		if (r < 0)
			return r;
		if (json_array_append_new(resolved,
					  json_pack("{s:s,s:s}", "from", from, "to", to)) < 0)
			return brumate_fail(err, ENOMEM, "GPU map: %m");
	}
	if (!resolved)
		return brumate_fail(err, ENOMEM, "GPU map: %m");
	*ret = take_ptr(&resolved);
	return 0;
}
