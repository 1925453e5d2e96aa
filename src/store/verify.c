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
int tree_compare(const struct manifest *m, const struct tree *t, struct brumate_error *err)
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

int image_hold(const struct store_image *i)
{
	return flock(i->dir_fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -EBUSY : 0;
}

int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	auto_(tree_fini) struct tree t = TREE_EMPTY;

	image_hold(i); /* what was found sound stays so until it is closed */
	int r = tree_scan(&t, i->dir_fd, NULL, err);

	if (r == 0)
		r = tree_compare(&i->manifest, &t, err);
	if (r == 0) {
		struct compare c = { t.files, i->manifest.files };

		r = tree_hash(&t, i->dir_fd, compare_file, &c, progress, arg, err);
	}
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

int store_check(const struct store_image *i, struct brumate_error *err)
{
	auto_(tree_fini) struct tree t = TREE_EMPTY;
	int r = tree_scan(&t, i->dir_fd, NULL, err);

	if (r == 0)
		r = tree_compare(&i->manifest, &t, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

/* ---- all that is wrong ---- */

static int check_file_owner(int fd, const struct tree_file *f, void *arg, struct brumate_error *err)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? -errno : image_check_owner(&st, err);
}

static bool is_sound(const struct store_problem *p)
{
	return p->expected_bytes == p->actual_bytes &&
	       !memcmp(&p->expected, &p->actual, sizeof(p->expected));
}

/* What is wrong with one file; @want or @found may be NULL, not both. False if nothing is. */
static bool judge(struct store_problem *ret, const struct manifest_file *want,
		  const struct tree_file *found)
{
	*ret = (struct store_problem){ .path = want ? want->path : found->path };
	if (want) {
		ret->expected_bytes = want->len_bytes;
		ret->expected = want->digest;
	}
	if (found) {
		ret->actual_bytes = found->len_bytes;
		ret->actual = found->digest;
		ret->failure = found->failure;
	}
	if (!found)
		ret->kind = STORE_MISSING;
	else if (!want)
		ret->kind = STORE_EXTRA;
	else if (found->failure)
		ret->kind = found->failure == -EACCES ? STORE_OWNER : STORE_UNREADABLE;
	else if (want->len_bytes != found->len_bytes)
		ret->kind = STORE_SIZE;
	else
		ret->kind = STORE_DIGEST;
	return ret->kind != STORE_DIGEST || !is_sound(ret);
}

/* Both lists are sorted by path. */
static int tell_problems(const struct manifest *m, const struct tree *t, store_problem_fn tell,
			 void *arg)
{
	size_t i = 0, k = 0;
	int n = 0;

	while (i < m->n_files || k < t->n_files) {
		int order = i == m->n_files   ? 1
			    : k == t->n_files ? -1
					      : strcmp(m->files[i].path, t->files[k].path);
		const struct manifest_file *want = order <= 0 ? &m->files[i++] : NULL;
		const struct tree_file *found = order >= 0 ? &t->files[k++] : NULL;
		struct store_problem p;

		if (!judge(&p, want, found))
			continue;
		tell(arg, &p);
		n++;
	}
	return n;
}

int store_verify_all(const struct store_image *i, store_problem_fn tell, void *tell_arg,
		     store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(tree_fini) struct tree t = TREE_EMPTY;

	image_hold(i);
	int r = tree_scan_all(&t, i->dir_fd, err);

	if (r == 0)
		r = tree_hash(&t, i->dir_fd, check_file_owner, NULL, progress, arg, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", i->manifest.id);
	return tell_problems(&i->manifest, &t, tell, tell_arg);
}
