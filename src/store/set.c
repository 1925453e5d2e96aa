// SPDX-License-Identifier: MIT
/* Records of sets, decided by one rename; see set.h. */
#include "store/set.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/paths.h"
#include "chunks/files.h"

DEFINE_AUTO(json_t *, json_decref)
#define auto_json auto_(json_decref)

static const char folder[] = ".sets";
static const char restored[] = ".restored";
static const char *const endings[] = { "save", "restore" };
enum { NONCE_DIGITS = 16, RESTORED_S = 86400, LOCK_MS = 10000 };

/* Of ".sets/.NAME.NONCE.save". */
struct parts {
	char dir[SET_PATH_BYTES]; /* ends in "/.sets" */
	char name[MANIFEST_ID_BYTES], nonce[NONCE_DIGITS + 1];
	enum set_kind kind;
};

static bool take_apart(struct parts *ret, const char *path)
{
	const char *slash = strrchr(path, '/'), *ending = strrchr(path, '.');
	const size_t tail = 1 + NONCE_DIGITS;

	if (!slash || slash[1] != '.' || (size_t)(slash - path) >= sizeof(ret->dir) ||
	    ending < slash + 2 + tail + 1 || ending[-(ptrdiff_t)tail] != '.')
		return false;
	const char *name = slash + 2;
	size_t len = (size_t)(ending - name) - tail;
	if (len >= sizeof(ret->name))
		return false;
	snprintf(ret->dir, sizeof(ret->dir), "%.*s", (int)(slash - path), path);
	snprintf(ret->name, sizeof(ret->name), "%.*s", (int)len, name);
	snprintf(ret->nonce, sizeof(ret->nonce), "%s", name + len + 1);
	ret->kind = strcmp(ending + 1, endings[SET_SAVE]) ? SET_RESTORE : SET_SAVE;
	return !strcmp(ending + 1, endings[ret->kind]) && manifest_id_is_valid(ret->name) &&
	       strspn(ret->nonce, "0123456789abcdef") == NONCE_DIGITS;
}

/* What it is called once it is committed (owned). */
static char *committed_path(const struct parts *p)
{
	return p->kind == SET_SAVE
		       ? path_format("%s/%s", p->dir, p->name)
		       : path_format("%s/.%s.%s%s", p->dir, p->name, p->nonce, restored);
}

bool set_name_of(char ret[static MANIFEST_ID_BYTES], const char *path)
{
	struct parts p;

	if (!take_apart(&p, path))
		return false;
	snprintf(ret, MANIFEST_ID_BYTES, "%s", p.name);
	return true;
}

static int check_name(const char *name, struct brumate_error *err)
{
	if (manifest_id_is_valid(name))
		return 0;
	brumate_fail(err, EINVAL, "\"%s\" cannot be the name of a set", name);
	brumate_hint(err, "use up to %d letters, digits, '.', '_' and '-'", MANIFEST_ID_BYTES - 1);
	return -EINVAL;
}

static int parse_record(json_t **ret, const char *text, size_t len, const char *path,
			struct brumate_error *err)
{
	*ret = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(*ret))
		return 0;
	json_decref(*ret);
	*ret = NULL;
	return brumate_fail(err, EBADMSG, "%s: not the record of a set", path);
}

static int read_record(json_t **ret, const char *path, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = file_read_plain(AT_FDCWD, path, SET_RECORD_BYTES_MAX, &text, &len);

	return r < 0 ? r : parse_record(ret, text, len, path, err);
}

static bool says(json_t *o, const char *key, const char *text)
{
	const char *value = json_string_value(json_object_get(o, key));

	return value && !strcmp(value, text);
}

/* ---- the coordinator ---- */

static int make_folder(const char *dir, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", dir, folder);

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	if ((mkdir(dir, 0700) < 0 && errno != EEXIST) || (mkdir(path, 0700) < 0 && errno != EEXIST))
		return brumate_fail(err, errno, "%s: %m", path);
	/* In a store that others may write to, it may be theirs, or a link to somewhere else. */
	auto_close int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	if (!S_ISDIR(st.st_mode)) {
		brumate_fail(err, ENOTDIR, "%s is %s, and no directory", path,
			     S_ISLNK(st.st_mode) ? "a link" : "a file");
		brumate_error_exit(err, EXIT_USAGE);
		brumate_hint(err, "remove it, or choose another store with --dir");
		return -ENOTDIR;
	}
	int r = files_check_owner(&st, err);
	return r < 0 ? brumate_wrap(err, r, "%s", path) : 0;
}

/* Before it has its name nobody else can see it, so it is locked from the first moment on. */
static int make_file(struct set_writer *w, const char *dir, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", dir, folder);
	char link[64];

	w->fd = path ? open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
	if (w->fd >= 0) {
		flock(w->fd, LOCK_EX | LOCK_NB);
		snprintf(link, sizeof(link), "/proc/self/fd/%d", w->fd);
		if (linkat(AT_FDCWD, link, AT_FDCWD, w->path, AT_SYMLINK_FOLLOW) == 0)
			return 0;
		cleanup_close(&w->fd);
	}
	/* A file system of the network, which has no files without a name. */
	w->fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (w->fd < 0)
		return brumate_fail(err, errno, "%s: %m", w->path);
	flock(w->fd, LOCK_EX | LOCK_NB);
	return 0;
}

static int fill(int fd, const char *path, json_t *record, struct brumate_error *err)
{
	auto_free char *text = json_dumps(record, JSON_INDENT(1) | JSON_SORT_KEYS);
	size_t len = text ? strlen(text) : 0;

	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	if (ftruncate(fd, 0) < 0 || pwrite(fd, text, len, 0) != (ssize_t)len || fsync(fd) < 0)
		return brumate_fail(err, errno ? errno : ENOSPC, "%s: %m", path);
	return 0;
}

/* 1: its coordinator lives, or that is not known; 0: it is given up now. */
static int is_led(const char *path)
{
	/* In another user's store a link may lead to a device, which opening would start. */
	auto_close int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return 1;
	int r = set_give_up(path);
	return r < 0 ? r : !r;
}

/* Removes what coordinators left that died: undecided sets, and restores that were decided long ago. */
static void sweep(const char *dir)
{
	auto_free char *path = path_format("%s/%s", dir, folder);
	auto_closedir DIR *d = path ? opendir(path) : NULL;
	struct stat st;

	for (struct dirent *e; d && (e = readdir(d));) {
		auto_free char *one = path_format("%s/%s", path, e->d_name);
		struct parts p;

		if (!one || e->d_name[0] != '.')
			continue;
		if (take_apart(&p, one))
			is_led(one);
		else if (strlen(one) > strlen(restored) &&
			 !strcmp(one + strlen(one) - strlen(restored), restored) &&
			 stat(one, &st) == 0 &&
			 clock_wall_ns() / NS_PER_S > (uint64_t)st.st_mtime + RESTORED_S)
			unlink(one);
	}
}

int set_begin(struct set_writer *ret, const char *dir, const char *name, enum set_kind kind,
	      struct brumate_error *err)
{
	auto_(set_end) struct set_writer w = SET_WRITER_EMPTY;
	auto_free char *taken = path_format("%s/%s/%s", dir, folder, name);
	uint64_t nonce;
	int r = check_name(name, err);

	if (r < 0 || (r = make_folder(dir, err)) < 0)
		return r;
	sweep(dir);
	if (!taken)
		return brumate_fail(err, ENOMEM, "%m");
	if (kind == SET_SAVE && access(taken, F_OK) == 0) {
		brumate_fail(err, EEXIST, "set %s: exists already", name);
		brumate_hint(err, "choose another name, or remove it: brumate set rm %s", name);
		return -EEXIST;
	}
	if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
		return brumate_fail(err, errno, "getrandom: %m");
	int n = snprintf(w.path, sizeof(w.path), "%s/%s/.%s.%016" PRIx64 ".%s", dir, folder, name,
			 nonce, endings[kind]);
	if (n < 0 || (size_t)n >= sizeof(w.path)) {
		w.path[0] = '\0';
		return brumate_fail(err, ENAMETOOLONG, "%s: %m", dir);
	}
	if ((r = make_file(&w, dir, err)) < 0)
		return r;
	auto_json json_t *record = json_pack("{s:s}", "set", name);
	if ((r = fill(w.fd, w.path, record, err)) < 0)
		return r;
	*ret = take_struct(w, SET_WRITER_EMPTY);
	return 0;
}

/* NFS, FUSE and others have no rename that replaces nothing. A link to the new name would not do: a member could still give up by
 * unlinking the old one. So it is looked before, by one coordinator at a time. */
static int rename_locked(const struct parts *p, const char *from, const char *to)
{
	auto_free char *path = path_format("%s/.lock", p->dir);
	auto_close int fd =
		path ? open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600)
		     : -1;
	struct stat st;

	if (fd < 0)
		return path ? -errno : -ENOMEM;
	/* One that root makes in a user's store is that user's. */
	if (geteuid() == 0 && (stat(p->dir, &st) < 0 || fchown(fd, st.st_uid, st.st_gid) < 0))
		return -errno;
	/* Where there are no locks, the later of two coordinators of one name replaces the record of the other. */
	if (fd_lock(fd, deadline_in_ms(LOCK_MS)) == -EWOULDBLOCK)
		return -EBUSY;
	if (lstat(to, &st) == 0)
		return -EEXIST;
	if (errno != ENOENT)
		return -errno;
	return rename(from, to) < 0 ? -errno : 0;
}

static int rename_decided(const struct parts *p, const char *from, const char *to)
{
	auto_json json_t *record = NULL;
	int r = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0 ? -errno : 0;

	if (r == -EINVAL || r == -ENOSYS)
		r = rename_locked(p, from, to);
	/* A server whose first answer was lost has done it. */
	if (r == -ENOENT && read_record(&record, to, NULL) == 0 && says(record, "nonce", p->nonce))
		r = 0;
	return r;
}

int set_commit(struct set_writer *w, json_t *record, struct brumate_error *err)
{
	auto_close int dir_fd = -1;
	struct parts p;

	if (w->fd < 0 || !take_apart(&p, w->path))
		return brumate_fail(err, EINVAL, "%s: not a set that is being decided", w->path);
	auto_free char *to = committed_path(&p);
	if (!to || json_object_set_new(record, "nonce", json_string(p.nonce)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = fill(w->fd, w->path, record, err);
	if (r == 0 && (r = fault_point("set.commit")) < 0)
		return brumate_fail(err, -r, "%s: %m", to);
	if (r < 0)
		return r;
	/* Never over another set: that one has its own checkpoints. */
	if ((r = rename_decided(&p, w->path, to)) < 0) {
		if (r == -ENOENT)
			return brumate_fail(err, ECANCELED, "one of its members has given it up");
		return brumate_fail(err, -r, "%s: %m", to);
	}
	dir_fd = open(p.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd >= 0)
		fsync(dir_fd);
	cleanup_close(&w->fd);
	return 0;
}

void set_end(struct set_writer *w)
{
	if (w->fd >= 0)
		set_give_up(w->path);
	cleanup_close(&w->fd);
}

void set_forget(const struct set_writer *w)
{
	struct parts p;
	auto_free char *path =
		take_apart(&p, w->path) && p.kind == SET_RESTORE ? committed_path(&p) : NULL;

	if (path)
		unlink(path);
}

/* ---- those who take part ---- */

int set_give_up(const char *path)
{
	auto_json json_t *record = NULL;
	struct parts p;

	if (!take_apart(&p, path))
		return -EINVAL;
	auto_free char *committed = committed_path(&p);
	if (!committed)
		return -ENOMEM;
	if (unlink(path) == 0)
		return 1;
	if (errno != ENOENT)
		return -errno;
	int r = read_record(&record, committed, NULL);
	if (r < 0)
		return r == -ENOENT ? 1 : r;
	/* By now there may be another set of this name. */
	return !says(record, "nonce", p.nonce);
}

/* ---- complete ones ---- */

/* It says on which nodes which checkpoints are run: not a word of it counts where others could have written it. */
static int read_trusted(json_t **ret, const char *dir, const char *name, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", dir, folder), *text = NULL;
	char own[32];
	struct stat st;
	size_t len = 0;
	auto_close int dir_fd =
		path ? open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	auto_close int fd = dir_fd < 0 ? -1 : files_open(dir_fd, name, &st);

	if (fd == -EMEDIUMTYPE || fd == -ELOOP)
		return brumate_fail(err, EBADMSG, "%s: not the record of a set", name);
	if (fd < 0)
		return !path ? -ENOMEM : dir_fd < 0 ? -errno : fd;
	int r = files_check_owner(&st, err);
	if (r == 0 && fstat(dir_fd, &st) == 0)
		r = files_check_owner(&st, err);
	snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
	if (r == 0)
		r = file_read(AT_FDCWD, own, SET_RECORD_BYTES_MAX, &text, &len);
	return r < 0 ? r : parse_record(ret, text, len, name, err);
}

int set_read(json_t **ret, const char *dir, const char *name, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = check_name(name, err);

	if (r < 0)
		return r;
	r = read_trusted(ret, dir, name, &why);
	if (r == -ENOENT) {
		brumate_fail(err, ENOENT, "no set %s in %s", name, dir);
		brumate_hint(err, "brumate set ls");
		return -ENOENT;
	}
	if (r < 0 && !why.code)
		return brumate_fail(err, -r, "set %s: its record in %s/%s: %m", name, dir, folder);
	if (r < 0 && err)
		*err = why;
	return r < 0 ? brumate_wrap(err, r, "set %s", name) : 0;
}

int set_closes(char **ret, const char *path, const char *checkpoint, struct brumate_error *err)
{
	auto_json json_t *record = NULL;
	auto_free char *text = NULL;
	json_t *member, *one;
	struct parts p;
	size_t i, k, len;

	if (!take_apart(&p, path))
		return brumate_fail(err, EINVAL, "%s: not a set that is being decided", path);
	auto_free char *complete = path_format("%s/%s", p.dir, p.name);
	int r = complete ? read_record(&record, complete, err) : -ENOMEM;
	if (r < 0)
		return brumate_fail(err, -r, "the record of the set %s: %m", p.name);
	FILE *f = open_memstream(&text, &len);
	if (!f)
		return brumate_fail(err, ENOMEM, "%m");
	json_array_foreach (json_object_get(record, "members"), i, member) {
		if (!says(member, "checkpoint", checkpoint))
			continue;
		json_array_foreach (json_object_get(member, "closes"), k, one)
			if (json_is_string(one))
				fprintf(f, "\n%s\n", json_string_value(one));
	}
	if (fclose(f) != 0)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = *text ? take_ptr(&text) : NULL;
	return 0;
}

int set_list(const char *dir, void (*fn)(void *arg, const char *name), void *arg,
	     struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", dir, folder);
	auto_closedir DIR *d = path ? opendir(path) : NULL;

	if (!d)
		return !path || errno != ENOENT ? brumate_fail(err, errno, "%s/%s: %m", dir, folder)
						: 0;
	for (struct dirent *e; (e = readdir(d));)
		if (manifest_id_is_valid(e->d_name))
			fn(arg, e->d_name);
	return 0;
}

int set_remove(const char *dir, const char *name, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s/%s", dir, folder, name);
	int r = check_name(name, err);

	if (r < 0)
		return r;
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	return unlink(path) < 0 ? brumate_fail(err, errno, "set %s: %m", name) : 0;
}

/* ---- what is left ---- */

/* Whether the record lists the checkpoint. */
static bool lists(json_t *record, const char *id)
{
	json_t *member;
	size_t i;

	json_array_foreach (json_object_get(record, "members"), i, member)
		if (says(member, "checkpoint", id))
			return true;
	return false;
}

/* Whether a set of that name is being decided. */
static int is_open(const char *dir, const char *name)
{
	auto_free char *path = path_format("%s/%s", dir, folder);
	auto_closedir DIR *d = path ? opendir(path) : NULL;
	int r = 0;

	if (!d)
		return path && errno == ENOENT ? 0 : -errno;
	for (struct dirent *e; r == 0 && (e = readdir(d));) {
		auto_free char *one = path_format("%s/%s", path, e->d_name);
		struct parts p;

		if (!one)
			return -ENOMEM;
		if (take_apart(&p, one) && p.kind == SET_SAVE && !strcmp(p.name, name))
			r = is_led(one);
	}
	return r;
}

int set_counts(const char *dir, const char *name, const char *id)
{
	auto_free char *path = path_format("%s/%s/%s", dir, folder, name);
	auto_json json_t *record = NULL;
	/* In this order: it may be committed in between. */
	int open = path && manifest_id_is_valid(name) ? is_open(dir, name) : -EINVAL;

	if (open != 0)
		return open;
	int r = read_record(&record, path, NULL);
	return r == 0 ? lists(record, id) : r == -ENOENT ? 0 : r;
}
