// SPDX-License-Identifier: MIT
/*
 * Large memory in huge pages, if the kernel can (Linux 6.1, CONFIG_TRANSPARENT_HUGEPAGE): it is allocated, cleared
 * and freed ten times as fast as in small pages. Requested by MADV_COLLAPSE, which does not depend on the settings in
 * /sys for memfds and other memory. But each call synchronises all CPUs, so one call requests as much as it can.
 * Nothing here changes the content of memory; where there are no huge pages, small ones stay.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/** The amount for which a call is worth it. */
#define HUGE_PAGES_STEP_BYTES (128ull << 20)

/**
 * Backs the whole huge pages in @len_bytes at @p, memory of this process: a shared mapping of a memfd or tmpfs file
 * (with the same alignment in the file as in memory, and not longer than the file), or private memory. Missing pages
 * are allocated. Returns 0; -errno of the first failure, after which the rest is unchanged: -EINVAL (unsupported by
 * this kernel or for this memory), -ENOMEM, -EBUSY, -EAGAIN. No failure affects the content of the memory, and lack
 * of huge pages does not mean that memory is short.
 */
int huge_pages_populate(void *p, size_t len_bytes);

/** What getting huge pages may cost. */
enum huge_pages_effort {
	HUGE_PAGES_IF_CHEAP,	  /* no more than small pages, as a caller waits */
	HUGE_PAGES_UNASKED,	  /* nothing: this memory gets them automatically */
	HUGE_PAGES_WITH_PATIENCE, /* as long as it takes, while there are any */
};

/**
 * Like huge_pages_populate(), for shared memory and whole small pages, but all pages exist afterwards: small ones if
 * there are no huge ones, or the memory is too short for them to be worth it. Returns 1 if all are huge, 0 if not, or
 * -ENOMEM.
 */
int huge_pages_fill(void *p, size_t len_bytes, enum huge_pages_effort effort);

/** Reserves addresses for @len_bytes, starting at the boundary of a huge page, to be mapped over. munmap(2) releases
 * them. Returns NULL and sets errno if there are none. */
void *huge_pages_reserve(size_t len_bytes);

/**
 * Maps @len_bytes at @offset of @fd, a memfd or tmpfs file, shared, at an address at which huge pages of the file can
 * be mapped. munmap(2) ends it. Returns NULL and sets errno on failure; the reserved addresses are then lost. Not for
 * hugetlbfs, which chooses such addresses itself: there it often fails.
 */
void *huge_pages_map(int fd, uint64_t offset, size_t len_bytes, int protection);

/**
 * Turns memory of another process into huge pages, in one call. Each huge page must have a page there already; @va
 * and @len_bytes are multiples of HUGE_PAGE_BYTES.
 * Returns the same as huge_pages_populate(); also -EPERM, -ESRCH.
 */
int huge_pages_collapse(int pidfd, uint64_t va, size_t len_bytes);

/** Experience with huge pages; initially zeros. Any thread may use it, and set what counts as slow. */
struct huge_pages_luck {
	_Atomic uint64_t slow_ns; /* above this, small pages are cheaper; 0: their minimum */
	_Atomic size_t tries;
	_Atomic uint64_t cost_ns;
	_Atomic uint64_t given_up_ns; /* when they stopped being worth it; 0: they are */
};

/** Whether huge pages are worth requesting. They are not if there are none, or if a machine that is short of them
 * takes longer to make room for each than small pages take. Tried again after a second. */
bool huge_pages_pay(const struct huge_pages_luck *l);

/** CPU time of this thread in nanoseconds, which does not depend on the machine's other load. */
uint64_t huge_pages_start(void);

/** Records the cost since huge_pages_start() of requesting @len_bytes of huge pages, and the result. */
void huge_pages_note(struct huge_pages_luck *l, size_t len_bytes, int result, uint64_t start_ns);
