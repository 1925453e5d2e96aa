// SPDX-License-Identifier: MIT
/* The state of a data path, and requests to all of its agents at once. See datapath.h. */
#include "datapath/datapath.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/workers.h"

void datapath_agent_fini(struct datapath_agent *a)
{
	for (size_t i = 0; a->fds && i < a->n_pieces; i++)
		cleanup_close(&a->fds[i]);
	free(a->fds);
	free(a->pieces);
	a->fds = NULL;
	a->pieces = NULL;
	a->n_pieces = 0;
}

void datapath_agent_unshare(struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_loans; i++)
		cleanup_close(&a->loans[i].fd);
	free(take_ptr(&a->loans));
	free(take_ptr(&a->aliases));
	a->n_loans = a->n_aliases = 0;
}

void datapath_drop_agents(struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++) {
		agent_detach(&d->agents[i].agent);
		datapath_agent_fini(&d->agents[i]);
		datapath_agent_unshare(&d->agents[i]);
	}
	free(d->agents);
	d->agents = NULL;
	d->n_agents = 0;
	free(d->gone);
	d->gone = NULL;
	d->n_gone = 0;
}

void datapath_fini(struct datapath *d)
{
	datapath_drop_agents(d);
	host_copy_fini(&d->saved);
	free(d->agent_dir);
	d->agent_dir = NULL;
}

/* ---- all agents at once ---- */

enum { END_TIMEOUT_MS = 2000 };

struct agents_request {
	struct datapath *d;
	agents_fn fn;
};

/* A silent agent delays the others, whose gates are closed, at most until the operation's deadline. An undo after
 * that deadline is limited only by the deadline of each call. */
static uint64_t end_of_patience(const struct datapath *d)
{
	const uint64_t end_ns = d->progress ? d->progress->deadline_ns : DEADLINE_NEVER;

	return end_ns == DEADLINE_NEVER || deadline_left_ms(end_ns) == 0 ? 0 : end_ns;
}

static int ask_agent(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	const struct agents_request *request = arg;
	struct datapath_agent *a = &request->d->agents[i];

	(void)me;
	(void)err;
	a->error = BRUMATE_ERROR_NONE;
	a->agent.until_ns = end_of_patience(request->d);
	a->result = request->fn(request->d, a, &a->error);
	return 0; /* a failure of one agent does not stop the others */
}

/* A closed connection means that the process has ended or is about to. */
static bool is_over(const struct datapath_agent *a)
{
	if (a->result == -ESHUTDOWN || a->result >= 0)
		return a->result < 0;
	return proc_wait_gone(a->agent.id,
			      deadline_in_ms(a->result == -EPIPE ? END_TIMEOUT_MS : 0)) == 0;
}

void agents_keep(struct datapath *d, bool (*fn)(void *arg, const struct datapath_agent *a),
		 void *arg)
{
	size_t left = 0;

	for (size_t i = 0; i < d->n_agents; i++) {
		struct datapath_agent *a = &d->agents[i];

		if (fn(arg, a)) {
			d->agents[left++] = *a;
			continue;
		}
		agent_close(&a->agent);
		datapath_agent_fini(a);
		datapath_agent_unshare(a);
	}
	d->n_agents = left;
}

/* Members that end are dropped: they need nothing back. */
static bool goes_on(void *arg, const struct datapath_agent *a)
{
	const struct datapath *d = arg;

	if (!is_over(a))
		return true;
	log_info("process ends, and the job goes on without it: job=%s pid=%d", d->target->id,
		 a->agent.id.pid);
	return false;
}

int agents_ask_all(struct datapath *d, agents_fn fn, struct brumate_error *err)
{
	struct agents_request request = { d, fn };
	const struct workers_items items = {
		.n = d->n_agents, .threads = (unsigned)d->n_agents, .fn = ask_agent, .arg = &request
	};

	return d->n_agents ? workers_run(&items, err) : 0;
}

int agents_settle(struct datapath *d, struct brumate_error *err)
{
	int r = 0;

	agents_keep(d, goes_on, d);
	for (size_t i = 0; r == 0 && i < d->n_agents; i++) {
		r = d->agents[i].result < 0 ? d->agents[i].result : 0;
		if (r < 0 && err)
			*err = d->agents[i].error;
	}
	return r;
}

int agents_ask(struct datapath *d, agents_fn fn, struct brumate_error *err)
{
	int r = agents_ask_all(d, fn, err);

	return r < 0 ? r : agents_settle(d, err);
}

int agents_reach(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	if (a->agent.fd >= 0)
		return 0;
	if (!d->agent_dir)
		return brumate_fail(err, ENOMEM, "%m");
	return agent_open_again(&a->agent, d->agent_dir, err);
}

int agents_list(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	struct agent_piece *pieces = NULL;
	size_t n = 0;
	int r = agent_list(&a->agent, &pieces, &n, err);

	(void)d;
	if (r < 0)
		return r;
	datapath_agent_fini(a);
	a->pieces = pieces;
	a->n_pieces = n;
	return 0;
}

size_t agents_count_pieces(const struct datapath *d, size_t n_agents)
{
	size_t n = 0;

	for (size_t i = 0; i < n_agents; i++)
		n += d->agents[i].n_pieces;
	return n;
}

size_t agents_count_imported(const struct datapath *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->n_agents; i++)
		for (size_t k = 0; k < d->agents[i].n_pieces; k++)
			n += (d->agents[i].pieces[k].flags & AGENT_PIECE_IMPORTED) != 0;
	return n;
}
