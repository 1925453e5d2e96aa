// SPDX-License-Identifier: MIT
/* What the processes of a job have open for writing, or mapped shared; see job-files.h. Only /proc is read, until a file is
 * opened, with the rights of the job's user and only where that cannot wait. */
#include "engine/job-files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/fd.h"
#include "base/user.h"
#include "image/manifest.h"
#include "process/scan.h"

enum { FDINFO_BYTES_MAX = 4096, TABLE_BYTES_MAX = 64 << 20 };

struct finding {
	struct job_files files;
	const struct target *target;
	const struct manifest *manifest;
	char *log;    /* owned; the real path of the job's log, NULL: it has none */
	char *mounts; /* owned; what this process sees mounted */
};

/* ---- what is left out ---- */

static bool begins_with(const char *path, const char *start)
{
	return !strncmp(path, start, strlen(start));
}

/* Files of the kernel's own, and devices. */
static bool is_of_kernel(const char *path)
{
	return begins_with(path, "/proc/") || begins_with(path, "/sys/") ||
	       (begins_with(path, "/dev/") && !begins_with(path, "/dev/shm/"));
}

/* The file is there, but not under this name (proc(5)). */
static bool is_removed(const char *path)
{
	static const char mark[] = " (deleted)";
	size_t len = strlen(path), mark_len = sizeof(mark) - 1;

	return len > mark_len && !strcmp(path + len - mark_len, mark);
}

static bool is_given_anew(const struct finding *f, const char *path)
{
	for (size_t i = 0; i < f->manifest->n_externals; i++) {
		const struct manifest_external *e = &f->manifest->externals[i];

		if (!strcmp(e->become, "append") && !strcmp(e->key, path + 1))
			return true;
	}
	return f->log && !strcmp(f->log, path);
}

static bool is_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strcmp(dir, "/") || (!strncmp(path, dir, len) && (path[len] == '/' || !path[len]));
}

/* Whether @path is on a file system that a process serves (FUSE), which need not answer, or stands still with the job.
 * The file system is that of the longest mount point above it, and of several the last. */
static bool may_wait(const struct finding *f, const char *path)
{
	auto_free char *mounts = strdup(f->mounts);
	char *rest = mounts;
	size_t longest = 0;
	bool is_fuse = false;

	for (char *line; (line = strsep(&rest, "\n"));) {
		const char *type = strstr(line, " - ");
		int begins = 0, ends = 0;

		if (!type || sscanf(line, "%*d %*d %*s %*s %n%*s%n", &begins, &ends) < 0 || !ends)
			continue;
		line[ends] = '\0';
		text_unescape_octal(line + begins);
		if (!is_below(path, line + begins) || strlen(line + begins) < longest)
			continue;
		longest = strlen(line + begins);
		is_fuse = begins_with(type, " - fuse");
	}
	return is_fuse || !longest;
}

/* ---- what is there ---- */

static struct job_file *find_or_add(struct finding *f, const char *path, pid_t pid)
{
	for (size_t i = 0; i < f->files.n; i++)
		if (!strcmp(f->files.items[i].path, path))
			return &f->files.items[i];
	struct job_file *file = f->files.n < JOB_FILES_MAX ? job_files_add(&f->files, path) : NULL;
	if (file) {
		file->in_sequence = true;
		file->seen.pid = pid;
	}
	return file;
}

static bool is_wanted(const struct finding *f, const char *path)
{
	return *path == '/' && !is_of_kernel(path) && !is_removed(path) && !is_given_anew(f, path);
}

struct descriptor {
	unsigned flags;
	bool is_leased; /* for writing */
	uint64_t position;
};

static bool read_descriptor(struct descriptor *ret, pid_t pid, const char *name)
{
	auto_free char *info = NULL;
	char path[64];

	snprintf(path, sizeof(path), "fdinfo/%.16s", name);
	if (proc_file_read(pid, path, FDINFO_BYTES_MAX, &info, NULL) < 0)
		return false;
	ret->is_leased = scan_has_write_lease(info);
	const char *position = strstr(info, "pos:"), *flags = strstr(info, "flags:");
	return position && flags && sscanf(position, "pos: %" SCNu64, &ret->position) == 1 &&
	       sscanf(flags, "flags: %o", &ret->flags) == 1;
}

static bool writes(unsigned flags)
{
	return !(flags & O_PATH) && (flags & O_ACCMODE) != O_RDONLY;
}

static int look_at_descriptor(struct finding *f, pid_t pid, int dir_fd, const char *name)
{
	char link[64], path[PATH_MAX];
	struct descriptor d;
	struct stat st;

	if (scan_stat_fd(dir_fd, name, &st) < 0 || !S_ISREG(st.st_mode) || !st.st_nlink ||
	    !read_descriptor(&d, pid, name) || !writes(d.flags))
		return 0;
	snprintf(link, sizeof(link), "fd/%.16s", name);
	if (proc_link_read(pid, link, path, sizeof(path)) < 0 || !is_wanted(f, path))
		return 0;
	struct job_file *file = find_or_add(f, path, pid);
	if (!file)
		return -ENOMEM;
	file->seen.is_opened = true;
	file->seen.is_leased = file->seen.is_leased || d.is_leased;
	if (!(d.flags & O_APPEND)) {
		file->in_sequence = false;
		file->seen.is_within = file->seen.is_within || d.position != (uint64_t)st.st_size;
	}
	return 0;
}

static int look_at_descriptors(struct finding *f, pid_t pid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	struct dirent *entry;
	int r = 0;

	while (dir && r == 0 && dir_next(dir, &entry) > 0)
		r = look_at_descriptor(f, pid, dirfd(dir), entry->d_name);
	return r;
}

static bool parse_map_line(struct proc_mapping *ret, const char *line)
{
	return proc_mapping_parse(ret, line) && *ret->name == '/';
}

static int look_at_mappings(struct finding *f, pid_t pid)
{
	auto_free char *maps = NULL;
	char *rest;

	if (proc_file_read(pid, "maps", TABLE_BYTES_MAX, &maps, NULL) < 0)
		return 0; /* it has ended, or a later step reports that it may not be read */
	rest = maps;
	for (char *line; (line = strsep(&rest, "\n"));) {
		struct proc_mapping m;

		if (!parse_map_line(&m, line) || m.access[1] != 'w' || m.access[3] != 's' ||
		    !is_wanted(f, m.name))
			continue;
		struct job_file *file = find_or_add(f, m.name, pid);
		if (!file)
			return -ENOMEM;
		file->is_mapped = file->seen.is_within = true;
		file->in_sequence = false;
	}
	return 0;
}

/* ---- each of them ---- */

static bool is_memory(const struct job_file *f)
{
	return f->seen.is_tmpfs && (f->is_mapped || begins_with(f->path, "/dev/shm/"));
}

/* The name leads to it, for us as for the process. */
static bool is_same_file(const struct job_file *f, const struct stat *st)
{
	char link[64], path[PATH_MAX];
	bool found = !f->seen.is_opened;
	auto_closedir DIR *dir = f->seen.is_opened ? proc_dir_open(f->seen.pid, "fd") : NULL;
	struct dirent *entry;

	while (dir && !found && dir_next(dir, &entry) > 0) {
		struct stat other;

		snprintf(link, sizeof(link), "fd/%.16s", entry->d_name);
		found = proc_link_read(f->seen.pid, link, path, sizeof(path)) >= 0 &&
			!strcmp(path, f->path) &&
			scan_stat_fd(dirfd(dir), entry->d_name, &other) == 0 &&
			other.st_dev == st->st_dev && other.st_ino == st->st_ino;
	}
	return found;
}

static void take_status(struct job_file *f, const struct stat *st)
{
	f->size_bytes = (uint64_t)st->st_size;
	f->mtime_ns = job_file_mtime_ns(st);
	f->device = st->st_dev;
	f->inode = st->st_ino;
	f->mode = st->st_mode & 07777;
	f->uid = st->st_uid;
	f->gid = st->st_gid;
}

/* Opens it, unless that would break a lease; false where it is none of ours to keep: its name leads elsewhere, or to nothing. */
static bool open_file(struct job_file *f, int root_fd)
{
	auto_close int fd = f->seen.is_leased ? -1 : job_file_open(root_fd, f->path, O_RDONLY);
	auto_close int path_fd = fd < 0 ? job_file_open(root_fd, f->path, O_PATH) : -1;
	struct statfs fs;
	struct stat st;

	if (fstat(fd < 0 ? path_fd : fd, &st) < 0 || !S_ISREG(st.st_mode) || !is_same_file(f, &st))
		return false;
	take_status(f, &st);
	f->seen.is_tmpfs = fstatfs(fd < 0 ? path_fd : fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
	f->kind = is_memory(f) ? JOB_FILE_MEMORY : JOB_FILE_WRITTEN;
	f->seen.fd = take_fd(&fd);
	return true;
}

static int open_files(struct finding *f, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	auto_close int root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	size_t n = 0;

	if (root_fd < 0)
		return brumate_fail(err, errno, "/: %m");
	int r = user_files_enter(&user, f->target->uid, f->target->gid, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < f->files.n; i++) {
		struct job_file *file = &f->files.items[i];

		if (!may_wait(f, file->path) && open_file(file, root_fd))
			f->files.items[n++] = *file;
		else
			free(file->path);
	}
	f->files.n = n;
	return 0;
}

static int find_all(struct finding *f, const struct proc_tree *tree, struct brumate_error *err)
{
	int r = file_read(AT_FDCWD, "/proc/self/mountinfo", TABLE_BYTES_MAX, &f->mounts, NULL);

	if (r < 0)
		return brumate_fail(err, -r, "/proc/self/mountinfo: %m");
	f->log = f->target->log ? realpath(f->target->log, NULL) : NULL;
	for (size_t i = 0; r == 0 && i < tree->n; i++) {
		const pid_t pid = tree->items[i].id.pid;

		if (tree->items[i].state == 'Z')
			continue;
		r = look_at_descriptors(f, pid);
		if (r == 0)
			r = look_at_mappings(f, pid);
	}
	return r < 0 ? brumate_fail(err, -r, "files of the job: %m") : open_files(f, err);
}

int job_files_find(struct job_files *ret, const struct target *target, const struct manifest *m,
		   const struct proc_tree *tree, struct brumate_error *err)
{
	struct finding f = { .files = JOB_FILES_EMPTY, .target = target, .manifest = m };
	int r = find_all(&f, tree, err);

	free(f.log);
	free(f.mounts);
	if (r < 0) {
		job_files_fini(&f.files);
		return r;
	}
	*ret = f.files;
	return 0;
}

/* ---- memory that is too long ---- */

static int look_at_memory(pid_t pid, int dir_fd, const char *name, job_memory_fn fn, void *arg)
{
	char link[64], path[PATH_MAX], key[JOB_FILE_KEY_BYTES];
	auto_free char *info = NULL;
	struct stat st;
	unsigned mount;

	if (scan_stat_fd(dir_fd, name, &st) < 0 || !scan_is_too_long(&st) ||
	    !scan_is_tmpfs(st.st_dev))
		return 0;
	snprintf(link, sizeof(link), "fd/%.16s", name);
	if (proc_link_read(pid, link, path, sizeof(path)) < 0)
		return 0;
	snprintf(link, sizeof(link), "fdinfo/%.16s", name);
	if (proc_file_read(pid, link, FDINFO_BYTES_MAX, &info, NULL) < 0)
		return 0;
	const char *line = strstr(info, "mnt_id:");
	if (!line || sscanf(line, "mnt_id: %u", &mount) != 1)
		return 0;
	snprintf(key, sizeof(key), "file[%x:%" PRIx64 "]", mount, (uint64_t)st.st_ino);
	return fn(arg, key, path, &st, pid, name);
}

int job_memory_each(const struct proc_tree *tree, job_memory_fn fn, void *arg)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < tree->n; i++) {
		const pid_t pid = tree->items[i].id.pid;
		auto_closedir DIR *dir = proc_dir_open(pid, "fd");
		struct dirent *entry;

		while (dir && r >= 0 && dir_next(dir, &entry) > 0)
			r = look_at_memory(pid, dirfd(dir), entry->d_name, fn, arg);
	}
	return r < 0 ? r : 0;
}

/* ---- who else has a file ---- */

static bool has_open(pid_t pid, const struct stat *file, bool reads)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	struct dirent *entry;

	while (dir && dir_next(dir, &entry) > 0) {
		struct descriptor d;
		struct stat st;

		if (scan_stat_fd(dirfd(dir), entry->d_name, &st) == 0 &&
		    st.st_dev == file->st_dev && st.st_ino == file->st_ino &&
		    (reads || (read_descriptor(&d, pid, entry->d_name) && writes(d.flags))))
			return true;
	}
	return false;
}

static bool has_mapped(pid_t pid, const struct stat *file, bool reads)
{
	auto_free char *maps = NULL;
	char *rest;

	if (proc_file_read(pid, "maps", TABLE_BYTES_MAX, &maps, NULL) < 0)
		return false;
	rest = maps;
	for (char *line; (line = strsep(&rest, "\n"));) {
		struct proc_mapping m;

		if (parse_map_line(&m, line) && m.inode == file->st_ino &&
		    makedev(m.major, m.minor) == file->st_dev &&
		    (reads || (m.access[1] == 'w' && m.access[3] == 's')))
			return true;
	}
	return false;
}

pid_t job_file_find_user(const struct stat *file, bool reads)
{
	auto_closedir DIR *proc = dir_open(AT_FDCWD, "/proc");
	pid_t pid;

	while (proc && proc_next(proc, &pid) > 0)
		if (pid != getpid() && (has_open(pid, file, reads) || has_mapped(pid, file, reads)))
			return pid;
	return 0;
}
