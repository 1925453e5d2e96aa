// SPDX-License-Identifier: MIT
/*
 * Shared memory of large pages, also where the kernel makes none by itself: MADV_COLLAPSE does not
 * heed shmem_enabled. It is a wish: what the kernel cannot make large is there in small pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define HUGE_BYTES (2ull << 20)

/** Maps all of @fd's @bytes, shared, for reading and writing, where large pages can be mapped: 0 or -errno.
 * To be unmapped by munmap(2). */
int huge_map(void **ret, int fd, uint64_t bytes);

/**
 * Makes the pages of memory that huge_map() mapped be there; what they hold stays. Best for 64 MiB and
 * more at a time, as each call waits for all processors. @by_itself: the kernel makes them large unasked.
 * 1: all are large; 0: not all; -ENOMEM.
 */
int huge_populate(void *at, uint64_t bytes, bool by_itself);
