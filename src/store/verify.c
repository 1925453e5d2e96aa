// SPDX-License-Identifier: MIT
/* Compares the files of a checkpoint with its manifest: names and sizes first, then every byte. */
#include "store/image.h"
#include "chunks/files.h"
#include "chunks/reader.h"
#include "store/file-tree.h"

#include <errno.h>
#include <string.h>

/* The progress of files and packs as one. */
struct verify_meter {
	store_progress_fn progress;
	void *arg;
	uint64_t before, total;
};

static int step(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	const struct verify_meter *meter = arg;

	return meter->progress
		       ? meter->progress(meter->arg, meter->before + done_bytes, meter->total)
		       : 0;
}

struct compare {
	const struct disk_file *first;
	const struct manifest_file *wanted;
};

static int compare_file(int fd, const struct disk_file *f, void *arg, struct brumate_error *err)
{
	const struct compare *c = arg;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", f->path);
	int r = files_check_owner(&st, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", f->path);
	if (memcmp(&f->digest, &c->wanted[f - c->first].digest, sizeof(f->digest)))
		return brumate_fail(err, EBADMSG, "%s: damaged: its digest does not match",
				    f->path);
	return 0;
}

/* Finds the files of @i, and its packs separately. */
static int scan_image(struct file_tree *ret_files, struct file_tree *ret_packs,
		      const struct store_image *i, bool all, struct brumate_error *err)
{
	int r = all ? file_tree_scan_all(ret_files, i->dir_fd, err)
		    : file_tree_scan(ret_files, i->dir_fd, NULL, err);

	if (r == 0 && file_tree_split(ret_packs, ret_files, &i->manifest) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	return r;
}

/* Compares the files. @meter continues with what is compared after them. */
static int verify_files(const struct store_image *i, struct verify_meter *meter,
			struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY, packs = FILE_TREE_EMPTY;

	image_hold(i); /* so that what was verified stays there until the image is closed */
	int r = scan_image(&t, &packs, i, false, err);

	if (r == 0)
		r = file_tree_compare(&i->manifest, &t, &packs, err);
	if (r == 0) {
		struct compare c = { t.files, i->manifest.files };

		r = file_tree_hash(&t, i->dir_fd, compare_file, &c, step, meter, err);
	}
	meter->before = t.total_bytes;
	return r;
}

int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	struct verify_meter meter = { progress, arg, 0, manifest_bytes(&i->manifest) };
	int r = verify_files(i, &meter, err);

	if (r == 0)
		r = chunks_verify(i->dir_fd, &i->manifest, NULL, NULL, step, &meter, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

int store_verify_files(const struct store_image *i, store_progress_fn progress, void *arg,
		       struct brumate_error *err)
{
	struct verify_meter meter = { progress, arg, 0, manifest_bytes(&i->manifest) };
	int r = verify_files(i, &meter, err);

	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

int store_verify_memory(const struct store_image *i, store_progress_fn progress, void *arg,
			struct brumate_error *err)
{
	struct verify_meter meter = { progress, arg, 0, manifest_bytes(&i->manifest) };
	int r = chunks_verify(i->dir_fd, &i->manifest, NULL, NULL, step, &meter, err);

	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

int store_check(const struct store_image *i, struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY, packs = FILE_TREE_EMPTY;
	int r = scan_image(&t, &packs, i, false, err);

	if (r == 0)
		r = file_tree_compare(&i->manifest, &t, &packs, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

/* ---- all that is wrong ---- */

static int check_file_owner(int fd, const struct disk_file *f, void *arg, struct brumate_error *err)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? -errno : files_check_owner(&st, err);
}

static bool is_sound(const struct store_problem *p)
{
	return p->expected_bytes == p->actual_bytes &&
	       !memcmp(&p->expected, &p->actual, sizeof(p->expected));
}

/* Determines what is wrong with one file; @want or @found may be NULL, not both. Returns false if nothing is. */
static bool judge(struct store_problem *ret, const struct manifest_file *want,
		  const struct disk_file *found)
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
	if (found && files_cannot_tell(-found->failure))
		ret->kind = STORE_FAILED;
	else if (!found)
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
static int tell_problems(const struct manifest *m, const struct file_tree *t, store_problem_fn tell,
			 void *arg)
{
	size_t i = 0, k = 0;
	int n = 0;

	while (i < m->n_files || k < t->n_files) {
		int order = i == m->n_files   ? 1
			    : k == t->n_files ? -1
					      : strcmp(m->files[i].path, t->files[k].path);
		const struct manifest_file *want = order <= 0 ? &m->files[i++] : NULL;
		const struct disk_file *found = order >= 0 ? &t->files[k++] : NULL;
		struct store_problem p;

		if (!judge(&p, want, found))
			continue;
		tell(arg, &p);
		n++;
	}
	return n;
}

/* Reports packs that are missing or of the wrong length. */
static int tell_packs(const struct manifest *m, const struct file_tree *packs,
		      store_problem_fn tell, void *arg)
{
	size_t k = 0;
	int n = 0;

	for (size_t i = 0; i < m->memory.n_packs; i++) {
		const struct manifest_pack *p = &m->memory.packs[i];
		struct manifest_file want = { .path = p->path, .len_bytes = p->len_bytes };
		bool there = k < packs->n_files && !strcmp(packs->files[k].path, p->path);
		struct store_problem problem;

		if (!judge(&problem, &want, there ? &packs->files[k++] : NULL))
			continue;
		tell(arg, &problem);
		n++;
	}
	return n;
}

/* Whether the chunks of packs can be checked: their table is intact. */
static bool has_table(const struct manifest *m, const struct file_tree *t)
{
	for (size_t i = 0, k = 0; i < m->n_files && k < t->n_files;) {
		int order = strcmp(m->files[i].path, t->files[k].path);
		struct store_problem p;

		if (order == 0 && !strcmp(m->files[i].path, MANIFEST_TABLE_PATH))
			return !judge(&p, &m->files[i], &t->files[k]);
		i += order <= 0;
		k += order >= 0;
	}
	return false;
}

struct teller {
	store_problem_fn tell;
	void *arg;
};

static void tell_damage(void *arg, const struct chunks_damage *damage)
{
	const struct teller *t = arg;
	const struct chunk_record *c = damage->record;

	t->tell(t->arg, &(struct store_problem){ .kind = STORE_CHUNK,
						 .path = damage->path,
						 .expected = c->digest,
						 .text = damage->text,
						 .offset = c->offset,
						 .len_bytes = chunk_padded(c->stored_bytes) });
}

int store_verify_all(const struct store_image *i, store_problem_fn tell, void *tell_arg,
		     store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY, packs = FILE_TREE_EMPTY;
	struct verify_meter meter = { progress, arg, 0, manifest_bytes(&i->manifest) };
	struct teller teller = { tell, tell_arg };
	int n, k = 0;

	image_hold(i);
	int r = scan_image(&t, &packs, i, true, err);

	if (r == 0)
		r = file_tree_hash(&t, i->dir_fd, check_file_owner, NULL, step, &meter, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", i->manifest.id);
	n = tell_problems(&i->manifest, &t, tell, tell_arg);
	n += tell_packs(&i->manifest, &packs, tell, tell_arg);
	meter.before = t.total_bytes;
	if (has_table(&i->manifest, &t))
		k = chunks_verify(i->dir_fd, &i->manifest, tell_damage, &teller, step, &meter, err);
	return k < 0 ? brumate_wrap(err, k, "checkpoint %s", i->manifest.id) : n + k;
}
