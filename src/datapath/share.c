// SPDX-License-Identifier: MIT
/* Memory that members of a job share. See park.h. */
#include "datapath/park.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "process/pidns.h"

bool share_uses_others(const struct datapath_agent *a)
{
	return a->agent.sharing & AGENT_HAS_ALIASES;
}

bool share_is_used(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (share_uses_others(&d->agents[i]))
			return true;
	return false;
}

static int list_aliases(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	struct agent_alias *aliases = NULL;
	size_t n = 0;
	int r = agents_reach(d, a, err);

	if (r == 0)
		r = agent_aliases(&a->agent, &aliases, &n, &a->token, err);
	if (r < 0 && r != -EOPNOTSUPP) /* an older agent, which has none */
		return r;
	datapath_agent_unshare(a);
	a->aliases = aliases;
	a->n_aliases = n;
	return 0;
}

static struct datapath_agent *find_owner(struct datapath *d, const struct agent_alias *alias)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].token == alias->token)
			return &d->agents[i];
	return NULL;
}

/* Lists all aliases, and the pieces of their owners. */
static int list_all(struct datapath *d, struct brumate_error *err)
{
	int r = agents_ask(d, list_aliases, err);

	return r < 0 ? r : agents_ask(d, agents_list, err);
}

static bool has_piece(const struct datapath_agent *a, uint64_t id)
{
	for (size_t i = 0; i < a->n_pieces; i++)
		if (a->pieces[i].id == id)
			return true;
	return false;
}

/* Whether the alias's owner can export it. */
static bool is_there(struct datapath *d, const struct agent_alias *alias)
{
	const struct datapath_agent *owner = find_owner(d, alias);

	return owner && has_piece(owner, alias->piece);
}

/* Finds another process by its pid in the pid namespace of @asker. -ENOENT: that cannot be determined. */
static int find_by_number(pid_t *ret, pid_t asker, pid_t inner_pid)
{
	struct proc_info info;

	if (proc_read(&info, asker, NULL) < 0)
		return -ESRCH;
	if (info.pid_ns_depth == 1) {
		*ret = inner_pid;
		return 0;
	}
	/* Checks that translation works here at all. */
	if (pidns_translate(asker, info.inner_pid) != asker)
		return -ENOENT;
	*ret = pidns_translate(asker, inner_pid);
	return 0;
}

/* Also false if that cannot be determined. */
static bool owner_has_ended(const struct datapath_agent *a, const struct agent_alias *alias)
{
	struct proc_info info;
	pid_t pid;

	if (find_by_number(&pid, a->agent.id.pid, alias->pid) < 0)
		return false;
	if (pid == 0)
		return true;
	int r = proc_read(&info, pid, NULL);
	return r == -ESRCH || (r == 0 && info.ends);
}

static int check_alias(struct datapath *d, const struct datapath_agent *a,
		       const struct agent_alias *alias, struct brumate_error *err)
{
	const struct datapath_agent *owner = find_owner(d, alias);

	if (is_there(d, alias) || (!owner && owner_has_ended(a, alias)))
		return 0;
	brumate_fail(err, EOPNOTSUPP, "process %d uses device memory of process %d, which %s",
		     a->agent.id.pid, alias->pid,
		     owner ? "has freed it" : "has no agent or is not of this job");
	brumate_hint(err,
		     "no process can export it any more; the job can be saved once process %d "
		     "frees it, too",
		     a->agent.id.pid);
	return -EOPNOTSUPP;
}

int share_check(struct datapath *d, struct brumate_error *err)
{
	int r = share_is_used(d) ? list_all(d, err) : 1;

	for (size_t i = 0; r == 0 && i < d->n_agents; i++)
		for (size_t k = 0; r == 0 && k < d->agents[i].n_aliases; k++)
			r = check_alias(d, &d->agents[i], &d->agents[i].aliases[k], err);
	return r < 0 ? r : 0;
}

/* ---- memory of processes that have ended ---- */

bool share_is_orphan(const struct datapath *d, const struct vault_piece *p)
{
	if (!share_is_used(d) || p->process.start_ticks == VAULT_ENDED_TICKS)
		return share_is_used(d);
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].token == p->token)
			return false;
	return p->token;
}

/* The token of a process that is missing in the checkpoint is unknown. */
static bool is_memory_of(const struct vault_piece *p, const struct agent_alias *alias)
{
	if (p->id != alias->piece)
		return false;
	return p->process.start_ticks == VAULT_ENDED_TICKS && !p->token
		       ? p->process.pid == alias->pid
		       : p->token == alias->token;
}

struct orphans {
	struct vault_piece *all;
	size_t n;
};

/* A checkpoint identifies processes by their pids alone. */
static int check_number(const struct orphans *o, const struct agent_alias *alias,
			struct brumate_error *err)
{
	for (size_t i = 0; i < o->n; i++)
		if (o->all[i].process.pid == alias->pid && o->all[i].token != alias->token)
			return brumate_fail(err, EOPNOTSUPP,
					    "device memory of two processes that have ended, and "
					    "both were process %d, is in use",
					    alias->pid);
	return 0;
}

static bool is_copied(const struct orphans *o, const struct agent_alias *alias)
{
	for (size_t i = 0; i < o->n; i++)
		if (is_memory_of(&o->all[i], alias))
			return true;
	return false;
}

/* The copy is made by the first member that can. */
static int copy_orphan(struct orphans *o, struct datapath_agent *a, const struct agent_alias *alias,
		       struct brumate_error *err)
{
	const struct proc_id owner = { alias->pid, VAULT_ENDED_TICKS };
	struct agent_piece told;
	int fd = -1, r = check_number(o, alias, err);
	struct vault_piece *all = array_room(o->all, o->n, sizeof(*all));

	if (!all)
		return brumate_fail(err, ENOMEM, "%m");
	o->all = all;
	if (r == 0)
		r = agent_copy(&a->agent, alias->id, &told, &fd, err);
	if (r < 0)
		return r;
	all[o->n] = vault_piece_of(owner, &told);
	all[o->n].id = alias->piece;
	all[o->n].token = alias->token;
	all[o->n].inner_pid = alias->pid;
	all[o->n++].fd = fd;
	return 0;
}

static int copy_orphans_of(struct datapath *d, struct datapath_agent *a, struct orphans *o,
			   struct brumate_error *err)
{
	for (size_t i = 0; i < a->n_aliases; i++) {
		const struct agent_alias *alias = &a->aliases[i];

		if (find_owner(d, alias) || is_copied(o, alias))
			continue;
		int r = copy_orphan(o, a, alias, err);
		if (r < 0 && proc_has_ended(a->agent.id))
			return 0; /* another member may have it mapped, or none any more */
		if (r < 0)
			return brumate_wrap(err, r,
					    "device memory of process %d, which has ended, cannot "
					    "be copied",
					    alias->pid);
	}
	return 0;
}

static bool has_orphans(struct datapath *d, const struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_aliases; i++)
		if (!find_owner(d, &a->aliases[i]))
			return true;
	return false;
}

static int keep_closed(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	return has_orphans(d, a) ? agent_keep_closed(&a->agent, err) : 0;
}

static int compare_orphans(const void *one, const void *other)
{
	const struct vault_piece *a = one, *b = other;

	if (a->process.pid != b->process.pid)
		return a->process.pid < b->process.pid ? -1 : 1;
	return a->id < b->id ? -1 : a->id > b->id;
}

int share_copy_orphans(struct datapath *d, struct vault_piece **ret, size_t *ret_n,
		       struct brumate_error *err)
{
	struct orphans o = { NULL, 0 };
	int r = share_is_used(d) ? agents_ask(d, keep_closed, err) : 0;

	for (size_t i = 0; r == 0 && i < d->n_agents; i++)
		r = copy_orphans_of(d, &d->agents[i], &o, err);
	for (size_t i = 0; r < 0 && i < o.n; i++)
		cleanup_close(&o.all[i].fd);
	if (r < 0) {
		free(o.all);
		return r;
	}
	if (o.n)
		qsort(o.all, o.n, sizeof(*o.all), compare_orphans);
	*ret = o.all;
	*ret_n = o.n;
	return 0;
}

/* ---- hiding ---- */

/* Returns the vault's descriptor of memory whose owner ended after it was parked; borrowed, or -1. */
static int find_parked(const struct datapath *d, const struct agent_alias *alias)
{
	const struct vault *v = d->vault;

	for (size_t i = 0; i < v->n_pieces; i++)
		if (is_memory_of(&v->pieces[i], alias))
			return v->pieces[i].fd;
	return -1;
}

int share_check_parked(struct datapath *d, struct brumate_error *err)
{
	for (size_t i = 0; i < d->n_agents; i++) {
		const struct datapath_agent *a = &d->agents[i];

		for (size_t k = 0; k < a->n_aliases; k++)
			if (find_parked(d, &a->aliases[k]) < 0)
				return brumate_fail(
					err, EAGAIN,
					"process %d has ended in the meantime, and process %d "
					"uses its device memory",
					a->aliases[k].pid, a->agent.id.pid);
	}
	return 0;
}

static bool has_mapped(const struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_aliases; i++)
		if (!(a->aliases[i].flags & AGENT_ALIAS_AWAY))
			return true;
	return false;
}

/* Whether all of its aliases can be mapped again later. */
static bool may_be_hidden(struct datapath *d, const struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_aliases; i++)
		if (!is_there(d, &a->aliases[i]) && find_parked(d, &a->aliases[i]) < 0)
			return false;
	return a->agent.gate != AGENT_GATE_OPEN;
}

static int hide_aliases(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	if (!has_mapped(a) || !may_be_hidden(d, a))
		return 0;
	int r = agent_unmap_aliases(&a->agent, err);
	for (size_t i = 0; r == 0 && i < a->n_aliases; i++)
		a->aliases[i].flags |= AGENT_ALIAS_AWAY;
	return r;
}

/* If an orphan's alias is unmapped, it will be mapped from the vault's copy, while others may still map the original. */
static bool any_orphan_is_away(struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		for (size_t k = 0; k < d->agents[i].n_aliases; k++)
			if (d->agents[i].aliases[k].flags & AGENT_ALIAS_AWAY &&
			    !find_owner(d, &d->agents[i].aliases[k]))
				return true;
	return false;
}

/* Aliases of the copy must not be mapped while others still map the original. */
static int check_hidden(struct datapath *d, struct brumate_error *err)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (has_mapped(&d->agents[i]) && has_orphans(d, &d->agents[i]))
			return brumate_fail(err, EAGAIN,
					    "process %d has device memory mapped of a process that "
					    "has ended",
					    d->agents[i].agent.id.pid);
	return 0;
}

int share_hide(struct datapath *d, struct brumate_error *err)
{
	int r = share_is_used(d) ? list_all(d, err) : 0;
	bool orphans = r == 0 && any_orphan_is_away(d);

	if (r == 0 && share_is_used(d) && (agents_count_imported(d) || orphans))
		r = agents_ask(d, hide_aliases, err);
	if (r == 0 && orphans)
		r = check_hidden(d, err);
	d->maps.aliases_hidden = r == 0;
	for (size_t i = 0; i < d->n_agents; i++)
		if (has_mapped(&d->agents[i]))
			d->maps.aliases_hidden = false;
	return r;
}

/* ---- bringing back ---- */

static const struct datapath_loan *find_loan(const struct datapath_agent *owner, uint64_t piece)
{
	for (size_t i = 0; i < owner->n_loans; i++)
		if (owner->loans[i].piece == piece)
			return &owner->loans[i];
	return NULL;
}

static int add_loan(struct datapath_agent *owner, uint64_t piece)
{
	if (find_loan(owner, piece))
		return 0;
	return array_add(owner->loans, owner->n_loans, (struct datapath_loan){ piece, -1 });
}

/* Notes which pieces their owners have to export for @a. */
static int want_loans(struct datapath *d, const struct datapath_agent *a, struct brumate_error *err)
{
	for (size_t i = 0; i < a->n_aliases; i++) {
		const struct agent_alias *alias = &a->aliases[i];
		struct datapath_agent *owner = find_owner(d, alias);

		if (!(alias->flags & AGENT_ALIAS_AWAY) || (!owner && find_parked(d, alias) >= 0))
			continue;
		if (!owner)
			return brumate_fail(err, EIO,
					    "process %d: the device memory of process %d that it "
					    "uses is gone",
					    a->agent.id.pid, alias->pid);
		if (add_loan(owner, alias->piece) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

static int export_loans(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	auto_free uint64_t *ids = calloc(a->n_loans + 1, sizeof(*ids));
	auto_free int *fds = calloc(a->n_loans + 1, sizeof(*fds));

	(void)d;
	if (!ids || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a->n_loans; i++)
		ids[i] = a->loans[i].piece;
	int r = agent_export(&a->agent, ids, a->n_loans, fds, err);
	for (size_t i = 0; r == 0 && i < a->n_loans; i++)
		a->loans[i].fd = fds[i];
	return r;
}

static int map_aliases(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	auto_free uint64_t *ids = calloc(a->n_aliases + 1, sizeof(*ids));
	auto_free int *fds = calloc(a->n_aliases + 1, sizeof(*fds));
	size_t n = 0;

	if (!ids || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a->n_aliases; i++) {
		const struct datapath_agent *owner = find_owner(d, &a->aliases[i]);
		const struct datapath_loan *loan =
			owner ? find_loan(owner, a->aliases[i].piece) : NULL;
		int fd = loan ? loan->fd : find_parked(d, &a->aliases[i]);

		if (!(a->aliases[i].flags & AGENT_ALIAS_AWAY))
			continue;
		if (fd < 0)
			return brumate_fail(err, EAGAIN, "process %d has ended in the meantime",
					    a->aliases[i].pid);
		ids[n] = a->aliases[i].id;
		fds[n++] = fd;
	}
	return n ? agent_map(&a->agent, ids, fds, n, err) : 0;
}

int share_bring(struct datapath *d, struct brumate_error *err)
{
	int r = share_is_used(d) ? agents_ask(d, list_aliases, err) : 0;

	for (size_t i = 0; r == 0 && i < d->n_agents; i++)
		r = want_loans(d, &d->agents[i], err);
	if (r == 0)
		r = agents_ask(d, export_loans, err);
	if (r == 0)
		r = agents_ask(d, map_aliases, err);
	for (size_t i = 0; i < d->n_agents; i++)
		datapath_agent_unshare(&d->agents[i]);
	return r;
}
