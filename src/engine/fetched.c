// SPDX-License-Identifier: MIT
/* Restoring from elsewhere; see fetched.h. */
#include "engine/fetched.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/paths.h"
#include "store/source.h"

struct fetched {
	struct fetched_for of;
	struct image_source *source;
	bool has_files; /* in the job's directory, or some of them */
};

static void fetched_free(struct fetched *f)
{
	if (!f)
		return;
	source_close(f->source);
	free(f);
}
DEFINE_AUTO(struct fetched *, fetched_free)

static int check_cancelled(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	return progress_check(arg, NULL);
}

static int find_checkpoint(struct fetched *f, const char *url, json_t *remote,
			   struct brumate_error *err)
{
	struct source_place p = { .url = url, .remote = remote };
	int r = source_find_kind(&p.kind, url, err);

	if (r == 0)
		r = p.kind->open(&f->source, &p, check_cancelled, f->of.progress, err);
	if (r < 0)
		return r;
	const char *job = f->source->manifest->job.id;
	if (strcmp(job, f->of.of))
		return brumate_fail(err, EBADMSG, "%s: is of job %s, not of job %s", url, job,
				    f->of.of);
	return 0;
}

int fetched_open(struct fetched **ret, const struct fetched_for *what, const char *url,
		 json_t *remote, struct brumate_error *err)
{
	auto_(fetched_free) struct fetched *f = calloc(1, sizeof(*f));

	if (!f)
		return brumate_fail(err, ENOMEM, "%m");
	f->of = *what;
	int r = find_checkpoint(f, url, remote, err);
	if (r == 0)
		r = f->source->kind->copy_manifest(f->source, &what->image->manifest, err);
	if (r < 0)
		return r;
	what->image->path = strdup(url);
	if (!what->image->path)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&f);
	return 0;
}

int fetched_files(struct fetched *f, store_progress_fn progress, void *arg,
		  struct brumate_error *err)
{
	auto_free char *dir = path_format("%s/" FETCHED_DIR, f->of.target->dir);

	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	fetched_sweep(f->of.target);
	f->has_files = true;
	int fd = f->source->kind->fetch(f->source, dir, progress, arg, err);
	if (fd < 0)
		return fd;
	f->of.image->dir_fd = fd;
	f->of.image->source = f->source->kind->packs(f->source);
	return 0;
}

void fetched_close(struct fetched *f)
{
	if (!f)
		return;
	const struct target *target = f->of.target;
	bool has_files = f->has_files;

	store_image_fini(f->of.image);
	fetched_free(f);
	if (has_files)
		fetched_sweep(target);
}

void fetched_sweep(const struct target *target)
{
	auto_close int dir_fd = open(target->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd >= 0)
		remove_tree(dir_fd, FETCHED_DIR);
}
