// SPDX-License-Identifier: MIT
/* What the files of cpumem.h share: work cut into pieces for threads. */
#pragma once

#include "process/cpumem.h"

enum {
	CPUMEM_THREADS_MAX = 32,
	CPUMEM_SPARE_PART = 8, /* a huge page for what lacks at most one small page in so many */
};

/** Piece @i of a work; <0 ends the work with that code. @buf: CPUMEM_BUFFER_BYTES of the thread's own. */
typedef int (*cpumem_piece_fn)(void *arg, size_t i, void *buf);

/** That is what a core needs at least to be given small pages, cleared, for as much as a huge one. */
#define CPUMEM_SMALL_PAGES_NS 700000

/** Small enough for a core's cache. */
#define CPUMEM_BUFFER_BYTES (256u << 10)

/** Runs pieces 0 to n-1 in threads, in no order. The first failure, or 0. */
int cpumem_run(size_t n, unsigned threads, cpumem_piece_fn fn, void *arg);

static inline bool cpumem_page_is_set(const uint64_t *bits, uint64_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}
