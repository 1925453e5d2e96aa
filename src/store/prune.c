// SPDX-License-Identifier: MIT
/*
 * Removing checkpoints by a rule. Damaged ones are told and stay: what they hold may still be of use to
 * somebody, and they must not count as the good ones that a rule keeps.
 */
#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"

struct candidate {
	char id[MANIFEST_ID_BYTES], job[MANIFEST_ID_BYTES];
	char created[sizeof(((struct manifest *)0)->created)];
};

struct search {
	const struct store_prune *prune;
	struct candidate *found;
	size_t n;
	bool no_memory;
};

static bool is_of_job(const struct manifest *m, const char *job)
{
	return !job || !strcmp(m->job.id, job) || !strcmp(m->job.name, job);
}

static void add(struct search *s, const struct manifest *m)
{
	struct candidate *found = array_room(s->found, s->n, sizeof(*found));

	if (!found) {
		s->no_memory = true;
		return;
	}
	s->found = found;
	struct candidate *c = &s->found[s->n++];
	snprintf(c->id, sizeof(c->id), "%s", m->id);
	snprintf(c->job, sizeof(c->job), "%s", m->job.id[0] ? m->job.id : m->job.name);
	snprintf(c->created, sizeof(c->created), "%s", m->created);
}

static void consider(void *arg, const char *id, const struct store_image *i,
		     const struct brumate_error *why)
{
	struct search *s = arg;
	const struct store_prune *p = s->prune;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!i) { /* whose it is cannot be told */
		if (!p->job && p->tell)
			p->tell(p->arg, STORE_PRUNE_DAMAGED, id, why->text);
		return;
	}
	if (!is_of_job(&i->manifest, p->job) || (p->may && !p->may(p->arg, &i->manifest)))
		return;
	if (store_check(i, &err) < 0) {
		if (p->tell)
			p->tell(p->arg, STORE_PRUNE_DAMAGED, id, err.text);
		return;
	}
	add(s, &i->manifest);
}

/* Returns 1 if it is gone, 0 if it stays. */
static int remove_one(const char *dir, const struct store_prune *p, const char *id)
{
	const char *needed = p->needed ? p->needed(p->arg, id) : NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!needed && !p->dry_run && store_remove(dir, id, &err) < 0)
		needed = err.text;
	if (p->tell)
		p->tell(p->arg, needed ? STORE_PRUNE_KEPT : STORE_PRUNE_REMOVED, id,
			needed ? needed : "");
	return !needed;
}

static int prune_found(const char *dir, const struct store_prune *p, const struct search *s,
		       struct brumate_error *err)
{
	auto_free struct retention_item *items = calloc(s->n ? s->n : 1, sizeof(*items));
	int removed = 0;

	if (!items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < s->n; i++)
		items[i] = (struct retention_item){ .id = s->found[i].id,
						    .job = s->found[i].job,
						    .created = s->found[i].created };
	retention_choose(items, s->n, &p->rule, clock_wall_ns() / NS_PER_MS);
	for (size_t i = 0; i < s->n; i++)
		if (items[i].doomed)
			removed += remove_one(dir, p, items[i].id);
	return removed;
}

int store_prune(const char *dir, const struct store_prune *p, struct brumate_error *err)
{
	struct search s = { .prune = p };

	if (!p->rule.keep_last && !p->rule.keep_within_ms)
		return brumate_fail(err, EINVAL, "want to know what to keep");
	int r = store_list(dir, consider, &s, err);
	if (r == 0)
		r = s.no_memory ? brumate_fail(err, ENOMEM, "%m") : prune_found(dir, p, &s, err);
	free(s.found);
	return r;
}
