// SPDX-License-Identifier: MIT
/*
 * A job's files at its checkpoint; see job-files.h. While the job stands still, the length and the digest of each file
 * are recorded; memory, and files that the caller asked for, are copied next to CRIU's images.
 */
#include "engine/job-files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/array.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/size.h"
#include "base/user.h"
#include "criu/images.h"
#include "engine/op.h"
#include "process/scan.h"

/* What is copied without being asked for: a mapped file that is no larger is memory as much as it is a file (a JVM's
 * hsperfdata, locks of a database); what is on a tmpfs is gone once the machine restarts. */
enum { MAPPED_BYTES_MAX = 1 << 20, TMPFS_BYTES_MAX = 64 << 20 };
/* Of files that are asked for by --with-files, where the configuration does not say it: their job waits for the copies. */
enum { FILES_BYTES = 1 << 30 };
/* Long files that grow are read completely beforehand, while the job runs. The checkpoint waits for that, so there is a
 * limit. */
enum { AHEAD_STEP_BYTES = 16 << 20 };
#define AHEAD_BYTES_MAX (2ull << 30)
/* Removed files are read completely. No library is as long as this. */
#define REMOVED_BYTES_MAX (16ull << 30)

static int read_limit(uint64_t *ret, const struct op *op, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);

	*ret = conf.files_bytes;
	if (!*ret && op->request->with_files)
		*ret = FILES_BYTES;
	return r;
}

static bool is_always_copied(const struct job_file *f)
{
	return f->kind == JOB_FILE_MEMORY || (f->is_mapped && f->size_bytes <= MAPPED_BYTES_MAX) ||
	       (f->seen.is_tmpfs && f->size_bytes <= TMPFS_BYTES_MAX);
}

/* On one file system that can have the same blocks in two files (ioctl_ficlone(2)). */
static bool can_clone(const struct job_file *f, int dir_fd)
{
	static const unsigned long types[] = { 0x9123683e /* btrfs */, 0x58465342 /* xfs */,
					       0xca451a4e /* bcachefs */, 0x7461636f /* ocfs2 */ };
	struct statfs here, there;

	if (fstatfs(f->seen.fd, &here) < 0 || fstatfs(dir_fd, &there) < 0 ||
	    memcmp(&here.f_fsid, &there.f_fsid, sizeof(here.f_fsid)))
		return false;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if ((unsigned long)here.f_type == types[i])
			return true;
	return false;
}

static bool is_copied(const struct job_file *f, int dir_fd, uint64_t limit)
{
	return f->seen.fd >= 0 &&
	       (is_always_copied(f) || (limit && (f->size_bytes <= limit || can_clone(f, dir_fd))));
}

/* ---- before ---- */

static int refuse(const struct job_file *f, const char *why, const char *hint,
		  struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP, "process %d writes to %s, %s", f->seen.pid, f->path, why);
	brumate_hint(err, "%s", hint);
	return -EOPNOTSUPP;
}

static int check_file(const struct op *op, const struct job_file *f, int dir_fd, uint64_t limit,
		      struct brumate_error *err)
{
	if (f->kind == JOB_FILE_MEMORY && f->seen.fd < 0)
		return refuse(f, "shared memory that the job's user may not read",
			      "its content belongs to the checkpoint: let its owner give the "
			      "right to read it",
			      err);
	if (!op->request->with_files || is_copied(f, dir_fd, limit))
		return 0;
	if (f->seen.fd < 0)
		return refuse(f, "which the job's user may not read",
			      "--with-files has to copy it: checkpoint without it, or change its "
			      "permissions",
			      err);
	char why[120];
	snprintf(why, sizeof(why), "which is longer (%s) than what is copied (%s)",
		 SIZE_TEXT(f->size_bytes), SIZE_TEXT(limit));
	return refuse(f, why,
		      "set Files= in [Store] of brumate.conf to more, have it and the store on one "
		      "file system with reflinks, or leave --with-files out",
		      err);
}

/* Of each once, as members mostly have it together. */
struct sum {
	uint64_t bytes;
	dev_t device;
	ino_t inode; /* the last one */
};

static int add_memory(void *arg, const char *key, const char *path, const struct stat *st,
		      pid_t pid, const char *fd)
{
	struct sum *sum = arg;

	(void)key, (void)path, (void)pid, (void)fd;
	if (st->st_dev != sum->device || st->st_ino != sum->inode)
		sum->bytes += (uint64_t)st->st_blocks * 512;
	sum->device = st->st_dev;
	sum->inode = st->st_ino;
	return 0;
}

int job_files_check(struct op *op, uint64_t *ret_bytes, struct brumate_error *err)
{
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	auto_close int dir_fd = open(op->request->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	uint64_t limit = 0, bytes = 0;
	struct sum sum = { 0 };
	int r = read_limit(&limit, op, err);

	if (r == 0)
		r = job_memory_each(&op->tree, add_memory, &sum);
	if (r == 0)
		r = job_files_find(&files, op->target, &op->checkpoint.manifest, &op->tree, err);
	for (size_t i = 0; r == 0 && i < files.n; i++) {
		const struct job_file *f = &files.items[i];
		struct stat st;

		r = check_file(op, f, dir_fd, limit, err);
		if (is_copied(f, dir_fd, limit) && fstat(f->seen.fd, &st) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	}
	*ret_bytes = bytes + sum.bytes;
	return r;
}

/* Not in it, and as it seems not only appended to. */
static bool may_be_refused(const struct job_file *f, bool copied)
{
	return f->kind == JOB_FILE_WRITTEN && !copied && f->seen.is_within;
}

int job_files_scan(struct op *op, struct scan_report *report, struct brumate_error *err)
{
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	uint64_t limit = 0;
	int r = read_limit(&limit, op, err);

	if (r == 0)
		r = job_files_find(&files, op->target, &op->checkpoint.manifest, &op->tree, err);
	for (size_t i = 0; r == 0 && i < files.n; i++) {
		const struct job_file *f = &files.items[i];
		struct scan_finding found = { .level = SCAN_NOTE,
					      .scope = SCAN_CRIU,
					      .pid = f->seen.pid,
					      .what = "written-file" };

		if (!may_be_refused(f, is_copied(f, -1, limit)))
			continue;
		snprintf(found.text, sizeof(found.text),
			 "process %d writes within a file that is not in a checkpoint: %.150s",
			 f->seen.pid, f->path);
		snprintf(found.hint, sizeof(found.hint),
			 "a restore refuses it once it has changed; checkpoint --with-files takes "
			 "it in");
		r = scan_add(report, &found);
	}
	return r;
}

/* ---- when the job stands still ---- */

static int copy_file(struct job_file *f, int dir_fd, size_t number)
{
	snprintf(f->copy, sizeof(f->copy), JOB_FILES_COPY "%zu", number);
	auto_close int fd = openat(dir_fd, f->copy, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : job_file_copy(fd, f->seen.fd, 0, f->size_bytes);
}

/* From here on a write to a page that was dirty already changes the time of the file, as one to any other does. */
static int write_back(const struct job_file *f)
{
	const unsigned how = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE;

	return f->seen.is_tmpfs || sync_file_range(f->seen.fd, 0, 0, how) == 0 ? 0 : -errno;
}

/* What was read of a file while its job ran. */
struct ahead {
	uint64_t device, inode, size_bytes;
	struct digest_run *run; /* owned */
};

struct job_files_ahead {
	struct ahead *items;
	size_t n;
};

void job_files_ahead_free(struct job_files_ahead *a)
{
	for (size_t i = 0; a && i < a->n; i++)
		digest_run_free(a->items[i].run);
	if (a)
		free(a->items);
	free(a);
}

static int hash_ahead(struct op *op, struct job_files_ahead *all, const struct job_file *f,
		      struct brumate_error *err)
{
	struct ahead *items = array_room(all->items, all->n, sizeof(*items));
	auto_(digest_run_free) struct digest_run *run = NULL;
	int r = items ? digest_begin(&run) : -ENOMEM;

	if (items)
		all->items = items;
	for (uint64_t at = 0; r == 0 && at < f->size_bytes; at += AHEAD_STEP_BYTES) {
		const uint64_t left = f->size_bytes - at;

		r = progress_check(&op->progress, err);
		if (r == 0 &&
		    job_file_digest_add(run, f->seen.fd, at,
					left < AHEAD_STEP_BYTES ? left : AHEAD_STEP_BYTES) < 0)
			return 0; /* it is another one by now */
	}
	if (r < 0)
		return r == -ENOMEM ? brumate_fail(err, ENOMEM, "%m") : r;
	items[all->n++] = (struct ahead){ f->device, f->inode, f->size_bytes, take_ptr(&run) };
	return 0;
}

int job_files_hash_ahead(struct op *op, struct brumate_error *err)
{
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	struct job_files_ahead *all = calloc(1, sizeof(*all));
	uint64_t sum = 0;

	if (!all)
		return brumate_fail(err, ENOMEM, "%m");
	op->checkpoint.ahead = all;
	int r = job_files_find(&files, op->target, &op->checkpoint.manifest, &op->tree, err);
	for (size_t i = 0; r == 0 && i < files.n; i++) {
		const struct job_file *f = &files.items[i];

		if (f->kind != JOB_FILE_WRITTEN || f->seen.fd < 0 || f->in_sequence ||
		    f->seen.is_within || !job_file_is_long(f->size_bytes) ||
		    f->size_bytes > AHEAD_BYTES_MAX - sum)
			continue;
		sum += f->size_bytes;
		r = hash_ahead(op, all, f, err);
	}
	return r;
}

/* Continues the digest where hash_ahead() stopped. If the bytes before that changed since, the restore will refuse the
 * file. 1; 0: nothing was read ahead, or too much was added. */
static int finish_ahead(const struct op *op, struct job_file *f)
{
	const struct job_files_ahead *all = op->checkpoint.ahead;

	for (size_t i = 0; all && i < all->n; i++) {
		const struct ahead *a = &all->items[i];

		if (a->device != f->device || a->inode != f->inode)
			continue;
		if (f->size_bytes < a->size_bytes ||
		    job_file_is_long(f->size_bytes - a->size_bytes))
			return 0;
		int r = job_file_digest_add(a->run, f->seen.fd, a->size_bytes,
					    f->size_bytes - a->size_bytes);
		if (r == 0)
			r = digest_take(a->run, &f->digest);
		return r < 0 ? r : 1;
	}
	return 0;
}

static int take_content(const struct op *op, struct job_file *f)
{
	int r = finish_ahead(op, f);

	if (r == 0) {
		f->has_samples = job_file_is_long(f->size_bytes);
		r = job_file_digest(&f->digest, f->has_samples, f->seen.fd, f->size_bytes);
	}
	if (r < 0)
		return r;
	f->has_digest = true;
	return f->is_mapped && f->has_samples ? write_back(f) : 0;
}

static int save_file(struct op *op, struct job_file *f, size_t number, uint64_t limit,
		     struct brumate_error *err)
{
	int r = 0;

	if (is_copied(f, op->images.dir_fd, limit))
		r = copy_file(f, op->images.dir_fd, number);
	if (r == 0 && f->kind == JOB_FILE_WRITTEN && f->seen.fd >= 0)
		r = take_content(op, f);
	return r < 0 ? brumate_fail(err, -r, "%s, which the job has open: %m", f->path) : 0;
}

static unsigned choose_way(void *arg, const char *path)
{
	const struct job_files *files = arg;

	for (size_t i = 0; i < files->n; i++)
		if (!strcmp(files->items[i].path, path) && files->items[i].kind <= JOB_FILE_MEMORY)
			return files->items[i].kind == JOB_FILE_MEMORY ? CRIU_REGULAR_GIVEN
								       : CRIU_REGULAR_ANY_SIZE;
	return 0;
}

/* ---- what has no name any more ---- */

struct removing {
	struct op *op;
	struct job_files *files;
	int root_fd;
};

/* CRIU creates such a file again for a moment, next to its old path, which fails in a directory that the job's user may
 * not write to. */
static bool can_be_made(const struct removing *rm, const char *path)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	const struct target *target = rm->op->target;
	auto_free char *parent = strdup(path);
	char *slash = parent ? strrchr(parent, '/') : NULL;

	if (!slash || user_files_enter(&user, target->uid, target->gid, NULL) < 0)
		return false;
	*slash = '\0';
	auto_close int dir_fd = job_file_open(rm->root_fd, parent, O_PATH | O_DIRECTORY);
	return dir_fd >= 0 && faccessat(dir_fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
}

static int save_removed(struct removing *rm, struct job_file *f, uint32_t ghost)
{
	const int dir_fd = rm->op->images.dir_fd;

	snprintf(f->copy, sizeof(f->copy), JOB_FILES_COPY "%zu", rm->files->n);
	auto_close int fd = openat(dir_fd, f->copy, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = criu_ghost_copy(dir_fd, ghost, fd);
	if (r == 0)
		r = digest_file(&f->digest, fd, NULL);
	f->has_digest = r == 0;
	return r;
}

static bool has_key(const struct job_files *files, const char *key)
{
	for (size_t i = 0; i < files->n; i++)
		if (!strcmp(files->items[i].path, key))
			return true;
	return false;
}

/* Takes it into the record, and out of CRIU's images. What was replaced several times has one path several times. */
static int take_removed(void *arg, const struct criu_ghost *g, char *ret_key, size_t room)
{
	struct removing *rm = arg;
	int len = snprintf(ret_key, room, "%s (deleted)", g->path);

	if (*g->path != '/' || len < 0 || (size_t)len + 12 >= room ||
	    g->size_bytes > REMOVED_BYTES_MAX || can_be_made(rm, g->path))
		return 0;
	for (unsigned n = 2; has_key(rm->files, ret_key); n++)
		snprintf(ret_key + len, room - (size_t)len, " %u", n);
	struct job_file *f = job_files_add(rm->files, ret_key);
	if (!f)
		return -ENOMEM;
	f->kind = S_ISDIR(g->mode) ? JOB_FILE_REMOVED_DIR : JOB_FILE_REMOVED;
	f->in_sequence = true;
	f->size_bytes = S_ISDIR(g->mode) ? 0 : g->size_bytes;
	f->mode = g->mode & 07777;
	f->uid = g->uid;
	f->gid = g->gid;
	f->is_written = g->is_written;
	int r = f->kind == JOB_FILE_REMOVED ? save_removed(rm, f, g->number) : 0;
	return r < 0 ? r : 1;
}

/* ---- memory without a name that is too long for CRIU ---- */

static bool is_announced(const struct op *op, const char *key)
{
	for (char **k = op->checkpoint.externals; k && *k; k++)
		if (!strcmp(*k, key))
			return true;
	return false;
}

static int announce(void *arg, const char *key, const char *path, const struct stat *st, pid_t pid,
		    const char *fd)
{
	struct op *op = arg;
	size_t n = 0;

	(void)path, (void)st, (void)pid, (void)fd;
	while (op->checkpoint.externals && op->checkpoint.externals[n])
		n++;
	if (is_announced(op, key))
		return 0;
	char **more = reallocarray(op->checkpoint.externals, n + 2, sizeof(*more));
	if (!more)
		return -ENOMEM;
	op->checkpoint.externals = more;
	more[n] = strdup(key);
	more[n + 1] = NULL;
	return more[n] ? 0 : -ENOMEM;
}

int job_files_announce(struct op *op, struct brumate_error *err)
{
	int r = job_memory_each(&op->tree, announce, op);

	return r < 0 ? brumate_fail(err, -r, "deleted files of the job: %m") : 0;
}

static int copy_part(int dir_fd, const struct job_file *f, uint64_t part, int from_fd)
{
	const uint64_t from = part * JOB_FILE_PART_BYTES, left = f->size_bytes - from;
	const uint64_t len = left < JOB_FILE_PART_BYTES ? left : JOB_FILE_PART_BYTES;
	char name[JOB_FILE_COPY_BYTES + 16];

	job_file_part(name, f->copy, part);
	auto_close int to = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return to < 0 ? -errno : job_file_copy_to(to, 0, from_fd, from, len);
}

static int open_as_user(const struct target *target, const char *link)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	int r = user_files_enter(&user, target->uid, target->gid, NULL);
	int fd = r < 0 ? r : open(link, O_RDONLY | O_CLOEXEC);

	return r == 0 && fd < 0 ? -errno : fd;
}

static int copy_memory(struct removing *rm, const struct job_file *f, const char *link)
{
	auto_close int from = open_as_user(rm->op->target, link);
	int r = from < 0 ? from : 0;

	/* From data to data: there may be exbibytes of holes between. */
	for (uint64_t at = 0; r == 0 && at < f->size_bytes;) {
		const off_t data = lseek(from, (off_t)at, SEEK_DATA);

		if (data < 0 && errno == ENXIO)
			break;
		const uint64_t part = (data < 0 ? at : (uint64_t)data) / JOB_FILE_PART_BYTES;
		if (part * JOB_FILE_PART_BYTES >= f->size_bytes)
			break; /* it has grown */
		r = copy_part(rm->op->images.dir_fd, f, part, from);
		at = (part + 1) * JOB_FILE_PART_BYTES;
	}
	return r;
}

static int save_memory(void *arg, const char *key, const char *path, const struct stat *st,
		       pid_t pid, const char *fd)
{
	struct removing *rm = arg;
	struct job_files *files = rm->files;
	char link[64];

	for (size_t i = 0; i < files->n; i++)
		if (!strcmp(files->items[i].key, key))
			return 0;
	if (!is_announced(rm->op, key)) /* CRIU has tried it */
		return 0;
	struct job_file *f = job_files_add(files, path);
	if (!f)
		return -ENOMEM;
	f->kind = JOB_FILE_REMOVED;
	f->is_written = true;
	f->size_bytes = (uint64_t)st->st_size;
	f->mode = st->st_mode & 07777;
	f->uid = st->st_uid;
	f->gid = st->st_gid;
	snprintf(f->key, sizeof(f->key), "%s", key);
	snprintf(f->copy, sizeof(f->copy), JOB_FILES_COPY "%zu", files->n);
	snprintf(link, sizeof(link), "/proc/%d/fd/%.16s", pid, fd);
	return copy_memory(rm, f, link);
}

/* ---- all ---- */

static int save_all_removed(struct op *op, struct job_files *files, struct brumate_error *err)
{
	auto_close int root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct removing rm = { .op = op, .files = files, .root_fd = root_fd };
	int r = root_fd < 0 ? -errno : 0;

	if (r == 0)
		r = job_memory_each(&op->tree, save_memory, &rm);
	if (r == 0 && op->target->uid)
		r = criu_ghosts_rewrite(op->images.dir_fd, take_removed, &rm);
	return r < 0 ? brumate_fail(err, -r,
				    "files that the job has open and that were removed: %m")
		     : 0;
}

static void note_files(struct op *op, const struct job_files *files)
{
	for (size_t i = 0; i < files->n; i++) {
		const struct job_file *f = &files->items[i];

		if (may_be_refused(f, *f->copy))
			progress_note(&op->progress,
				      "%s is not in the checkpoint: once it is changed in its "
				      "middle, a restore refuses it (--with-files takes it in)",
				      f->path);
	}
}

static int save_files(struct op *op, struct job_files *files, struct brumate_error *err)
{
	uint64_t limit = 0;
	int r = read_limit(&limit, op, err);

	for (size_t i = 0; r == 0 && i < files->n; i++) {
		r = check_file(op, &files->items[i], op->images.dir_fd, limit, err);
		if (r == 0)
			r = save_file(op, &files->items[i], i + 1, limit, err);
	}
	if (r == 0)
		r = save_all_removed(op, files, err);
	if (r < 0 || !files->n)
		return r;
	auto_free char *text = job_files_encode(files);
	r = text ? file_swap(op->images.dir_fd, JOB_FILES_RECORD, text, strlen(text), 0600)
		 : -ENOMEM;
	if (r == 0)
		r = criu_regular_rewrite(op->images.dir_fd, choose_way, files);
	return r < 0 ? brumate_fail(err, -r, "the record of the job's files: %m") : 0;
}

int job_files_save(struct op *op, struct brumate_error *err)
{
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	int r = job_files_find(&files, op->target, &op->checkpoint.manifest, &op->tree, err);

	if (r == 0)
		r = save_files(op, &files, err);
	if (r == 0)
		note_files(op, &files);
	return r;
}
