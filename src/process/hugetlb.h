// SPDX-License-Identifier: MIT
/*
 * Huge pages that a machine sets aside (hugetlbfs, MAP_HUGETLB, MFD_HUGETLB): how many the processes of a
 * tree have claim to, and how many are left here. Nothing is touched. The counts are what a restore needs, never more: pages
 * of files that stay do not count.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "process/process.h"

enum { HUGETLB_SIZES_MAX = 8 };

/** By size of page. */
struct hugetlb_sums {
	struct {
		uint64_t page_bytes, bytes;
	} items[HUGETLB_SIZES_MAX];
	size_t n;
};

/** Sums up what the frozen processes of @tree have. It costs nothing where there is none. Returns 0 or -ENOMEM. */
int hugetlb_sum(struct hugetlb_sums *ret, const struct proc_tree *tree);

/** A mapping of such pages. */
struct hugetlb_vma {
	uint64_t start, end;
	uint64_t page_bytes;
	uint64_t there_bytes;	/* pages that it has */
	uint64_t private_bytes; /* of these, what no other process maps */
	uint64_t device, inode; /* of the file without a name that it maps */
	bool shared;		/* MAP_SHARED */
	bool unreserved;	/* MAP_NORESERVE: has no claim to more than there is */
};

/**
 * Picks those of files without a name out of the text of /proc/PID/smaps, which is cut up. At most @room;
 * returns how many there are. Pure.
 */
size_t hugetlb_parse_smaps(char *text, struct hugetlb_vma *ret, size_t room);

/** Bytes that can still be had of pages of this size, here and now. */
uint64_t hugetlb_free_bytes(uint64_t page_bytes);

/** Pages of this size that are set aside, in use or not. */
uint64_t hugetlb_pool_pages(uint64_t page_bytes);
