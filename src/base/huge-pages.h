// SPDX-License-Identifier: MIT
/*
 * Large memory in huge pages, where the kernel can (Linux 6.1, CONFIG_TRANSPARENT_HUGEPAGE): it is given
 * out, cleared and freed ten times as fast as page by page. Asked for by MADV_COLLAPSE, which does not
 * depend on the settings in /sys that memfds and other memory get huge pages by, but which for each call
 * waits for all CPUs: so one for as much as can be. Never changes what is in memory; what cannot be had
 * stays in small pages.
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

/**
 * As huge_pages_populate(), of shared memory and of whole small pages, but all of it is there afterwards, in
 * small pages where there are no huge ones, or it is too short for them to pay. @by_itself: this memory gets
 * huge ones unasked. 1: all are huge; 0: not all; -ENOMEM.
 */
int huge_pages_fill(void *p, size_t len_bytes, bool by_itself);

/** Addresses for @len_bytes, from the beginning of a huge page on, to be mapped over. munmap(2) gives them
 * back. NULL and errno. */
void *huge_pages_reserve(size_t len_bytes);

/**
 * Maps @len_bytes at @offset of @fd, a memfd or tmpfs file, shared, at an address that huge pages of the
 * file can be mapped at. munmap(2) ends it. NULL and errno; then addresses are lost. Not for hugetlbfs, which
 * chooses such addresses by itself, and often fails.
 */
void *huge_pages_map(int fd, uint64_t offset, size_t len_bytes, int protection);

/**
 * Of another process, by its pidfd: one call. Each huge page must have a page there already, @va and
 * @len_bytes be multiples of HUGE_PAGE_BYTES. As above; also -EPERM, -ESRCH.
 */
int huge_pages_collapse(int pidfd, uint64_t va, size_t len_bytes);

/** How asking for them went; zeros at first. From any thread. */
struct huge_pages_luck {
	uint64_t slow_ns; /* of one: small ones cost less; 0: what they take at least */
	_Atomic size_t tries;
	_Atomic uint64_t cost_ns;
	_Atomic uint64_t given_up_ns; /* when they did not pay any more; 0: they do */
};

/** Whether they are worth asking for: not where there are none to be had, or where a machine that is short of
 * them takes longer to make room for each than small pages take. After a second that is asked again. */
bool huge_pages_pay(const struct huge_pages_luck *l);

/** Nanoseconds that this thread has run: whatever else the machine has to do does not count. */
uint64_t huge_pages_start(void);

/** Notes what asking for @len_bytes of them came to since huge_pages_start(). */
void huge_pages_note(struct huge_pages_luck *l, size_t len_bytes, int result, uint64_t start_ns);
