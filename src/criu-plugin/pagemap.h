// SPDX-License-Identifier: MIT
/*
 * A process's page map, as the kernel shows it to CRIU, without the ranges of a hidden_table. CRIU takes
 * what is not in it for memory that was never touched.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "criu-plugin/hidden.h"

/** One run of pages that ioctl(PAGEMAP_SCAN) found. Facts of the kernel, linux/fs.h of 6.7. */
struct pagemap_region {
	uint64_t start, end, categories;
};

/** The argument of ioctl(PAGEMAP_SCAN). */
struct pagemap_scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct pagemap_scan)

typedef int (*pagemap_scan_fn)(int fd, struct pagemap_scan *scan);

/**
 * What ioctl(PAGEMAP_SCAN) on @fd would return with the hidden ranges of @pid absent: the rest is
 * scanned by @real, piece by piece. Returns the number of regions, or -1 with errno.
 */
int pagemap_scan_hidden(const struct hidden_table *t, int64_t pid, int fd,
			struct pagemap_scan *scan, pagemap_scan_fn real);

/** Clears the entries of hidden pages in @entries, which were read at @offset of the page map. */
void pagemap_clear_hidden(const struct hidden_table *t, int64_t pid, uint64_t *entries,
			  size_t len_bytes, off_t offset, size_t page_bytes);

/** The process whose page map @path names ("/proc/12/pagemap", "/12/pagemap"); 0: it names none. Pure. */
int64_t pagemap_pid(const char *path);
