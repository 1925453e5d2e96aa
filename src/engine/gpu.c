// SPDX-License-Identifier: MIT
/*
 * The GPU state of a job's processes, through the broker. What the driver says of a process counts,
 * not what a call returned: after every action the states are asked for.
 */
#include "engine/op.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

enum { REOPEN_TRIES = 3, END_TIMEOUT_MS = 2000 };

int gpu_open(struct op *op, struct brumate_error *err)
{
	if (op->broker_is_open)
		return 0;

	int r = broker_client_open(&op->broker, op->job->simulated, err);
	if (r < 0)
		return r;
	op->broker_is_open = true;
	fault_register_peer("broker", broker_client_pid(&op->broker));
	return 0;
}

static int reopen(struct op *op, struct brumate_error *err)
{
	log_warn("the broker is gone, starting another: job=%s", op->job->id);
	int r = broker_client_reopen(&op->broker, err);

	if (r == 0)
		fault_register_peer("broker", broker_client_pid(&op->broker));
	return r;
}

/* ---- finding ---- */

static int ask_states(struct op *op, struct brumate_error *err)
{
	auto_free pid_t *pids = calloc(op->n_gpus + 1, sizeof(*pids));
	auto_free struct dev_process *dev = calloc(op->n_gpus + 1, sizeof(*dev));
	int r = -EPIPE;

	if (!pids || !dev)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->n_gpus; i++)
		pids[i] = op->gpus[i].id.pid;
	for (int tries = 0; r == -EPIPE && tries < REOPEN_TRIES; tries++) {
		if (tries && (r = reopen(op, err)) < 0)
			return r;
		r = broker_client_state(&op->broker, pids, op->n_gpus, dev, err);
	}
	if (r < 0)
		return r;
	for (size_t i = 0; i < op->n_gpus; i++)
		op->gpus[i].dev = dev[i];
	return 0;
}

/* The driver's calls do not return for a stopped process: it would have to answer for itself. */
static int refuse_stopped(const struct proc_info *info, struct brumate_error *err)
{
	brumate_fail(err, EBUSY, "process %d (%s) is %s", info->id.pid, info->comm,
		     info->tracer_pid ? "held by a debugger" : "stopped");
	brumate_hint(err, "the driver only saves processes that run: %s",
		     info->tracer_pid ? "detach the debugger" : "continue it with `kill -CONT`");
	return -EBUSY;
}

static int list_candidates(struct op *op, struct brumate_error *err)
{
	free(op->gpus);
	op->n_gpus = 0;
	op->gpus = calloc(op->tree.n + 1, sizeof(*op->gpus));
	if (!op->gpus)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->tree.n; i++) {
		const struct proc_info *info = &op->tree.items[i];

		if (info->state == 'Z' || !scan_uses_gpu(info->id.pid))
			continue;
		if (info->state == 'T' || info->state == 't')
			return refuse_stopped(info, err);
		op->gpus[op->n_gpus++].id = info->id;
	}
	return 0;
}

int gpu_find(struct op *op, struct brumate_error *err)
{
	proc_tree_fini(&op->tree);
	int r = proc_tree_read(&op->tree, op->job->root, err);
	if (r < 0)
		return r;
	if ((r = list_candidates(op, err)) < 0 || !op->n_gpus)
		return r;

	if ((r = gpu_open(op, err)) < 0 || (r = ask_states(op, err)) < 0)
		return r;
	size_t kept = 0;
	for (size_t i = 0; i < op->n_gpus; i++)
		if (op->gpus[i].dev.state != DEV_STATE_NONE)
			op->gpus[kept++] = op->gpus[i];
	op->n_gpus = kept;
	return 0;
}

uint64_t gpu_bytes(const struct op *op)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < op->n_gpus; i++)
		sum += op->gpus[i].dev.used_bytes;
	return sum;
}

uint64_t gpu_measure_host(void *arg)
{
	const struct op *op = arg;
	uint64_t now = 0, before = 0;

	for (size_t i = 0; i < op->n_gpus; i++) {
		struct proc_info info;

		if (proc_read(&info, op->gpus[i].id.pid, NULL) == 0)
			now += info.rss_bytes;
	}
	for (size_t i = 0; i < op->tree.n; i++)
		for (size_t k = 0; k < op->n_gpus; k++)
			if (op->tree.items[i].id.pid == op->gpus[k].id.pid)
				before += op->tree.items[i].rss_bytes;
	return now > before ? now - before : 0;
}

/* ---- acting ---- */

/* One call of the broker for all processes that are not in state @want. Outcomes are only kept for
 * the message: the states asked for afterwards decide. */
static int act_once(struct op *op, enum dev_action action, enum dev_state want, uint32_t timeout_ms,
		    char *ret_why, size_t why_bytes, struct brumate_error *err)
{
	auto_free pid_t *pids = calloc(op->n_gpus + 1, sizeof(*pids));
	auto_free struct broker_outcome *outcomes = calloc(op->n_gpus + 1, sizeof(*outcomes));
	size_t n = 0;

	op->driver_refused = false;
	if (!pids || !outcomes)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->n_gpus; i++)
		if (op->gpus[i].dev.state != want)
			pids[n++] = op->gpus[i].id.pid;
	if (!n)
		return 0;

	bool map = action == DEV_RESTORE;
	int r = broker_client_act(&op->broker, action, pids, n, timeout_ms, map ? op->pairs : NULL,
			   map ? op->n_pairs : 0, outcomes, err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct broker_outcome *o = &outcomes[i];

		/* A negative number is ours (a deadline, a fault), not the driver's. */
		if (action == DEV_RESTORE && o->result.number > 0 &&
		    o->state == DEV_STATE_CHECKPOINTED)
			op->driver_refused = true;
		if (o->result.number && !*ret_why)
			snprintf(ret_why, why_bytes, "process %d: driver says %s (%d) after %.1f s",
				 pids[i], o->result.name, o->result.number, o->seconds);
	}
	return r;
}

static struct op_gpu_process *first_not(struct op *op, enum dev_state want)
{
	for (size_t i = 0; i < op->n_gpus; i++)
		if (op->gpus[i].dev.state != want)
			return &op->gpus[i];
	return NULL;
}

static int explain(struct op *op, struct op_gpu_process *p, enum dev_action action, const char *why,
		   struct brumate_error *err)
{
	/* A process that the driver knew and knows no more is on its way out. */
	if (p->dev.state == DEV_STATE_NONE)
		proc_wait_gone(p->id, deadline_in_ms(END_TIMEOUT_MS));
	if (!proc_is_alive(p->id))
		return brumate_fail(err, ESRCH, "process %d ended", p->id.pid);
	brumate_fail(err, EIO, "%s%sstate is %s", why, *why ? "; " : "",
		     dev_state_name(p->dev.state));
	if (strstr(why, "NOT_SUPPORTED"))
		brumate_hint(
			err,
			"the driver cannot save what this process holds (managed memory, IPC …); "
			"see `brumate doctor --job %s`",
			op->job->id);
	else if (action == DEV_RESTORE)
		brumate_hint(
			err,
			"its data is safe in host memory, but where the driver refuses for good "
			"(memory shared between GPUs or processes) nothing brings it back");
	else if (action == DEV_LOCK)
		brumate_hint(
			err,
			"a kernel or host callback that runs long holds the GPU; try again with a "
			"longer --timeout");
	return -EIO;
}

int gpu_act(struct op *op, enum dev_action action, enum dev_state want, uint32_t timeout_ms,
	    struct brumate_error *err)
{
	char why[256] = "";
	int r = 0;

	for (int tries = 0; tries < REOPEN_TRIES; tries++) {
		r = act_once(op, action, want, timeout_ms, why, sizeof(why), err);
		if (r == -EPIPE) {
			if ((r = reopen(op, err)) < 0)
				return r;
			r = -EPIPE;
		} else if (r < 0) {
			return r;
		}
		int asked = ask_states(op, err);
		if (asked < 0)
			return asked;
		if (!first_not(op, want))
			break;
		/* A restore that failed is tried once more: what the driver says then is final. */
		if (r == 0 && (!op->driver_refused || tries))
			break;
	}
	struct op_gpu_process *bad = first_not(op, want);
	return bad ? explain(op, bad, action, why, err) : 0;
}

/* Acts on those in state @from alone, whatever becomes of the others; their states are known afterwards. */
static int act_from(struct op *op, enum dev_state from, enum dev_action action,
		    struct brumate_error *err)
{
	struct op_gpu_process *all = op->gpus;
	size_t n_all = op->n_gpus, n = 0;
	auto_free struct op_gpu_process *some = calloc(n_all + 1, sizeof(*some));
	static const enum dev_state after[DEV_ACTION__MAX] = {
		[DEV_LOCK] = DEV_STATE_LOCKED,
		[DEV_DO_CHECKPOINT] = DEV_STATE_CHECKPOINTED,
		[DEV_RESTORE] = DEV_STATE_LOCKED,
		[DEV_UNLOCK] = DEV_STATE_RUNNING,
	};

	if (!some)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n_all; i++)
		if (all[i].dev.state == from)
			some[n++] = all[i];
	op->gpus = some;
	op->n_gpus = n;
	int r = n ? gpu_act(op, action, after[action], OP_DRIVER_TIMEOUT_MS, err) : 0;
	op->gpus = all;
	op->n_gpus = n_all;
	for (size_t i = 0, k = 0; i < n_all; i++)
		if (all[i].dev.state == from)
			all[i].dev = some[k++].dev;
	return r;
}

int gpu_restore_suspended(struct op *op, struct brumate_error *err)
{
	int r = act_from(op, DEV_STATE_CHECKPOINTED, DEV_RESTORE, err);

	for (size_t i = 0; r == 0 && i < op->n_gpus; i++) {
		enum dev_state state = op->gpus[i].dev.state;

		if (state != DEV_STATE_LOCKED && state != DEV_STATE_RUNNING)
			r = explain(op, &op->gpus[i], DEV_RESTORE, "", err);
	}
	return r;
}

/* Forgets processes that have ended: they need nothing any more. */
static void drop_ended(struct op *op)
{
	size_t kept = 0;

	for (size_t i = 0; i < op->n_gpus; i++)
		if (proc_is_alive(op->gpus[i].id))
			op->gpus[kept++] = op->gpus[i];
	op->n_gpus = kept;
}

static int settle(struct op *op, const enum dev_state from[2], const enum dev_action action[2],
		  struct brumate_error *err)
{
	int r = 0;

	drop_ended(op);
	if (!op->n_gpus)
		return 0;
	if ((r = gpu_open(op, err)) < 0 || (r = ask_states(op, err)) < 0)
		return r;
	for (int i = 0; i < 2; i++) {
		int one = act_from(op, from[i], action[i], err);

		drop_ended(op);
		if (one == -ESRCH)
			one = 0; /* ended meanwhile */
		if (one < 0)
			r = one;
		if ((one = ask_states(op, r < 0 ? NULL : err)) < 0)
			return one;
	}
	return r;
}

int gpu_bring_back(struct op *op, struct brumate_error *err)
{
	static const enum dev_state from[2] = { DEV_STATE_CHECKPOINTED, DEV_STATE_LOCKED };
	static const enum dev_action action[2] = { DEV_RESTORE, DEV_UNLOCK };
	int r = settle(op, from, action, err);

	if (r < 0)
		return r;
	struct op_gpu_process *bad = first_not(op, DEV_STATE_RUNNING);
	return bad ? explain(op, bad, DEV_UNLOCK, "", err) : 0;
}

int gpu_put_away(struct op *op, struct brumate_error *err)
{
	static const enum dev_state from[2] = { DEV_STATE_RUNNING, DEV_STATE_LOCKED };
	static const enum dev_action action[2] = { DEV_LOCK, DEV_DO_CHECKPOINT };
	int r = settle(op, from, action, err);

	if (r < 0)
		return r;
	struct op_gpu_process *bad = first_not(op, DEV_STATE_CHECKPOINTED);
	return bad ? explain(op, bad, DEV_DO_CHECKPOINT, "", err) : 0;
}
