// SPDX-License-Identifier: MIT
/*
 * The files of a checkpoint on disk: found without following a link, hashed by several threads, and
 * compared with a manifest by name and size.
 */
#include "store/file-tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/workers.h"
#include "chunks/files.h"

enum { DEPTH_MAX = 64 };

struct tree_scan {
	struct file_tree *tree;
	file_tree_dir_fn dir;
	struct brumate_error *err;
};

static int scan_dir(struct tree_scan *s, int fd, const char *prefix, int depth);

void file_tree_fini(struct file_tree *t)
{
	for (size_t i = 0; i < t->n_files; i++)
		free(t->files[i].path);
	free(t->files);
	*t = FILE_TREE_EMPTY;
}

static int add_file(struct tree_scan *s, const char *path, uint64_t len_bytes)
{
	struct file_tree *t = s->tree;

	if (t->n_files == MANIFEST_FILES_MAX)
		return brumate_fail(s->err, EFBIG, "more than %d files", MANIFEST_FILES_MAX);
	const struct disk_file file = { .path = strdup(path), .len_bytes = len_bytes };
	if (!file.path || array_add(t->files, t->n_files, file) < 0) {
		free(file.path);
		return brumate_fail(s->err, ENOMEM, "%m");
	}
	t->total_bytes += len_bytes;
	return 0;
}

static const char *kind_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFLNK:
		return "a symbolic link";
	case S_IFIFO:
		return "a pipe";
	case S_IFSOCK:
		return "a socket";
	default:
		return "a device";
	}
}

static int scan_subdir(struct tree_scan *s, int dir_fd, const char *name, const char *path,
		       int depth)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return brumate_fail(s->err, errno, "%s: %m", path);
	return scan_dir(s, fd, path, depth + 1);
}

static int scan_found(struct tree_scan *s, int dir_fd, const char *path, const char *name,
		      int depth)
{
	struct stat st;

	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return brumate_fail(s->err, errno, "%s: %m", path);
	if (S_ISDIR(st.st_mode))
		return scan_subdir(s, dir_fd, name, path, depth);
	if (!S_ISREG(st.st_mode))
		return brumate_fail(s->err, EBADMSG, "%s: %s, expected files and directories only",
				    path, kind_of(st.st_mode));
	if (!strcmp(path, STORE_MANIFEST_NAME))
		return 0;
	return add_file(s, path, (uint64_t)st.st_size);
}

static int scan_entry(struct tree_scan *s, int dir_fd, const char *prefix, const char *name,
		      int depth)
{
	auto_free char *path = *prefix ? path_format("%s/%s", prefix, name) : strdup(name);
	if (!path)
		return brumate_fail(s->err, ENOMEM, "%m");

	int r = scan_found(s, dir_fd, path, name, depth);
	if (r >= 0 || !s->tree->go_on || r == -ENOMEM || r == -EFBIG)
		return r;
	int failure = r;
	r = add_file(s, path, 0);
	if (r == 0)
		s->tree->files[s->tree->n_files - 1].failure = failure;
	return r;
}

static int scan_entries(struct tree_scan *s, DIR *dir, const char *prefix, int depth)
{
	struct dirent *entry;
	int r;

	while ((r = dir_next(dir, &entry)) > 0) {
		r = scan_entry(s, dirfd(dir), prefix, entry->d_name, depth);
		if (r < 0)
			return r;
	}
	return r < 0 ? brumate_fail(s->err, -r, "%s: %m", *prefix ? prefix : ".") : 0;
}

static int scan_dir(struct tree_scan *s, int fd, const char *prefix, int depth)
{
	if (depth > DEPTH_MAX)
		return brumate_fail(s->err, EBADMSG, "%s: more than %d directories deep", prefix,
				    DEPTH_MAX);

	auto_close int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (own < 0)
		return brumate_fail(s->err, errno, "%s: %m", *prefix ? prefix : ".");
	auto_closedir DIR *dir = fdopendir(own);
	if (!dir)
		return brumate_fail(s->err, errno, "%s: %m", *prefix ? prefix : ".");
	take_fd(&own);

	int r = scan_entries(s, dir, prefix, depth);
	if (r == 0 && s->dir) {
		r = s->dir(fd);
		if (r < 0)
			brumate_fail(s->err, -r, "%s: %m", *prefix ? prefix : ".");
	}
	return r;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct disk_file *)a)->path, ((const struct disk_file *)b)->path);
}

static int scan_tree(struct file_tree *ret, int dir_fd, bool go_on, file_tree_dir_fn dir,
		     struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = { .go_on = go_on };
	struct tree_scan s = { .tree = &t, .dir = dir, .err = err };
	int r = scan_dir(&s, dir_fd, "", 0);

	if (r < 0)
		return r;
	if (t.n_files)
		qsort(t.files, t.n_files, sizeof(t.files[0]), by_path);
	*ret = take_struct(t, FILE_TREE_EMPTY);
	return 0;
}

int file_tree_scan(struct file_tree *ret, int dir_fd, file_tree_dir_fn dir,
		   struct brumate_error *err)
{
	return scan_tree(ret, dir_fd, false, dir, err);
}

int file_tree_scan_all(struct file_tree *ret, int dir_fd, struct brumate_error *err)
{
	/* A failure noted in a listed file is not one of the whole. */
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = scan_tree(ret, dir_fd, true, NULL, &why);

	if (r < 0 && err)
		*err = why;
	return r;
}

static int compare_pack(const void *path, const void *pack)
{
	return strcmp(path, ((const struct manifest_pack *)pack)->path);
}

/* Packs are sorted. */
static bool is_pack(const struct manifest *m, const char *path)
{
	return m->memory.n_packs && bsearch(path, m->memory.packs, m->memory.n_packs,
					    sizeof(*m->memory.packs), compare_pack);
}

int file_tree_split(struct file_tree *ret, struct file_tree *t, const struct manifest *m)
{
	struct file_tree packs = { .go_on = t->go_on };
	size_t kept = 0;

	packs.files = calloc(t->n_files + 1, sizeof(*packs.files));
	if (!packs.files)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_files; i++) {
		struct disk_file *f = &t->files[i];

		if (!is_pack(m, f->path)) {
			t->files[kept++] = *f;
			continue;
		}
		packs.files[packs.n_files++] = *f;
		packs.total_bytes += f->len_bytes;
		t->total_bytes -= f->len_bytes;
	}
	t->n_files = kept;
	*ret = packs;
	return 0;
}

/* ---- hashing ---- */

enum { THREADS_MAX = 8 };

struct hashing {
	struct file_tree *tree;
	struct disk_file **order; /* largest first */
	int dir_fd;
	disk_file_fn done;
	void *done_arg;
	store_progress_fn progress;
	void *progress_arg;

	struct workers workers;
	atomic_size_t next;
	atomic_uint_fast64_t done_bytes;
	uint64_t reported_bytes;
	int told; /* set by progress */

	pthread_mutex_t lock;
	int r; /* of the first failed file by path; under lock, like all below */
	const struct disk_file *failed;
	struct brumate_error err;
};

static int hashed_some(void *arg, size_t n_bytes)
{
	struct hashing *h = arg;

	atomic_fetch_add(&h->done_bytes, n_bytes);
	return workers_are_stopped(&h->workers) ? -ECANCELED : 0;
}

static int hash_file(struct hashing *h, struct disk_file *f, struct brumate_error *err)
{
	uint64_t len = 0;
	auto_close int fd = files_open(h->dir_fd, f->path, NULL);

	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", f->path);
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* the kernel reads ahead */
	if (h->tree->will_sync) /* a disk error shows up in the later sync */
		sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	int r = digest_file_steps(&f->digest, fd, &len, hashed_some, h);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", f->path);
	if (len != f->len_bytes)
		return brumate_fail(err, EBUSY, "%s: changed while it was read", f->path);
	return h->done ? h->done(fd, f, h->done_arg, err) : 0;
}

static void note_failure(struct hashing *h, struct disk_file *f, int r,
			 const struct brumate_error *err)
{
	if (h->tree->go_on && r != -ECANCELED) {
		f->failure = r;
		return;
	}
	workers_stop(&h->workers);
	if (r == -ECANCELED)
		return;
	pthread_mutex_lock(&h->lock);
	if (!h->failed || f < h->failed) {
		h->failed = f;
		h->r = r;
		h->err = *err;
	}
	pthread_mutex_unlock(&h->lock);
}

static int hash_for_worker(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct hashing *h = arg;

	while (!worker_is_stopped(me)) {
		size_t i = atomic_fetch_add(&h->next, 1);
		struct brumate_error why = BRUMATE_ERROR_NONE;

		if (i >= h->tree->n_files)
			break;
		if (h->order[i]->failure || h->order[i]->is_hashed)
			continue;
		int r = hash_file(h, h->order[i], &why);
		if (r < 0)
			note_failure(h, h->order[i], r, &why);
	}
	return 0;
}

static int report_hashed(void *arg)
{
	struct hashing *h = arg;
	uint64_t bytes = atomic_load(&h->done_bytes);

	if (bytes == h->reported_bytes)
		return 0;
	h->reported_bytes = bytes;
	h->told = h->progress(h->progress_arg, bytes, h->tree->total_bytes);
	return h->told;
}

/* A sync waits for the disk, which takes several at a time: a machine of two cores syncs the 3600 images of a job of 400
 * processes in a third of the time. */
static unsigned threads_wanted(const struct file_tree *t)
{
	const size_t n_files = t->n_files;
	unsigned n = t->will_sync ? THREADS_MAX : workers_cores(THREADS_MAX);

	return n > n_files ? (unsigned)n_files : n;
}

static int by_size(const void *a, const void *b)
{
	uint64_t left = (*(struct disk_file *const *)a)->len_bytes;
	uint64_t right = (*(struct disk_file *const *)b)->len_bytes;

	return left < right ? 1 : left > right ? -1 : 0;
}

static int hash_files(struct hashing *h, struct brumate_error *err)
{
	uint64_t total = h->tree->total_bytes;
	unsigned threads = threads_wanted(h->tree);

	if (workers_start(&h->workers, threads, hash_for_worker, h) < 0)
		return brumate_fail(err, EAGAIN, "no thread to hash files with: %m");
	workers_wait(&h->workers, h->progress ? report_hashed : NULL, h, NULL);
	if (h->told < 0)
		return brumate_fail(err, -h->told, "stopped while files were hashed: %m");
	if (h->failed && err)
		*err = h->err;
	if (h->r == 0 && h->progress)
		h->progress(h->progress_arg, total, total);
	return h->r;
}

int file_tree_hash(struct file_tree *t, int dir_fd, disk_file_fn done, void *done_arg,
		   store_progress_fn progress, void *progress_arg, struct brumate_error *err)
{
	struct hashing h = {
		.tree = t,
		.dir_fd = dir_fd,
		.done = done,
		.done_arg = done_arg,
		.progress = progress,
		.progress_arg = progress_arg,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};

	if (t->n_files == 0)
		return 0;
	auto_free struct disk_file **order = calloc(t->n_files, sizeof(struct disk_file *));
	if (!order)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < t->n_files; i++)
		order[i] = &t->files[i];
	qsort(order, t->n_files, sizeof(struct disk_file *), by_size);
	h.order = order;

	int r = hash_files(&h, err);
	pthread_mutex_destroy(&h.lock);
	return r;
}

/* ---- comparing ---- */

static int fail_missing(const char *path, uint64_t len_bytes, struct brumate_error *err)
{
	return brumate_fail(err, EBADMSG, "%s: missing, expected %" PRIu64 " bytes", path,
			    len_bytes);
}

static int compare_size(uint64_t want, const struct disk_file *found, struct brumate_error *err)
{
	if (want == found->len_bytes)
		return 0;
	return brumate_fail(err, EBADMSG, "%s: %s: %" PRIu64 " of %" PRIu64 " bytes", found->path,
			    found->len_bytes < want ? "truncated" : "too long", found->len_bytes,
			    want);
}

/* Both lists are sorted by path. */
static int compare_files(const struct manifest *m, const struct file_tree *t,
			 struct brumate_error *err)
{
	size_t i = 0, k = 0;

	while (i < m->n_files || k < t->n_files) {
		int order = i == m->n_files   ? 1
			    : k == t->n_files ? -1
					      : strcmp(m->files[i].path, t->files[k].path);

		if (order < 0)
			return fail_missing(m->files[i].path, m->files[i].len_bytes, err);
		if (order > 0)
			return brumate_fail(err, EBADMSG, "%s: not in the manifest",
					    t->files[k].path);
		int r = compare_size(m->files[i++].len_bytes, &t->files[k++], err);
		if (r < 0)
			return r;
	}
	return 0;
}

int file_tree_compare(const struct manifest *m, const struct file_tree *files,
		      const struct file_tree *packs, struct brumate_error *err)
{
	int r = compare_files(m, files, err);

	/* @packs has no others. */
	for (size_t i = 0, k = 0; r == 0 && i < m->memory.n_packs; i++, k++) {
		const struct manifest_pack *want = &m->memory.packs[i];

		if (k == packs->n_files || strcmp(packs->files[k].path, want->path))
			return fail_missing(want->path, want->len_bytes, err);
		r = compare_size(want->len_bytes, &packs->files[k], err);
	}
	return r;
}
