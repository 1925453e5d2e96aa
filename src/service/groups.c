// SPDX-License-Identifier: MIT
/*
 * Swap: a group of two jobs that pass each other, one off its GPUs and one back to them. The steps are calls to the shims of
 * both, at once; a call whose caller has died is undone by its shim, and what was done before is undone by the next
 * command.
 */
#include "service/jobs.h"
#include "service/service.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "job/events.h"
#include "job/group.h"
#include "job/request.h"

enum { UNDO_WAIT_MS = 60000 };

/* ---- the steps of a group ---- */

struct leader {
	const struct service_call *call;
	pthread_mutex_t lock; /* of replies, which come from all steps */
	json_t *results;      /* under the lock: summaries by job; owned */
};

static void pass_reply(void *arg, json_t *reply)
{
	struct leader *l = arg;

	pthread_mutex_lock(&l->lock);
	l->call->on_reply(l->call->arg, reply);
	pthread_mutex_unlock(&l->lock);
}

/* Readable when the caller cancels, or another step has failed (owned). -errno. */
static int watch_cancel(const struct cancel *cancel, int turn_fd)
{
	auto_close int fd = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event turn = { .events = EPOLLIN };

	if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, turn_fd, &turn) < 0)
		return -errno;
	for (int i = 0; i < CANCEL_FDS; i++) {
		struct epoll_event e = { .events = (uint32_t)cancel->fds[i].events };

		if (cancel->fds[i].fd >= 0 &&
		    epoll_ctl(fd, EPOLL_CTL_ADD, cancel->fds[i].fd, &e) < 0)
			return -errno;
	}
	return take_fd(&fd);
}

/* What is undone is not cancelled by the caller, and no reply is sent of it. A job comes back where the other one has left, so its step ends
 * where that one's has failed. */
static int call_shim(struct leader *l, const struct group_call *call, const struct job *j,
		     json_t *parameters, json_t **ret, struct brumate_error *err)
{
	struct service_call own = { l->call->uid, l->call->gid, l->call->pid,
				    .cancel = CANCEL_NEVER };
	const bool must = call->is_undo && strcmp(call->act->method, "Resume") != 0;
	auto_close int cancel_fd =
		must ? -1
		     : watch_cancel(call->is_undo ? &own.cancel : &l->call->cancel, call->turn_fd);

	if (!must && cancel_fd < 0)
		return brumate_fail(err, -cancel_fd, "epoll: %m");
	own.cancel.fds[0] = (struct pollfd){ .fd = cancel_fd, .events = POLLIN };
	if (!call->is_undo) {
		own.on_reply = l->call->on_reply ? pass_reply : NULL;
		own.arg = l;
	}
	return shim_relay(&own, j, call->act->method, parameters, ret, err);
}

static unsigned options_of(const char *method)
{
	return !strcmp(method, "Suspend") ? REQUEST_SUSPEND : REQUEST_RESUME;
}

/* Whether the job that an earlier run took off its GPUs again has come back since, by another command. */
static bool other_has_come(const struct group_call *call)
{
	for (size_t i = 0; call->is_rest && i < call->group->n_steps; i++) {
		const struct group_step *other = &call->group->steps[i];
		auto_(job_fini) struct job j = JOB_EMPTY;

		if (other != call->step && !strcmp(other->undo.method, "Suspend") &&
		    job_load(&j, other->job, NULL) == 0 && j.state != JOB_SUSPENDED &&
		    j.state != JOB_CHECKPOINTED && !job_has_ended(&j))
			return true;
	}
	return false;
}

static int run_step(const struct group_call *call, struct brumate_error *err)
{
	struct leader *l = call->arg;
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *reply = NULL;
	auto_json json_t *parameters =
		call->act->parameters ? json_loads(call->act->parameters, 0, NULL) : json_object();
	int r = job_load(&j, call->step->job, err);

	/* Of what has ended meanwhile nothing is left to be undone. */
	if (call->is_undo && (r == -ENOENT || (r == 0 && job_has_ended(&j))))
		return 0;
	if (call->is_undo && r == 0 && other_has_come(call)) {
		log_warn("job %s stays as it is after a swap that was undone: the other one is "
			 "back on the GPU",
			 j.id);
		return 0;
	}
	if (r == 0 && !parameters)
		r = brumate_fail(err, EBADMSG, "the parameters of %s", call->act->method);
	if (r == 0)
		r = request_add_defaults(parameters, options_of(call->act->method), err);
	if (r == 0)
		r = call_shim(l, call, &j, parameters, &reply, err);
	if (r < 0)
		return brumate_wrap(err, r, "job %s", *j.name ? j.name : call->step->job);
	pthread_mutex_lock(&l->lock);
	json_object_set(l->results, j.id, json_object_get(reply, "summary"));
	pthread_mutex_unlock(&l->lock);
	return 0;
}

/* @ret_results: summaries by job (owned); may be NULL. */
static int lead_group(const struct service_call *call, struct group *g, json_t **ret_results,
		      struct brumate_error *err)
{
	struct leader l = { call, PTHREAD_MUTEX_INITIALIZER, json_object() };
	int r = l.results ? group_run(g, run_step, &l, err) : brumate_fail(err, ENOMEM, "%m");

	if (r == 0 && ret_results)
		*ret_results = take_ptr(&l.results);
	json_decref(l.results);
	pthread_mutex_destroy(&l.lock);
	return r;
}

static void note_events(const struct group *g, const char *what, const char *reason)
{
	for (size_t i = 0; i < g->n_steps; i++) {
		auto_(job_fini) struct job j = JOB_EMPTY;

		if (job_load(&j, g->steps[i].job, NULL) == 0)
			event_add(&j.target, what,
				  json_pack("{s:s,s:o}", "group", "swap", "reason",
					    wire_string(reason)));
	}
}

/* ---- whose leader has died ---- */

static void put_right(void *arg, struct group *g, const char *dir, const struct brumate_error *why)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!g) {
		log_warn("a group is left as it is: path=%s reason=\"%s\"", dir, why->text);
		return;
	}
	note_events(g, "undone", g->reason);
	log_info("a swap whose command died is put right: group=%s", g->id);
	if (lead_group(arg, g, NULL, &err) < 0)
		log_warn("a swap is not put right yet: group=%s reason=\"%s\"", g->id, err.text);
}

void groups_put_right(const struct service_call *call)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (group_take_over(put_right, (void *)call, &err) < 0)
		log_debug("%s", err.text);
}

/* ---- swap ---- */

struct swap {
	struct job leaves, comes;
	int64_t timeout_ms;
};

static void swap_fini(struct swap *s)
{
	job_fini(&s->leaves);
	job_fini(&s->comes);
}
DEFINE_AUTO_FINI(struct swap, swap_fini)

static int check_free(const struct job *j, struct brumate_error *err)
{
	if (!group_find_job(j->id))
		return 0;
	brumate_fail(err, EBUSY, "job %s (%s) is part of another swap", j->id, j->name);
	brumate_hint(err, "wait until that has ended");
	return -EBUSY;
}

static int check_swap(const struct swap *s, struct brumate_error *err)
{
	const struct job *leaves = &s->leaves, *comes = &s->comes;
	int r = check_free(leaves, err);

	if (!strcmp(leaves->id, comes->id))
		return brumate_fail(err, EINVAL, "job %s cannot be swapped with itself",
				    leaves->name);
	if (r == 0)
		r = check_free(comes, err);
	if (r < 0)
		return r;
	if (comes->state == JOB_CHECKPOINTED) {
		brumate_fail(err, ESRCH, "job %s (%s) is not suspended (checkpointed)", comes->id,
			     comes->name);
		brumate_hint(err, "brumate suspend %s; brumate restore %s", leaves->name,
			     comes->name);
		return -ESRCH;
	}
	for (int i = 0; i < 2; i++) {
		const struct job *j = i ? comes : leaves;

		if (j->state != JOB_RUNNING && j->state != JOB_SUSPENDED)
			return brumate_fail(err, job_state_is_passing(j->state) ? EBUSY : ESRCH,
					    "job %s (%s) is neither running nor suspended (%s)",
					    j->id, j->name, job_state_name(j->state));
	}
	return 0;
}

/* @act is done to @j, or else @undo, which waits for what the shim has begun to undo by itself. */
static int add_step(struct group *g, const struct job *j, const char *act, const char *undo,
		    const struct job *other, int64_t timeout_ms)
{
	struct group_step *step = group_add(g, j->id);
	auto_json json_t *forward = json_object(),
			 *back = json_pack("{s:i}", "wait_ms", UNDO_WAIT_MS);
	json_t *resume = !strcmp(act, "Resume") ? forward : back;
	int r = step && forward && back ? 0 : -ENOMEM;

	if (r == 0 && timeout_ms)
		r = json_object_set_new(forward, "timeout_ms", json_integer(timeout_ms));
	if (r == 0)
		r = json_object_set_new(resume, "room_of", json_string(other->id));
	if (r == 0 && job_wakes(j)) /* it will leave again */
		r = json_object_set_new(resume, "keep_copy", json_true());
	if (r == 0)
		r = group_act_set(&step->act, act, forward);
	if (r == 0)
		r = group_act_set(&step->undo, undo, back);
	return r < 0 ? -ENOMEM : 0;
}

static int get_swap(struct swap *ret, json_t *parameters, struct brumate_error *err)
{
	const char *leaves, *comes;
	int r = wire_need_string(parameters, "leaves", &leaves, err);

	if (r == 0)
		r = wire_need_string(parameters, "comes", &comes, err);
	if (r == 0)
		r = wire_get_int(parameters, "timeout_ms", 0, INT32_MAX, &ret->timeout_ms, err);
	if (r == 0)
		r = job_find(&ret->leaves, leaves, err);
	if (r == 0)
		r = job_find(&ret->comes, comes, err);
	return r < 0 ? r : check_swap(ret, err);
}

int service_swap(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(swap_fini) struct swap s = { JOB_EMPTY, JOB_EMPTY, 0 };
	auto_(group_fini) struct group g = GROUP_EMPTY;
	auto_json json_t *results = NULL;
	int r = get_swap(&s, parameters, err), added = 0;

	if (r < 0)
		return r;
	if (s.leaves.state == JOB_RUNNING)
		added = add_step(&g, &s.leaves, "Suspend", "Resume", &s.comes, s.timeout_ms);
	if (added == 0 && s.comes.state == JOB_SUSPENDED)
		added = add_step(&g, &s.comes, "Resume", "Suspend", &s.leaves, s.timeout_ms);
	if (added < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = group_begin(&g, err);
	if (r == 0)
		r = lead_group(call, &g, &results, err);
	if (r < 0) {
		note_events(&g, "undone", err->text);
		return brumate_wrap(err, r, "nothing is swapped");
	}
	return service_answer(ret, err, "{s:O?,s:O?}", "gone",
			      json_object_get(results, s.leaves.id), "come",
			      json_object_get(results, s.comes.id));
}
