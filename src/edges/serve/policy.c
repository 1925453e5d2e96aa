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

/* ---- jobs that share GPUs ---- */

static bool may_leave(const struct served *s)
{
	return s->shares && s->is_running && !s->is_pinned && !s->pause_ms;
}

/* Of those that are there, the one that came first; the first of the list, if that is not known. */
static bool came_before(const struct served *all, size_t i, size_t j)
{
	return all[i].resident_ms != all[j].resident_ms ? all[i].resident_ms > all[j].resident_ms
							: i < j;
}

static struct turn_decision leave_for_server(const struct served *all, size_t n)
{
	struct turn_decision d = { .leaves = -1, .comes = -1 };

	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; !all[i].shares && all[i].waits && j < n; j++) {
			if (!may_leave(&all[j]) || !(all[j].gpus & all[i].gpus) ||
			    (d.leaves >= 0 && !came_before(all, j, (size_t)d.leaves)))
				continue;
			d.leaves = (ssize_t)j;
			snprintf(d.reason, sizeof(d.reason), "server %.60s waits for room",
				 all[i].name);
		}
	return d;
}

/* Another job that is there, too, came before it or is to stay, and shares a GPU with it; -1: none. */
static ssize_t find_holder(const struct served *all, size_t n, size_t at)
{
	for (size_t i = 0; i < n; i++)
		if (i != at && all[i].shares && all[i].is_running && (all[i].gpus & all[at].gpus) &&
		    (came_before(all, i, at) || all[i].is_pinned))
			return (ssize_t)i;
	return -1;
}

static struct turn_decision leave_for_holder(const struct served *all, size_t n)
{
	struct turn_decision d = { .leaves = -1, .comes = -1 };

	for (size_t i = 0; i < n && d.leaves < 0; i++) {
		const ssize_t holder = may_leave(&all[i]) ? find_holder(all, n, i) : -1;

		if (holder < 0)
			continue;
		d.leaves = (ssize_t)i;
		snprintf(d.reason, sizeof(d.reason), "it is the turn of %.60s on the same GPU",
			 all[holder].name);
	}
	return d;
}

static bool waits_before(const struct served *all, size_t i, size_t j)
{
	return all[i].asleep_ms != all[j].asleep_ms ? all[i].asleep_ms > all[j].asleep_ms : i < j;
}

/* The next one in line after the one at @after (-1: the first); -1: none. */
static ssize_t next_in_line(const struct served *all, size_t n, ssize_t after)
{
	ssize_t next = -1;

	for (size_t i = 0; i < n; i++)
		if (all[i].shares && all[i].is_suspended && !all[i].pause_ms &&
		    (after < 0 || waits_before(all, (size_t)after, i)) &&
		    (next < 0 || waits_before(all, i, (size_t)next)))
			next = (ssize_t)i;
	return next;
}

/* The jobs on GPUs that one in line wants. */
struct holders {
	size_t n;
	ssize_t first;	      /* that leaves */
	bool stays, has_time; /* one of them never leaves; one has not had its time */
};

static struct holders look_at_holders(const struct served *all, size_t n, uint64_t gpus,
				      uint64_t slice_ms)
{
	struct holders h = { .first = -1 };

	for (size_t i = 0; i < n; i++) {
		if (!all[i].shares || !all[i].is_running || !(all[i].gpus & gpus))
			continue;
		h.n++;
		h.stays |= all[i].is_pinned;
		h.has_time |= !may_leave(&all[i]) || all[i].resident_ms < slice_ms;
		if (h.first < 0 || came_before(all, i, (size_t)h.first))
			h.first = (ssize_t)i;
	}
	return h;
}

static struct turn_decision let_next_come(const struct served *all, size_t n, uint64_t slice_ms)
{
	struct turn_decision d = { .leaves = -1, .comes = -1 };
	uint64_t taken = 0; /* by servers that wait, and by those that are before one */

	for (size_t i = 0; i < n; i++)
		taken |= !all[i].shares && all[i].waits ? all[i].gpus : 0;
	for (ssize_t at = next_in_line(all, n, -1); at >= 0; at = next_in_line(all, n, at)) {
		const uint64_t gpus = all[at].gpus;
		const struct holders h = look_at_holders(all, n, gpus, slice_ms);

		if ((gpus & taken) || h.stays)
			continue;
		if (h.has_time) {
			taken |= gpus;
			continue;
		}
		d.leaves = h.first;
		d.comes = h.n < 2 ? at : -1;
		if (h.n)
			snprintf(d.reason, sizeof(d.reason),
				 "%.60s has had its slice of %.1f s, and %.60s is next",
				 all[h.first].name, (double)slice_ms / 1000, all[at].name);
		else
			snprintf(d.reason, sizeof(d.reason), "no job is on its GPUs");
		return d;
	}
	return d;
}

struct turn_decision share_decide(const struct served *all, size_t n, uint64_t slice_ms)
{
	struct turn_decision d = leave_for_server(all, n);

	if (d.leaves < 0)
		d = leave_for_holder(all, n);
	return d.leaves < 0 ? let_next_come(all, n, slice_ms) : d;
}
