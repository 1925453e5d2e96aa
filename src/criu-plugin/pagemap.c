// SPDX-License-Identifier: MIT
/* Page maps without the hidden ranges. Pure, except for the scan function that it gets. */
#include "criu-plugin/plugin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

/* The first range of @pid that ends after @address; NULL: none. */
static const struct hidden_range *next_hidden(const struct hidden_table *t, int64_t pid,
					      uint64_t address)
{
	size_t low = 0, high = atomic_load_explicit(&t->n, memory_order_acquire);
	size_t n = high;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct hidden_range *r = &t->ranges[middle];

		if (r->pid < pid || (r->pid == pid && r->end <= address))
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && t->ranges[low].pid == pid ? &t->ranges[low] : NULL;
}

/* Scans one visible range. Returns the number of its regions, or <0. @ret_full: the caller has no room for more
 * regions, or wants no more pages. */
static int scan_piece(int fd, const struct pagemap_scan *whole, struct pagemap_scan *piece,
		      size_t n_found, uint64_t *pages_left, pagemap_scan_fn real, int *ret_full)
{
	piece->vec = whole->vec + n_found * sizeof(struct pagemap_region);
	piece->vec_len = whole->vec_len - n_found;
	piece->max_pages = *pages_left;
	piece->walk_end = piece->start;

	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	int n = real(fd, piece);
	const struct pagemap_region *regions = (const void *)(uintptr_t)piece->vec;
	for (int i = 0; i < n && whole->max_pages; i++)
		*pages_left -= (regions[i].end - regions[i].start) / page_bytes;
	*ret_full = n >= 0 && (piece->walk_end < piece->end || (size_t)n == piece->vec_len ||
			       (whole->max_pages && !*pages_left));
	return n;
}

int pagemap_scan_hidden(const struct hidden_table *t, int64_t pid, int fd,
			struct pagemap_scan *scan, pagemap_scan_fn real)
{
	uint64_t at = scan->start, pages_left = scan->max_pages;
	size_t n_found = 0;

	if (!next_hidden(t, pid, at) || next_hidden(t, pid, at)->start >= scan->end)
		return real(fd, scan);
	while (at < scan->end) {
		const struct hidden_range *r = next_hidden(t, pid, at);
		struct pagemap_scan piece = *scan;
		int full = 0;

		if (r && r->start <= at) {
			at = MIN(r->end, scan->end);
			continue;
		}
		piece.start = at;
		piece.end = r ? MIN(r->start, scan->end) : scan->end;
		int n = scan_piece(fd, scan, &piece, n_found, &pages_left, real, &full);
		if (n < 0)
			return n;
		n_found += (size_t)n;
		at = piece.walk_end;
		if (full)
			break;
		at = piece.end;
	}
	scan->walk_end = at;
	return (int)n_found;
}

void pagemap_clear_hidden(const struct hidden_table *t, int64_t pid, uint64_t *entries,
			  size_t len_bytes, off_t offset, size_t page_bytes)
{
	uint64_t start = (uint64_t)offset / sizeof(*entries) * page_bytes;
	uint64_t end = start + len_bytes / sizeof(*entries) * page_bytes;

	for (uint64_t at = start; at < end;) {
		const struct hidden_range *r = next_hidden(t, pid, at);

		if (!r || r->start >= end)
			break;
		uint64_t from = MAX(r->start, at), to = MIN(r->end, end);
		memset(entries + (from - start) / page_bytes, 0,
		       (to - from) / page_bytes * sizeof(*entries));
		at = to;
	}
}

int64_t pagemap_pid(const char *path)
{
	static const char name[] = "/pagemap";
	const char *end = strrchr(path, '/');

	if (!end || strcmp(end, name) || end == path)
		return 0;
	const char *digits = end;
	while (digits > path && digits[-1] >= '0' && digits[-1] <= '9')
		digits--;
	if (digits == end || digits == path || digits[-1] != '/')
		return 0;
	return strtoll(digits, NULL, 10);
}
