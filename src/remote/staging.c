// SPDX-License-Identifier: MIT
/* Files of a pull under way; see staging.h. */
#include "remote/staging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "remote/remote.h"

enum { NAME_BYTES = DIGEST_TEXT_BYTES + 32, OPEN_MAX_TRIES = 8 };

static const char suffix[] = ".pulling";

void staging_close(struct staging *s)
{
	cleanup_close(&s->dir_fd);
	cleanup_close(&s->store_fd);
	free(s->name);
	*s = STAGING_EMPTY;
}

void staging_remove(struct staging *s)
{
	remove_tree(s->store_fd, s->name);
	staging_close(s);
}

/* Opens and locks it. -ESTALE: a sweep removed it in between. */
static int open_locked(int store_fd, const char *name, int lock)
{
	auto_close int fd = openat(store_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (flock(fd, lock | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_nlink == 0)
		return -ESTALE;
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return -EACCES;
	return take_fd(&fd);
}

int staging_open(struct staging *ret, const struct store_writer *w, const char *id,
		 struct brumate_error *err)
{
	auto_(staging_close) struct staging s = STAGING_EMPTY;
	int fd = -ESTALE;

	s.store_fd = fcntl(w->store_fd, F_DUPFD_CLOEXEC, 0);
	s.name = path_format(".%s%s", id, suffix);
	if (s.store_fd < 0 || !s.name)
		return brumate_fail(err, ENOMEM, "%m");
	for (int i = 0; i < OPEN_MAX_TRIES && (fd == -ESTALE || fd == -ENOENT); i++) {
		if (mkdirat(s.store_fd, s.name, 0700) < 0 && errno != EEXIST)
			return brumate_fail(err, errno, "%s: %m", s.name);
		fd = open_locked(s.store_fd, s.name, LOCK_EX);
	}
	if (fd == -EBUSY)
		return brumate_fail(err, EBUSY, "%s is being pulled already", id);
	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", s.name);
	s.dir_fd = fd;
	*ret = s;
	s = STAGING_EMPTY;
	return 0;
}

static void name_of(char ret[static NAME_BYTES], size_t i, const struct place_file *f,
		    bool complete)
{
	char digest[DIGEST_TEXT_BYTES] = "pack";

	if (f->digest)
		digest_format(digest, f->digest);
	snprintf(ret, NAME_BYTES, "%zu-%s%s", i, digest, complete ? "" : ".part");
}

bool staging_has(const struct staging *s, size_t i, const struct place_file *f)
{
	char name[NAME_BYTES];
	struct stat st;

	name_of(name, i, f, true);
	return fstatat(s->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	       (uint64_t)st.st_size == f->len_bytes;
}

int staging_create(const struct staging *s, size_t i, const struct place_file *f)
{
	char name[NAME_BYTES];

	name_of(name, i, f, false);
	unlinkat(s->dir_fd, name, 0);
	int fd = openat(s->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

int staging_link(const struct staging *s, size_t i, const struct place_file *f, int dir_fd,
		 const char *path)
{
	char name[NAME_BYTES];

	name_of(name, i, f, false);
	unlinkat(s->dir_fd, name, 0);
	return linkat(dir_fd, path, s->dir_fd, name, 0) < 0 ? -errno : 0;
}

static int compare(int fd, const struct place_file *f, struct brumate_error *err)
{
	char have[DIGEST_TEXT_BYTES], want[DIGEST_TEXT_BYTES];
	struct digest digest;
	struct stat st;
	int r = fstat(fd, &st) < 0 ? -errno : 0;

	if (r == 0 && (uint64_t)st.st_size != f->len_bytes)
		return brumate_fail(err, EBADMSG, "%s: %jd of %" PRIu64 " bytes", f->path,
				    (intmax_t)st.st_size, f->len_bytes);
	if (r == 0 && f->digest)
		r = digest_file(&digest, fd, NULL);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", f->path);
	if (!f->digest || !memcmp(&digest, f->digest, sizeof(digest)))
		return 0;
	digest_format(have, &digest);
	digest_format(want, f->digest);
	return brumate_fail(err, EBADMSG, "%s: digest %.16s..., want %.16s...", f->path, have,
			    want);
}

int staging_finish(const struct staging *s, size_t i, const struct place_file *f,
		   struct brumate_error *err)
{
	char part[NAME_BYTES], name[NAME_BYTES];

	name_of(part, i, f, false);
	name_of(name, i, f, true);
	auto_close int fd = openat(s->dir_fd, part, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", f->path);
	int r = compare(fd, f, err);
	if (r < 0)
		return r;
	if (fsync(fd) < 0 || renameat(s->dir_fd, part, s->dir_fd, name) < 0)
		return brumate_fail(err, errno, "%s: write to disk: %m", f->path);
	return 0;
}

/* The directory of @path below @dir_fd, made where it is missing. Owned fd; @ret_base borrowed. */
static int enter_parents(int dir_fd, char *path, const char **ret_base)
{
	auto_close int at = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
	char *rest = path;

	for (;;) {
		char *name = strsep(&rest, "/");

		if (at < 0)
			return -errno;
		if (!rest) {
			*ret_base = name;
			return take_fd(&at);
		}
		if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
			return -errno;
		int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		int saved = errno;

		cleanup_close(&at);
		at = next;
		errno = saved;
	}
}

static int move_one(const struct staging *s, size_t i, const struct place_file *f,
		    struct store_writer *w)
{
	auto_free char *path = strdup(f->path);
	char name[NAME_BYTES];
	const char *base = NULL;

	if (!path)
		return -ENOMEM;
	auto_close int dir_fd = enter_parents(w->dir_fd, path, &base);
	if (dir_fd < 0)
		return dir_fd;
	name_of(name, i, f, true);
	return renameat2(s->dir_fd, name, dir_fd, base, RENAME_NOREPLACE) < 0 ? -errno : 0;
}

int staging_move(const struct staging *s, const struct manifest *m, size_t n,
		 struct store_writer *w, struct brumate_error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct place_file f = place_file(m, i);
		int r = move_one(s, i, &f, w);

		/* Names that collide are the manifest's fault, the rest is the disk's. */
		if (r == -EEXIST || r == -ENOTDIR || r == -EISDIR || r == -ELOOP)
			return brumate_fail(err, EBADMSG, "%s: its path collides with another",
					    f.path);
		if (r < 0)
			return brumate_fail(err, -r, "%s: %m", f.path);
	}
	return 0;
}

static bool is_staging(const char *name)
{
	size_t len = strlen(name);

	return name[0] == '.' && len > sizeof(suffix) &&
	       len < 1 + MANIFEST_ID_BYTES + sizeof(suffix) &&
	       !strcmp(name + len - strlen(suffix), suffix);
}

int remote_sweep(const char *dir)
{
	auto_closedir DIR *store = opendir(dir);
	struct dirent *entry;
	int n = 0;

	while (store && (entry = readdir(store))) {
		if (!is_staging(entry->d_name))
			continue;
		auto_close int fd = open_locked(dirfd(store), entry->d_name, LOCK_EX);
		if (fd >= 0 && remove_tree(dirfd(store), entry->d_name) == 0)
			n++;
	}
	return n;
}
