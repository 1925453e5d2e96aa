// SPDX-License-Identifier: MIT
/*
 * What the members are connected to. Each tells its own ends of its connections (process/socket-hold.h); the other end of
 * one that may still get something is another member's, or else outside the set. Nothing is asked of the network.
 */
#include "edges/set/set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "wire/wire.h"

struct end {
	const char *local, *peer, *who; /* borrowed from the member's lines */
	struct member *of;
	bool is_open; /* it may still get something */
};

struct ends {
	struct end *items; /* owned */
	size_t n;
};

static int by_addresses(const void *a, const void *b)
{
	const struct end *x = a, *y = b;
	int r = strcmp(x->local, y->local);

	return r ? r : strcmp(x->peer, y->peer);
}

/* Takes the member's lines apart, in place. One that is no line of ours is left out: its other end then has none. */
static int take_lines(struct ends *ends, struct member *m)
{
	char *rest = m->connections;

	for (char *line; (line = strsep(&rest, "\n"));) {
		const char *state = strsep(&line, " "), *local = strsep(&line, " "),
			   *peer = strsep(&line, " ");
		struct end end = { local, peer, line, m, state && !strcmp(state, "open") };

		if (line && array_add(ends->items, ends->n, end) < 0)
			return -ENOMEM;
	}
	return 0;
}

static bool has_other_end(const struct ends *ends, const struct end *end)
{
	const struct end other = { .local = end->peer, .peer = end->local };

	return bsearch(&other, ends->items, ends->n, sizeof(other), by_addresses);
}

/* "LOCAL PEER" as people read it, and a restore finds it: without the place of a loopback address. */
static json_t *describe(const struct end *end)
{
	return json_sprintf("%.*s %.*s", (int)strcspn(end->local, "@"), end->local,
			    (int)strcspn(end->peer, "@"), end->peer);
}

static bool contains(json_t *list, json_t *one)
{
	json_t *other;
	size_t i;

	json_array_foreach (list, i, other)
		if (json_equal(one, other))
			return true;
	return false;
}

struct outside_ends {
	size_t n;
	char who[600]; /* the first */
};

/* One more that is outside. What is so for the first time counts for one that was made while the members looked. */
static int add_outside(struct outside_ends *found, const struct end *end, json_t *before,
		       bool is_still)
{
	auto_json json_t *one = describe(end);
	char name[300];

	if (!one || json_array_append(end->of->outside, one) < 0)
		return -ENOMEM;
	if (!is_still && !contains(before, one))
		return 0;
	if (!found->n++) {
		set_name_member(name, sizeof(name), end->of);
		snprintf(found->who, sizeof(found->who), "member %s: %s, is connected to %.*s",
			 name, end->who, (int)strcspn(end->peer, "@"), end->peer);
	}
	return 0;
}

static int find_outside(struct outside_ends *found, struct set *s, const struct ends *ends,
			bool is_still)
{
	auto_free json_t **before = calloc(s->n + 1, sizeof(json_t *));
	int r = before ? 0 : -ENOMEM;

	for (size_t i = 0; i < s->n && r == 0; i++) {
		before[i] = s->members[i].outside;
		s->members[i].outside = json_array();
	}
	for (size_t i = 0; i < ends->n && r == 0; i++)
		if (ends->items[i].is_open && !has_other_end(ends, &ends->items[i]))
			r = add_outside(found, &ends->items[i],
					before[ends->items[i].of - s->members], is_still);
	for (size_t i = 0; i < s->n && before; i++)
		json_decref(before[i]);
	return r;
}

int connections_check(struct set *s, bool is_still, struct brumate_error *err)
{
	struct ends ends = { 0 };
	struct outside_ends found = { 0 };
	int r = 0;

	for (size_t i = 0; i < s->n && r == 0; i++)
		r = s->members[i].connections ? take_lines(&ends, &s->members[i]) : 0;
	if (ends.n)
		qsort(ends.items, ends.n, sizeof(*ends.items), by_addresses);
	if (r == 0)
		r = find_outside(&found, s, &ends, is_still);
	free(ends.items);
	if (r < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (!found.n || (s->outside != OUTSIDE_REFUSED && !s->drains))
		return 0;
	brumate_fail(err, EOPNOTSUPP, "%s, which is no member's%s", found.who,
		     found.n > 1 ? ", and is not the only one" : "");
	brumate_hint(err, "%s",
		     s->drains ? "name the job there as well, or have the program close it; only "
				 "root can save it"
			       : "name the job there as well, or have the program close it; "
				 "--tcp-close has a restore find such connections closed");
	return -EOPNOTSUPP;
}
