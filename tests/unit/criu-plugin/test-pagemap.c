// SPDX-License-Identifier: MIT
/* Hidden ranges are absent from what a scan of pages finds, whatever its limits; the rest is as it was. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <stdbool.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

enum { PAGES = 256, PID = 7, RUNS_MAX = 64 };
#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

/* A process whose pages are there where the word says so. */
static bool present[PAGES];
static struct hidden_table table;
static int n_scans;

static int fake_scan(int fd, struct pagemap_scan *s)
{
	struct pagemap_region *out = (void *)(uintptr_t)s->vec;
	uint64_t page = s->start / PAGE, end = s->end / PAGE, taken = 0;
	size_t n = 0;

	CHECK(fd == 3 && s->start < s->end);
	n_scans++;
	for (; page < end; page++) {
		if (!present[page])
			continue;
		if (s->max_pages && taken == s->max_pages)
			break;
		if (n && out[n - 1].end == page * PAGE) {
			out[n - 1].end += PAGE;
		} else if (n == s->vec_len) {
			break;
		} else {
			out[n++] = (struct pagemap_region){ page * PAGE, (page + 1) * PAGE, 2 };
		}
		taken++;
	}
	s->walk_end = page * PAGE;
	return (int)n;
}

static void hide(uint64_t pid, uint64_t first, uint64_t end)
{
	table.ranges[table.n++] = (struct hidden_range){ (int64_t)pid, first * PAGE, end * PAGE };
}

static bool is_hidden(uint64_t page)
{
	for (size_t i = 0; i < table.n; i++)
		if (table.ranges[i].pid == PID && page * PAGE >= table.ranges[i].start &&
		    page * PAGE < table.ranges[i].end)
			return true;
	return false;
}

/* Scans all as a caller does that has room for @room runs and @max_pages at a time. */
static void expect_scan(size_t room, uint64_t max_pages)
{
	bool seen[PAGES] = { false };
	struct pagemap_region regions[RUNS_MAX];
	uint64_t at = 0;

	for (int i = 0; at < PAGES * PAGE; i++) {
		struct pagemap_scan s = { .start = at,
					  .end = PAGES * PAGE,
					  .vec = (uintptr_t)regions,
					  .vec_len = room,
					  .max_pages = max_pages };
		int n = pagemap_scan_hidden(&table, PID, 3, &s, fake_scan);
		uint64_t pages = 0;

		CHECK(n >= 0 && (size_t)n <= room && i < 2 * PAGES);
		for (int k = 0; k < n; k++) {
			CHECK(regions[k].start >= at && regions[k].end <= s.walk_end);
			for (uint64_t p = regions[k].start / PAGE; p < regions[k].end / PAGE; p++) {
				CHECK(!seen[p]);
				seen[p] = true;
				pages++;
			}
		}
		CHECK(!max_pages || pages <= max_pages);
		CHECK(s.walk_end > at);
		at = s.walk_end;
	}
	for (uint64_t p = 0; p < PAGES; p++)
		CHECK(seen[p] == (present[p] && !is_hidden(p)));
}

static void scans(void)
{
	for (int i = 0; i < PAGES; i++)
		present[i] = i % 7 != 3 && (i < 100 || i > 140);
	expect_scan(RUNS_MAX, 0);
	hide(3, 0, PAGES); /* of others */
	hide(PID, 0, 4);
	hide(PID, 10, 20);
	hide(PID, 20, 21);
	hide(PID, 90, 150);
	hide(PID, 250, PAGES);
	hide(9, 30, 40);
	for (size_t room = 1; room < RUNS_MAX; room += 5)
		for (uint64_t max_pages = 0; max_pages < 40; max_pages += 13)
			expect_scan(room, max_pages);
	n_scans = 0;
	struct pagemap_scan s = { .start = 92 * PAGE, .end = 140 * PAGE };
	CHECK(pagemap_scan_hidden(&table, PID, 3, &s, fake_scan) == 0);
	CHECK(s.walk_end == s.end && n_scans == 0);
}

static void entries(void)
{
	for (uint64_t first = 0; first < 60; first += 7) {
		uint64_t map[50];

		memset(map, 0xff, sizeof(map));
		pagemap_clear_hidden(&table, PID, map, sizeof(map), (off_t)(first * sizeof(*map)),
				     PAGE);
		for (uint64_t i = 0; i < 50; i++)
			CHECK(map[i] == (is_hidden(first + i) ? 0 : UINT64_MAX));
	}
}

static void names(void)
{
	CHECK(pagemap_pid("/proc/12/pagemap") == 12 && pagemap_pid("/7/pagemap") == 7);
	CHECK(pagemap_pid("/proc/self/pagemap") == 0 && pagemap_pid("/pagemap") == 0);
	CHECK(pagemap_pid("/proc/12/maps") == 0 && pagemap_pid("") == 0);
	CHECK(pagemap_pid("12/pagemap") == 0);
}

int main(void)
{
	scans();
	entries();
	names();
	return 0;
}
