// SPDX-License-Identifier: MIT
/* Which GPUs a job comes back on. See gpu-set.h. */
#include "engine/gpu-set.h"
#include "gpu/vendor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_ROOM_BYTES = 64 << 20 }; /* the driver's own use varies by a little each time */

int placement_record(struct target *target, struct gpu_set *set, struct brumate_error *err)
{
	struct dev_gpu now[DEV_GPUS_MAX];
	size_t n = 0;
	int r = broker_client_gpus(&set->broker, now, &n, err);

	if (r < 0)
		return r;
	struct job_gpu *gpus = calloc(n + 1, sizeof(*gpus));
	if (!gpus)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		snprintf(gpus[i].uuid, sizeof(gpus[i].uuid), "%s", now[i].uuid);
		snprintf(gpus[i].name, sizeof(gpus[i].name), "%s", now[i].name);
	}
	for (size_t p = 0; p < set->n; p++)
		for (size_t k = 0; k < set->items[p].dev.n_gpus; k++)
			for (size_t i = 0; i < n; i++)
				if (!strcmp(gpus[i].uuid, set->items[p].dev.gpus[k]))
					gpus[i].bytes += set->items[p].dev.gpu_bytes[k];
	free(target->gpus);
	target->gpus = gpus;
	target->n_gpus = n;
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

static int take_gpu(struct placement *p, const struct job_gpu *from, size_t k, int to,
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

static int place_as_told(const struct target *target, const struct gpu_set *gpus,
			 struct placement *p, struct brumate_error *err)
{
	for (size_t i = 0; i < gpus->n_pairs; i++) {
		int to = index_of(p, gpus->pairs[i].to), r;
		size_t k = 0;

		while (k < target->n_gpus && strcmp(target->gpus[k].uuid, gpus->pairs[i].from))
			k++;
		if (k == target->n_gpus)
			return brumate_fail(err, EINVAL, "GPU map: the job saw no GPU %s",
					    gpus->pairs[i].from);
		if (to < 0)
			return brumate_fail(err, EINVAL, "GPU map: no GPU %s here",
					    gpus->pairs[i].to);
		if (p->target[k] >= 0)
			return brumate_fail(err, EINVAL, "GPU map: %s is given twice",
					    gpus->pairs[i].from);
		if ((r = take_gpu(p, &target->gpus[k], k, to, err)) < 0)
			return brumate_wrap(err, r, "GPU map");
	}
	return 0;
}

/* GPUs that are here keep their place; where a pair of the request took it, they go to one that is left. */
static void place_where_they_were(const struct target *target, struct placement *p)
{
	for (size_t k = 0; k < target->n_gpus; k++) {
		int to = index_of(p, target->gpus[k].uuid);

		if (p->target[k] < 0 && to >= 0 && !p->taken[to])
			take_gpu(p, &target->gpus[k], k, to, NULL);
	}
}

static uint64_t free_bytes(const struct dev_gpu *gpu)
{
	return gpu->total_bytes > gpu->used_bytes ? gpu->total_bytes - gpu->used_bytes : 0;
}

static int place_elsewhere(const struct target *target, struct placement *p,
			   struct progress *progress, struct brumate_error *err)
{
	for (size_t k = 0; k < target->n_gpus; k++) {
		const struct job_gpu *from = &target->gpus[k];
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
		take_gpu(p, from, k, best, NULL);
		if (from->bytes && index_of(p, from->uuid) < 0)
			progress_note(progress, "GPU %s is not here: on %s instead", from->uuid,
				      p->now[best].uuid);
	}
	return 0;
}

static int write_pairs(struct gpu_set *gpus, const struct target *target, const struct placement *p,
		       struct brumate_error *err)
{
	struct dev_gpu_pair *pairs = calloc(target->n_gpus + 1, sizeof(*pairs));
	bool moved = false;

	if (!pairs)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t k = 0; k < target->n_gpus; k++) {
		snprintf(pairs[k].from, sizeof(pairs[k].from), "%s", target->gpus[k].uuid);
		snprintf(pairs[k].to, sizeof(pairs[k].to), "%s", p->now[p->target[k]].uuid);
		moved = moved || strcmp(pairs[k].from, pairs[k].to);
	}
	free(gpus->pairs);
	gpus->pairs = pairs;
	gpus->n_pairs = moved ? target->n_gpus : 0;
	return 0;
}

/* Asked before the job is touched: the driver itself says no only in the middle. */
static int check_remap(struct gpu_set *gpus, struct brumate_error *err)
{
	struct broker_info info;
	int r = gpus->n_pairs ? broker_client_info(&gpus->broker, &info, err) : 0;

	if (r < 0 || !gpus->n_pairs || info.device.features & DEV_REMAP)
		return r;
	brumate_fail(err, EOPNOTSUPP, "driver %s cannot restore onto other GPUs",
		     info.device.driver_version);
	const char *since = gpus->vendor->feature_since(DEV_REMAP);
	if (*since == '?')
		brumate_hint(err, "leave out --gpu-map");
	else
		brumate_hint(err, "leave out --gpu-map, or install driver %s or newer", since);
	return -EOPNOTSUPP;
}

int placement_map(const struct target *target, struct gpu_set *gpus, struct progress *progress,
		  struct brumate_error *err)
{
	struct placement p = { 0 };
	int r;

	if (!target->n_gpus)
		return 0;
	for (size_t k = 0; k < MANIFEST_GPUS_MAX; k++)
		p.target[k] = -1;
	if ((r = gpu_set_open(gpus, err)) < 0 ||
	    (r = broker_client_gpus(&gpus->broker, p.now, &p.n_now, err)) < 0)
		return r;
	if (p.n_now < target->n_gpus || (gpus->vendor->saved_by_criu && p.n_now > target->n_gpus)) {
		brumate_fail(err, EOPNOTSUPP, "the job saw %zu GPUs, %zu are here", target->n_gpus,
			     p.n_now);
		brumate_hint(
			err,
			"the driver restores a process only where it sees as many GPUs as before");
		return -EOPNOTSUPP;
	}
	if ((r = place_as_told(target, gpus, &p, err)) < 0)
		return r;
	place_where_they_were(target, &p);
	if ((r = place_elsewhere(target, &p, progress, err)) < 0 ||
	    (r = write_pairs(gpus, target, &p, err)) < 0)
		return r;
	return check_remap(gpus, err);
}

/* The GPU that what was on @uuid goes to. */
static const char *find_target(const struct gpu_set *gpus, const char *uuid)
{
	for (size_t i = 0; i < gpus->n_pairs; i++)
		if (!strcmp(gpus->pairs[i].from, uuid))
			return gpus->pairs[i].to;
	return uuid;
}

static uint64_t context_room(const struct dev_gpu *gpu)
{
	uint64_t room = gpu->total_bytes / 64;

	return room < CONTEXT_ROOM_BYTES ? room : CONTEXT_ROOM_BYTES;
}

static uint64_t bytes_on(const char *gpu, const struct vault_piece *pieces, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		if (!strcmp(pieces[i].gpu, gpu))
			sum += pieces[i].len_bytes;
	return sum;
}

bool placement_has_room_twice(struct gpu_set *gpus, const struct vault_piece *pieces,
			      size_t n_pieces)
{
	struct dev_gpu now[DEV_GPUS_MAX];
	size_t n = 0;

	if (broker_client_gpus(&gpus->broker, now, &n, NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (free_bytes(&now[i]) <
		    bytes_on(now[i].uuid, pieces, n_pieces) + context_room(&now[i]))
			return false;
	return true;
}

int placement_check_room(const struct target *target, struct gpu_set *gpus,
			 const struct vault *vault, struct brumate_error *err)
{
	struct dev_gpu now[DEV_GPUS_MAX];
	size_t n = 0;
	int r = target->n_gpus ? broker_client_gpus(&gpus->broker, now, &n, err) : 0;

	for (size_t k = 0; r == 0 && k < target->n_gpus; k++) {
		const struct job_gpu *gpu = &target->gpus[k];
		const char *to = find_target(gpus, gpu->uuid);
		uint64_t parked = vault ? vault_device_bytes(vault, gpu->uuid) : 0;
		uint64_t need = gpu->bytes > parked ? gpu->bytes - parked : 0;

		for (size_t i = 0; i < n && need; i++) {
			uint64_t room = context_room(&now[i]);

			if (strcmp(now[i].uuid, to) || free_bytes(&now[i]) >= need + room)
				continue;
			brumate_fail(err, ENOSPC,
				     "GPU %s has %llu MiB free, the job needs %llu MiB", to,
				     (unsigned long long)free_bytes(&now[i]) >> 20,
				     (unsigned long long)(need + room) >> 20);
			brumate_hint(err,
				     "free its memory (`%s` shows who holds it), or "
				     "give another GPU by --gpu-map",
				     gpus->vendor->usage_tool);
			brumate_error_exit(err, EXIT_NO_ROOM);
			return -ENOSPC;
		}
	}
	return r;
}
