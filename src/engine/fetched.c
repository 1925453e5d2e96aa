// SPDX-License-Identifier: MIT
/* Restoring from an object store; see fetched.h. */
#include "engine/fetched.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "remote/remote.h"

struct fetched {
	struct remote_config config;
	struct remote_place place;
	struct remote_image *image;
	bool has_files; /* in the job's directory, or some of them */
};

static void fetched_free(struct fetched *f)
{
	if (!f)
		return;
	remote_close(f->image);
	remote_place_fini(&f->place);
	remote_config_fini(&f->config);
	free(f);
}
DEFINE_AUTO(struct fetched *, fetched_free)

static int check_cancelled(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct op *op = arg;

	return progress_check(&op->progress, NULL);
}

static int find(struct fetched *f, struct op *op, const char *url, struct brumate_error *err)
{
	auto_free char *word = NULL;
	int r = remote_place_parse(&f->place, url, err);

	if (r == 0)
		r = remote_place_split(&f->place, &word, err);
	if (r == 0)
		r = remote_open(&f->image, &f->config, &f->place, word, check_cancelled, op, err);
	if (r < 0)
		return r;
	const char *job = remote_manifest(f->image)->job.id;
	if (strcmp(job, op->job->id))
		return brumate_fail(err, EBADMSG, "%s: is of job %s, not of job %s", url, job,
				    op->job->id);
	return 0;
}

int fetched_open(struct op *op, const char *url, json_t *remote, struct brumate_error *err)
{
	auto_(fetched_free) struct fetched *f = calloc(1, sizeof(*f));

	if (!f)
		return brumate_fail(err, ENOMEM, "%m");
	f->config = REMOTE_CONFIG_DEFAULT;
	int r = remote_config_from_json(&f->config, remote, err);
	if (r == 0)
		r = find(f, op, url, err);
	if (r == 0)
		r = remote_copy_manifest(f->image, &op->image.manifest, err);
	if (r < 0)
		return r;
	op->image.path = strdup(url);
	if (!op->image.path)
		return brumate_fail(err, ENOMEM, "%m");
	op->fetched = take_ptr(&f);
	return 0;
}

bool fetched_is(const struct op *op)
{
	return op->fetched;
}

int fetched_files(struct op *op, store_progress_fn progress, struct brumate_error *err)
{
	struct fetched *f = op->fetched;
	auto_free char *dir = path_format("%s/" FETCHED_DIR, op->job->dir);

	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	fetched_sweep(op->job);
	f->has_files = true;
	int fd = remote_fetch(f->image, dir, progress, op, err);
	if (fd < 0)
		return fd;
	op->image.dir_fd = fd;
	op->image.source = remote_source(f->image);
	return 0;
}

void fetched_close(struct op *op)
{
	if (!op->fetched)
		return;
	bool has_files = op->fetched->has_files;

	store_image_fini(&op->image);
	fetched_free(op->fetched);
	op->fetched = NULL;
	if (has_files)
		fetched_sweep(op->job);
}

void fetched_sweep(const struct job *job)
{
	auto_close int dir_fd = open(job->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd >= 0)
		remove_tree(dir_fd, FETCHED_DIR);
}
