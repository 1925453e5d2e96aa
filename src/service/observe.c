// SPDX-License-Identifier: MIT
/* Observes jobs from outside, without disturbing them. See jobs.h. */
#include "service/jobs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/machine.h"
#include "client/broker.h"
#include "engine/neighbours.h"
#include "engine/turn.h"
#include "job/counts.h"
#include "process/reaper.h"
#include "process/scan.h"

enum {
	PATIENCE_MS = 2000, /* limit for an answer of a broker */
	PIDS_AT_ONCE = 256, /* for one call */
	FILES_MAX = 4096,   /* reported for one job */
};

struct observed {
	json_t *job; /* owned */
	struct gpu_kind kind;
	pid_t pid;
};

void observation_fini(struct observation *l)
{
	for (size_t i = 0; i < l->n; i++)
		json_decref(l->items[i].job);
	free(l->items);
	*l = OBSERVATION_EMPTY;
}

static int remember_process(struct observation *l, json_t *o, const struct job *j, pid_t pid)
{
	return array_add(l->items, l->n, (struct observed){ json_incref(o), j->gpu_kind, pid });
}

/* ---- what the record and /proc say ---- */

/* Living members of @j, without the reaper, which is ours. Those of @ret, if it has some, have been read. */
static int read_members(struct proc_tree *ret, const struct job *j)
{
	const struct proc_members members = job_members(j);
	int r = ret->n ? 0 : job_has_ended(j) ? -ESRCH : proc_members_read(ret, &members, NULL);

	if (r == 0 && ret->n && proc_is_same(ret->items[0].id, j->root) && reaper_is(j->root))
		memmove(ret->items, ret->items + 1, --ret->n * sizeof(*ret->items));
	return r;
}

static json_t *describe_gpu(const char *uuid, uint64_t bytes)
{
	return json_pack("{s:n,s:s,s:I}", "index", "uuid", uuid, "bytes", (json_int_t)bytes);
}

/* Device memory that a job will need again, which is now in host memory or on disk. */
static json_t *describe_needs(const struct job *j)
{
	json_t *needs = json_array();

	for (size_t i = 0; needs && i < j->n_gpus; i++)
		if (j->gpus[i].bytes &&
		    json_array_append_new(needs, describe_gpu(j->gpus[i].uuid, j->gpus[i].bytes)) <
			    0)
			break;
	return needs;
}

static json_t *last_checkpoint(const struct job *j)
{
	auto_json json_t *counts = job_counts(&j->target);
	json_t *ms = json_object_get(json_object_get(counts, "checkpoint"), "last_ms");
	char stamp[CLOCK_STAMP_BYTES];

	if (!json_is_integer(ms) || json_integer_value(ms) <= 0)
		return json_null();
	clock_stamp_of(stamp, (uint64_t)json_integer_value(ms));
	return json_string(stamp);
}

static bool is_off_gpu(const struct job *j)
{
	return j->state == JOB_SUSPENDED || j->state == JOB_CHECKPOINTED;
}

/* No GPU; those of the record; or unknown, if processes have to be asked about. */
static json_t *first_gpus(const struct job *j, bool is_asked)
{
	if (j->state == JOB_SUSPENDED && j->parked)
		return describe_needs(j);
	return is_asked && !is_off_gpu(j) ? json_null() : json_array();
}

static bool is_stopped(const struct proc_info *p)
{
	return p->state == 'T' || p->state == 't';
}

/* What /proc says of the members of a job. */
struct members_seen {
	int result; /* of reading the tree */
	uint64_t host_bytes;
	json_int_t n_gpu;
	bool unknown; /* it is unknown whether some use a GPU, or what */
	char *frozen; /* a frozen cgroup with one of them; owned, NULL: none */
};

static struct members_seen see_members(struct observation *l, json_t *o, const struct job *j,
				       struct proc_tree *tree)
{
	struct members_seen seen = { .result = read_members(tree, j) };
	const size_t n_before = l->n;

	seen.unknown = seen.result < 0 && seen.result != -ESRCH;
	for (size_t i = 0; i < tree->n; i++) {
		const pid_t pid = tree->items[i].id.pid;
		int uses = scan_uses_gpu(pid);

		seen.host_bytes += tree->items[i].rss_bytes;
		seen.n_gpu += uses > 0;
		if (!seen.frozen)
			seen.frozen = machine_frozen_cgroup(pid);
		/* For one that cannot run the driver would wait. */
		if (uses > 0 && !is_off_gpu(j) && (seen.frozen || is_stopped(&tree->items[i])))
			seen.unknown = true;
		else if (uses > 0 && !is_off_gpu(j))
			uses = remember_process(l, o, j, pid);
		seen.unknown |= uses < 0 && !tree->items[i].ends;
	}
	/* The GPUs stay unknown, so there is no need to ask about the others. */
	while (seen.unknown && l->n > n_before)
		json_decref(l->items[--l->n].job);
	return seen;
}

/* What the suspend moved into host memory: neither zeros, which take none, nor what went to a disk. Where its summary is gone, all
 * that the job needs again. */
static uint64_t suspended_bytes(const struct job *j)
{
	auto_json json_t *last = job_last_summary(j);
	const char *operation = json_string_value(json_object_get(last, "operation"));
	uint64_t bytes = 0;

	if (operation && !strcmp(operation, "suspend")) {
		const json_int_t moved = json_integer_value(json_object_get(last, "data_bytes")),
				 spared = json_integer_value(json_object_get(last, "zero_bytes")) +
					  json_integer_value(json_object_get(last, "disk_bytes"));

		return moved > spared ? (uint64_t)(moved - spared) : 0;
	}
	for (size_t i = 0; i < j->n_gpus; i++)
		bytes += j->gpus[i].bytes;
	return bytes;
}

/* Host memory that shim and keeper hold of it, in addition to its processes'. */
static uint64_t copy_bytes(const struct job *j)
{
	if (j->data_path != JOB_DATA_BROKER || j->parked || job_has_ended(j))
		return 0;
	return j->state == JOB_SUSPENDED ? suspended_bytes(j) : j->kept_bytes;
}

/* For how long a job that is on its GPUs has not used them. */
static json_t *describe_idle(const struct job *j)
{
	const uint64_t ms =
		j->state == JOB_RUNNING && j->data_path == JOB_DATA_BROKER && !job_has_ended(j)
			? neighbour_idle_ms(j)
			: UINT64_MAX;

	return ms == UINT64_MAX ? json_null() : json_integer((json_int_t)ms);
}

/* For how long it has waited for device memory that others have. */
static json_t *describe_wait(const struct job *j)
{
	const uint64_t since_ns = job_has_ended(j) ? 0 : turn_since_ns(j->id),
		       now_ns = clock_now_ns();

	return since_ns ? json_integer((json_int_t)(now_ns > since_ns ? now_ns - since_ns : 0) /
				       (json_int_t)NS_PER_MS)
			: json_null();
}

static json_t *describe_turns(const struct job *j)
{
	const unsigned n = job_has_ended(j) ? 0 : neighbour_turns(j);

	return n ? json_integer((json_int_t)n) : json_null();
}

int observe_job(struct observation *l, json_t *o, const struct job *j, struct proc_tree *tree)
{
	const struct members_seen seen = see_members(l, o, j, tree);
	const bool is_asked = seen.unknown || seen.n_gpu;
	auto_free char *frozen = seen.frozen;
	const uint64_t copy = copy_bytes(j);
	json_t *host =
		seen.result < 0 ? json_null() : json_integer((json_int_t)(seen.host_bytes + copy));

	if (json_object_set_new(o, "gpu_processes", json_integer(seen.n_gpu)) < 0 ||
	    json_object_set_new(o, "gpus", first_gpus(j, is_asked)) < 0 ||
	    json_object_set_new(o, "needs", is_off_gpu(j) ? describe_needs(j) : json_null()) < 0 ||
	    json_object_set_new(o, "host_bytes", host) < 0 ||
	    json_object_set_new(o, "copy_bytes", json_integer((json_int_t)copy)) < 0 ||
	    json_object_set_new(o, "frozen", frozen ? wire_string(frozen) : json_null()) < 0 ||
	    json_object_set_new(o, "idle_ms", describe_idle(j)) < 0 ||
	    json_object_set_new(o, "waits_ms", describe_wait(j)) < 0 ||
	    json_object_set_new(o, "turns", describe_turns(j)) < 0 ||
	    json_object_set_new(o, "last_checkpoint", last_checkpoint(j)) < 0)
		return -ENOMEM;
	return 0;
}

/* ---- what a broker says ---- */

static void add_bytes(json_t *gpus, const char *uuid, uint64_t bytes)
{
	json_t *gpu;
	size_t i;

	json_array_foreach (gpus, i, gpu) {
		json_int_t before = json_integer_value(json_object_get(gpu, "bytes"));

		if (strcmp(json_string_value(json_object_get(gpu, "uuid")), uuid) != 0)
			continue;
		json_object_set_new(gpu, "bytes", json_integer(before + (json_int_t)bytes));
		return;
	}
	json_array_append_new(gpus, describe_gpu(uuid, bytes));
}

/* Whether the driver knows where all memory of a process is. A process with a context has memory somewhere. */
static bool is_told(const struct dev_process *p)
{
	switch (p->state) {
	case DEV_STATE_NONE:
	case DEV_STATE_CHECKPOINTED:
		return true;
	case DEV_STATE_RUNNING:
	case DEV_STATE_LOCKED:
		return p->n_gpus > 0;
	default:
		return false;
	}
}

/* One process without an answer leaves its job's GPUs unknown, regardless of the others. */
static void add_process(json_t *job, const struct dev_process *p, bool is_first)
{
	json_t *gpus = json_object_get(job, "gpus");

	if (!is_told(p) || (!is_first && json_is_null(gpus))) {
		json_object_set_new(job, "gpus", json_null());
		return;
	}
	if (is_first)
		json_object_set_new(job, "gpus", json_array());
	gpus = json_object_get(job, "gpus");
	for (size_t i = 0; i < p->n_gpus; i++)
		add_bytes(gpus, p->gpus[i], p->gpu_bytes[i]);
}

/* The processes of one broker. */
struct round {
	pid_t pids[PIDS_AT_ONCE];
	size_t at[PIDS_AT_ONCE]; /* indexes in the observation's items */
	size_t n;
};

/* Without an answer the GPUs of the round's jobs stay unknown. */
static void ask_round(struct observation *l, struct broker_client *b, struct round *round)
{
	struct dev_process *states = calloc(round->n, sizeof(*states));
	int r = !states		 ? -ENOMEM
		: b->wire.fd < 0 ? -EPIPE
				 : broker_client_state(b, round->pids, round->n, states, NULL);

	for (size_t i = 0; i < round->n; i++) {
		const size_t at = round->at[i];
		const struct dev_process unknown = { .state = DEV_STATE_UNKNOWN };

		add_process(l->items[at].job, r < 0 ? &unknown : &states[i],
			    at == 0 || l->items[at - 1].job != l->items[at].job);
	}
	free(states);
	round->n = 0;
}

static void ask_broker(struct observation *l, struct broker_client *b)
{
	struct round round = { .n = 0 };

	for (size_t i = 0; i < l->n; i++) {
		if (!gpu_kind_is_same(&l->items[i].kind, &b->kind))
			continue;
		round.pids[round.n] = l->items[i].pid;
		round.at[round.n++] = i;
		if (round.n == PIDS_AT_ONCE)
			ask_round(l, b, &round);
	}
	if (round.n)
		ask_round(l, b, &round);
}

static int compare_gpus(const void *a, const void *b)
{
	json_t *const *x = a, *const *y = b;
	json_int_t one = json_integer_value(json_object_get(*x, "index"));
	json_int_t other = json_integer_value(json_object_get(*y, "index"));

	return one < other ? -1 : one > other;
}

/* Their numbers on this machine, sorted. */
static void number_gpus(json_t *list, const struct dev_gpu *gpus, size_t n)
{
	size_t n_items = json_array_size(list);
	auto_free json_t **items = calloc(n_items + 1, sizeof(*items));
	json_t *gpu;
	size_t i;

	json_array_foreach (list, i, gpu)
		for (size_t k = 0; k < n; k++)
			if (!strcmp(gpus[k].uuid, json_string_value(json_object_get(gpu, "uuid"))))
				json_object_set_new(gpu, "index", json_integer((json_int_t)k));
	if (!items)
		return;
	json_array_foreach (list, i, gpu)
		items[i] = json_incref(gpu);
	qsort(items, n_items, sizeof(*items), compare_gpus);
	for (i = 0; i < n_items; i++)
		json_array_set_new(list, i, items[i]);
}

/* Asks the broker of one kind. A connection whose call was given up cannot be used for another call. */
static void look_at_kind(struct observation *l, const struct gpu_kind *kind)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus = 0, n = 0;

	for (size_t i = 0; i < l->n; i++)
		n += gpu_kind_is_same(&l->items[i].kind, kind);
	if (!n || broker_client_find(&b, kind, PATIENCE_MS, NULL) < 0 ||
	    broker_client_gpus(&b, gpus, &n_gpus, NULL) < 0)
		return;
	ask_broker(l, &b);
	for (size_t i = 0; i < l->n; i++)
		if (gpu_kind_is_same(&l->items[i].kind, kind))
			number_gpus(json_object_get(l->items[i].job, "gpus"), gpus, n_gpus);
}

void observe_gpus(struct observation *l)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		for (int simulated = 1; simulated >= 0; simulated--) {
			struct gpu_kind kind = { .simulated = simulated };

			snprintf(kind.vendor, sizeof(kind.vendor), "%s", (*v)->id);
			look_at_kind(l, &kind);
		}
}

/* ---- processes and files, for a page about one job ---- */

json_t *observe_processes(const struct job *j)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	json_t *list;

	if (read_members(&tree, j) < 0 || !(list = json_array()))
		return NULL;
	for (size_t i = 0; i < tree.n; i++) {
		const struct proc_info *p = &tree.items[i];
		char state[2] = { p->state, '\0' };

		json_array_append_new(list, json_pack("{s:i,s:i,s:o,s:s,s:i,s:I,s:b}", "pid",
						      (int)p->id.pid, "parent", (int)p->ppid,
						      "command", wire_string(p->comm), "state",
						      state, "threads", p->n_threads, "host_bytes",
						      (json_int_t)p->rss_bytes, "uses_gpu",
						      scan_uses_gpu(p->id.pid) > 0));
	}
	return list;
}

/* The targets of a process's descriptors that have a path; each once. Returns -errno if they cannot be read. */
static int add_files(json_t *files, pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	auto_closedir DIR *dir = dir_open(AT_FDCWD, path);
	struct dirent *entry;
	int r;

	if (!dir)
		return -errno;
	while ((r = dir_next(dir, &entry)) > 0 && json_object_size(files) < FILES_MAX) {
		char target[PATH_MAX];
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		if (len <= 0 || target[0] != '/') /* closed in the meantime; a pipe, a socket */
			continue;
		target[len] = '\0';
		auto_json json_t *text = wire_string(target);
		json_t *pids = json_object_get(files, json_string_value(text));

		if (!pids) {
			pids = json_array();
			json_object_set_new(files, json_string_value(text), pids);
		}
		json_t *last = json_array_get(pids, json_array_size(pids) - 1);
		if (!last || json_integer_value(last) != pid)
			json_array_append_new(pids, json_integer(pid));
	}
	return r;
}

json_t *observe_files(const struct job *j)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_json json_t *files = json_object();
	json_t *list, *pids;
	const char *path;

	if (read_members(&tree, j) < 0)
		return NULL;
	for (size_t i = 0; i < tree.n; i++) {
		int r = add_files(files, tree.items[i].id.pid);

		if (r < 0 && r != -ENOENT && !tree.items[i].ends)
			return NULL;
	}
	list = json_array();
	json_object_foreach (files, path, pids)
		json_array_append_new(list, json_pack("{s:s,s:O}", "path", path, "pids", pids));
	return list;
}
