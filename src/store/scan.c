// SPDX-License-Identifier: MIT
/* Finds the files of a checkpoint. Follows no link, and refuses what is no file. */
#include "store/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/paths.h"

enum { DEPTH_MAX = 64 };

struct scan {
	struct tree *tree;
	tree_dir_fn dir;
	struct brumate_error *err;
};

static int scan_dir(struct scan *s, int fd, const char *prefix, int depth);

void tree_fini(struct tree *t)
{
	for (size_t i = 0; i < t->n_files; i++)
		free(t->files[i].path);
	free(t->files);
	*t = TREE_EMPTY;
}

static int add_file(struct scan *s, const char *path, uint64_t len_bytes)
{
	struct tree *t = s->tree;

	if (t->n_files == MANIFEST_FILES_MAX)
		return brumate_fail(s->err, EFBIG, "more than %d files", MANIFEST_FILES_MAX);

	struct tree_file *files = array_room(t->files, t->n_files, sizeof(*files));
	if (!files)
		return brumate_fail(s->err, ENOMEM, "%m");
	t->files = files;
	char *copy = strdup(path);
	if (!copy)
		return brumate_fail(s->err, ENOMEM, "%m");
	t->files[t->n_files++] = (struct tree_file){ .path = copy, .len_bytes = len_bytes };
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

static int scan_subdir(struct scan *s, int dir_fd, const char *name, const char *path, int depth)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return brumate_fail(s->err, errno, "%s: %m", path);
	return scan_dir(s, fd, path, depth + 1);
}

static int look_at(struct scan *s, int dir_fd, const char *path, const char *name, int depth)
{
	struct stat st;

	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return brumate_fail(s->err, errno, "%s: %m", path);
	if (S_ISDIR(st.st_mode))
		return scan_subdir(s, dir_fd, name, path, depth);
	if (!S_ISREG(st.st_mode))
		return brumate_fail(s->err, EBADMSG, "%s: %s, want files and directories only",
				    path, kind_of(st.st_mode));
	if (!strcmp(path, STORE_MANIFEST_NAME))
		return 0;
	return add_file(s, path, (uint64_t)st.st_size);
}

static int scan_entry(struct scan *s, int dir_fd, const char *prefix, const char *name, int depth)
{
	auto_free char *path = *prefix ? path_format("%s/%s", prefix, name) : strdup(name);
	if (!path)
		return brumate_fail(s->err, ENOMEM, "%m");

	int r = look_at(s, dir_fd, path, name, depth);
	if (r >= 0 || !s->tree->go_on || r == -ENOMEM || r == -EFBIG)
		return r;
	int failure = r;
	r = add_file(s, path, 0);
	if (r == 0)
		s->tree->files[s->tree->n_files - 1].failure = failure;
	return r;
}

static int scan_entries(struct scan *s, DIR *dir, const char *prefix, int depth)
{
	for (;;) {
		errno = 0;
		struct dirent *entry = readdir(dir);

		if (!entry)
			return errno ? brumate_fail(s->err, errno, "%s: %m", *prefix ? prefix : ".")
				     : 0;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		int r = scan_entry(s, dirfd(dir), prefix, entry->d_name, depth);
		if (r < 0)
			return r;
	}
}

static int scan_dir(struct scan *s, int fd, const char *prefix, int depth)
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
	return strcmp(((const struct tree_file *)a)->path, ((const struct tree_file *)b)->path);
}

static int scan(struct tree *ret, int dir_fd, bool go_on, tree_dir_fn dir,
		struct brumate_error *err)
{
	auto_(tree_fini) struct tree t = { .go_on = go_on };
	struct scan s = { .tree = &t, .dir = dir, .err = err };
	int r = scan_dir(&s, dir_fd, "", 0);

	if (r < 0)
		return r;
	if (t.n_files)
		qsort(t.files, t.n_files, sizeof(t.files[0]), by_path);
	*ret = t;
	t = TREE_EMPTY;
	return 0;
}

int tree_scan(struct tree *ret, int dir_fd, tree_dir_fn dir, struct brumate_error *err)
{
	return scan(ret, dir_fd, false, dir, err);
}

int tree_scan_all(struct tree *ret, int dir_fd, struct brumate_error *err)
{
	/* What was noted of a file that is listed is no failure of the whole. */
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = scan(ret, dir_fd, true, NULL, &why);

	if (r < 0 && err)
		*err = why;
	return r;
}

static bool is_pack(const struct manifest *m, const char *path)
{
	size_t low = 0, high = m->memory.n_packs;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(m->memory.packs[middle].path, path);

		if (order == 0)
			return true;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

int tree_split(struct tree *ret, struct tree *t, const struct manifest *m)
{
	struct tree packs = { .go_on = t->go_on };
	size_t kept = 0;

	packs.files = calloc(t->n_files + 1, sizeof(*packs.files));
	if (!packs.files)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_files; i++) {
		struct tree_file *f = &t->files[i];

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
