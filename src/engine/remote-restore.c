// SPDX-License-Identifier: MIT
/* Restoring from an object store; see remote-restore.h. */
#include "engine/remote-restore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/paths.h"
#include "edges/objects/remote.h"

struct remote_restore {
	struct remote_restore_job of;
	struct remote_config config;
	struct remote_place place;
	struct remote_image *image;
	bool has_files; /* in the job's directory, or some of them */
};

static void remote_restore_free(struct remote_restore *r)
{
	if (!r)
		return;
	remote_close(r->image);
	remote_place_fini(&r->place);
	remote_config_fini(&r->config);
	free(r);
}
DEFINE_AUTO(struct remote_restore *, remote_restore_free)

static int check_cancelled(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	return progress_check(arg, NULL);
}

static int find_checkpoint(struct remote_restore *r, const char *url, struct brumate_error *err)
{
	auto_free char *word = NULL;
	int e = remote_place_parse(&r->place, url, err);

	if (e == 0)
		e = remote_place_split(&r->place, &word, err);
	if (e == 0)
		e = remote_open(&r->image, &r->config, &r->place, word, check_cancelled,
				r->of.progress, err);
	if (e < 0)
		return e;
	const char *job = remote_manifest(r->image)->job.id;
	if (strcmp(job, r->of.of))
		return brumate_fail(err, EBADMSG, "%s: is of job %s, not of job %s", url, job,
				    r->of.of);
	return 0;
}

int remote_restore_open(struct remote_restore **ret, const struct remote_restore_job *what,
			const char *url, json_t *remote, struct brumate_error *err)
{
	auto_(remote_restore_free) struct remote_restore *r = calloc(1, sizeof(*r));

	if (!r)
		return brumate_fail(err, ENOMEM, "%m");
	r->of = *what;
	r->config = REMOTE_CONFIG_DEFAULT;
	int e = remote_config_from_json(&r->config, remote, err);
	if (e == 0)
		e = find_checkpoint(r, url, err);
	if (e == 0)
		e = remote_copy_manifest(r->image, &what->image->manifest, err);
	if (e < 0)
		return e;
	what->image->path = strdup(url);
	if (!what->image->path)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&r);
	return 0;
}

int remote_restore_files(struct remote_restore *r, store_progress_fn progress, void *arg,
			 struct brumate_error *err)
{
	auto_free char *dir = path_format("%s/" REMOTE_RESTORE_DIR, r->of.job->dir);

	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	remote_restore_sweep(r->of.job);
	r->has_files = true;
	int fd = remote_fetch(r->image, dir, progress, arg, err);
	if (fd < 0)
		return fd;
	r->of.image->dir_fd = fd;
	r->of.image->source = remote_source(r->image);
	return 0;
}

void remote_restore_close(struct remote_restore *r)
{
	if (!r)
		return;
	const struct job *job = r->of.job;
	bool has_files = r->has_files;

	store_image_fini(r->of.image);
	remote_restore_free(r);
	if (has_files)
		remote_restore_sweep(job);
}

void remote_restore_sweep(const struct job *job)
{
	auto_close int dir_fd = open(job->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd >= 0)
		remove_tree(dir_fd, REMOTE_RESTORE_DIR);
}
