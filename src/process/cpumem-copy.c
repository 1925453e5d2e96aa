// SPDX-License-Identifier: MIT
/*
 * Bytes out of frozen processes. A page that was never touched is not read: what is sparse stays so. The
 * copy is in huge pages where it is dense, into which the kernel copies without one of ours between.
 */
#include "process/cpumem-private.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/huge-pages.h"
#include "base/machine.h"

#define PIECE_BYTES_MAX (64ull << 20)

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

static unsigned threads_for(unsigned wanted)
{
	return MIN(wanted ? wanted : machine_cores(), CPUMEM_THREADS_MAX);
}

int cpumem_run(size_t n, unsigned threads, cpumem_piece_fn fn, void *arg)
{
	struct work w = { .n = n, .fn = fn, .arg = arg };
	pthread_t others[CPUMEM_THREADS_MAX];
	unsigned started = 0;
	unsigned want = (unsigned)MIN(threads_for(threads), n);

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
	char *map; /* of it all; NULL: not to be had */
	uint64_t piece_bytes;
	struct huge_pages_luck luck;
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

/* Pages that are there, in pages of the file's own as they are needed. */
static int copy_small(const struct copy *c, const struct cpumem_region *r, uint64_t base,
		      uint64_t at, uint64_t end, void *buf)
{
	uint64_t page = page_bytes();
	int e = 0;

	while (e == 0 && at < end) {
		uint64_t stop = run_end(r->present, at / page, end / page) * page;

		if (cpumem_page_is_set(r->present, at / page))
			e = copy_run(c, r, base, at, stop, buf);
		at = stop;
	}
	return e;
}

/* True if the file has huge pages now for what is at @at. */
static bool make_huge(struct copy *c, uint64_t at, uint64_t len_bytes)
{
	if (!c->map || !huge_pages_pay(&c->luck))
		return false;
	uint64_t start_ns = huge_pages_start();
	int r = huge_pages_populate(c->map + at, (size_t)len_bytes);
	huge_pages_note(&c->luck, (size_t)len_bytes, r, start_ns);
	return r == 0;
}

/* Few pages of it are not there: no more of the file's memory goes to waste than that. */
static bool is_dense(const struct cpumem_region *r, uint64_t at)
{
	uint64_t page = page_bytes(), n = HUGE_PAGE_BYTES / page, there = 0;

	for (uint64_t i = at / page; i < at / page + n; i += 64)
		there += (uint64_t)__builtin_popcountll(r->present[i / 64]);
	return there >= n - n / CPUMEM_SPARE_PART;
}

static int copy_block(const struct copy *c, const struct cpumem_region *r, uint64_t base,
		      uint64_t at, uint64_t end)
{
	return cpumem_read((void *)(uintptr_t)r, at, c->map + base + at, (size_t)(end - at));
}

/* The blocks from @at on that are alike dense or not, before @end. */
static uint64_t dense_end(const struct cpumem_region *r, uint64_t at, uint64_t end, bool *ret_dense)
{
	*ret_dense = is_dense(r, at);
	while (at < end && is_dense(r, at) == *ret_dense)
		at += HUGE_PAGE_BYTES;
	return at;
}

static size_t pieces_of(const struct copy *c, const struct cpumem_region *r)
{
	return (size_t)((r->len_bytes + c->piece_bytes - 1) / c->piece_bytes);
}

/* Pieces are numbered through all regions; @ret_base is where the region stands in the file. */
static const struct cpumem_region *find_piece(const struct copy *c, size_t *i, uint64_t *ret_base)
{
	const struct cpumem_region *r = c->m->items;

	*ret_base = 0;
	for (size_t n; *i >= (n = pieces_of(c, r)); r++) {
		*i -= n;
		*ret_base += r->len_bytes;
	}
	return r;
}

static int copy_piece(void *arg, size_t i, void *buf)
{
	struct copy *c = arg;
	uint64_t base;
	const struct cpumem_region *r = find_piece(c, &i, &base);
	uint64_t start = i * c->piece_bytes, at = start;
	uint64_t end = MIN(start + c->piece_bytes, r->len_bytes);
	int e = 0;

	while (e == 0 && at < end) {
		bool dense;
		uint64_t stop = dense_end(r, at, end, &dense);

		e = dense && make_huge(c, base + at, stop - at)
			    ? copy_block(c, r, base, at, stop)
			    : copy_small(c, r, base, at, stop, buf);
		at = stop;
	}
	uint64_t done = atomic_fetch_add(&c->done_bytes, end - start) + end - start;
	return e == 0 && c->progress ? c->progress(c->arg, done) : e;
}

/* Long enough that a call for huge pages pays, short enough that all threads have some. */
static uint64_t choose_piece(uint64_t len_bytes, unsigned threads)
{
	uint64_t piece = len_bytes / threads_for(threads) / 4;

	piece -= piece % HUGE_PAGE_BYTES;
	return MIN(MAX(piece, (uint64_t)HUGE_PAGE_BYTES), PIECE_BYTES_MAX);
}

int cpumem_copy_out(const struct cpumem *m, int fd, unsigned threads, cpumem_progress_fn progress,
		    void *arg, struct brumate_error *err)
{
	struct copy c = { .m = m, .fd = fd, .progress = progress, .arg = arg };
	size_t pieces = 0;

	if (ftruncate(fd, (off_t)m->len_bytes) < 0)
		return brumate_fail(err, errno, "room for %llu MB of the job's memory: %m",
				    (unsigned long long)m->len_bytes / 1000000);
	c.map = m->len_bytes ? huge_pages_map(fd, 0, m->len_bytes, PROT_READ | PROT_WRITE) : NULL;
	c.piece_bytes = choose_piece(m->len_bytes, threads);
	for (size_t i = 0; i < m->n; i++)
		pieces += pieces_of(&c, &m->items[i]);
	int r = cpumem_run(pieces, threads, copy_piece, &c);
	if (c.map)
		munmap(c.map, m->len_bytes);
	return r < 0 ? brumate_fail(err, -r, "copying the job's memory: %m") : 0;
}
