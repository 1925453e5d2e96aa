// SPDX-License-Identifier: MIT
/*
 * Large memory in huge pages, where the kernel can (Linux 6.1, CONFIG_TRANSPARENT_HUGEPAGE): it is given
 * out, cleared and freed ten times as fast as page by page. They are asked for by MADV_COLLAPSE, which does not
 * depend on the settings in /sys that memfds and other memory get huge pages by. But each call waits for all
 * CPUs, so one call asks for as much as it can. Nothing here changes what is in memory; what cannot be had stays
 * in small pages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/** How much at a time is worth a call. */
#define HUGE_PAGES_STEP_BYTES (128ull << 20)

/**
 * Backs the whole huge pages in @len_bytes at @p, memory of this process: a shared mapping of a memfd or
 * tmpfs file (aligned in the file as in memory, and not longer than that), or private memory. What was
 * not there is allocated. Returns 0; -errno of the first that could not be had, with what follows left
 * as it was: -EINVAL (this kernel or this memory does not do it), -ENOMEM, -EBUSY, -EAGAIN. None of them
 * matters for what is in memory, nor is memory short yet if huge pages are.
 */
int huge_pages_populate(void *p, size_t len_bytes);

/** What huge pages may cost. */
enum huge_pages_effort {
	HUGE_PAGES_IF_CHEAP,	  /* no more than small ones, as somebody waits */
	HUGE_PAGES_UNASKED,	  /* nothing: this memory gets them by itself */
	HUGE_PAGES_WITH_PATIENCE, /* what they take, as long as there are any */
};

/**
 * Does what huge_pages_populate() does, for shared memory and whole small pages, but all of it is there
 * afterwards: in small pages where there are no huge ones, or where it is too short for them to pay.
 * Returns 1 if all are huge, 0 if not all are, or -ENOMEM.
 */
int huge_pages_fill(void *p, size_t len_bytes, enum huge_pages_effort effort);

/** Reserves addresses for @len_bytes, from the beginning of a huge page on, to be mapped over. munmap(2) gives
 * them back. Returns NULL and sets errno where there are none. */
void *huge_pages_reserve(size_t len_bytes);

/**
 * Maps @len_bytes at @offset of @fd, a memfd or tmpfs file, shared, at an address that huge pages of the
 * file can be mapped at. munmap(2) ends it. Returns NULL and sets errno where it fails; then addresses are lost.
 * It is not for hugetlbfs, which chooses such addresses by itself: there it often fails.
 */
void *huge_pages_map(int fd, uint64_t offset, size_t len_bytes, int protection);

/**
 * Makes memory of another process huge pages, in one call. Each huge page must have a page there already; @va and
 * @len_bytes are multiples of HUGE_PAGE_BYTES. Returns as huge_pages_populate() does; also -EPERM, -ESRCH.
 */
int huge_pages_collapse(int pidfd, uint64_t va, size_t len_bytes);

/** How asking for huge pages went; zeros at first. Any thread may use it, and set what is slow. */
struct huge_pages_luck {
	_Atomic uint64_t slow_ns; /* of one: small ones cost less; 0: what they take at least */
	_Atomic size_t tries;
	_Atomic uint64_t cost_ns;
	_Atomic uint64_t given_up_ns; /* when they did not pay any more; 0: they do */
};

/** Whether huge pages are worth asking for. They are not where there are none to be had, or where a machine that
 * is short of them takes longer to make room for each than small pages take. After a second they are again. */
bool huge_pages_pay(const struct huge_pages_luck *l);

/** Nanoseconds that this thread has run: whatever else the machine has to do does not count. */
uint64_t huge_pages_start(void);

/** Notes what it took to ask for @len_bytes of huge pages since huge_pages_start(), and the result of that. */
void huge_pages_note(struct huge_pages_luck *l, size_t len_bytes, int result, uint64_t start_ns);
