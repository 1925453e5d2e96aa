// SPDX-License-Identifier: MIT
/* MADV_COLLAPSE, of our own memory and of another process's; see huge-pages.h. */
#include "base/huge-pages.h"
#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Missing in <linux/mman.h> of older systems. */
enum { POPULATE_WRITE = 23, COLLAPSE = 25 };

#define HUGE_MASK ((uintptr_t)HUGE_PAGE_BYTES - 1)

/* Populates one small page of each huge page, because the kernel does not collapse missing pages. Done by a system
 * call, which returns an error if there is no memory; touching the pages would end the process. */
static int touch_pages(char *p, size_t len_bytes)
{
	for (size_t at = 0; at < len_bytes; at += HUGE_PAGE_BYTES)
		if (madvise(p + at, (size_t)sysconf(_SC_PAGESIZE), POPULATE_WRITE) < 0)
			return -errno;
	return 0;
}

int huge_pages_populate(void *p, size_t len_bytes)
{
	uintptr_t start = ((uintptr_t)p + HUGE_MASK) & ~HUGE_MASK;
	uintptr_t end = ((uintptr_t)p + len_bytes) & ~HUGE_MASK;
	int r = 0;

	while (r == 0 && start < end) {
		size_t len = end - start;

		if (len > HUGE_PAGES_STEP_BYTES)
			len = HUGE_PAGES_STEP_BYTES;
		r = touch_pages((char *)start, len);
		if (r == 0 && madvise((char *)start, len, COLLAPSE) < 0)
			r = -errno;
		start += len;
	}
	return r;
}

/* Small pages for as much as a huge page take at least that long; a failed attempt counts as several slow ones. */
#define SLOW_NS	  (300u * 1000)
#define FAILED_NS (4u * SLOW_NS)

/* The pause before huge pages are tried again, as each attempt searches for contiguous memory. */
#define REST_NS (1000 * NS_PER_MS)

static bool is_over(uint64_t given_up_ns)
{
	return clock_now_ns() - given_up_ns >= REST_NS;
}

bool huge_pages_pay(const struct huge_pages_luck *l)
{
	uint64_t given_up_ns = atomic_load(&l->given_up_ns);

	return !given_up_ns || is_over(given_up_ns);
}

uint64_t huge_pages_start(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void begin_anew(struct huge_pages_luck *l)
{
	atomic_store(&l->tries, 0);
	atomic_store(&l->cost_ns, 0);
	atomic_store(&l->given_up_ns, 0);
}

void huge_pages_note(struct huge_pages_luck *l, size_t len_bytes, int result, uint64_t start_ns)
{
	static const size_t tries_min = 32;
	size_t n = len_bytes / HUGE_PAGE_BYTES;
	uint64_t told_ns = atomic_load(&l->slow_ns), slow_ns = told_ns ? told_ns : SLOW_NS;
	uint64_t given_up_ns = atomic_load(&l->given_up_ns);
	uint64_t cost_ns = result < 0 ? n * FAILED_NS : huge_pages_start() - start_ns;

	if (given_up_ns && is_over(given_up_ns))
		begin_anew(l);
	size_t tries = atomic_fetch_add(&l->tries, n) + n;
	cost_ns += atomic_fetch_add(&l->cost_ns, cost_ns);
	if (tries >= tries_min && cost_ns >= tries * slow_ns)
		atomic_store(&l->given_up_ns, clock_now_ns());
}

#define FILL_BYTES_MIN (32ull << 20)

static bool fill_huge(void *p, size_t len_bytes, bool patient)
{
	static struct huge_pages_luck lucks[2]; /* the patient one only counts failures */
	static atomic_bool unable;		/* this kernel does not support it */
	struct huge_pages_luck *luck = &lucks[patient];

	if (len_bytes < FILL_BYTES_MIN || unable || !huge_pages_pay(luck) ||
	    (uintptr_t)p % HUGE_PAGE_BYTES || len_bytes % HUGE_PAGE_BYTES)
		return false;
	uint64_t start_ns = huge_pages_start();
	int r = huge_pages_populate(p, len_bytes);
	if (!patient || r < 0)
		huge_pages_note(luck, len_bytes, r, start_ns);
	if (r == -EINVAL)
		unable = true;
	return r == 0;
}

int huge_pages_fill(void *p, size_t len_bytes, enum huge_pages_effort effort)
{
	volatile char *at = p;
	bool huge = effort == HUGE_PAGES_UNASKED ||
		    fill_huge(p, len_bytes, effort == HUGE_PAGES_WITH_PATIENCE);

	if (madvise(p, len_bytes, POPULATE_WRITE) == 0)
		return huge;
	if (errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	for (size_t i = 0; i < len_bytes; i += 4096) /* for kernels before 5.14 */
		__atomic_fetch_or(&at[i], 0, __ATOMIC_RELAXED);
	return huge;
}

/* Reserves two huge pages more than needed, moves the start to @shift after the start of a huge page, and releases
 * the rest. */
static char *reserve_addresses(size_t len_bytes, size_t shift)
{
	size_t room = len_bytes + 2 * HUGE_PAGE_BYTES;
	char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	char *at = (char *)(((uintptr_t)p + HUGE_MASK) & ~HUGE_MASK) + shift;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *end = at + ((len_bytes + page - 1) & ~(page - 1));

	if (at > p)
		munmap(p, (size_t)(at - p));
	munmap(end, (size_t)(p + room - end));
	return at;
}

void *huge_pages_reserve(size_t len_bytes)
{
	return reserve_addresses(len_bytes, 0);
}

void *huge_pages_map(int fd, uint64_t offset, size_t len_bytes, int protection)
{
	char *at = reserve_addresses(len_bytes, offset % HUGE_PAGE_BYTES);

	if (!at)
		return NULL;
	/* A failure may leave the addresses unmapped and, by now, used by another thread: they must not be unmapped. */
	if (mmap(at, len_bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) != at)
		return NULL;
	return at;
}

int huge_pages_collapse(int pidfd, uint64_t va, size_t len_bytes)
{
	struct iovec range = { (void *)(uintptr_t)va, len_bytes };
	long n = syscall(SYS_process_madvise, pidfd, &range, 1ul, COLLAPSE, 0ul);

	if (n < 0)
		return -errno;
	return (size_t)n == len_bytes ? 0 : -EAGAIN;
}
