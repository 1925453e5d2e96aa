// SPDX-License-Identifier: MIT
/* Copies of our own programs in checkpoints. See externals.h. */
#include "engine/externals.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"
#include "chunks/files.h"
#include "engine/job-files.h"
#include "gpu/vendor.h"
#include "process/reaper.h"

enum { MAPS_BYTES_MAX = 64 << 20, PROGRAM_BYTES_MAX = 1 << 30, NAME_BYTES = 256, SWEPT_MAX = 3 };

#define PROGRAMS_DIR "programs"

/* What an earlier restore put below the state directory (programs_keep()). */
static bool is_kept(const char *path)
{
	const char *state = path_state_dir() + 1;
	size_t len = strlen(state);

	path += *path == '/';
	return !strncmp(path, state, len) &&
	       !strncmp(path + len, "/" PROGRAMS_DIR "/", strlen("/" PROGRAMS_DIR "/"));
}

static bool is_ours(const char *path)
{
	const char *name = basename(path);

	if (is_kept(path))
		return true;
	return !strcmp(name, REAPER_PROGRAM) || gpu_is_interposer(name);
}

/* ---- paths as names of files: '/' and '%' as %2F and %25 ---- */

static bool path_to_name(char ret[static NAME_BYTES], const char *path)
{
	size_t n = 0;

	for (; *path && n + 3 < NAME_BYTES; path++) {
		if (*path == '/' || *path == '%')
			n += (size_t)sprintf(ret + n, "%%%02X", (unsigned char)*path);
		else
			ret[n++] = *path;
	}
	ret[n] = '\0';
	return !*path;
}

/* Never longer than the name. */
static void name_to_path(char ret[static NAME_BYTES], const char *name)
{
	size_t n = 0;

	for (; *name && n + 1 < NAME_BYTES; name++) {
		unsigned int byte;

		if (*name == '%' && sscanf(name + 1, "%2x", &byte) == 1 && name[1] && name[2]) {
			ret[n++] = (char)byte;
			name += 2;
		} else {
			ret[n++] = *name;
		}
	}
	ret[n] = '\0';
}

/* ---- at the checkpoint ---- */

/* A mapping of a file: its path is the rest of the line. */
struct mapped {
	unsigned int major, minor;
	uint64_t inode;
	const char *path;
};

static bool parse_mapping(struct mapped *ret, char *line)
{
	int at = 0;

	if (sscanf(line, "%*x-%*x %*s %*x %x:%x %" SCNu64 " %n", &ret->major, &ret->minor,
		   &ret->inode, &at) != 3 ||
	    !at)
		return false;
	ret->path = line + at;
	return ret->path[0] == '/' && is_ours(ret->path);
}

/* The file at @path below @root, where it is still the one that is mapped. -ESTALE: it is not. */
static int read_mapped(char **ret, size_t *ret_len, const char *root, const struct mapped *m)
{
	auto_free char *path = path_format("%s%s", root, m->path);
	auto_close int fd = path ? open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC) : -1;
	struct stat st;

	if (!path)
		return -ENOMEM;
	if (fd < 0 || fstat(fd, &st) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	if (!S_ISREG(st.st_mode) || st.st_dev != makedev(m->major, m->minor) ||
	    st.st_ino != m->inode || st.st_size > PROGRAM_BYTES_MAX)
		return -ESTALE;
	auto_free char *text = malloc((size_t)st.st_size + 1);
	if (!text)
		return -ENOMEM;
	ssize_t n = fd_read_full(fd, text, (size_t)st.st_size);
	if (n < 0)
		return (int)n;
	*ret = take_ptr(&text);
	*ret_len = (size_t)n;
	return 0;
}

struct saving {
	struct op *op;
	char root[32]; /* of the process */
	int dir_fd;    /* -1: no program was found yet */
};

static int read_as_owner(const struct saving *s, char **ret, size_t *ret_len,
			 const struct mapped *m)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	const struct target *target = s->op->target;

	/* Its user need not be able to get there; and what is there nobody but us has put there. */
	if (is_kept(m->path))
		return read_mapped(ret, ret_len, "", m);
	int r = user_files_enter(&user, target->uid, target->gid, NULL);

	return r < 0 ? r : read_mapped(ret, ret_len, s->root, m);
}

static int save_program(struct saving *s, const struct mapped *m, struct brumate_error *err)
{
	auto_free char *text = NULL;
	char name[NAME_BYTES];
	size_t len = 0;
	int r;

	if (!path_to_name(name, m->path + 1) ||
	    (s->dir_fd >= 0 && !faccessat(s->dir_fd, name, F_OK, 0)))
		return 0;
	r = read_as_owner(s, &text, &len, m);
	if (r == -ESTALE)
		return 0;
	if (r == 0 && s->dir_fd < 0) {
		s->dir_fd = store_mkdir(&s->op->checkpoint.writer, PROGRAMS_DIR, err);
		if (s->dir_fd < 0)
			return s->dir_fd;
	}
	if (r < 0)
		return brumate_fail(err, -r, "a copy of %s: %m", m->path);
	r = file_swap(s->dir_fd, name, text, len, 0600);
	if (r == 0)
		return 0;
	files_fail(err, -r, s->op->checkpoint.writer.path, "write a copy");
	return brumate_wrap(err, r, "%s", m->path);
}

static int save_programs_of(struct saving *s, pid_t pid, struct brumate_error *err)
{
	auto_free char *maps = NULL;
	char path[32], *rest;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	snprintf(s->root, sizeof(s->root), "/proc/%d/root", pid);
	int r = file_read(AT_FDCWD, path, MAPS_BYTES_MAX, &maps, NULL);
	if (r < 0) /* it has ended, or a later step reports that it may not be read */
		return 0;
	rest = maps;
	for (char *line; r == 0 && (line = strsep(&rest, "\n"));) {
		struct mapped m;

		if (parse_mapping(&m, line))
			r = save_program(s, &m, err);
	}
	return r;
}

int programs_save(struct op *op, struct brumate_error *err)
{
	struct saving s = { .op = op, .dir_fd = -1 };
	int r = 0;

	for (size_t i = 0; i < op->tree.n && r == 0; i++)
		r = save_programs_of(&s, op->tree.items[i].id.pid, err);
	cleanup_close(&s.dir_fd);
	return r;
}

/* ---- at the restore ---- */

/* A regular file at @path below @dir_fd that has this digest, opened; -ENOENT: there is none. */
static int open_same(int dir_fd, const char *path, const struct digest *want)
{
	auto_close int fd = openat(dir_fd, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	struct digest have;
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > PROGRAM_BYTES_MAX)
		return -ENOENT;
	r = digest_file(&have, fd, NULL);
	if (r < 0)
		return r;
	return memcmp(&have, want, sizeof(have)) ? -ENOENT : take_fd(&fd);
}

static int open_same_as_owner(const struct target *target, const char *root, const char *path,
			      const struct digest *want)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	/* Of an init of ours the user may not see the root. */
	auto_close int root_fd = open(*root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root_fd < 0)
		return -errno;
	int r = user_files_enter(&user, target->uid, target->gid, NULL);
	return r < 0 ? r : open_same(root_fd, path, want);
}

static int copy_out(const struct store_image *image, const struct manifest_file *f,
		    const char *path)
{
	auto_free char *text = NULL;
	struct digest have;
	size_t len = 0;
	int r = file_read(image->dir_fd, f->path, PROGRAM_BYTES_MAX, &text, &len);

	if (r == 0)
		r = digest_buffer(&have, text, len);
	if (r == 0 && memcmp(&have, &f->digest, sizeof(have)))
		r = -EBADMSG;
	return r < 0 ? r : file_replace(AT_FDCWD, path, text, len, 0755);
}

/* Writes it under another name first, so that another process finds all of it, or nothing. */
static int write_program(const char *path, int copy_fd)
{
	auto_free char *other = path_format("%s.%d", path, gettid());
	auto_close int fd =
		other ? open(other, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600)
		      : -1;
	struct stat st;

	if (!other)
		return -ENOMEM;
	if (fd < 0 || fstat(copy_fd, &st) < 0)
		return -errno;
	int r = job_file_copy(fd, copy_fd, 0, (uint64_t)st.st_size);
	if (r == 0 && (fchmod(fd, 0755) < 0 || rename(other, path) < 0))
		r = -errno;
	if (r < 0)
		unlink(other);
	return r;
}

/* What a copy is made of: of a file in an image, or of a descriptor. */
struct original {
	const struct store_image *image;
	const struct manifest_file *file;
	int fd;
};

/* The copy below the state directory, made where it is not there yet, as the job's processes see it. */
static int open_copy(const char *root, const char *name, const struct digest *digest,
		     const struct original *o)
{
	char text[DIGEST_TEXT_BYTES];

	digest_format(text, digest);
	auto_free char *dir = path_format("%s/" PROGRAMS_DIR "/%s", path_state_dir(), text);
	auto_free char *path = dir ? path_format("%s/%s", dir, name) : NULL;
	auto_free char *seen = path ? path_format("%s%s", root, path) : NULL;
	if (!seen)
		return -ENOMEM;
	int fd = open_same(AT_FDCWD, seen, digest);
	for (int i = 0; fd == -ENOENT && i < SWEPT_MAX; i++) {
		int r = mkdir_parents(dir, 0711);

		if (r == 0)
			r = o->file ? copy_out(o->image, o->file, path)
				    : write_program(path, o->fd);
		/* A sweep may remove it before it is open. */
		fd = r < 0 ? r : open_same(AT_FDCWD, seen, digest);
	}
	return fd;
}

int programs_keep(const char *root, const char *name, const struct digest *digest, int copy_fd)
{
	return open_copy(root, name, digest, &(struct original){ .fd = copy_fd });
}

static int replace_program(struct op *op, const char *root, const struct manifest_file *f,
			   const char *path)
{
	const struct original o = { &op->restore.image, f, -1 };
	auto_close int fd = open_same_as_owner(op->target, root, path, &f->digest);

	if (fd >= 0)
		return -EEXIST;
	return fd == -ENOENT ? open_copy(root, basename(path), &f->digest, &o) : take_fd(&fd);
}

bool programs_are_kept(const struct manifest *m, const char *path)
{
	char name[NAME_BYTES];

	if (!is_ours(path) || !path_to_name(name, path + 1))
		return false;
	for (size_t i = 0; i < m->n_files; i++)
		if (!strncmp(m->files[i].path, PROGRAMS_DIR "/", strlen(PROGRAMS_DIR "/")) &&
		    !strcmp(m->files[i].path + strlen(PROGRAMS_DIR "/"), name))
			return true;
	return false;
}

int programs_for_restore(struct op *op, struct criu_inherit **inherits, size_t *n,
			 struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	char root[32] = "";

	if (op->target->init.pid)
		snprintf(root, sizeof(root), "/proc/%d/root", op->target->init.pid);
	for (size_t i = 0; i < m->n_files; i++) {
		char path[NAME_BYTES];

		if (strncmp(m->files[i].path, PROGRAMS_DIR "/", strlen(PROGRAMS_DIR "/")))
			continue;
		name_to_path(path, m->files[i].path + strlen(PROGRAMS_DIR "/"));
		if (!is_ours(path))
			continue;
		int fd = replace_program(op, root, &m->files[i], path);
		if (fd == -EEXIST)
			continue;
		int r = externals_give(inherits, n, path, fd);
		if (r < 0)
			return brumate_fail(err, -r, "a copy of /%s: %m", path);
	}
	return 0;
}

/* ---- afterwards ---- */

/* Files of @name, a directory of one digest, that nobody has open or mapped. Returns how many are gone. */
static int sweep_digest(int programs_fd, const char *name)
{
	auto_closedir DIR *dir = dir_open(programs_fd, name);
	struct dirent *entry;
	int n = 0;

	while (dir && dir_next(dir, &entry) > 0) {
		struct stat st;

		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && !job_file_find_user(&st, true) &&
		    unlinkat(dirfd(dir), entry->d_name, 0) == 0)
			n++;
	}
	if (dir)
		unlinkat(programs_fd, name,
			 AT_REMOVEDIR); /* stays where there is something in it */
	return n;
}

int programs_sweep(void)
{
	auto_free char *path = path_format("%s/" PROGRAMS_DIR, path_state_dir());
	auto_closedir DIR *dir = path ? dir_open(AT_FDCWD, path) : NULL;
	struct dirent *entry;
	int n = 0;

	while (dir && dir_next(dir, &entry) > 0)
		n += sweep_digest(dirfd(dir), entry->d_name);
	return n;
}
