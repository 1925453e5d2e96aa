// SPDX-License-Identifier: MIT
/* Retention; see retention.h. */
#include "store/retention.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int retention_parse_stamp(uint64_t *ret_ms, const char *stamp)
{
	struct tm tm = { 0 };
	const char *rest = strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest || strlen(rest) != 5 || rest[0] != '.' || strspn(rest + 1, "0123456789") != 3 ||
	    rest[4] != 'Z')
		return -EBADMSG;
	time_t seconds = timegm(&tm);
	if (seconds < 0)
		return -EBADMSG;
	*ret_ms = (uint64_t)seconds * 1000 + strtoul(rest + 1, NULL, 10);
	return 0;
}

static int by_job_newest_first(const void *a, const void *b)
{
	const struct retention_item *left = a, *right = b;
	int order = strcmp(left->job, right->job);

	if (order == 0)
		order = strcmp(right->created, left->created);
	return order ? order : strcmp(right->id, left->id);
}

static bool is_young(const struct retention_item *item, uint64_t within_ms, uint64_t now_ms)
{
	uint64_t created_ms;

	if (retention_parse_stamp(&created_ms, item->created) < 0 || created_ms >= now_ms)
		return true;
	return now_ms - created_ms <= within_ms;
}

void retention_choose(struct retention_item *items, size_t n, const struct retention_rule *rule,
		      uint64_t now_ms)
{
	unsigned rank = 0;

	if (n)
		qsort(items, n, sizeof(*items), by_job_newest_first);
	for (size_t i = 0; i < n; i++) {
		bool same = i && !strcmp(items[i].job, items[i - 1].job);

		rank = same ? rank + 1 : 0;
		items[i].doomed = rank >= rule->keep_last &&
				  !(rule->keep_within_ms &&
				    is_young(&items[i], rule->keep_within_ms, now_ms));
	}
}
