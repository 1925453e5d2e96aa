// SPDX-License-Identifier: MIT
/* Turns of jobs that wait for device memory. See turn.h. */
#include "engine/turn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/paths.h"

/* A job that has waited for so long counts as one of the next higher priority. */
/* One that has not looked for so long stands still, or is busy with coming back: others do not wait for it. */
enum { STALE_S = 30 };
enum { AGES_S = 30, GPUS_BYTES_MAX = MANIFEST_UUID_BYTES * MANIFEST_GPUS_MAX };

static char *turns_dir(void)
{
	return path_format("%s/turns", path_runtime_dir());
}

/* PRIORITY-TIME-JOB. */
static bool parse_name(const char *name, long *ret_priority, uint64_t *ret_since_ns)
{
	int end = 0;

	return sscanf(name, "%ld_%" SCNu64 "_%n", ret_priority, ret_since_ns, &end) == 2 && end &&
	       job_id_is_valid(name + end);
}

static double weight(long priority, uint64_t since_ns, uint64_t now_ns)
{
	const uint64_t waited_ns = now_ns > since_ns ? now_ns - since_ns : 0;

	return (double)priority + (double)waited_ns / ((double)AGES_S * NS_PER_S);
}

int turn_compare(const char *name, const char *other, uint64_t now_ns)
{
	long priority[2];
	uint64_t since_ns[2];

	if (!parse_name(name, &priority[0], &since_ns[0]) ||
	    !parse_name(other, &priority[1], &since_ns[1]))
		return strcmp(name, other);
	const double a = weight(priority[0], since_ns[0], now_ns),
		     b = weight(priority[1], since_ns[1], now_ns);

	return a > b ? -1 : a < b ? 1 : strcmp(name, other);
}

static int write_gpus(int fd, const struct job *job)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < job->n_gpus; i++)
		if (job->gpus[i].bytes && dprintf(fd, "%s\n", job->gpus[i].uuid) < 0)
			r = -errno;
	return r;
}

/* Under its own name the file is locked from the beginning: one that is not is of a holder that has died. Returns its descriptor. */
static int make_file(const char *dir, const char *path, const struct job *job)
{
	auto_free char *unlocked = path_format("%s/.%s", dir, job->id);

	if (!unlocked)
		return -ENOMEM;
	unlink(unlocked); /* of a shim that was killed here */
	auto_close int fd = open(unlocked, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : write_gpus(fd, job);
	if (r == 0 && rename(unlocked, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(unlocked);
	return r < 0 ? r : take_fd(&fd);
}

static int take_turn(struct room_turn *turn, const struct job *job, int priority, uint64_t since_ns)
{
	auto_free char *dir = turns_dir();
	auto_free char *path = NULL;

	if (turn->path)
		return 0;
	if (dir)
		path = path_format("%s/%d_%" PRIu64 "_%s", dir, priority, since_ns, job->id);
	if (!path)
		return -ENOMEM;
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	int fd = make_file(dir, path, job);
	if (fd < 0)
		return fd;
	*turn = (struct room_turn){ take_ptr(&path), fd };
	return 0;
}

int turn_take(struct room_turn *turn, const struct job *job, uint64_t since_ns)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	conf_load(&conf, NULL); /* a damaged file changes nothing: the record holds */
	return take_turn(turn, job, job_priority(job, &conf), since_ns);
}

/* Beyond what priorities and time come to. */
int turn_take_first(struct room_turn *turn, const struct job *job)
{
	return take_turn(turn, job, INT_MAX, clock_now_ns());
}

long turn_priority(const struct room_turn *turn, long otherwise)
{
	long priority;
	uint64_t since_ns;

	if (!turn->path || !parse_name(strrchr(turn->path, '/') + 1, &priority, &since_ns))
		return otherwise;
	return (long)weight(priority, since_ns, clock_now_ns());
}

/* One that nobody holds is removed: its holder has died. One that has no name any more was ended, and may have been taken again.
 * @now_s: when we looked last, by the clock of the same file system. */
static bool is_held(int dir_fd, const char *name, int64_t now_s, char *ret_gpus, size_t room)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret_gpus, room - 1);
	struct stat st;

	if (n < 0)
		return false;
	ret_gpus[n] = '\0';
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return fstat(fd, &st) < 0 || now_s - st.st_mtim.tv_sec < STALE_S;
	if (fstat(fd, &st) == 0 && st.st_nlink)
		unlinkat(dir_fd, name, 0);
	return false;
}

/* Lists of GPUs, one a line. One that says nothing may want any. */
static bool share_a_gpu(const char *ours, const char *theirs)
{
	auto_free char *copy = strdup(ours);
	char *rest = NULL;

	if (!*ours || !*theirs || !copy)
		return true;
	for (char *gpu = strtok_r(copy, "\n", &rest); gpu; gpu = strtok_r(NULL, "\n", &rest))
		if (strstr(theirs, gpu))
			return true;
	return false;
}

bool turn_is_first(const struct room_turn *turn)
{
	const char *own = turn->path ? strrchr(turn->path, '/') + 1 : "";
	auto_free char *dir_path = turns_dir();
	auto_closedir DIR *dir = dir_path ? dir_open(AT_FDCWD, dir_path) : NULL;
	char ours[GPUS_BYTES_MAX] = "", theirs[GPUS_BYTES_MAX];
	const uint64_t now_ns = clock_now_ns();
	struct dirent *entry;
	struct stat st;
	bool first = true;

	if (!turn->path || !dir || futimens(turn->fd, NULL) < 0 || fstat(turn->fd, &st) < 0 ||
	    pread(turn->fd, ours, sizeof(ours) - 1, 0) < 0)
		return true;
	while (first && dir_next(dir, &entry) > 0)
		if (*entry->d_name != '.' && turn_compare(entry->d_name, own, now_ns) < 0 &&
		    is_held(dirfd(dir), entry->d_name, st.st_mtim.tv_sec, theirs, sizeof(theirs)))
			first = !share_a_gpu(ours, theirs);
	return first;
}

uint64_t turn_since_ns(const char *job_id)
{
	auto_free char *dir_path = turns_dir();
	auto_closedir DIR *dir = dir_path ? dir_open(AT_FDCWD, dir_path) : NULL;
	char gpus[GPUS_BYTES_MAX];
	struct dirent *entry;

	while (dir && dir_next(dir, &entry) > 0) {
		const char *id = strrchr(entry->d_name, '_');
		uint64_t since_ns;
		long priority;

		if (id && !strcmp(id + 1, job_id) &&
		    parse_name(entry->d_name, &priority, &since_ns) &&
		    is_held(dirfd(dir), entry->d_name, 0, gpus, sizeof(gpus)))
			return since_ns;
	}
	return 0;
}

void turn_end(struct room_turn *turn)
{
	if (turn->path)
		unlink(turn->path);
	cleanup_free(&turn->path);
	cleanup_close(&turn->fd);
}
