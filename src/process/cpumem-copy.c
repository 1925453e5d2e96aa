// SPDX-License-Identifier: MIT
/*
 * Bytes out of frozen processes and into restored ones. A page that was never touched is neither read
 * nor written: what is sparse stays so.
 */
#include "process/cpumem-private.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/param.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/chunk.h"

#define PIECE_BYTES (1ull << 20)

/* ---- threads ---- */

struct work {
	size_t n;
	cpumem_piece_fn fn;
	void *arg;
	atomic_size_t next;
	atomic_int failure;
};

static void *worker(void *arg)
{
	struct work *w = arg;
	auto_free void *buf = malloc(CPUMEM_BUFFER_BYTES);
	int r = buf ? 0 : -ENOMEM;

	while (r == 0 && !atomic_load(&w->failure)) {
		size_t i = atomic_fetch_add(&w->next, 1);

		if (i >= w->n)
			return NULL;
		r = w->fn(w->arg, i, buf);
	}
	int none = 0;
	if (r < 0)
		atomic_compare_exchange_strong(&w->failure, &none, r);
	return NULL;
}

static unsigned threads_for(unsigned wanted, size_t n)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	size_t threads = wanted ? wanted : (size_t)MAX(cores, 1);

	return (unsigned)MIN(MIN(threads, n), (size_t)CPUMEM_THREADS_MAX);
}

int cpumem_run(size_t n, unsigned threads, cpumem_piece_fn fn, void *arg)
{
	struct work w = { .n = n, .fn = fn, .arg = arg };
	pthread_t others[CPUMEM_THREADS_MAX];
	unsigned started = 0, want = threads_for(threads, n);

	/* This thread works too: where none can be started, it does all. */
	while (started + 1 < want && pthread_create(&others[started], NULL, worker, &w) == 0)
		started++;
	worker(&w);
	for (unsigned i = 0; i < started; i++)
		pthread_join(others[i], NULL);
	return atomic_load(&w.failure);
}

/* ---- out ---- */

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The run of pages from @page on, before @end, that are alike there or alike absent. */
static uint64_t run_end(const uint64_t *present, uint64_t page, uint64_t end)
{
	bool first = cpumem_page_is_set(present, page);

	while (page < end && cpumem_page_is_set(present, page) == first)
		page++;
	return page;
}

static ssize_t read_some(const struct cpumem_region *r, uint64_t va, void *buf, size_t len_bytes)
{
	struct iovec local = { buf, len_bytes };
	struct iovec remote = { (void *)(uintptr_t)va, len_bytes };

	if (r->mem_fd >= 0)
		return pread(r->mem_fd, buf, len_bytes, (off_t)va);
	return process_vm_readv(r->pid, &local, 1, &remote, 1, 0);
}

static int read_memory(const struct cpumem_region *r, uint64_t va, void *buf, size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = read_some(r, va, buf, len_bytes);

		if (n <= 0)
			return n < 0 ? -errno : -EFAULT;
		buf = (char *)buf + n;
		va += (uint64_t)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

int cpumem_read(void *arg, uint64_t offset, void *buf, size_t len_bytes)
{
	const struct cpumem_region *r = arg;
	uint64_t page = page_bytes(), end = offset + len_bytes;
	char *to = buf;

	if (end > r->len_bytes || end < offset || (offset | len_bytes) % page)
		return -ERANGE;
	while (offset < end) {
		uint64_t stop = run_end(r->present, offset / page, end / page) * page;
		size_t len = (size_t)(stop - offset);
		int e = 0;

		if (cpumem_page_is_set(r->present, offset / page))
			e = read_memory(r, r->va + offset, to, len);
		else
			memset(to, 0, len);
		if (e < 0)
			return e;
		to += len;
		offset = stop;
	}
	return 0;
}

struct copy {
	const struct cpumem *m;
	int fd;
	cpumem_progress_fn progress;
	void *arg;
	_Atomic uint64_t done_bytes;
};

static int write_file(int fd, const void *buf, size_t len_bytes, uint64_t offset)
{
	while (len_bytes) {
		ssize_t n = pwrite(fd, buf, len_bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		buf = (const char *)buf + n;
		offset += (uint64_t)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

/* @from to @to are pages that are there, as many as fit into the buffer at a time. */
static int copy_run(const struct copy *c, const struct cpumem_region *r, uint64_t base,
		    uint64_t from, uint64_t to, void *buf)
{
	for (uint64_t at = from; at < to;) {
		size_t len = (size_t)MIN(to - at, CPUMEM_BUFFER_BYTES);
		int e = read_memory(r, r->va + at, buf, len);

		if (e < 0 ||
		    (!chunk_is_zero(buf, len) && (e = write_file(c->fd, buf, len, base + at)) < 0))
			return e;
		at += len;
	}
	return 0;
}

/* Pieces are numbered through all regions; @ret_base is where the region stands in the file. */
static const struct cpumem_region *find_piece(const struct cpumem *m, size_t *i, uint64_t *ret_base)
{
	const struct cpumem_region *r = m->items;

	*ret_base = 0;
	for (; *i >= r->len_bytes / PIECE_BYTES; r++) {
		*i -= (size_t)(r->len_bytes / PIECE_BYTES);
		*ret_base += r->len_bytes;
	}
	return r;
}

static int copy_piece(void *arg, size_t i, void *buf)
{
	struct copy *c = arg;
	uint64_t base, page = page_bytes();
	const struct cpumem_region *r = find_piece(c->m, &i, &base);
	uint64_t at = i * PIECE_BYTES, end = at + PIECE_BYTES;
	int e = 0;

	while (e == 0 && at < end) {
		uint64_t stop = run_end(r->present, at / page, end / page) * page;

		if (cpumem_page_is_set(r->present, at / page))
			e = copy_run(c, r, base, at, stop, buf);
		at = stop;
	}
	uint64_t done = atomic_fetch_add(&c->done_bytes, PIECE_BYTES) + PIECE_BYTES;
	return e == 0 && c->progress ? c->progress(c->arg, done) : e;
}

int cpumem_copy_out(const struct cpumem *m, int fd, unsigned threads, cpumem_progress_fn progress,
		    void *arg, struct brumate_error *err)
{
	struct copy c = { .m = m, .fd = fd, .progress = progress, .arg = arg };

	if (ftruncate(fd, (off_t)m->len_bytes) < 0)
		return brumate_fail(err, errno, "room for %llu MB of the job's memory: %m",
				    (unsigned long long)m->len_bytes / 1000000);
	int r = cpumem_run((size_t)(m->len_bytes / PIECE_BYTES), threads, copy_piece, &c);
	if (r < 0)
		brumate_fail(err, -r, "copying the job's memory: %m");
	return r;
}

/* ---- in ---- */

static int write_memory(pid_t pid, uint64_t va, const void *buf, size_t len_bytes)
{
	while (len_bytes) {
		struct iovec local = { (void *)(uintptr_t)buf, len_bytes };
		struct iovec remote = { (void *)(uintptr_t)va, len_bytes };
		ssize_t n = process_vm_writev(pid, &local, 1, &remote, 1, 0);

		if (n <= 0)
			return n < 0 ? -errno : -EFAULT;
		buf = (const char *)buf + n;
		va += (uint64_t)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

/* Length of the run of pages at @p that are alike zero or not; the last page may be short. */
static size_t zero_run(const char *p, size_t len_bytes, bool *ret_zero)
{
	size_t page = (size_t)page_bytes(), at = MIN(page, len_bytes);

	*ret_zero = chunk_is_zero(p, at);
	while (at < len_bytes && chunk_is_zero(p + at, MIN(page, len_bytes - at)) == *ret_zero)
		at += MIN(page, len_bytes - at);
	return at;
}

int cpumem_write(void *target, uint64_t offset, const void *data, size_t len_bytes)
{
	const struct cpumem_target *t = target;
	const char *p = data;
	bool zero;

	if (offset > t->len_bytes || len_bytes > t->len_bytes - offset)
		return -ERANGE;
	while (p && len_bytes) {
		size_t len = zero_run(p, len_bytes, &zero);
		int r = zero ? 0 : write_memory(t->pid, t->va + offset, p, len);

		if (r < 0)
			return r;
		p += len;
		offset += len;
		len_bytes -= len;
	}
	return 0;
}
