// SPDX-License-Identifier: MIT
/* Compares the files of a checkpoint with its manifest: names and sizes first, then every byte. */
#include "store/image.h"
#include "store/tree.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>

static int fail_missing(const struct manifest_file *want, struct brumate_error *err)
{
	return brumate_fail(err, EBADMSG, "%s: missing, want %" PRIu64 " bytes", want->path,
			    want->len_bytes);
}

static int compare_size(const struct manifest_file *want, const struct tree_file *found,
			struct brumate_error *err)
{
	if (want->len_bytes == found->len_bytes)
		return 0;
	return brumate_fail(err, EBADMSG, "%s: %s: %" PRIu64 " of %" PRIu64 " bytes", want->path,
			    found->len_bytes < want->len_bytes ? "truncated" : "too long",
			    found->len_bytes, want->len_bytes);
}

/* Both lists are sorted by path. */
static int compare_names(const struct manifest *m, const struct tree *t, struct brumate_error *err)
{
	size_t i = 0, k = 0;

	while (i < m->n_files || k < t->n_files) {
		int order = i == m->n_files   ? 1
			    : k == t->n_files ? -1
					      : strcmp(m->files[i].path, t->files[k].path);

		if (order < 0)
			return fail_missing(&m->files[i], err);
		if (order > 0)
			return brumate_fail(err, EBADMSG, "%s: not in the manifest",
					    t->files[k].path);
		int r = compare_size(&m->files[i++], &t->files[k++], err);
		if (r < 0)
			return r;
	}
	return 0;
}

struct compare {
	const struct tree_file *first;
	const struct manifest_file *wanted;
};

static int compare_file(int fd, const struct tree_file *f, void *arg, struct brumate_error *err)
{
	const struct compare *c = arg;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", f->path);
	int r = image_check_owner(&st, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", f->path);
	if (memcmp(&f->digest, &c->wanted[f - c->first].digest, sizeof(f->digest)))
		return brumate_fail(err, EBADMSG, "%s: damaged: its digest does not match",
				    f->path);
	return 0;
}

int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	auto_(tree_fini) struct tree t = TREE_EMPTY;

	/* What was found sound stays so until it is closed: keeps store_remove() away. A file system
	 * without locks goes without. */
	flock(i->dir_fd, LOCK_SH | LOCK_NB);
	int r = tree_scan(&t, i->dir_fd, NULL, err);

	if (r == 0)
		r = compare_names(&i->manifest, &t, err);
	if (r == 0) {
		struct compare c = { t.files, i->manifest.files };

		r = tree_hash(&t, i->dir_fd, compare_file, &c, progress, arg, err);
	}
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}
