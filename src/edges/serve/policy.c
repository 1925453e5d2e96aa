// SPDX-License-Identifier: MIT
/* Decisions about servers. See policy.h. */
#include "edges/serve/policy.h"

#include <stdio.h>

/* A server that came back and has yet to be asked is as idle as it has been there. */
static uint64_t unused_ms(const struct served *s)
{
	return s->idle_ms < s->resident_ms ? s->idle_ms : s->resident_ms;
}

static uint64_t leaves_after_ms(const struct served *s, uint64_t idle_after_ms)
{
	return s->idle_after_ms ? s->idle_after_ms : idle_after_ms;
}

static bool may_go(const struct served *s, uint64_t idle_after_ms)
{
	return s->is_running && !s->is_pinned && !s->pause_ms && s->idle_ms != UINT64_MAX &&
	       unused_ms(s) >= leaves_after_ms(s, idle_after_ms);
}

static bool goes_before(const struct served *s, const struct served *other)
{
	return s->priority != other->priority ? s->priority < other->priority
					      : unused_ms(s) > unused_ms(other);
}

struct decision serve_decide(const struct served *all, size_t n, uint64_t idle_after_ms)
{
	struct decision d = { .at = -1 };

	for (size_t i = 0; i < n; i++)
		if (may_go(&all[i], idle_after_ms) &&
		    (d.at < 0 || goes_before(&all[i], &all[d.at])))
			d.at = (ssize_t)i;
	if (d.at >= 0)
		snprintf(d.reason, sizeof(d.reason),
			 "not asked for %.1f s, which is %.1f s or more",
			 (double)unused_ms(&all[d.at]) / 1000,
			 (double)leaves_after_ms(&all[d.at], idle_after_ms) / 1000);
	return d;
}

static bool may_be_saved(const struct served *s)
{
	return s->is_suspended && !s->is_pinned && !s->pause_ms && s->copy_bytes;
}

static bool is_saved_before(const struct served *s, const struct served *other)
{
	return s->priority != other->priority ? s->priority < other->priority
					      : s->asleep_ms > other->asleep_ms;
}

struct decision serve_decide_save(const struct served *all, size_t n, uint64_t memory_bytes)
{
	struct decision d = { .at = -1 };
	uint64_t sum_bytes = 0;

	for (size_t i = 0; i < n; i++) {
		if (all[i].is_suspended)
			sum_bytes += all[i].copy_bytes;
		if (may_be_saved(&all[i]) && (d.at < 0 || is_saved_before(&all[i], &all[d.at])))
			d.at = (ssize_t)i;
	}
	if (!memory_bytes || sum_bytes <= memory_bytes)
		d.at = -1;
	if (d.at >= 0)
		snprintf(d.reason, sizeof(d.reason),
			 "suspended for the longest time, and copies take %.1f MiB, which is more "
			 "than %.1f MiB",
			 (double)sum_bytes / 0x1p20, (double)memory_bytes / 0x1p20);
	return d;
}
