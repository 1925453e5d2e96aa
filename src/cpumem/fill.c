// SPDX-License-Identifier: MIT
/* Bytes into restored processes, and huge pages for them. */
#include "cpumem/private.h"

#include <errno.h>
#include <sys/param.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/huge-pages.h"

enum { TOUCHES_MAX = 64 };

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

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
	size_t page = page_bytes(), at = MIN(page, len_bytes);

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
		int r = zero ? 0 : write_memory(t->pid, t->va + offset, p, len);

		if (r < 0)
			return r;
		p += len;
		offset += len;
		len_bytes -= len;
	}
	return 0;
}

/* ---- huge pages ---- */

struct huge_work {
	const struct cpu_memory_range *ranges;
	struct huge_pages_luck luck;
};

/* A byte of each: of nothing no huge page is made. */
static int touch(const struct cpu_memory_range *range)
{
	static const char zeros[TOUCHES_MAX];
	struct iovec remote[TOUCHES_MAX];
	uint64_t at = 0;

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

/* What is not to be had does not matter. */
static int make_huge(void *arg, size_t i, void *buf)
{
	struct huge_work *w = arg;
	const struct cpu_memory_range *range = &w->ranges[i];

	if (!huge_pages_pay(&w->luck))
		return 0;
	uint64_t start_ns = huge_pages_start();
	int r = touch(range);
	if (r == 0)
		r = huge_pages_collapse(range->pidfd, range->va, (size_t)range->len_bytes);
	huge_pages_note(&w->luck, (size_t)range->len_bytes, r, start_ns);
	return 0;
}

void cpu_memory_make_huge(const struct cpu_memory_range *ranges, size_t n, unsigned threads)
{
	struct huge_work w = { .ranges = ranges, .luck = { .slow_ns = CPU_MEMORY_SMALL_PAGES_NS } };

	if (n)
		cpu_memory_run(n, threads, make_huge, &w);
}
