// SPDX-License-Identifier: MIT
/*
 * The bytes of CPU memory: read from frozen processes, written into restored ones. Pages that were never touched are
 * not read, and pages of zeros are not written, so sparse memory stays sparse. A copy is private memory of ours,
 * because threads that fill one file would wait for each other's pages. Dense parts of it are in huge pages, and the
 * kernel copies directly into it.
 */
#include "cpumem/cpu-memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/huge-pages.h"
#include "base/user.h"
#include "base/workers.h"

enum {
	THREADS_MAX = 32,
	SPARE_PART = 8,		 /* a huge page for what lacks at most one small page in so many */
	HUGE_RUNS_MAX = 1 << 14, /* each is a mapping or two; the kernel allows a process 65530 */
	TOUCHES_MAX = 64,
};
#define PIECE_BYTES_MAX (64ull << 20)

/* A core needs at least that long to be given small pages, cleared, for as much as a huge one. */
#define SMALL_PAGES_NS 700000

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned threads_for(unsigned wanted)
{
	return wanted ? MIN(wanted, THREADS_MAX) : workers_cores(THREADS_MAX);
}

/* ---- whose memory ---- */

int cpu_memory_open(pid_t pid, int pidfd, int flags, const struct criu_user *user,
		    struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files entered = USER_FILES_NONE;
	char path[64];
	int r = user ? user_files_enter(&entered, user->uid, user->gid, err) : 0;

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	auto_close int fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno == ENOENT ? ESRCH : errno,
				    "process %d: its memory cannot be opened: %m", pid);
	if (pidfd >= 0 && !proc_has_number(pidfd))
		return brumate_fail(err, ESRCH, "process %d: %m", pid);
	return take_fd(&fd);
}

/* ---- out ---- */

static bool page_is_set(const uint64_t *bits, uint64_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}

/* The end of the run of pages from @page on, at most @end, that are all there or all absent. */
static uint64_t run_end(const uint64_t *present, uint64_t page, uint64_t end)
{
	bool first = page_is_set(present, page);

	while (page < end && page_is_set(present, page) == first)
		page++;
	return page;
}

static ssize_t read_some(const struct cpu_memory_region *r, uint64_t va, void *buf,
			 size_t len_bytes)
{
	struct iovec local = { buf, len_bytes };
	struct iovec remote = { (void *)(uintptr_t)va, len_bytes };

	if (r->mem_fd >= 0)
		return pread(r->mem_fd, buf, len_bytes, (off_t)va);
	return process_vm_readv(r->pid, &local, 1, &remote, 1, 0);
}

static int read_memory(const struct cpu_memory_region *r, uint64_t va, void *buf, size_t len_bytes)
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

int cpu_memory_read(void *arg, uint64_t offset, void *buf, size_t len_bytes)
{
	const struct cpu_memory_region *r = arg;
	uint64_t page = page_bytes(), end = offset + len_bytes;
	char *to = buf;

	if (end > r->len_bytes || end < offset || (offset | len_bytes) % page)
		return -ERANGE;
	while (offset < end) {
		uint64_t stop = run_end(r->present, offset / page, end / page) * page;
		size_t len = (size_t)(stop - offset);
		int e = 0;

		if (page_is_set(r->present, offset / page))
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

/* ---- a copy ---- */

int cpu_memory_copy_reserve(struct cpu_memory_copy *ret, const struct cpu_memory *m)
{
	struct cpu_memory_copy c = { .bytes = huge_pages_reserve(m->len_bytes) };

	if (!c.bytes)
		return -errno;
	c.len_bytes = m->len_bytes;
	if (mprotect(c.bytes, c.len_bytes, PROT_READ | PROT_WRITE) < 0) {
		int r = -errno;

		cpu_memory_copy_fini(&c);
		return r;
	}
	/* Exclude it from forks and core dumps. If all memory gets huge pages automatically, sparse memory would
	 * become dense; a kernel without huge pages does not know MADV_NOHUGEPAGE. */
	madvise(c.bytes, c.len_bytes, MADV_DONTFORK);
	madvise(c.bytes, c.len_bytes, MADV_DONTDUMP);
	madvise(c.bytes, c.len_bytes, MADV_NOHUGEPAGE);
	*ret = c;
	return 0;
}

void cpu_memory_copy_fini(struct cpu_memory_copy *c)
{
	if (c->bytes)
		munmap(c->bytes, c->len_bytes);
	*c = CPU_MEMORY_COPY_EMPTY;
}

struct copying {
	const struct cpu_memory *m;
	char *bytes;
	uint64_t piece_bytes;
	struct huge_pages_luck luck;
	atomic_uint runs; /* made huge pages */
	cpu_memory_progress_fn progress;
	void *arg;
	_Atomic uint64_t done_bytes;
};

/* Copies the pages that are there straight to @to, which has zeros for the others. */
static int copy_pages(const struct cpu_memory_region *r, char *to, uint64_t at, uint64_t end)
{
	uint64_t page = page_bytes();
	int e = 0;

	while (e == 0 && at < end) {
		uint64_t stop = run_end(r->present, at / page, end / page) * page;

		if (page_is_set(r->present, at / page))
			e = read_memory(r, r->va + at, to, (size_t)(stop - at));
		to += stop - at;
		at = stop;
	}
	return e;
}

/* Touches each huge page just before filling it, so that what the kernel cleared is still in the core's cache. */
static int copy_huge(struct copying *c, const struct cpu_memory_region *r, char *to, uint64_t at,
		     uint64_t end)
{
	int e = 0;

	for (; e == 0 && at < end; at += HUGE_PAGE_BYTES, to += HUGE_PAGE_BYTES) {
		uint64_t start_ns = huge_pages_start();

		*(volatile char *)to = 0;
		huge_pages_note(&c->luck, HUGE_PAGE_BYTES, 0, start_ns);
		e = copy_pages(r, to, at, at + HUGE_PAGE_BYTES);
	}
	return e;
}

/* Asks for huge pages at @to, unless the kernel is slow to give them, or mappings become too many. */
static bool ask_for_huge(struct copying *c, char *to, uint64_t len_bytes)
{
	return huge_pages_pay(&c->luck) && atomic_fetch_add(&c->runs, 1) < HUGE_RUNS_MAX &&
	       madvise(to, len_bytes, MADV_HUGEPAGE) == 0;
}

/* Whether few pages of a huge page are absent: only their memory is wasted. */
static bool is_dense(const struct cpu_memory_region *r, uint64_t at)
{
	uint64_t page = page_bytes(), n = HUGE_PAGE_BYTES / page, there = 0;

	for (uint64_t i = at / page; i < at / page + n; i += 64)
		there += (uint64_t)__builtin_popcountll(r->present[i / 64]);
	return there >= n - n / SPARE_PART;
}

/* The end of the huge pages from @at on, at most @end, that are all dense or all sparse. */
static uint64_t dense_end(const struct cpu_memory_region *r, uint64_t at, uint64_t end,
			  bool *ret_dense)
{
	*ret_dense = is_dense(r, at);
	while (at < end && is_dense(r, at) == *ret_dense)
		at += HUGE_PAGE_BYTES;
	return at;
}

static size_t pieces_of(const struct copying *c, const struct cpu_memory_region *r)
{
	return (size_t)((r->len_bytes + c->piece_bytes - 1) / c->piece_bytes);
}

/* Pieces are numbered through all regions; @ret_base is where the region stands in the copy. */
static const struct cpu_memory_region *find_piece(const struct copying *c, size_t *i,
						  uint64_t *ret_base)
{
	const struct cpu_memory_region *r = c->m->items;

	*ret_base = 0;
	for (size_t n; *i >= (n = pieces_of(c, r)); r++) {
		*i -= n;
		*ret_base += r->len_bytes;
	}
	return r;
}

static int copy_piece(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	struct copying *c = arg;
	uint64_t base;
	const struct cpu_memory_region *r = find_piece(c, &i, &base);
	uint64_t start = i * c->piece_bytes, at = start;
	uint64_t end = MIN(start + c->piece_bytes, r->len_bytes);
	int e = 0;

	while (e == 0 && at < end) {
		bool dense;
		uint64_t stop = dense_end(r, at, end, &dense);
		char *to = c->bytes + base + at;

		e = dense && ask_for_huge(c, to, stop - at) ? copy_huge(c, r, to, at, stop)
							    : copy_pages(r, to, at, stop);
		at = stop;
	}
	uint64_t done = atomic_fetch_add(&c->done_bytes, end - start) + end - start;
	return e == 0 && c->progress ? c->progress(c->arg, done) : e;
}

/* Long enough that asking for huge pages costs nothing, short enough that all threads have some. */
static uint64_t choose_piece(uint64_t len_bytes, unsigned threads)
{
	uint64_t piece = len_bytes / threads_for(threads) / 4;

	piece -= piece % HUGE_PAGE_BYTES;
	return MIN(MAX(piece, (uint64_t)HUGE_PAGE_BYTES), PIECE_BYTES_MAX);
}

int cpu_memory_copy_out(const struct cpu_memory *m, const struct cpu_memory_copy *to,
			unsigned threads, cpu_memory_progress_fn progress, void *arg,
			struct brumate_error *err)
{
	struct copying c = {
		.m = m,
		.bytes = to->bytes,
		.luck = { .slow_ns = SMALL_PAGES_NS },
		.progress = progress,
		.arg = arg,
	};
	size_t pieces = 0;

	c.piece_bytes = choose_piece(m->len_bytes, threads);
	for (size_t i = 0; i < m->n; i++)
		pieces += pieces_of(&c, &m->items[i]);
	const struct workers_items items = { pieces, threads_for(threads), copy_piece, &c };
	int r = workers_run(&items, NULL);
	return r < 0 ? brumate_fail(err, -r, "copying the job's memory: %m") : 0;
}

/* ---- in ---- */

static ssize_t write_some(const struct cpu_memory_target *t, uint64_t va, const void *buf,
			  size_t len_bytes)
{
	struct iovec local = { (void *)(uintptr_t)buf, len_bytes };
	struct iovec remote = { (void *)(uintptr_t)va, len_bytes };

	if (t->mem_fd >= 0)
		return pwrite(t->mem_fd, buf, len_bytes, (off_t)va);
	return process_vm_writev(t->pid, &local, 1, &remote, 1, 0);
}

static int write_memory(const struct cpu_memory_target *t, uint64_t va, const void *buf,
			size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = write_some(t, va, buf, len_bytes);

		if (n <= 0)
			return n < 0 ? -errno : -EFAULT;
		buf = (const char *)buf + n;
		va += (uint64_t)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

/* The length of the run of pages at @p that are all zeros or all not; the last page may be short. */
static size_t zero_run(const char *p, size_t len_bytes, bool *ret_zero)
{
	size_t page = (size_t)page_bytes(), at = MIN(page, len_bytes);

	*ret_zero = chunk_is_zero(p, at);
	while (at < len_bytes && chunk_is_zero(p + at, MIN(page, len_bytes - at)) == *ret_zero)
		at += MIN(page, len_bytes - at);
	return at;
}

int cpu_memory_write(void *target, uint64_t offset, const void *data, size_t len_bytes)
{
	const struct cpu_memory_target *t = target;
	const char *p = data;
	bool zero;

	if (offset > t->len_bytes || len_bytes > t->len_bytes - offset)
		return -ERANGE;
	while (p && len_bytes) {
		size_t len = zero_run(p, len_bytes, &zero);
		int r = zero ? 0 : write_memory(t, t->va + offset, p, len);

		if (r < 0)
			return r;
		p += len;
		offset += len;
		len_bytes -= len;
	}
	return 0;
}

/* ---- huge pages for what is written ---- */

struct huge_work {
	const struct cpu_memory_range *ranges;
	struct huge_pages_luck luck;
};

static int touch_by_file(const struct cpu_memory_range *range)
{
	for (uint64_t at = 0; at < range->len_bytes; at += HUGE_PAGE_BYTES)
		if (pwrite(range->mem_fd, "", 1, (off_t)(range->va + at)) != 1)
			return -EFAULT;
	return 0;
}

/* Writes a zero byte to each huge page, because the kernel makes no huge page of nothing. */
static int touch_pages(const struct cpu_memory_range *range)
{
	static const char zeros[TOUCHES_MAX];
	struct iovec remote[TOUCHES_MAX];
	uint64_t at = 0;

	if (range->mem_fd >= 0)
		return touch_by_file(range);
	while (at < range->len_bytes) {
		unsigned long n = 0;

		for (; n < TOUCHES_MAX && at < range->len_bytes; at += HUGE_PAGE_BYTES)
			remote[n++] = (struct iovec){ (void *)(uintptr_t)(range->va + at), 1 };
		struct iovec local = { (void *)(uintptr_t)zeros, n };
		if (process_vm_writev(range->pid, &local, 1, remote, n, 0) != (ssize_t)n)
			return -EFAULT;
	}
	return 0;
}

/* Makes one range huge pages. It does not matter where there are none to be had. */
static int make_huge(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	struct huge_work *w = arg;
	const struct cpu_memory_range *range = &w->ranges[i];

	if (!huge_pages_pay(&w->luck))
		return 0;
	uint64_t start_ns = huge_pages_start();
	int r = touch_pages(range);
	if (r == 0)
		r = huge_pages_collapse(range->pidfd, range->va, (size_t)range->len_bytes);
	huge_pages_note(&w->luck, (size_t)range->len_bytes, r, start_ns);
	return 0;
}

void cpu_memory_make_huge(const struct cpu_memory_range *ranges, size_t n, unsigned threads)
{
	struct huge_work w = { .ranges = ranges, .luck = { .slow_ns = SMALL_PAGES_NS } };
	const struct workers_items items = { n, threads_for(threads), make_huge, &w };

	workers_run(&items, NULL);
}
