// SPDX-License-Identifier: MIT
/* Large pages for shared memory. See huge.h. */
#include "base/huge.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define COLLAPSE_BYTES_MIN (32ull << 20)

/* For as long it is left alone where it failed, as each try then searches for memory in one piece, or
 * where it was slower than a GB/s: waiting for busy processors takes longer than small pages. */
#define PAUSE_NS (1000 * NS_PER_MS)

static _Atomic uint64_t paused_until_ns; /* UINT64_MAX: this kernel does not know how */

int huge_map(void **ret, int fd, uint64_t bytes)
{
	char *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		return -errno;
	uint64_t before = -(uint64_t)(uintptr_t)room % HUGE_BYTES;
	char *at = room + before;
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int r = -errno;

		munmap(room, bytes + HUGE_BYTES);
		return r;
	}
	uint64_t end = (bytes + 4095) / 4096 * 4096;
	if (before)
		munmap(room, before);
	if (before + end < bytes + HUGE_BYTES)
		munmap(at + end, HUGE_BYTES - before - (end - bytes));
	*ret = at;
	return 0;
}

/* For kernels before 5.14. */
static void touch_pages(volatile char *at, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += 4096)
		__atomic_fetch_or(&at[i], 0, __ATOMIC_RELAXED);
}

static int populate(char *at, uint64_t bytes)
{
	if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	touch_pages(at, bytes);
	return 0;
}

/* Something has to be there to be collapsed: the first small page of each large one. */
static int collapse(char *at, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += HUGE_BYTES) {
		int r = populate(at + i, 4096);

		if (r < 0)
			return r;
	}
	uint64_t start_ns = clock_now_ns();
	if (madvise(at, bytes, MADV_COLLAPSE) == 0) {
		if (clock_now_ns() - start_ns > bytes)
			paused_until_ns = clock_now_ns() + PAUSE_NS;
		return 1;
	}
	paused_until_ns = errno == EINVAL ? UINT64_MAX : clock_now_ns() + PAUSE_NS;
	log_debug("no large pages of shared memory: %s", strerror(errno));
	return 0;
}

int huge_populate(void *at, uint64_t bytes, bool by_itself)
{
	bool whole = (uintptr_t)at % HUGE_BYTES == 0 && bytes % HUGE_BYTES == 0;
	int large = by_itself;

	if (!by_itself && whole && bytes >= COLLAPSE_BYTES_MIN && clock_now_ns() >= paused_until_ns)
		large = collapse(at, bytes);
	if (large < 0)
		return large;
	int r = populate(at, bytes);
	return r < 0 ? r : large;
}
