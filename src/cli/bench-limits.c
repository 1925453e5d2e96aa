// SPDX-License-Identifier: MIT
/* What the machine's memory and disk can do. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/paths.h"

enum { THREADS_MAX = 8, ROUNDS = 3 };

#define MEMORY_BYTES (64ull << 20)   /* of each thread */
#define FILE_BYTES   (1024ull << 20) /* in all */
#define BLOCK_BYTES  (16ull << 20)

struct worker {
	pthread_t thread;
	char *from, *to;
	int fd, r;
	bool writes;
	uint64_t first, step; /* blocks first, first + step … of the file */
};

unsigned bench_threads(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (unsigned)n;
}

static void *copy_memory(void *arg)
{
	struct worker *w = arg;

	memcpy(w->to, w->from, MEMORY_BYTES);
	return NULL;
}

static void *move_blocks(void *arg)
{
	struct worker *w = arg;

	for (uint64_t i = w->first; i * BLOCK_BYTES < FILE_BYTES; i += w->step) {
		off_t at = (off_t)(i * BLOCK_BYTES);
		ssize_t n = w->writes ? pwrite(w->fd, w->from, BLOCK_BYTES, at)
				      : pread(w->fd, w->from, BLOCK_BYTES, at);

		if (n != (ssize_t)BLOCK_BYTES) {
			w->r = n < 0 ? -errno : -EIO;
			return NULL;
		}
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
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t))
		*(uint64_t *)(p + i) =
			i * 0x9e3779b97f4a7c15u; /* nothing that a disk could shrink */
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

int bench_measure_disk(struct bench_limits *limits, const char *dir, struct brumate_error *err)
{
	struct worker workers[THREADS_MAX] = { 0 };
	unsigned n = bench_threads() < 4 ? bench_threads() : 4;
	auto_free char *path = path_format("%s/.bench.%d", dir, (int)getpid());
	char *memory = map_touched(BLOCK_BYTES * n);

	if (!path || !memory)
		return brumate_fail(err, ENOMEM, "%m");
	auto_close int fd = open_file(path);
	if (fd < 0) {
		munmap(memory, BLOCK_BYTES * n);
		return brumate_fail(err, -fd, "%s: %m", path);
	}
	unlink(path);
	for (unsigned i = 0; i < n; i++)
		workers[i] = (struct worker){ .from = memory + i * BLOCK_BYTES,
					      .fd = fd,
					      .writes = true,
					      .first = i,
					      .step = n };
	double out = run_workers(workers, n, move_blocks), in = -1;
	if (out >= 0 && fdatasync(fd) == 0) {
		for (unsigned i = 0; i < n; i++)
			workers[i].writes = false;
		in = run_workers(workers, n, move_blocks);
	}
	munmap(memory, BLOCK_BYTES * n);
	if (out < 0 || in < 0)
		return brumate_fail(err, EIO, "%s: could not be written and read", dir);
	limits->disk_write = (double)FILE_BYTES / out;
	limits->disk_read = (double)FILE_BYTES / in;
	return 0;
}
