// SPDX-License-Identifier: MIT
/*
 * Memory of the simulated GPUs as files held by flocks. A ledger per GPU, itself locked for each
 * change, remembers the bytes in use, so that an allocation need not look at all others: only when
 * the ledger says that it does not fit are the files of dead holders looked for.
 */
#include "vram.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "config.h"

enum { HOLDER_BYTES = 4096 };

static const char ledger_name[] = ".ledger";

static int make_dir(const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (lstat(path, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	/* The default place is one where anybody may make directories. */
	return geteuid() && st.st_uid != geteuid() ? -EPERM : 0;
}

int vram_init(void)
{
	const struct config *config = config_get();
	char path[PATH_MAX];
	int r = make_dir(config->dir);

	for (unsigned int i = 0; !r && i < config->machine.n_gpus; i++) {
		snprintf(path, sizeof(path), "%s/gpu%u", config->dir, i);
		r = make_dir(path);
	}
	return r;
}

static int open_gpu_dir(int gpu)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/gpu%d", config_get()->dir, gpu);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int lock_file(int fd, int how)
{
	int r;

	do
		r = flock(fd, how);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* What root makes on a user's machine is the user's: memory passes between a job and its broker. */
static int give_to_owner(int dir, int fd)
{
	struct stat st;

	if (geteuid())
		return 0;
	if (fstat(dir, &st) < 0)
		return -errno;
	return fchown(fd, st.st_uid, st.st_gid) < 0 ? -errno : 0;
}

/* The ledger, locked until closed. */
static int open_ledger(int dir)
{
	auto_close int fd = openat(dir, ledger_name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = give_to_owner(dir, fd);
	if (!r)
		r = lock_file(fd, LOCK_EX);
	return r < 0 ? r : take_fd(&fd);
}

static uint64_t ledger_read(int ledger)
{
	uint64_t used = 0;

	return pread(ledger, &used, sizeof(used), 0) == sizeof(used) ? used : 0;
}

static int ledger_write(int ledger, uint64_t used)
{
	ssize_t n = pwrite(ledger, &used, sizeof(used), 0);

	return n == sizeof(used) ? 0 : -EIO;
}

enum holding { GONE, HELD, REMOVED };

/* Whether anybody holds @name; if nobody does, it is removed. *@ret_st is set unless it was gone. */
static enum holding held_or_removed(int dir, const char *name, struct stat *ret_st)
{
	auto_close int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0 || fstat(fd, ret_st) < 0)
		return GONE;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return HELD;
	return unlinkat(dir, name, 0) < 0 ? GONE : REMOVED;
}

/* Walks what is in use with the ledger locked, and brings the ledger up to date. */
static int walk(int dir, int ledger, void (*fn)(const struct stat *, const char *, void *),
		void *data, uint64_t *ret_used)
{
	auto_close int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	struct stat st;
	uint64_t used = 0;
	int r;

	if (!d)
		return -errno;
	fd = -1;
	while ((entry = readdir(d))) {
		if (entry->d_name[0] == '.' || held_or_removed(dir, entry->d_name, &st) != HELD)
			continue;
		used += (uint64_t)st.st_size;
		if (fn)
			fn(&st, entry->d_name, data);
	}
	r = ledger_write(ledger, used);
	if (!r)
		*ret_used = used;
	return r;
}

int vram_for_each(int gpu, void (*fn)(const struct stat *st, const char *name, void *data),
		  void *data)
{
	auto_close int dir = open_gpu_dir(gpu);
	auto_close int ledger = dir < 0 ? dir : open_ledger(dir);
	uint64_t used;

	return ledger < 0 ? ledger : walk(dir, ledger, fn, data, &used);
}

int vram_used(int gpu, uint64_t *ret)
{
	auto_close int dir = open_gpu_dir(gpu);
	auto_close int ledger = dir < 0 ? dir : open_ledger(dir);

	return ledger < 0 ? ledger : walk(dir, ledger, NULL, NULL, ret);
}

/* Locks @fd as a holder and keeps the lock by a mapping, so that the descriptor can go. */
static int hold(struct vram_file *ret, int fd)
{
	void *holder;
	int r = lock_file(fd, LOCK_SH);

	if (r < 0)
		return r;
	holder = mmap(NULL, HOLDER_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
	if (holder == MAP_FAILED)
		return -errno;
	/* A forked child must not keep the memory of its parent alive. */
	if (madvise(holder, HOLDER_BYTES, MADV_DONTFORK) < 0) {
		r = -errno;
		munmap(holder, HOLDER_BYTES);
		return r;
	}
	ret->holder = holder;
	return 0;
}

static int create_file(struct vram_file *file, int dir)
{
	static atomic_uint sequence;
	auto_close int fd = -1;
	int r;

	/* Processes of two pid namespaces may have the same pid: the name is only a name. */
	do {
		snprintf(file->name, sizeof(file->name), "%d-%u", getpid(),
			 atomic_fetch_add(&sequence, 1));
		fd = openat(dir, file->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	} while (fd < 0 && errno == EEXIST);
	if (fd < 0)
		return -errno;
	r = give_to_owner(dir, fd);
	if (!r)
		r = ftruncate(fd, (off_t)file->bytes) < 0 ? -errno : hold(file, fd);
	if (r < 0)
		unlinkat(dir, file->name, 0);
	return r;
}

int vram_create(struct vram_file *ret, int gpu, uint64_t bytes)
{
	auto_close int dir = open_gpu_dir(gpu);
	auto_close int ledger = dir < 0 ? dir : open_ledger(dir);
	uint64_t total = config_get()->machine.gpu[gpu].vram_bytes, used;
	struct vram_file file = { .gpu = gpu, .bytes = bytes };
	int r;

	if (ledger < 0)
		return ledger;
	used = ledger_read(ledger);
	if (bytes > total || used > total - bytes) {
		r = walk(dir, ledger, NULL, NULL, &used);
		if (r < 0)
			return r;
		if (bytes > total || used > total - bytes)
			return -ENOSPC;
	}
	/* After a kill in between, the ledger has too much: a process that is refused because of that checks the
	 * files itself. */
	r = ledger_write(ledger, used + bytes);
	if (!r)
		r = create_file(&file, dir);
	if (r < 0) {
		ledger_write(ledger, used);
		return r;
	}
	*ret = file;
	return 0;
}

int vram_open(const struct vram_file *file)
{
	auto_close int dir = open_gpu_dir(file->gpu);
	auto_close int fd = dir < 0 ? dir : openat(dir, file->name, O_RDWR | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = lock_file(fd, LOCK_SH);
	return r < 0 ? r : take_fd(&fd);
}

int vram_find(struct vram_file *ret, int gpu, const char *name)
{
	auto_close int dir = open_gpu_dir(gpu);
	auto_close int ledger = dir < 0 ? dir : open_ledger(dir);
	struct vram_file file = { .gpu = gpu };
	struct stat st;
	int r;

	if (ledger < 0)
		return ledger;
	if (!*name || strlen(name) >= sizeof(file.name) || strchr(name, '/') || *name == '.' ||
	    held_or_removed(dir, name, &st) != HELD)
		return -ENOENT;
	strcpy(file.name, name);
	file.bytes = (uint64_t)st.st_size;

	auto_close int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	r = fd < 0 ? -errno : hold(&file, fd);
	if (!r)
		*ret = file;
	return r;
}

int vram_adopt(struct vram_file *ret, int fd)
{
	const struct config *config = config_get();
	char link[64], path[PATH_MAX], name[VRAM_NAME_BYTES];
	size_t dir_len = strlen(config->dir);
	struct stat mine, theirs;
	struct vram_file file;
	unsigned int gpu;
	ssize_t n;
	int r;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return -EINVAL;
	path[n] = '\0';
	if (strncmp(path, config->dir, dir_len) ||
	    sscanf(path + dir_len, "/gpu%u/%47[0-9-]", &gpu, name) != 2 ||
	    gpu >= config->machine.n_gpus)
		return -EINVAL;
	r = vram_find(&file, (int)gpu, name);
	if (r < 0)
		return r == -ENOENT ? -EINVAL : r;
	snprintf(path, sizeof(path), "%s/gpu%u/%s", config->dir, gpu, name);
	if (fstat(fd, &theirs) < 0 || stat(path, &mine) < 0 || mine.st_ino != theirs.st_ino ||
	    mine.st_dev != theirs.st_dev) {
		vram_drop(&file);
		return -EINVAL;
	}
	*ret = file;
	return 0;
}

void vram_drop(struct vram_file *file)
{
	struct stat st;

	if (!file->holder)
		return;
	munmap(file->holder, HOLDER_BYTES);
	file->holder = NULL;

	auto_close int dir = open_gpu_dir(file->gpu);
	auto_close int ledger = dir < 0 ? dir : open_ledger(dir);

	/* Gone: another process that checked for dead holders was faster, and has corrected the ledger. */
	if (ledger >= 0 && held_or_removed(dir, file->name, &st) == REMOVED) {
		uint64_t used = ledger_read(ledger);

		ledger_write(ledger, used > file->bytes ? used - file->bytes : 0);
	}
}
