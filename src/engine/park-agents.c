// SPDX-License-Identifier: MIT
/* Which processes of a job have agents, and requests to all of them at once. See park.h. */
#include "engine/park-private.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "datapath/vault.h"

/* ---- all agents at once ---- */

struct task {
	struct op *op;
	struct op_agent *agent;
	park_fn fn;
	pthread_t thread;
	bool started;
};

static void *run_task(void *arg)
{
	struct task *t = arg;

	t->agent->error = BRUMATE_ERROR_NONE;
	t->agent->result = t->fn(t->op, t->agent, &t->agent->error);
	return NULL;
}

int park_each(struct op *op, park_fn fn, struct brumate_error *err)
{
	auto_free struct task *tasks = calloc(op->n_agents + 1, sizeof(*tasks));
	int r = 0;

	if (!tasks)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->n_agents; i++) {
		tasks[i] = (struct task){ .op = op, .agent = &op->agents[i], .fn = fn };
		if (i + 1 < op->n_agents)
			tasks[i].started =
				pthread_create(&tasks[i].thread, NULL, run_task, &tasks[i]) == 0;
		if (!tasks[i].started)
			run_task(&tasks[i]);
	}
	for (size_t i = 0; i < op->n_agents; i++) {
		if (tasks[i].started)
			pthread_join(tasks[i].thread, NULL);
		if (op->agents[i].result < 0 && r == 0) {
			r = op->agents[i].result;
			if (err)
				*err = op->agents[i].error;
		}
	}
	return r;
}

int park_reach(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	if (a->agent.fd >= 0)
		return 0;
	auto_free char *dir = job_agent_dir(op->job);
	struct agent agent = AGENT_EMPTY;

	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	int r = agent_open(&agent, dir, a->agent.id, op->job->uid, err);
	if (r == 0)
		a->agent = agent;
	return r;
}

/* ---- finding ---- */

static void leave_to_driver(struct op *op, const struct op_agent *a)
{
	if (a->result == -ENOENT)
		progress_note(&op->progress,
			      "process %d has no agent: its device memory goes by the driver alone",
			      a->agent.id.pid);
	else
		progress_note(&op->progress, "%s: its device memory goes by the driver alone",
			      a->error.text);
}

void park_drop_failed(struct op *op)
{
	size_t kept = 0;

	for (size_t i = 0; i < op->n_agents; i++) {
		struct op_agent *a = &op->agents[i];

		if (a->result == 0) {
			op->agents[kept++] = *a;
			continue;
		}
		leave_to_driver(op, a);
		agent_close(&a->agent);
		op_agent_fini(a);
	}
	op->n_agents = kept;
}

void park_find(struct op *op)
{
	op_drop_agents(op);
	if (!op->vault || op->job->data_path != JOB_DATA_BROKER || !op->gpus.n)
		return;
	auto_free char *dir = job_agent_dir(op->job);
	op->agents = calloc(op->gpus.n, sizeof(*op->agents));
	if (!op->agents || !dir)
		return;
	agent_sweep(dir, op->job->root, &op->tree);
	for (size_t i = 0; i < op->gpus.n; i++)
		op->agents[op->n_agents++].agent =
			(struct agent){ .fd = -1, .id = op->gpus.items[i].id };
	park_each(op, park_reach, NULL);
	park_drop_failed(op);
	park_detach(op);
}

static bool has_agent(const struct op *op, struct proc_id id)
{
	for (size_t i = 0; i < op->n_agents; i++)
		if (op->agents[i].agent.id.pid == id.pid)
			return true;
	return false;
}

int park_check(const struct op *op, struct brumate_error *err)
{
	const struct vault *h = op->vault;

	for (size_t i = 0; h && i < h->n_pieces; i++) {
		struct proc_id id = h->pieces[i].process;

		if (has_agent(op, id) || !proc_is_alive(id))
			continue;
		brumate_fail(err, EIO,
			     "process %d: its agent does not answer, and its device memory is held "
			     "for it",
			     id.pid);
		brumate_hint(err, "try again");
		return -EIO;
	}
	return 0;
}

void park_detach(struct op *op)
{
	for (size_t i = 0; i < op->n_agents; i++)
		agent_detach(&op->agents[i].agent);
}

uint64_t park_managed_bytes(const struct op *op)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < op->n_agents; i++)
		sum += op->agents[i].agent.managed_bytes;
	return sum;
}
