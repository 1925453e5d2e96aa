// SPDX-License-Identifier: MIT
/* Which of a job and a checkpoint a word means; see meaning.h. */
#include "service/meaning.h"
#include "service/access.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"

/* How well a word fits; of two, the larger is meant. */
enum fit { FITS_NONE, FITS_BEGINNING, FITS_EXACTLY };

static enum fit fit_of_job(const struct job *j, int found, const char *word)
{
	if (found == -ENOENT || found == -EACCES)
		return FITS_NONE;
	if (found == 0 && (!strcmp(j->id, word) || !strcmp(j->name, word)))
		return FITS_EXACTLY;
	return FITS_BEGINNING;
}

static bool is_there(const struct meaning_question *q)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, q->call, q->dir, q->word, NULL);

	return r != -ENOENT && r != -EACCES;
}

/* One that cannot be opened, as it is damaged, root can still remove. */
static int is_image_exactly(const struct meaning_question *q)
{
	auto_free char *path = path_format("%s/%s", q->dir, q->word);

	if (!path)
		return -ENOMEM;
	return manifest_id_is_valid(q->word) && access(path, F_OK) == 0 &&
	       (q->call->uid == 0 || is_there(q));
}

static int fail_either(const char *word, struct brumate_error *err)
{
	brumate_fail(err, ENOTUNIQ, "\"%s\" may mean a job or a checkpoint", word);
	brumate_hint(err, "say which: --job or --checkpoint");
	brumate_error_exit(err, EXIT_USAGE);
	return -ENOTUNIQ;
}

static bool is_latest(const struct job *j, const struct meaning_question *q)
{
	return q->by_latest && j->checkpoint && !strcmp(j->checkpoint, q->word);
}

/* @found_job: what looking for @j came to. */
static int choose(const struct job *j, int found_job, const struct meaning_question *q,
		  struct brumate_error *err)
{
	enum fit job = fit_of_job(j, found_job, q->word);
	int exactly = is_image_exactly(q);

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
	bool there = is_there(q);
	if (there && job == FITS_BEGINNING)
		return fail_either(q->word, err);
	return there ? MEANS_CHECKPOINT : found_job < 0 ? found_job : MEANS_JOB;
}

static int find_job(struct job *ret, const struct meaning_question *q, struct brumate_error *err)
{
	int r = access_job(ret, q->call, q->word, err);

	return r < 0 ? r : MEANS_JOB;
}

int meaning_in_store(struct meaning_question *q, json_t *parameters, char **ret_dir,
		     struct brumate_error *err)
{
	int r = access_store(ret_dir, q->call, parameters, err);

	if (r < 0)
		return r;
	q->dir = *ret_dir;
	q->dir_given = json_is_string(json_object_get(parameters, "dir"));
	return 0;
}

int meaning_find(struct job *ret, const struct meaning_question *q, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (q->kind && !strcmp(q->kind, "job"))
		return find_job(ret, q, err);
	if (q->kind && strcmp(q->kind, "checkpoint"))
		return wire_fail_parameter(err, "kind", "want job or checkpoint");
	if (q->kind || q->dir_given || strchr(q->word, '/'))
		return MEANS_CHECKPOINT;

	int found = access_job(&j, q->call, q->word, &why);
	int r = choose(&j, found, q, err);
	if (r < 0 && r == found && err)
		*err = why;
	if (r == MEANS_JOB) {
		*ret = j;
		j = JOB_EMPTY;
	}
	return r;
}

int meaning_fail_unknown(struct brumate_error *err, const char *word)
{
	brumate_fail(err, ENOENT, "no job or checkpoint \"%s\"", word);
	brumate_hint(err, "`brumate ps` lists the jobs, `brumate ls` the checkpoints");
	return -ENOENT;
}
