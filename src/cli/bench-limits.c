// SPDX-License-Identifier: MIT
/* What the machine's memory and disk can do. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/machine.h"
#include "base/paths.h"

enum { THREADS_MAX = 8, DEPTH = 16, ROUNDS = 3, PAGE_BYTES = 4096 };

#define MEMORY_BYTES   (64ull << 20) /* of each thread */
#define FILE_BYTES_MAX (16ull << 30)
#define BLOCK_BYTES    (2ull << 20)
#define DISK_TIME_NS   (3 * NS_PER_S) /* each way */

/* Blocks of a file, one after the other, each by the thread that is free. */
struct blocks {
	int fd;
	bool writes;
	uint64_t n, deadline_ns;
	atomic_uint_fast64_t next, done;
};

struct worker {
	pthread_t thread;
	char *from, *to;
	struct blocks *blocks;
	int r;
};

unsigned bench_threads(void)
{
	unsigned n = machine_cores();

	return n > THREADS_MAX ? THREADS_MAX : n;
}

static void *copy_memory(void *arg)
{
	struct worker *w = arg;

	memcpy(w->to, w->from, MEMORY_BYTES);
	return NULL;
}

/* No two blocks are the same: nothing that a disk could store once. */
static void stamp(char *block, uint64_t number)
{
	for (size_t at = 0; at < BLOCK_BYTES; at += PAGE_BYTES)
		*(uint64_t *)(block + at) += number * (BLOCK_BYTES / PAGE_BYTES) + 1;
}

static void *move_blocks(void *arg)
{
	struct worker *w = arg;
	struct blocks *b = w->blocks;
	uint64_t i;

	while (clock_now_ns() < b->deadline_ns && (i = atomic_fetch_add(&b->next, 1)) < b->n) {
		off_t at = (off_t)(i * BLOCK_BYTES);

		if (b->writes)
			stamp(w->from, i);
		ssize_t n = b->writes ? pwrite(b->fd, w->from, BLOCK_BYTES, at)
				      : pread(b->fd, w->from, BLOCK_BYTES, at);
		if (n != (ssize_t)BLOCK_BYTES) {
			w->r = n < 0 ? -errno : -EIO;
			return NULL;
		}
		atomic_fetch_add(&b->done, 1);
	}
	return NULL;
}

/* Runs all workers at once: seconds, or <0. */
static double run_workers(struct worker *workers, unsigned n, void *(*run)(void *))
{
	uint64_t start_ns = clock_now_ns();
	unsigned started = 0;
	int r = 0;

	while (started < n && !r) {
		r = -pthread_create(&workers[started].thread, NULL, run, &workers[started]);
		started += !r;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(workers[i].thread, NULL);
		if (!r)
			r = workers[i].r;
	}
	return r < 0 ? r : clock_since_s(start_ns);
}

static void *map_touched(size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t z = i * 0x9e3779b97f4a7c15u; /* nothing that a disk could shrink */

		*(uint64_t *)(p + i) = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	}
	return p;
}

int bench_measure_memcpy(struct bench_limits *limits, struct brumate_error *err)
{
	struct worker workers[THREADS_MAX] = { 0 };
	unsigned n = bench_threads();
	char *memory = map_touched(2 * n * MEMORY_BYTES);
	double best = 0;

	if (!memory)
		return brumate_fail(err, ENOMEM, "memory to measure copies with: %m");
	for (unsigned i = 0; i < n; i++) {
		workers[i].from = memory + 2 * i * MEMORY_BYTES;
		workers[i].to = workers[i].from + MEMORY_BYTES;
	}
	for (int i = 0; i < ROUNDS; i++) {
		double seconds = run_workers(workers, n, copy_memory);

		if (seconds > 0 && (!best || seconds < best))
			best = seconds;
	}
	munmap(memory, 2 * n * MEMORY_BYTES);
	if (best > 0)
		limits->memcpy_all = (double)(n * MEMORY_BYTES) / best;
	return 0;
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);

	if (fd < 0 && errno == EINVAL)
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* All blocks, or as many as there is time for: bytes per second in *ret, and the blocks that were moved.
 * Writes count when they are on the disk. */
static int measure_way(double *ret, uint64_t *ret_blocks, struct worker *workers, struct blocks *b)
{
	uint64_t start_ns = clock_now_ns();

	b->deadline_ns = start_ns + DISK_TIME_NS;
	for (unsigned i = 0; i < DEPTH; i++)
		workers[i] = (struct worker){ .from = workers[i].from, .blocks = b };
	double seconds = run_workers(workers, DEPTH, move_blocks);
	if (seconds < 0)
		return (int)seconds;
	if (b->writes && fdatasync(b->fd) < 0)
		return -errno;
	*ret_blocks = atomic_load(&b->done);
	*ret = (double)(*ret_blocks * BLOCK_BYTES) / clock_since_s(start_ns);
	return 0;
}

static int measure_file(struct bench_limits *limits, int fd, uint64_t n)
{
	struct worker workers[DEPTH] = { 0 };
	struct blocks out = { .fd = fd, .writes = true, .n = n }, in = { .fd = fd };
	char *memory = map_touched(DEPTH * BLOCK_BYTES);
	uint64_t read;

	if (!memory)
		return -ENOMEM;
	for (unsigned i = 0; i < DEPTH; i++)
		workers[i].from = memory + i * BLOCK_BYTES;
	/* As a store does it; where it cannot be done, the file grows as it is written. */
	(void)!fallocate(fd, 0, 0, (off_t)(n * BLOCK_BYTES));
	int r = measure_way(&limits->disk_write, &in.n, workers, &out);
	if (r == 0) {
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* of use without O_DIRECT only */
		r = measure_way(&limits->disk_read, &read, workers, &in);
	}
	munmap(memory, DEPTH * BLOCK_BYTES);
	return r;
}

int bench_measure_disk(struct bench_limits *limits, const char *dir, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/.bench.%d", dir, (int)getpid());
	struct statvfs fs;

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	auto_close int fd = open_file(path);
	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", path);
	unlink(path);
	if (fstatvfs(fd, &fs) < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	uint64_t room = fs.f_bavail * fs.f_frsize / 2;
	uint64_t n = (room < FILE_BYTES_MAX ? room : FILE_BYTES_MAX) / BLOCK_BYTES;
	int r = n ? measure_file(limits, fd, n) : -ENOSPC;
	return r < 0 ? brumate_fail(err, -r, "%s: could not be written and read: %m", dir) : 0;
}
