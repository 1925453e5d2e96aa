// SPDX-License-Identifier: MIT
/* Requests to all agents of a job at once. See agents.h. */
#include "datapath/agents.h"

#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/workers.h"

enum { END_TIMEOUT_MS = 2000 };

/* One request to an agent, in a thread for each of them. */
struct request {
	struct datapath *d;
	agents_fn fn;
};

static int ask_agent(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	const struct request *request = arg;
	struct datapath_agent *a = &request->d->agents[i];

	(void)me;
	(void)err;
	a->error = BRUMATE_ERROR_NONE;
	a->result = request->fn(request->d, a, &a->error);
	return 0; /* the others are asked all the same */
}

/* An agent that is gone went with its process, or its process ends next. */
static bool is_over(const struct datapath_agent *a)
{
	if (a->result == -ESHUTDOWN || a->result >= 0)
		return a->result < 0;
	return proc_wait_gone(a->agent.id,
			      deadline_in_ms(a->result == -EPIPE ? END_TIMEOUT_MS : 0)) == 0;
}

/* Members that end are let end: there is nothing to be brought back to them. */
static void drop_ended_agents(struct datapath *d)
{
	size_t left = 0;

	for (size_t i = 0; i < d->n_agents; i++) {
		struct datapath_agent *a = &d->agents[i];

		if (!is_over(a)) {
			d->agents[left++] = *a;
			continue;
		}
		log_info("process ends, and the job goes on without it: job=%s pid=%d", d->owner.id,
			 a->agent.id.pid);
		agent_close(&a->agent);
		datapath_agent_fini(a);
		datapath_agent_unshare(a);
	}
	d->n_agents = left;
}

int agents_ask(struct datapath *d, agents_fn fn, struct brumate_error *err)
{
	struct request request = { d, fn };
	const struct workers_items items = {
		.n = d->n_agents, .threads = (unsigned)d->n_agents, .fn = ask_agent, .arg = &request
	};
	int r = d->n_agents ? workers_run(&items, err) : 0;

	if (r == 0)
		drop_ended_agents(d);
	for (size_t i = 0; r == 0 && i < d->n_agents; i++) {
		r = d->agents[i].result < 0 ? d->agents[i].result : 0;
		if (r < 0 && err)
			*err = d->agents[i].error;
	}
	return r;
}

int agents_reach(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	struct agent agent = AGENT_EMPTY;

	if (a->agent.fd >= 0)
		return 0;
	if (!d->agent_dir)
		return brumate_fail(err, ENOMEM, "%m");
	int r = agent_open(&agent, d->agent_dir, a->agent.id, err);
	if (r == 0)
		a->agent = agent;
	return r;
}
