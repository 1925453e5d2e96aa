// SPDX-License-Identifier: MIT
/* Making room among jobs that share GPUs. See neighbours.h. */
#include "engine/neighbours.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "client/agent.h"
#include "client/broker.h"
#include "client/shim.h"
#include "job/events.h"
#include "process/process.h"

/* A job that has used its GPU within this time is in use. What it stays for at least: this many times what it took to come
 * back. */
enum { IN_USE_MS = 1500, TIMES_COST = 10, LEAVE_TIMEOUT_MS = 120000 };

/* ---- how long ago ---- */

static uint64_t since_ms(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	const int64_t ms = (int64_t)(now.tv_sec - then->tv_sec) * 1000 +
			   (now.tv_nsec - then->tv_nsec) / (int64_t)NS_PER_MS;
	return ms > 0 ? (uint64_t)ms : 0;
}

static bool is_number(const char *name)
{
	return *name && name[strspn(name, "0123456789")] == '\0';
}

uint64_t neighbour_idle_ms(const struct job *j)
{
	auto_free char *path = job_agent_dir(&j->target);
	auto_close int dir_fd = path ? agent_dir_open(path) : -1;
	auto_closedir DIR *dir = dir_fd >= 0 ? dir_open(dir_fd, ".") : NULL;
	uint64_t least = UINT64_MAX;
	struct dirent *entry;
	struct stat st;

	while (dir && dir_next(dir, &entry) > 0) {
		if (!is_number(entry->d_name) ||
		    fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		const uint64_t ms = since_ms(&st.st_mtim);
		least = ms < least ? ms : least;
	}
	return least;
}

static void look_at_last_operation(struct neighbour *ret, const struct job *j)
{
	auto_json json_t *summary = job_last_summary(j);

	ret->resident_ms = job_since_last_ms(j);
	ret->cost_ms = (uint64_t)(json_number_value(json_object_get(summary, "seconds")) * 1000);
}

/* ---- two that throw each other out ---- */

/* In the directory of a job: which one has left for it last, and for the how many-th time in turn: "ID N". */
#define TURNS_FILE "turns"

enum { TURNS_MS = 120000, TURNS_BYTES_MAX = 64, DOUBLED_MOST = 4, TURNS_TOLD = 3 };

/* Which job has left for @j last, and for the how many-th time; 0: none, or it is long ago. */
static unsigned read_turns(char ret_with[static JOB_ID_BYTES], const struct job *j)
{
	auto_free char *path = path_format("%s/" TURNS_FILE, j->dir), *text = NULL;
	unsigned n = 0;
	struct stat st;

	if (!path || stat(path, &st) < 0 || since_ms(&st.st_mtim) > TURNS_MS ||
	    file_read(AT_FDCWD, path, TURNS_BYTES_MAX, &text, NULL) < 0 ||
	    sscanf(text, "%15s %u", ret_with, &n) != 2)
		return 0;
	return n < UINT_MAX ? n : n - 1;
}

/* How often @j and the job @id have thrown each other out in turn, up to now. */
static unsigned turns_of(const struct job *j, const char *id)
{
	char with[JOB_ID_BYTES];
	const unsigned n = read_turns(with, j);

	return n && !strcmp(with, id) ? n : 0;
}

unsigned neighbour_turns(const struct job *j)
{
	char with[JOB_ID_BYTES];
	const unsigned n = read_turns(with, j);

	return n >= TURNS_TOLD ? n : 0;
}

/* It may be lost: then they take turns sooner again. */
static void note_turns(const struct job *j, const char *id, unsigned n)
{
	auto_free char *path = path_format("%s/" TURNS_FILE, j->dir);
	char text[TURNS_BYTES_MAX];
	const int len = snprintf(text, sizeof(text), "%s %u\n", id, n);

	if (path)
		file_swap(AT_FDCWD, path, text, (size_t)len, 0600);
}

/* A first time is none in turn. */
static uint64_t doubled(uint64_t ms, unsigned turns)
{
	const unsigned times = turns < 2 ? 0 : turns - 1;

	return ms << (times < DOUBLED_MOST ? times : DOUBLED_MOST);
}

/* ---- who ---- */

struct search {
	const struct job *job;
	const struct brumate_conf *conf;
	struct broker_client *broker;
	struct neighbour *all; /* owned */
	size_t n;
};

static bool wants(const struct job *job, const char *uuid)
{
	bool any = false;

	for (size_t i = 0; i < job->n_gpus; i++) {
		any = any || job->gpus[i].bytes;
		if (job->gpus[i].bytes && !strcmp(job->gpus[i].uuid, uuid))
			return true;
	}
	return !any; /* a new one, which has yet to say */
}

static uint64_t held_bytes(const struct dev_process *p, const struct job *job)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < p->n_gpus; i++)
		if (wants(job, p->gpus[i]))
			bytes += p->gpu_bytes[i];
	return bytes;
}

/* How much the job @j has on GPUs that are wanted. */
static uint64_t bytes_in_the_way(const struct search *s, const struct job *j)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const struct proc_members members = job_members(j);

	if (proc_members_read(&tree, &members, NULL) < 0)
		return 0;
	auto_free struct dev_process *states = calloc(tree.n, sizeof(*states));
	auto_free pid_t *pids = calloc(tree.n, sizeof(*pids));
	for (size_t i = 0; pids && i < tree.n; i++)
		pids[i] = tree.items[i].id.pid;
	uint64_t bytes = 0;
	if (!tree.n || !states || !pids ||
	    broker_client_state(s->broker, pids, tree.n, states, NULL) < 0)
		return 0;
	for (size_t i = 0; i < tree.n; i++)
		bytes += held_bytes(&states[i], s->job);
	return bytes;
}

static void consider(void *arg, const struct job *j, const char *id,
		     const struct brumate_error *why)
{
	struct search *s = arg;
	struct neighbour *more;
	(void)id;
	(void)why;

	if (!j || !strcmp(j->id, s->job->id) || j->state != JOB_RUNNING || !job_wakes(j) ||
	    !gpu_kind_is_same(&j->gpu_kind, &s->job->gpu_kind) || job_is_pinned(j, s->conf) ||
	    job_has_ended(j))
		return;
	const uint64_t bytes = bytes_in_the_way(s, j);
	if (!bytes)
		return;
	more = array_room(s->all, s->n, sizeof(*more));
	if (!more)
		return;
	s->all = more;
	struct neighbour *n = &s->all[s->n++];
	*n = (struct neighbour){ .priority = job_priority(j, s->conf),
				 .min_resident_ms =
					 conf_member_of(s->conf, j->name).min_resident_ms,
				 .gpu_bytes = bytes,
				 .kept_bytes = j->kept_bytes,
				 .idle_ms = neighbour_idle_ms(j),
				 .turns = turns_of(j, s->job->id) };
	memcpy(n->id, j->id, sizeof(n->id));
	look_at_last_operation(n, j);
}

/* One that is in use stays for longer, and one that has yet to be used for a while. */
static bool may_leave(const struct neighbour *n, long priority, const struct brumate_conf *conf)
{
	const uint64_t own_ms = n->min_resident_ms == CONF_UNSET ? conf->min_resident_ms
								 : n->min_resident_ms,
		       least_ms = doubled(own_ms, n->turns);
	const bool in_use = n->idle_ms < IN_USE_MS, used = n->idle_ms <= n->resident_ms;

	if (n->priority > priority)
		return false;
	if (used && !in_use)
		return true;
	return n->resident_ms >= least_ms && (!in_use || n->resident_ms >= TIMES_COST * n->cost_ms);
}

/* The part of what it has on GPUs that has a copy in host memory. */
static double kept_share(const struct neighbour *n)
{
	if (!n->gpu_bytes)
		return 0;
	return n->kept_bytes < n->gpu_bytes ? (double)n->kept_bytes / (double)n->gpu_bytes : 1;
}

/* For how long it counts as idle, the less the more its eviction costs: what it has on GPUs goes out, but for what is in host
 * memory, and all of it comes back. */
static uint64_t weighed_ms(const struct neighbour *n)
{
	return n->idle_ms != UINT64_MAX ? (uint64_t)((double)n->idle_ms * 2 / (2 - kept_share(n)))
					: n->idle_ms;
}

int neighbours_choose(const struct neighbour *all, size_t n, long priority,
		      const struct brumate_conf *conf)
{
	int best = -1;

	for (size_t i = 0; i < n; i++)
		if (may_leave(&all[i], priority, conf) &&
		    (best < 0 || all[i].priority < all[best].priority ||
		     (all[i].priority == all[best].priority &&
		      weighed_ms(&all[i]) > weighed_ms(&all[best]))))
			best = (int)i;
	return best;
}

/* ---- leaving ---- */

static int ask_to_leave(const struct job *j, struct brumate_error *err)
{
	struct wire w;
	int r = shim_connect(&w, j, err);

	if (r < 0)
		return r;
	r = wire_call(&w, "io.brumate.job.Suspend", NULL, NULL, 0, NULL, NULL, NULL,
		      deadline_in_ms(LEAVE_TIMEOUT_MS), err);
	wire_fini(&w);
	return r;
}

static void tell_event(const struct job *j, const struct neighbour *n, const struct job *asked_for,
		       long priority)
{
	char idle[32] = "for an unknown time", turns[64] = "", reason[JOB_MESSAGE_BYTES];

	if (n->idle_ms != UINT64_MAX)
		snprintf(idle, sizeof(idle), "for %.1f s", (double)n->idle_ms / 1000);
	if (n->turns >= TURNS_TOLD)
		snprintf(turns, sizeof(turns), "; they have thrown each other out %u times in turn",
			 n->turns);
	snprintf(reason, sizeof(reason),
		 "not asked %s, of priority %ld for one that has come to %ld, "
		 "with %.0f %% of its memory kept in host memory%s",
		 idle, n->priority, priority, 100 * kept_share(n), turns);
	event_add(&j->target, "leave",
		  json_pack("{s:s,s:s,s:f,s:I,s:I,s:s}", "for", asked_for->id, "for_name",
			    asked_for->name, "idle_s", (double)n->idle_ms / 1000, "priority",
			    (json_int_t)n->priority, "turns", (json_int_t)n->turns, "reason",
			    reason));
}

int neighbours_make_room(const struct job *job, long priority, const struct brumate_conf *conf,
			 struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	struct search s = { .job = job, .conf = conf, .broker = &broker };
	int r = broker_client_open(&broker, &job->gpu_kind, err);

	if (r == 0)
		r = job_list(consider, &s, err);
	int at = r < 0 ? -1 : neighbours_choose(s.all, s.n, priority, conf);
	auto_free struct neighbour *all = s.all;
	auto_(job_fini) struct job leaves = JOB_EMPTY;
	if (at >= 0)
		r = job_load(&leaves, all[at].id, err);
	if (r < 0 || at < 0)
		return r;
	tell_event(&leaves, &all[at], job, priority);
	log_info("a job is asked to leave its GPUs: job=%s for=%s", leaves.id, job->id);
	r = ask_to_leave(&leaves, err);
	if (r == 0)
		note_turns(job, leaves.id, all[at].turns + 1);
	return r < 0 ? brumate_wrap(err, r, "job %s (%s) does not leave", leaves.id, leaves.name)
		     : 1;
}
