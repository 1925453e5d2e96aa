// SPDX-License-Identifier: MIT
/*
 * `brumate serve` looks at the jobs of `run --wake` once a second, and suspends those that nobody asks; `brumate share` has other jobs take
 * turns on the GPUs that they share. Policies and no truth: what they
 * know they read from the records, so that they may be killed at any moment and started again; servers come back by
 * themselves. Those whose copies do not fit in Memory= go to disk, with their ports held by their shims. All that is remembered is since when
 * a job was seen to run or sleep, and what failed lately.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "edges/serve/fdstore.h"
#include "edges/serve/options.h"
#include "edges/serve/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "job/events.h"
#include "job/labels.h"

enum {
	LOOK_MS = 1000,
	SHARE_LOOK_MS = 250,   /* servers wait for the jobs that share */
	SERVER_WAITS_MS = 500, /* then other servers that could leave for it have been asked to */
	SLICE_MS_MIN = 1000,
	GPUS_MAX = 63, /* that are distinguished */
	FIRST_PAUSE_MS = 2000,
	LAST_PAUSE_MS = 300000,
	IDLE_AFTER_MS_MIN = 2000, /* what is known of the last use is known to within a second */
};

/* What is remembered of a job that was seen. */
struct seen {
	char id[JOB_ID_BYTES];
	bool is_running;
	bool is_there;	     /* in the look that is under way */
	uint64_t changed_ns; /* since when it is so; 0: since before the first look */
	uint64_t again_ns;   /* what failed is not tried before */
	uint64_t pause_ms;   /* the last such pause */
};

struct serve {
	bool shares;		/* `brumate share`, not `brumate serve` */
	uint64_t idle_after_ms; /* --idle-after; 0: as the configuration says */
	uint64_t slice_ms;	/* --slice; the same */
	char (*jobs)
		[JOB_ID_BYTES]; /* that share, by their ids; owned. None: those with the labels */
	size_t n_jobs;
	char (*gpus)[MANIFEST_UUID_BYTES]; /* that were seen; owned */
	size_t n_gpus;
	size_t n_alive;		  /* of jobs that share, at the last look */
	bool changed;		  /* a job has come, left or ended since the last look but one */
	struct brumate_conf conf; /* read at each look */
	json_t *labels;		  /* borrowed; NULL: any */
	struct seen *seen;	  /* owned */
	size_t n_seen;
	struct fdstore *fdstore; /* owned; NULL: the service manager keeps nothing */
	struct served *servers;	 /* owned: what the last look has shown */
	size_t n_servers;
};

static void serve_fini(struct serve *s)
{
	free(s->jobs);
	free(s->gpus);
	free(s->seen);
	free(s->servers);
	fdstore_free(s->fdstore);
	conf_fini(&s->conf);
}
DEFINE_AUTO_FINI(struct serve, serve_fini)

/* ---- looking ---- */

static struct seen *find_seen(struct serve *s, const char *id)
{
	for (size_t i = 0; i < s->n_seen; i++)
		if (!strcmp(s->seen[i].id, id))
			return &s->seen[i];
	return NULL;
}

/* One that has never been seen is as it is since its last operation, or its start. */
static uint64_t first_changed_ns(const char *id)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const uint64_t now_ns = clock_now_ns(), wall_ms = clock_wall_ns() / NS_PER_MS;
	uint64_t ms = UINT64_MAX, created_ms;

	if (job_load(&j, id, NULL) == 0)
		ms = job_since_last_ms(&j);
	if (ms == UINT64_MAX && j.created[0] && clock_parse_stamp(&created_ms, j.created) == 0)
		ms = wall_ms > created_ms ? wall_ms - created_ms : 0;
	return ms < now_ns / NS_PER_MS ? now_ns - ms * NS_PER_MS : 0;
}

/* NULL without memory. */
static struct seen *remember(struct serve *s, const char *id, bool is_running)
{
	struct seen *one = find_seen(s, id);
	struct seen *more = one ? s->seen : array_room(s->seen, s->n_seen, sizeof(*more));

	if (!more)
		return NULL;
	s->seen = more;
	if (!one) {
		one = &s->seen[s->n_seen++];
		*one = (struct seen){ .is_running = is_running,
				      .changed_ns = first_changed_ns(id) };
		snprintf(one->id, sizeof(one->id), "%s", id);
	}
	if (is_running != one->is_running) {
		one->changed_ns = clock_now_ns();
		s->changed = true;
	}
	one->is_running = is_running;
	one->is_there = true;
	return one;
}

static bool has_labels(json_t *job, json_t *wanted)
{
	json_t *labels = json_object_get(job, "labels"), *value;
	const char *key;

	json_object_foreach (wanted, key, value)
		if (!json_equal(json_object_get(labels, key), value))
			return false;
	return true;
}

static bool has_label(json_t *job, const char *key, const char *value)
{
	const char *has = json_string_value(json_object_get(json_object_get(job, "labels"), key));

	return has && !strcmp(has, value);
}

static uint64_t ms_since(uint64_t ns, uint64_t now_ns)
{
	return now_ns > ns ? (now_ns - ns) / NS_PER_MS : 0;
}

/* 0: as all. */
static uint64_t member_idle_after_ms(const struct conf_member *m)
{
	if (m->idle_after_ms == CONF_UNSET)
		return 0;
	return m->idle_after_ms > IDLE_AFTER_MS_MIN ? m->idle_after_ms : IDLE_AFTER_MS_MIN;
}

/* Of those that have none of their own. */
static uint64_t idle_after_ms(const struct serve *s)
{
	if (s->idle_after_ms)
		return s->idle_after_ms;
	return s->conf.serve_idle_after_ms > IDLE_AFTER_MS_MIN ? s->conf.serve_idle_after_ms
							       : IDLE_AFTER_MS_MIN;
}

/* The bit of one; beyond so many, one is taken for all. */
static uint64_t gpu_bit(struct serve *s, const char *uuid)
{
	char one[MANIFEST_UUID_BYTES];
	size_t i = 0;

	while (i < s->n_gpus && strcmp(s->gpus[i], uuid) != 0)
		i++;
	snprintf(one, sizeof(one), "%s", uuid);
	if (i == s->n_gpus) {
		void *more = i < GPUS_MAX ? array_room(s->gpus, i, sizeof(one)) : NULL;

		if (!more)
			return UINT64_MAX;
		s->gpus = more;
		memcpy(s->gpus[s->n_gpus++], one, sizeof(one));
	}
	return 1ull << i;
}

static uint64_t gpus_of(struct serve *s, json_t *job, bool is_suspended)
{
	json_t *list = json_object_get(job, is_suspended ? "needs" : "gpus"), *gpu;
	uint64_t bits = json_is_array(list) ? 0 : UINT64_MAX;
	size_t i;

	json_array_foreach (list, i, gpu)
		bits |= gpu_bit(s, text_of(gpu, "uuid"));
	return bits;
}

/* A server is none: it would come back by itself. */
static bool is_share(const struct serve *s, json_t *job)
{
	bool named = !s->n_jobs && has_labels(job, s->labels);

	for (size_t i = 0; i < s->n_jobs; i++)
		named |= !strcmp(s->jobs[i], text_of(job, "id"));
	return s->shares && named && !has_label(job, JOB_WAKE_LABEL, JOB_WAKE_LABEL_YES);
}

static bool is_server(const struct serve *s, json_t *job)
{
	return has_label(job, JOB_WAKE_LABEL, JOB_WAKE_LABEL_YES) &&
	       (s->shares || has_labels(job, s->labels));
}

static int add_server(struct serve *s, json_t *job)
{
	const bool is_running = !strcmp(text_of(job, "state"), "running"),
		   is_suspended = !strcmp(text_of(job, "state"), "suspended");
	json_t *idle = json_object_get(job, "idle_ms"), *waits = json_object_get(job, "waits_ms");
	struct seen *seen = remember(s, text_of(job, "id"), is_running);
	struct served *more = array_room(s->servers, s->n_servers, sizeof(*more));
	const uint64_t now_ns = clock_now_ns();

	if (more)
		s->servers = more;
	const struct conf_member member = conf_member_of(&s->conf, text_of(job, "name"));
	if (!seen || !more)
		return -ENOMEM;
	struct served *it = &s->servers[s->n_servers++];
	*it = (struct served){
		.is_running = is_running,
		.is_suspended = is_suspended,
		.shares = is_share(s, job),
		.waits = json_integer_value(waits) >= SERVER_WAITS_MS,
		.gpus = s->shares ? gpus_of(s, job, is_suspended) : 0,
		.is_pinned = member.pin == CONF_PIN_UNSET
				     ? has_label(job, JOB_PIN_LABEL, JOB_WAKE_LABEL_YES)
				     : member.pin == CONF_PIN_YES,
		.priority = member.priority_given
				    ? member.priority
				    : (int)json_integer_value(json_object_get(job, "priority")),
		.idle_after_ms = member_idle_after_ms(&member),
		.idle_ms = json_is_integer(idle) ? (uint64_t)json_integer_value(idle) : UINT64_MAX,
		.resident_ms = ms_since(seen->changed_ns, now_ns),
		.asleep_ms = seen->changed_ns ? ms_since(seen->changed_ns, now_ns) : UINT64_MAX,
		.copy_bytes = (uint64_t)json_integer_value(json_object_get(job, "copy_bytes")),
		.pause_ms = seen->again_ns > now_ns ? (seen->again_ns - now_ns) / NS_PER_MS + 1 : 0,
	};
	snprintf(it->id, sizeof(it->id), "%s", text_of(job, "id"));
	snprintf(it->name, sizeof(it->name), "%s", text_of(job, "name"));
	s->n_alive += it->shares && json_is_null(json_object_get(job, "ended")) &&
		      strcmp(text_of(job, "state"), "checkpointed") != 0;
	return 0;
}

/* A server that is on disk, whose ports are held. */
static void see_ports(struct serve *s, json_t *job)
{
	if (is_server(s, job) && !strcmp(text_of(job, "state"), "checkpointed") &&
	    *text_of(job, "ports"))
		fdstore_see(s->fdstore, text_of(job, "id"));
}

/* What is not there any more is forgotten. */
static void forget(struct serve *s)
{
	size_t kept = 0;

	for (size_t i = 0; i < s->n_seen; i++)
		if (s->seen[i].is_there)
			s->seen[kept++] = s->seen[i];
	s->changed |= kept != s->n_seen;
	s->n_seen = kept;
	if (!kept)
		cleanup_free(&s->seen);
}

/* Where a job has left, there may be room for those that have found none. */
static void try_again_at_once(struct serve *s)
{
	for (size_t i = 0; s->shares && s->changed && i < s->n_seen; i++)
		s->seen[i].again_ns = 0;
	s->changed = false;
}

static int look(struct serve *s, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:b}", "recent", 1), *reply = NULL;
	json_t *job;
	size_t i;
	conf_fini(&s->conf);
	int r = conf_load(&s->conf, err);
	if (r == 0)
		r = client_ask("List", p, &reply, err);

	cleanup_free(&s->servers);
	s->n_servers = s->n_alive = 0;
	for (i = 0; i < s->n_seen; i++)
		s->seen[i].is_there = false;
	json_array_foreach (json_object_get(reply, "jobs"), i, job)
		if (r == 0 && (is_server(s, job) || is_share(s, job)) && add_server(s, job) < 0)
			r = brumate_fail(err, ENOMEM, "%m");
	fdstore_begin(s->fdstore);
	json_array_foreach (json_object_get(reply, "jobs"), i, job)
		see_ports(s, job);
	if (r == 0) {
		fdstore_end(s->fdstore);
		forget(s);
		try_again_at_once(s);
	}
	return r;
}

/* ---- doing ---- */

static void note_decision(const struct serve *s, const struct served *it, const char *what,
			  const char *reason)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	if (job_load(&j, it->id, NULL) == 0)
		event_add(&j.target, "decided",
			  json_pack("{s:s,s:s,s:s}", "by", s->shares ? "share" : "serve", "what",
				    what, "reason", reason));
	print_note("%s %s: %s", what, it->name, reason);
}

static void pause_after_failure(struct serve *s, const char *id)
{
	struct seen *seen = find_seen(s, id);

	if (!seen)
		return;
	seen->pause_ms = !seen->pause_ms		      ? FIRST_PAUSE_MS
			 : seen->pause_ms < LAST_PAUSE_MS / 2 ? 2 * seen->pause_ms
							      : LAST_PAUSE_MS;
	seen->again_ns = clock_now_ns() + seen->pause_ms * NS_PER_MS;
}

static void forget_failures(struct serve *s, const char *id)
{
	struct seen *seen = find_seen(s, id);

	if (seen)
		seen->pause_ms = 0;
}

/* Returns 1, or 0 when it was cancelled. */
static int note_result(struct serve *s, const struct served *it, const char *what, int r,
		       const struct brumate_error *why)
{
	if (r == 0) {
		forget_failures(s, it->id);
		return 1;
	}
	if (r != -ECANCELED)
		print_note("%s %s: %s", what, it->name, why->text);
	pause_after_failure(s, it->id);
	return r == -ECANCELED ? 0 : 1;
}

/* @method is what @what says: "Suspend", "Resume". */
static int call(struct serve *s, const struct served *it, const char *method, const char *what,
		const char *reason, int stop_fd, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	auto_json json_t *p = json_pack("{s:s}", "job", it->id);

	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	note_decision(s, it, what, reason);
	int r = client_call(method, p, NULL, NULL, stop_fd, NULL, &why);
	return note_result(s, it, what, r, &why);
}

static int swap(struct serve *s, const struct turn_decision *d, int stop_fd,
		struct brumate_error *err)
{
	const struct served *leaves = &s->servers[d->leaves], *comes = &s->servers[d->comes];
	struct brumate_error why = BRUMATE_ERROR_NONE;
	auto_json json_t *p = json_pack("{s:s,s:s}", "leaves", leaves->id, "comes", comes->id);

	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	note_decision(s, leaves, "suspend", d->reason);
	note_decision(s, comes, "resume", d->reason);
	int r = client_call("Swap", p, NULL, NULL, stop_fd, NULL, &why);
	return note_result(s, comes, "resume", r, &why);
}

/* Checkpoints that this makes have names of their own: the one before is removed. */
#define ASLEEP "-asleep-"

static void remove_last(const char *id, const char *prefix)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	auto_json json_t *p = NULL, *reply = NULL;

	if (strncmp(id, prefix, strlen(prefix)) != 0)
		return;
	p = json_pack("{s:s}", "checkpoint", id);
	if (!p || client_ask("Remove", p, &reply, &why) < 0)
		print_note("checkpoint %s stays: %s", id, p ? why.text : strerror(ENOMEM));
}

static int save(struct serve *s, const struct decision *d, int stop_fd, struct brumate_error *err)
{
	const struct served *it = &s->servers[d->at];
	struct brumate_error why = BRUMATE_ERROR_NONE;
	auto_(job_fini) struct job before = JOB_EMPTY;
	char prefix[JOB_ID_BYTES + sizeof(ASLEEP)], id[sizeof(prefix) + 24];

	snprintf(prefix, sizeof(prefix), "%s" ASLEEP, it->id);
	snprintf(id, sizeof(id), "%s%" PRIu64, prefix, (uint64_t)(clock_wall_ns() / NS_PER_MS));
	auto_json json_t *p = json_pack("{s:s,s:b,s:s}", "job", it->id, "wake", 1, "name", id);
	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	note_decision(s, it, "checkpoint", d->reason);
	job_load(&before, it->id, NULL);
	int r = client_call("Checkpoint", p, NULL, NULL, stop_fd, NULL, &why);
	if (r == 0 && before.checkpoint)
		remove_last(before.checkpoint, prefix);
	return note_result(s, it, "checkpoint", r, &why);
}

static uint64_t slice_ms(const struct serve *s)
{
	const uint64_t ms = s->slice_ms ? s->slice_ms : s->conf.serve_slice_ms;

	return ms > SLICE_MS_MIN ? ms : SLICE_MS_MIN;
}

static int do_next_turn(struct serve *s, int stop_fd, struct brumate_error *err)
{
	const struct turn_decision d = share_decide(s->servers, s->n_servers, slice_ms(s));

	if (d.leaves >= 0 && d.comes >= 0)
		return swap(s, &d, stop_fd, err);
	if (d.leaves >= 0)
		return call(s, &s->servers[d.leaves], "Suspend", "suspend", d.reason, stop_fd, err);
	if (d.comes >= 0)
		return call(s, &s->servers[d.comes], "Resume", "resume", d.reason, stop_fd, err);
	return 0;
}

/* Returns 1 if something was done, so that another look is due. */
static int do_next(struct serve *s, int stop_fd, struct brumate_error *err)
{
	if (s->shares)
		return do_next_turn(s, stop_fd, err);
	const struct decision goes = serve_decide(s->servers, s->n_servers, idle_after_ms(s));
	const struct decision saved =
		serve_decide_save(s->servers, s->n_servers, s->conf.serve_memory_bytes);

	if (goes.at >= 0)
		return call(s, &s->servers[goes.at], "Suspend", "suspend", goes.reason, stop_fd,
			    err);
	return saved.at >= 0 ? save(s, &saved, stop_fd, err) : 0;
}

static void show(const struct serve *s)
{
	const struct decision d = serve_decide(s->servers, s->n_servers, idle_after_ms(s));

	for (size_t i = 0; i < s->n_servers; i++) {
		const struct decision one = serve_decide(&s->servers[i], 1, idle_after_ms(s));

		if (one.at == 0)
			printf("%s\t%s%s\n", s->servers[i].name, one.reason,
			       d.at == (ssize_t)i ? "; first" : "");
	}
}

static void show_turn(const struct serve *s)
{
	const struct turn_decision d = share_decide(s->servers, s->n_servers, slice_ms(s));

	if (d.leaves >= 0)
		printf("%s\tsuspend\t%s\n", s->servers[d.leaves].name, d.reason);
	if (d.comes >= 0)
		printf("%s\tresume\t%s\n", s->servers[d.comes].name, d.reason);
}

/* A look that fails is made again: what is in the way may go, and who waits for servers to leave has no other. */
static int keep_serving(struct serve *s, struct brumate_error *err)
{
	const int stop_fd = interrupt_watch(true);
	struct brumate_error last = BRUMATE_ERROR_NONE;

	if (stop_fd < 0)
		return brumate_fail(err, -stop_fd, "pipe: %m");
	while (!interrupt_seen()) {
		struct pollfd stop = { .fd = stop_fd, .events = POLLIN };
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = look(s, &why);

		if (r == 0 && s->shares && !s->n_alive)
			return 0;
		if (r == 0)
			r = do_next(s, stop_fd, &why);
		if (r < 0 && strcmp(why.text, last.text) != 0)
			print_note("%s", why.text);
		last = why;
		if (r <= 0)
			poll(&stop, 1, s->shares ? SHARE_LOOK_MS : LOOK_MS);
	}
	return 0;
}

/* A time of at least @least_ms; 0 where it is not given. */
static int get_time(uint64_t *ret_ms, const struct invocation *in, int option, const char *name,
		    uint64_t least_ms, struct brumate_error *err)
{
	int r = in->values[option] ? parse_duration(ret_ms, name, in->values[option], err) : 0;

	if (r == 0 && in->values[option] && *ret_ms < least_ms)
		r = brumate_fail(err, EINVAL, "%s: expected %d s or more", name,
				 (int)(least_ms / 1000));
	return r;
}

static int begin(struct serve *s, const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object();
	char **labels = NULL;
	int r = p ? add_labels(p, in, err) : brumate_fail(err, ENOMEM, "%m");

	if (r == 0)
		r = labels_from_json(&labels, json_object_get(p, "labels"), err);
	labels_free(labels);
	if (r < 0 && err->code == EBADMSG)
		err->code = EINVAL; /* of the command line */
	if (r < 0)
		return r;
	s->labels = json_object_get(p, "labels");
	if (!in->values[OPT_DRY_RUN])
		return keep_serving(s, err);
	r = look(s, err);
	if (r == 0 && s->shares)
		show_turn(s);
	else if (r == 0)
		show(s);
	return r;
}

int verb_serve(const struct invocation *in, struct brumate_error *err)
{
	auto_(serve_fini) struct serve s = { .conf = BRUMATE_CONF_DEFAULT };
	int r = get_time(&s.idle_after_ms, in, OPT_IDLE_AFTER, "--idle-after", IDLE_AFTER_MS_MIN,
			 err);

	if (r == 0 && !in->values[OPT_DRY_RUN])
		s.fdstore = fdstore_new();
	return r < 0 ? r : begin(&s, in, err);
}

static int add_job(struct serve *s, const char *word, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = job_find(&j, word, err);
	void *more = r == 0 ? array_room(s->jobs, s->n_jobs, sizeof(*s->jobs)) : NULL;

	if (r < 0)
		return r;
	if (!more)
		return brumate_fail(err, ENOMEM, "%m");
	s->jobs = more;
	memcpy(s->jobs[s->n_jobs++], j.id, sizeof(j.id));
	if (j.state == JOB_EXITED || j.state == JOB_LOST || j.state == JOB_CHECKPOINTED)
		return brumate_fail(err, EBUSY, "job %s (%s) takes no turns: it is %s", j.id,
				    j.name, job_state_name(j.state));
	if (!job_wakes(&j))
		return 0;
	brumate_fail(err, EINVAL, "job %s (%s) takes no turns: it was started with --wake", j.id,
		     j.name);
	brumate_hint(err, "such jobs come back when they are asked, and others leave for them");
	return -EINVAL;
}

int verb_share(const struct invocation *in, struct brumate_error *err)
{
	auto_(serve_fini) struct serve s = { .conf = BRUMATE_CONF_DEFAULT, .shares = true };
	int r = get_time(&s.slice_ms, in, OPT_SLICE, "--slice", SLICE_MS_MIN, err);

	if (r == 0 && !in->n_operands == !in->n_labels)
		r = brumate_fail(err, EINVAL, "which jobs? expected either JOB... or --label");
	for (int i = 0; r == 0 && i < in->n_operands; i++)
		r = add_job(&s, in->operands[i], err);
	return r < 0 ? r : begin(&s, in, err);
}
