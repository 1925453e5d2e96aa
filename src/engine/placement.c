// SPDX-License-Identifier: MIT
/*
 * Which GPUs a job comes back on. The driver must be told of every GPU the job saw, used or not, as
 * soon as one changes (driver 580: restore with an incomplete list returns 1, state unchanged).
 */
#include "datapath/vault.h"
#include "engine/steps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXT_ROOM_BYTES = 64 << 20 }; /* the driver's own use varies by a little each time */

/* Device memory on one GPU that is outside the processes, where it stays. */
static uint64_t held_on(const struct op *op, const char *uuid)
{
	uint64_t sum = 0;

	for (size_t i = 0; op->vault && i < op->vault->n_pieces; i++) {
		const struct vault_piece *p = &op->vault->pieces[i];

		if (!strcmp(p->gpu, uuid) && p->fd >= 0)
			sum += p->len_bytes;
	}
	return sum;
}

int record_gpus(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	auto_free struct dev_gpu *now = calloc(DEV_GPUS_MAX, sizeof(*now));
	size_t n = 0;

	if (!now)
		return brumate_fail(err, ENOMEM, "%m");
	int r = broker_client_gpus(&op->gpus.broker, now, &n, err);
	if (r < 0)
		return r;
	struct job_gpu *gpus = calloc(n + 1, sizeof(*gpus));
	if (!gpus)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		snprintf(gpus[i].uuid, sizeof(gpus[i].uuid), "%s", now[i].uuid);
		snprintf(gpus[i].name, sizeof(gpus[i].name), "%s", now[i].name);
	}
	for (size_t p = 0; p < op->gpus.n; p++)
		for (size_t k = 0; k < op->gpus.items[p].dev.n_gpus; k++)
			for (size_t i = 0; i < n; i++)
				if (!strcmp(gpus[i].uuid, op->gpus.items[p].dev.gpus[k]))
					gpus[i].bytes += op->gpus.items[p].dev.gpu_bytes[k];
	free(job->gpus);
	job->gpus = gpus;
	job->n_gpus = n;
	return 0;
}

struct placement {
	struct dev_gpu now[DEV_GPUS_MAX];
	size_t n_now;
	int target[MANIFEST_GPUS_MAX]; /* index into now, of each GPU the job saw; -1: none yet */
	bool taken[DEV_GPUS_MAX];
};

static int index_of(const struct placement *p, const char *uuid)
{
	for (size_t i = 0; i < p->n_now; i++)
		if (!strcmp(p->now[i].uuid, uuid))
			return (int)i;
	return -1;
}

static int take(struct placement *p, const struct job_gpu *from, size_t k, int to,
		struct brumate_error *err)
{
	if (p->taken[to])
		return brumate_fail(err, EINVAL, "GPU %s is the target of two GPUs",
				    p->now[to].uuid);
	if (strcmp(p->now[to].name, from->name))
		return brumate_fail(err, EOPNOTSUPP, "GPU %s is a %s, the job was on a %s (%s)",
				    p->now[to].uuid, p->now[to].name, from->name, from->uuid);
	p->target[k] = to;
	p->taken[to] = true;
	return 0;
}

static int place_as_told(struct op *op, struct placement *p, struct brumate_error *err)
{
	for (size_t i = 0; i < op->gpus.n_pairs; i++) {
		int to = index_of(p, op->gpus.pairs[i].to), r;
		size_t k = 0;

		while (k < op->job->n_gpus && strcmp(op->job->gpus[k].uuid, op->gpus.pairs[i].from))
			k++;
		if (k == op->job->n_gpus)
			return brumate_fail(err, EINVAL, "GPU map: the job saw no GPU %s",
					    op->gpus.pairs[i].from);
		if (to < 0)
			return brumate_fail(err, EINVAL, "GPU map: no GPU %s here",
					    op->gpus.pairs[i].to);
		if (p->target[k] >= 0)
			return brumate_fail(err, EINVAL, "GPU map: %s is given twice",
					    op->gpus.pairs[i].from);
		if ((r = take(p, &op->job->gpus[k], k, to, err)) < 0)
			return brumate_wrap(err, r, "GPU map");
	}
	return 0;
}

/* GPUs that are here keep their place; where a told one took it, they go to whatever is left. */
static void place_where_they_were(struct op *op, struct placement *p)
{
	for (size_t k = 0; k < op->job->n_gpus; k++) {
		int to = index_of(p, op->job->gpus[k].uuid);

		if (p->target[k] < 0 && to >= 0 && !p->taken[to])
			take(p, &op->job->gpus[k], k, to, NULL);
	}
}

static uint64_t free_bytes(const struct dev_gpu *gpu)
{
	return gpu->total_bytes > gpu->used_bytes ? gpu->total_bytes - gpu->used_bytes : 0;
}

static int place_elsewhere(struct op *op, struct placement *p, struct brumate_error *err)
{
	for (size_t k = 0; k < op->job->n_gpus; k++) {
		const struct job_gpu *from = &op->job->gpus[k];
		int best = -1;

		if (p->target[k] >= 0)
			continue;
		for (size_t i = 0; i < p->n_now; i++)
			if (!p->taken[i] && !strcmp(p->now[i].name, from->name) &&
			    (best < 0 || free_bytes(&p->now[i]) > free_bytes(&p->now[best])))
				best = (int)i;
		if (best < 0) {
			brumate_fail(err, EOPNOTSUPP,
				     "no free place here for the job's GPU %s (%s)", from->uuid,
				     from->name);
			brumate_hint(
				err,
				"a job comes back on as many GPUs of the same model as it saw; "
				"`brumate doctor` lists those that are here");
			return -EOPNOTSUPP;
		}
		take(p, from, k, best, NULL);
		if (from->bytes && index_of(p, from->uuid) < 0)
			progress_note(&op->progress, "GPU %s is not here: on %s instead",
				      from->uuid, p->now[best].uuid);
	}
	return 0;
}

static int write_pairs(struct op *op, const struct placement *p, struct brumate_error *err)
{
	const struct job *job = op->job;
	struct dev_gpu_pair *pairs = calloc(job->n_gpus + 1, sizeof(*pairs));
	bool moved = false;

	if (!pairs)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t k = 0; k < job->n_gpus; k++) {
		snprintf(pairs[k].from, sizeof(pairs[k].from), "%s", job->gpus[k].uuid);
		snprintf(pairs[k].to, sizeof(pairs[k].to), "%s", p->now[p->target[k]].uuid);
		moved = moved || strcmp(pairs[k].from, pairs[k].to);
	}
	free(op->gpus.pairs);
	op->gpus.pairs = pairs;
	op->gpus.n_pairs = moved ? job->n_gpus : 0;
	return 0;
}

/* Asked before the job is touched: the driver itself says no only in the middle. */
static int check_remap(struct op *op, struct brumate_error *err)
{
	auto_free struct broker_info *info = calloc(1, sizeof(*info));
	int r;

	if (!op->gpus.n_pairs)
		return 0;
	if (!info)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = broker_client_info(&op->gpus.broker, info, err)) < 0 ||
	    info->device.features & DEV_REMAP)
		return r;
	brumate_fail(err, EOPNOTSUPP, "driver %s cannot restore onto other GPUs",
		     info->device.driver_version);
	brumate_hint(err, "leave out --gpu-map, or install driver 580 or newer");
	return -EOPNOTSUPP;
}

int restore_map_gpus(struct op *op, struct brumate_error *err)
{
	auto_free struct placement *p = calloc(1, sizeof(*p));
	int r;

	if (!op->job->n_gpus)
		return 0;
	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t k = 0; k < MANIFEST_GPUS_MAX; k++)
		p->target[k] = -1;
	if ((r = gpu_set_open(&op->gpus, err)) < 0 ||
	    (r = broker_client_gpus(&op->gpus.broker, p->now, &p->n_now, err)) < 0)
		return r;
	if (p->n_now < op->job->n_gpus) {
		brumate_fail(err, EOPNOTSUPP, "the job saw %zu GPUs, %zu are here", op->job->n_gpus,
			     p->n_now);
		brumate_hint(
			err,
			"the driver restores a process only where it sees as many GPUs as before");
		return -EOPNOTSUPP;
	}
	if ((r = place_as_told(op, p, err)) < 0)
		return r;
	place_where_they_were(op, p);
	if ((r = place_elsewhere(op, p, err)) < 0)
		return r;
	if ((r = write_pairs(op, p, err)) < 0)
		return r;
	return check_remap(op, err);
}

const char *gpu_set_target(const struct gpu_set *s, const char *uuid)
{
	for (size_t i = 0; i < s->n_pairs; i++)
		if (!strcmp(s->pairs[i].from, uuid))
			return s->pairs[i].to;
	return uuid;
}

int restore_check_vram(struct op *op, struct brumate_error *err)
{
	auto_free struct dev_gpu *now = calloc(DEV_GPUS_MAX, sizeof(*now));
	size_t n = 0;

	if (!op->job->n_gpus)
		return 0;
	if (!now)
		return brumate_fail(err, ENOMEM, "%m");
	int r = broker_client_gpus(&op->gpus.broker, now, &n, err);
	for (size_t k = 0; r == 0 && k < op->job->n_gpus; k++) {
		const struct job_gpu *gpu = &op->job->gpus[k];
		const char *to = gpu_set_target(&op->gpus, gpu->uuid);
		uint64_t parked = held_on(op, gpu->uuid);
		uint64_t need = gpu->bytes > parked ? gpu->bytes - parked : 0;

		for (size_t i = 0; i < n && need; i++) {
			uint64_t room = now[i].total_bytes / 64;

			if (room > CONTEXT_ROOM_BYTES)
				room = CONTEXT_ROOM_BYTES;
			if (strcmp(now[i].uuid, to) || free_bytes(&now[i]) >= need + room)
				continue;
			brumate_fail(err, ENOSPC, "GPU %s has %.1f GB free, the job needs %.1f GB",
				     to, (double)free_bytes(&now[i]) / 1e9,
				     (double)(need + room) / 1e9);
			brumate_hint(err, "free its memory (`nvidia-smi` shows who holds it), or "
					  "give another GPU by --gpu-map");
			return -ENOSPC;
		}
	}
	return r;
}
