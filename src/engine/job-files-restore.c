// SPDX-License-Identifier: MIT
/*
 * A job's files at its restore; see job-files.h. First it is decided for each what is to be done, and a file for which
 * that is impossible is refused by name; only then is the first one changed. Until the job runs, all can be taken back:
 * the rest of a file that was cut is next to it, and one that makes room for another keeps its content under another
 * name.
 */
#include "engine/job-files.h"
#include "engine/externals.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/user.h"
#include "engine/op.h"

enum { RECORD_BYTES_MAX = 64 << 20, NAMES_MAX = 100, BUFFER_BYTES = 1 << 16 };

enum way {
	WAY_NOTHING, /* it is as it was */
	WAY_CUT,     /* what was written since goes to another file */
	WAY_MAKE,    /* it is gone: the copy takes its place */
	WAY_REPLACE, /* the copy takes its place, and it keeps its content under another name */
	WAY_APART,   /* the job gets the copy without a name, as another process has that */
};

/* What is done to one file. */
struct change {
	const struct job_file *file; /* borrowed */
	enum way way;
	bool is_dead; /* of what makes room nobody has any use: memory of the job that has ended */
	/* What was done. */
	int dir_fd; /* where it lies; -1: nothing was done */
	bool is_moved, is_made, is_cut;
	char beside[NAME_MAX + 1]; /* the name of the rest, or of what made room */
};

struct files_restore {
	struct job_files files;
	struct change *items;
	size_t n;
	int images_fd; /* where copies are */
	int root_fd;
	struct criu_inherit *given; /* for CRIU */
	size_t n_given;
};

static void free_restore(struct files_restore *r)
{
	for (size_t i = 0; r && i < r->n; i++)
		cleanup_close(&r->items[i].dir_fd);
	if (!r)
		return;
	externals_close(r->given, r->n_given);
	free(r->items);
	cleanup_close(&r->images_fd);
	cleanup_close(&r->root_fd);
	job_files_fini(&r->files);
	free(r);
}

/* ---- what is to be done ---- */

/* How what is there compares with what was. */
enum sameness { SAME, LONGER, DIFFERENT, UNKNOWN };

static enum sameness compare(const struct job_file *f, int fd, const struct stat *st)
{
	const uint64_t size = (uint64_t)st->st_size;
	struct digest have;

	if (size < f->size_bytes)
		return DIFFERENT;
	if (size == f->size_bytes && job_file_mtime_ns(st) == f->mtime_ns &&
	    !(f->is_mapped && !f->has_samples))
		return SAME;
	if (!f->has_digest || job_file_digest(&have, f->has_samples, fd, f->size_bytes) < 0)
		return f->in_sequence ? (size > f->size_bytes ? LONGER : SAME) : UNKNOWN;
	if (memcmp(&have, &f->digest, sizeof(have)))
		return DIFFERENT;
	if (f->has_samples && !f->in_sequence)
		return UNKNOWN;
	return size > f->size_bytes ? LONGER : SAME;
}

static void hint_with_files(struct brumate_error *err, const char *first)
{
	brumate_hint(err,
		     "%s; `checkpoint --with-files` takes the content of such files into the "
		     "checkpoint",
		     first);
}

static int fail_gone(const struct job_file *f, struct brumate_error *err)
{
	brumate_fail(err, ENOENT,
		     "%s is gone, which the job had open for writing (%" PRIu64 " bytes)", f->path,
		     f->size_bytes);
	brumate_error_exit(err, EXIT_FAILED);
	hint_with_files(err, "put it back");
	return -ENOENT;
}

static int fail_other(const struct job_file *f, struct brumate_error *err)
{
	brumate_fail(
		err, EUCLEAN,
		"%s, which the job had open for writing, is not a file any more, or lies behind "
		"a link",
		f->path);
	brumate_error_exit(err, EXIT_FAILED);
	hint_with_files(err, "put it back");
	return -EUCLEAN;
}

static int fail_changed(const struct job_file *f, enum sameness how, const struct stat *st,
			struct brumate_error *err)
{
	if ((uint64_t)st->st_size < f->size_bytes)
		brumate_fail(err, EUCLEAN,
			     "%s is shorter than at the checkpoint (%" PRIu64 " of %" PRIu64
			     " bytes)",
			     f->path, (uint64_t)st->st_size, f->size_bytes);
	else if (how == DIFFERENT)
		brumate_fail(err, EUCLEAN,
			     "%s was changed within its first %" PRIu64
			     " bytes since the checkpoint",
			     f->path, f->size_bytes);
	else
		brumate_fail(err, EUCLEAN,
			     "%s was written to since the checkpoint, maybe within its first "
			     "%" PRIu64 " bytes",
			     f->path, f->size_bytes);
	brumate_error_exit(err, EXIT_FAILED);
	hint_with_files(err, "put the old one back, or go on with this one by --force");
	return -EUCLEAN;
}

static int fail_kept(const struct job_file *f, const struct stat *st, const char *what,
		     struct brumate_error *err)
{
	brumate_fail(err, EUCLEAN,
		     "%s %s since the checkpoint (%" PRIu64 " bytes, now %" PRIu64 ")", f->path,
		     what, f->size_bytes, (uint64_t)st->st_size);
	brumate_error_exit(err, EXIT_FAILED);
	brumate_hint(err, "without --keep-files it is made as it was, and what is there now is "
			  "kept beside it");
	return -EUCLEAN;
}

static int check_unused(const struct job_file *f, const struct stat *st, struct brumate_error *err)
{
	pid_t pid = job_file_find_user(st, false);

	if (!pid)
		return 0;
	brumate_fail(err, EBUSY, "%s has changed since the checkpoint, and process %d writes to it",
		     f->path, pid);
	brumate_hint(err, "end that process first: the file has to be as it was");
	return -EBUSY;
}

static int choose_written(struct change *c, const struct op *op, int fd, const struct stat *st,
			  struct brumate_error *err)
{
	const struct job_file *f = c->file;
	const enum sameness how = compare(f, fd, st);

	if (how == SAME)
		return 0;
	if (how != LONGER && !*f->copy) {
		if (!op->request->force)
			return fail_changed(f, how, st, err);
		return 0;
	}
	if (op->request->keep_files)
		return fail_kept(f, st, how == LONGER ? "has grown" : "has changed", err);
	c->way = how == LONGER ? WAY_CUT : WAY_REPLACE;
	return check_unused(f, st, err);
}

/* Whether the file holds what the copy does. */
static bool has_same_content(int fd, int copy_fd, const struct stat *st)
{
	auto_free char *one = malloc(BUFFER_BYTES), *other = malloc(BUFFER_BYTES);
	struct stat copy;

	if (!one || !other || fstat(copy_fd, &copy) < 0 || copy.st_size != st->st_size)
		return false;
	for (uint64_t at = 0; at < (uint64_t)st->st_size; at += BUFFER_BYTES) {
		ssize_t n = fd_read_at(fd, one, BUFFER_BYTES, at);

		if (n < 0 || fd_read_at(copy_fd, other, BUFFER_BYTES, at) != n ||
		    memcmp(one, other, (size_t)n))
			return false;
	}
	return true;
}

/* Memory goes on with what it held, and nobody else's changes. */
static int choose_memory(struct change *c, const struct op *op, int fd, int copy_fd,
			 const struct stat *st)
{
	const struct job_file *f = c->file;
	const bool is_that = st->st_dev == f->device && st->st_ino == f->inode;
	const bool is_used = job_file_find_user(st, true) != 0;
	const bool is_copy = *op->target->started_as; /* the original may be there, too */

	if ((is_that || !is_used) && !is_copy && (st->st_mode & 07777) == f->mode && fd >= 0 &&
	    has_same_content(fd, copy_fd, st))
		return 0;
	if (is_used || is_copy || st->st_uid != f->uid) {
		c->way = WAY_APART;
		return 0;
	}
	c->way = WAY_REPLACE;
	c->is_dead = is_that;
	return 0;
}

/* @fd: the copy, which is ours; the rest is looked at as the user. */
static int choose(struct change *c, const struct op *op, int root_fd, int copy_fd,
		  struct brumate_error *err)
{
	const struct job_file *f = c->file;
	auto_close int fd = job_file_open(root_fd, f->path, O_RDONLY);
	auto_close int path_fd = fd == -EACCES ? job_file_open(root_fd, f->path, O_PATH) : -1;
	struct stat st;

	if (fd == -ENOENT || fd == -ENOTDIR) {
		c->way = WAY_MAKE;
		return *f->copy ? 0 : fail_gone(f, err);
	}
	if (fd == -ELOOP || fd == -EXDEV)
		return fail_other(f, err);
	if (fd < 0 && path_fd < 0)
		return brumate_fail(err, -fd, "%s, which the job had open for writing: %m",
				    f->path);
	if (fstat(fd < 0 ? path_fd : fd, &st) < 0 || !S_ISREG(st.st_mode))
		return fail_other(f, err);
	return f->kind == JOB_FILE_MEMORY ? choose_memory(c, op, fd, copy_fd, &st)
					  : choose_written(c, op, fd, &st, err);
}

static int open_copy(const struct files_restore *r, const struct job_file *f,
		     struct brumate_error *err)
{
	int fd = openat(r->images_fd, f->copy, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? brumate_fail(err, errno, "the copy of %s: %m", f->path) : fd;
}

static int choose_all(struct files_restore *r, struct op *op, struct brumate_error *err)
{
	int result = 0;

	for (size_t i = 0; result == 0 && i < r->n; i++) {
		struct change *c = &r->items[i];
		const bool has_name =
			c->file->kind == JOB_FILE_WRITTEN || c->file->kind == JOB_FILE_MEMORY;
		auto_close int copy_fd =
			has_name && *c->file->copy ? open_copy(r, c->file, err) : -1;
		auto_(user_files_leave) struct user_files user = USER_FILES_NONE;

		if (!has_name)
			continue;
		if (*c->file->copy && copy_fd < 0)
			return copy_fd;
		result = user_files_enter(&user, op->target->uid, op->target->gid, err);
		if (result == 0)
			result = choose(c, op, r->root_fd, copy_fd, err);
	}
	return result;
}

/* ---- names ---- */

/* The directory of the file, with those above it where they are gone (as the user). */
static int open_parent(int root_fd, const char *path)
{
	auto_free char *copy = strdup(path), *missing = strdup(path);

	if (!copy || !missing)
		return -ENOMEM;
	int fd = job_file_open(root_fd, dirname(copy), O_PATH | O_DIRECTORY);
	if (fd != -ENOENT)
		return fd;
	auto_close int above = open_parent(root_fd, copy);
	if (above < 0)
		return above;
	if (mkdirat(above, basename(copy), 0755) < 0 && errno != EEXIST)
		return -errno;
	strcpy(missing, path);
	return job_file_open(root_fd, dirname(missing), O_PATH | O_DIRECTORY);
}

static const char *name_of(const char *path)
{
	return strrchr(path, '/') + 1;
}

static int choose_name(char ret[static NAME_MAX + 1], const struct change *c, const char *id, int n)
{
	const char *name = name_of(c->file->path);
	int len = c->is_dead ? snprintf(ret, NAME_MAX + 1, ".%s.before-%s", name, id)
			     : snprintf(ret, NAME_MAX + 1, "%s.after-%s", name, id);

	if (len < 0 || len > NAME_MAX - 4)
		return -ENAMETOOLONG;
	if (n)
		snprintf(ret + len, NAME_MAX + 1 - (size_t)len, ".%d", n + 1);
	return 0;
}

/* ---- doing it: as the user ---- */

static int make_beside(struct change *c, const char *id, mode_t mode)
{
	int fd = -EEXIST;

	for (int i = 0; fd == -EEXIST && i < NAMES_MAX; i++) {
		int r = choose_name(c->beside, c, id, i);

		if (r < 0)
			return r;
		fd = openat(c->dir_fd, c->beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		fd = fd < 0 ? -errno : fd;
	}
	return fd;
}

static int cut(struct change *c, const char *id)
{
	const struct job_file *f = c->file;
	auto_close int fd = job_file_open(c->dir_fd, name_of(f->path), O_RDWR);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 ? fd : -errno;
	auto_close int rest = make_beside(c, id, st.st_mode & 0777);
	if (rest < 0)
		return rest;
	c->is_made = true;
	int r = job_file_copy(rest, fd, f->size_bytes, (uint64_t)st.st_size - f->size_bytes);
	if (r == 0 && fsync(rest) < 0)
		r = -errno;
	if (r == 0 && ftruncate(fd, (off_t)f->size_bytes) < 0)
		r = -errno;
	c->is_cut = r == 0;
	return r;
}

static int move_away(struct change *c, const char *id)
{
	int r = -EEXIST;

	for (int i = 0; r == -EEXIST && i < NAMES_MAX; i++) {
		r = choose_name(c->beside, c, id, i);
		if (r == 0 &&
		    c->is_dead) /* one that a restore left which was killed goes with it */
			r = renameat(c->dir_fd, name_of(c->file->path), c->dir_fd, c->beside) < 0
				    ? -errno
				    : 0;
		else if (r == 0)
			r = rename_new(c->dir_fd, name_of(c->file->path), c->dir_fd, c->beside);
	}
	c->is_moved = r == 0;
	return r;
}

static int set_owner(const struct job_file *f, int fd)
{
	if (geteuid() == 0 && fchown(fd, f->uid, f->gid) < 0)
		return -errno;
	return fchmod(fd, f->mode) < 0 ? -errno : 0;
}

static int make(struct change *c, int copy_fd)
{
	const struct job_file *f = c->file;
	auto_close int fd = openat(c->dir_fd, name_of(f->path),
				   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0)
		return -errno;
	c->is_made = true;
	int r = job_file_copy(fd, copy_fd, 0, f->size_bytes);
	return r < 0 ? r : set_owner(f, fd);
}

/* For CRIU, which opens it by way of this descriptor. It is on no mount: the job need not see one. */
static int make_nameless(const struct job_file *f, int copy_fd)
{
	auto_close int fd = memfd_create(name_of(f->path), MFD_CLOEXEC);
	int r = fd < 0 ? -errno : job_file_copy(fd, copy_fd, 0, f->size_bytes);

	if (r == 0)
		r = set_owner(f, fd);
	return r < 0 ? r : take_fd(&fd);
}

static int change_file(struct files_restore *r, struct change *c, int copy_fd, const char *id)
{
	int result = 0;

	c->dir_fd = open_parent(r->root_fd, c->file->path);
	/* Memory has no need of a name. */
	if (c->dir_fd < 0 && c->file->kind == JOB_FILE_MEMORY)
		c->way = WAY_APART;
	else if (c->dir_fd < 0)
		return c->dir_fd;
	if (c->way == WAY_CUT)
		return cut(c, id);
	if (c->way == WAY_REPLACE)
		result = move_away(c, id);
	if (result == 0 && c->way != WAY_APART)
		result = make(c, copy_fd);
	if (result < 0 || c->way != WAY_APART)
		return result;
	return externals_give(&r->given, &r->n_given, c->file->path,
			      make_nameless(c->file, copy_fd));
}

static void note_change(struct op *op, const struct change *c)
{
	const struct job_file *f = c->file;
	auto_free char *dir = strndup(f->path, (size_t)(name_of(f->path) - f->path));

	if (c->way == WAY_CUT)
		progress_note(&op->progress,
			      "%s has grown since the checkpoint: cut back to %" PRIu64
			      " bytes, the rest is in %s%s",
			      f->path, f->size_bytes, dir ? dir : "", c->beside);
	else if (c->way == WAY_MAKE)
		progress_note(&op->progress, "%s was gone: made anew as it was at the checkpoint",
			      f->path);
	else if (c->way == WAY_REPLACE && c->is_dead)
		progress_note(
			&op->progress,
			"%s has changed since the checkpoint: it holds again what it held then",
			f->path);
	else if (c->way == WAY_REPLACE)
		progress_note(&op->progress,
			      "%s has changed since the checkpoint: it is as it was then, what was "
			      "there is %s%s",
			      f->path, dir ? dir : "", c->beside);
	else if (c->way == WAY_APART)
		progress_note(&op->progress,
			      "%s is in use by others, or cannot be made: the job has that shared "
			      "memory without a name",
			      f->path);
}

static int do_all(struct files_restore *r, struct op *op, struct brumate_error *err)
{
	int result = 0;

	for (size_t i = 0; result == 0 && i < r->n; i++) {
		struct change *c = &r->items[i];
		auto_close int copy_fd = -1;
		auto_(user_files_leave) struct user_files user = USER_FILES_NONE;

		if (c->way == WAY_NOTHING)
			continue;
		if (c->way != WAY_CUT && (copy_fd = open_copy(r, c->file, err)) < 0)
			return copy_fd;
		result = user_files_enter(&user, op->target->uid, op->target->gid, err);
		if (result < 0)
			return result;
		result = change_file(r, c, copy_fd, op->restore.image.manifest.id);
		if (result < 0)
			brumate_fail(err, -result,
				     "%s cannot be made as it was at the checkpoint: %m",
				     c->file->path);
		else
			note_change(op, c);
	}
	return result;
}

/* ---- the whole ---- */

static int read_record(struct files_restore *r, const struct op *op, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int result =
		file_read_plain(op->images.dir_fd, JOB_FILES_RECORD, RECORD_BYTES_MAX, &text, &len);

	if (result == -ENOENT) /* an older checkpoint, or a job without such files */
		return 0;
	if (result < 0)
		return brumate_fail(err, -result, "%s: %m", JOB_FILES_RECORD);
	result = job_files_decode(&r->files, text, len, err);
	if (result < 0 || !r->files.n)
		return result;
	r->items = calloc(r->files.n, sizeof(*r->items));
	if (!r->items)
		return brumate_fail(err, ENOMEM, "%m");
	r->n = r->files.n;
	for (size_t i = 0; i < r->n; i++)
		r->items[i] = (struct change){ .file = &r->files.items[i], .dir_fd = -1 };
	return 0;
}

static int begin(struct op *op, struct brumate_error *err)
{
	struct files_restore *r = calloc(1, sizeof(*r));

	if (!r)
		return brumate_fail(err, ENOMEM, "%m");
	op->restore.files = r;
	r->images_fd = openat(op->images.dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r->root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (r->images_fd < 0 || r->root_fd < 0)
		return brumate_fail(err, errno, "CRIU's images: %m");
	return read_record(r, op, err);
}

int job_files_restore(struct op *op, struct brumate_error *err)
{
	int result = begin(op, err);
	struct files_restore *r = op->restore.files;

	if (result == 0)
		result = choose_all(r, op, err);
	if (result == 0)
		result = do_all(r, op, err);
	return result < 0 ? result : r->n ? 0 : 1;
}

/* What they hold by now says nothing. */
static int check_all_are_there(const struct files_restore *r, const struct op *op,
			       struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	int result = user_files_enter(&user, op->target->uid, op->target->gid, err);

	for (size_t i = 0; result == 0 && i < r->n; i++) {
		const struct job_file *f = r->items[i].file;

		if ((f->kind != JOB_FILE_WRITTEN && f->kind != JOB_FILE_MEMORY) || *f->copy)
			continue;
		auto_close int fd = job_file_open(r->root_fd, f->path, O_PATH);
		if (fd == -ENOENT || fd == -ENOTDIR)
			result = fail_gone(f, err);
	}
	return result;
}

int job_files_rehearse(struct op *op, bool goes_on, struct brumate_error *err)
{
	int result = begin(op, err);

	if (result < 0)
		return result;
	return goes_on ? check_all_are_there(op->restore.files, op, err)
		       : choose_all(op->restore.files, op, err);
}

int job_files_each(const struct op *op, job_file_fn fn, void *arg)
{
	const struct files_restore *r = op->restore.files;
	int result = 0;

	for (size_t i = 0; r && result == 0 && i < r->n; i++) {
		const struct job_file *f = r->items[i].file;

		if (f->kind == JOB_FILE_WRITTEN || f->kind == JOB_FILE_MEMORY)
			result = fn(arg, f);
	}
	return result;
}

/* An empty directory without a name, below @root as the job's processes see it. */
static int make_removed_dir(const struct op *op, const char *root, const struct job_file *f)
{
	auto_free char *path = path_format("%s%s/removed-XXXXXX", root, op->target->dir);

	if (!path || !mkdtemp(path))
		return -errno;
	auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = fd < 0 ? -errno : 0;
	if (r == 0 && geteuid() == 0 && fchown(fd, f->uid, f->gid) < 0)
		r = -errno;
	if (rmdir(path) < 0 && r == 0)
		r = -errno;
	return r < 0 ? r : take_fd(&fd);
}

static int fill_part(const struct files_restore *r, const struct job_file *f, int fd, uint64_t i)
{
	char name[JOB_FILE_COPY_BYTES + 16];
	struct stat st;

	job_file_part(name, f->copy, i);
	auto_close int part = openat(r->images_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (part < 0 || fstat(part, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size > JOB_FILE_PART_BYTES || i > f->size_bytes / JOB_FILE_PART_BYTES)
		return -EBADMSG;
	return job_file_copy_to(fd, i * JOB_FILE_PART_BYTES, part, 0, (uint64_t)st.st_size);
}

/* Memory that was copied in parts: those that are there, as its length may be exbibytes of holes. */
static int make_of_parts(const struct files_restore *r, const struct job_file *f, const char *path)
{
	auto_close int fd = memfd_create(name_of(path), MFD_CLOEXEC);
	int result = fd < 0 || ftruncate(fd, (off_t)f->size_bytes) < 0 ? -errno : 0;
	auto_closedir DIR *dir = result == 0 ? dir_open(r->images_fd, ".") : NULL;
	const size_t len = strlen(f->copy);
	struct dirent *entry;

	if (result == 0 && !dir)
		result = -errno;
	while (result == 0 && (result = dir_next(dir, &entry)) > 0) {
		const char *number = entry->d_name + len + 1;
		const bool is_part = !strncmp(entry->d_name, f->copy, len) &&
				     entry->d_name[len] == '-' && *number &&
				     !number[strspn(number, "0123456789")];

		result = is_part ? fill_part(r, f, fd, strtoull(number, NULL, 10)) : 0;
	}
	if (result == 0)
		result = set_owner(f, fd);
	return result < 0 ? result : take_fd(&fd);
}

static int open_removed(const struct files_restore *r, const struct op *op, const char *root,
			const struct job_file *f)
{
	auto_free char *path = strdup(f->path);
	char *mark = path ? strstr(path, " (deleted)") : NULL;

	if (f->kind == JOB_FILE_REMOVED_DIR)
		return make_removed_dir(op, root, f);
	if (mark)
		*mark = '\0';
	if (path && *f->key)
		return make_of_parts(r, f, path);
	auto_close int copy_fd = openat(r->images_fd, f->copy, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (!path || copy_fd < 0)
		return path ? -errno : -ENOMEM;
	return f->is_written ? make_nameless(f, copy_fd)
			     : programs_keep(root, name_of(path), &f->digest, copy_fd);
}

static int give_one(const struct files_restore *r, const struct op *op, const char *root,
		    const struct job_file *f, struct criu_inherit **inherits, size_t *n)
{
	if (f->kind != JOB_FILE_REMOVED && f->kind != JOB_FILE_REMOVED_DIR)
		return 0;
	return externals_give(inherits, n, *f->key ? f->key : f->path,
			      open_removed(r, op, root, f));
}

int job_files_give(struct op *op, struct criu_inherit **inherits, size_t *n,
		   struct brumate_error *err)
{
	const struct files_restore *r = op->restore.files;
	char root[32] = "";
	int result = 0;

	if (op->target->init.pid)
		snprintf(root, sizeof(root), "/proc/%d/root", op->target->init.pid);
	for (size_t i = 0; r && result == 0 && i < r->n_given; i++) {
		int fd = fcntl(r->given[i].fd, F_DUPFD_CLOEXEC, 3);

		result = externals_give(inherits, n, r->given[i].key, fd < 0 ? -errno : fd);
		if (result < 0)
			return brumate_fail(err, -result, "%s: %m", r->given[i].key);
	}
	for (size_t i = 0; r && result == 0 && i < r->n; i++) {
		result = give_one(r, op, root, r->items[i].file, inherits, n);
		if (result < 0)
			return brumate_fail(err, -result, "%s: %m", r->items[i].file->path);
	}
	return 0;
}

/* ---- taking it back ---- */

static int put_rest_back(const struct change *c)
{
	const struct job_file *f = c->file;
	auto_close int fd = job_file_open(c->dir_fd, name_of(f->path), O_RDWR);
	auto_close int rest = job_file_open(c->dir_fd, c->beside, O_RDONLY);
	auto_free char *buf = malloc(BUFFER_BYTES);
	uint64_t at = 0;
	ssize_t n;

	if (fd < 0 || rest < 0 || !buf)
		return fd < 0 ? fd : rest < 0 ? rest : -ENOMEM;
	while ((n = fd_read_at(rest, buf, BUFFER_BYTES, at)) > 0) {
		int r = fd_write_at(fd, buf, (size_t)n, f->size_bytes + at);

		if (r < 0)
			return r;
		at += (uint64_t)n;
	}
	return n < 0 ? (int)n : 0;
}

static int take_back(struct change *c)
{
	const char *name = name_of(c->file->path);
	int r = c->is_cut ? put_rest_back(c) : 0;

	if (r == 0 && c->is_made &&
	    unlinkat(c->dir_fd, c->way == WAY_CUT ? c->beside : name, 0) < 0)
		r = -errno;
	if (r == 0 && c->is_moved)
		r = rename_new(c->dir_fd, c->beside, c->dir_fd, name);
	return r;
}

void job_files_undo(struct op *op)
{
	struct files_restore *r = take_ptr(&op->restore.files);
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	const int entered =
		r ? user_files_enter(&user, op->target->uid, op->target->gid, NULL) : -1;

	for (size_t i = 0; r && i < r->n; i++) {
		struct change *c = &r->items[r->n - 1 - i];
		int result = c->dir_fd < 0 ? 0 : entered < 0 ? entered : take_back(c);

		if (result < 0)
			log_warn("a file is not as it was before the restore: file=%s beside=%s "
				 "reason=\"%s\"",
				 c->file->path, c->beside, strerror(-result));
	}
	free_restore(r);
}

void job_files_settle(struct op *op)
{
	struct files_restore *r = take_ptr(&op->restore.files);
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;

	if (r && user_files_enter(&user, op->target->uid, op->target->gid, NULL) == 0)
		for (size_t i = 0; i < r->n; i++)
			if (r->items[i].is_moved && r->items[i].is_dead)
				unlinkat(r->items[i].dir_fd, r->items[i].beside, 0);
	free_restore(r);
}
