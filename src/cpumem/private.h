// SPDX-License-Identifier: MIT
/* What the files of cpu_memory.h share: work cut into pieces for threads. */
#pragma once

#include "cpumem/cpu-memory.h"

enum {
	CPU_MEMORY_THREADS_MAX = 32,
	CPU_MEMORY_SPARE_PART =
		8, /* a huge page for what lacks at most one small page in so many */
};

/** Piece @i of a work; <0 ends the work with that code. @buf: CPU_MEMORY_BUFFER_BYTES of the thread's own. */
typedef int (*cpu_memory_piece_fn)(void *arg, size_t i, void *buf);

/** That is what a core needs at least to be given small pages, cleared, for as much as a huge one. */
#define CPU_MEMORY_SMALL_PAGES_NS 700000

/** Small enough for a core's cache. */
#define CPU_MEMORY_BUFFER_BYTES (256u << 10)

/** Runs pieces 0 to n-1 in threads, in no order. The first failure, or 0. */
int cpu_memory_run(size_t n, unsigned threads, cpu_memory_piece_fn fn, void *arg);

static inline bool cpu_memory_page_is_set(const uint64_t *bits, uint64_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}
