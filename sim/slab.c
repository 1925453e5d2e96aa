// SPDX-License-Identifier: MIT
/*
 * Small device allocations: a granule of device memory, handed out in units, so that ten thousand
 * small buffers cost a few files and mappings.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

enum { UNIT_BYTES = 512, UNITS = SIM_GRANULE_BYTES / UNIT_BYTES };

struct slab {
	struct phys_view *view;
	CUcontext ctx;
	unsigned int used;
	bool taken[UNITS];
};

static struct slab *slab_new(CUcontext ctx, CUresult *ret_error)
{
	struct phys *phys = phys_new(ctx->device, SIM_GRANULE_BYTES, ret_error);
	struct slab *slab;
	void *va;

	if (!phys)
		return NULL;
	*ret_error = CUDA_ERROR_OUT_OF_MEMORY;
	slab = calloc(1, sizeof(*slab));
	va = slab ? va_reserve(SIM_GRANULE_BYTES, SIM_GRANULE_BYTES) : NULL;
	if (!va) {
		free(slab);
		phys_put(phys);
		return NULL;
	}
	slab->ctx = ctx;
	slab->view = view_new(va, SIM_GRANULE_BYTES, phys, 0, PROT_READ | PROT_WRITE);
	if (!slab->view || handle_add(&ctx->slabs, slab) < 0) {
		if (slab->view)
			view_free(slab->view, true);
		munmap(va, SIM_GRANULE_BYTES);
		free(slab);
		return NULL;
	}
	return slab;
}

/* First run of @units free units, or -1. */
static int find_run(const struct slab *slab, unsigned int units)
{
	unsigned int run = 0;

	if (slab->used + units > UNITS)
		return -1;
	for (unsigned int i = 0; i < UNITS; i++) {
		run = slab->taken[i] ? 0 : run + 1;
		if (run == units)
			return (int)(i + 1 - units);
	}
	return -1;
}

static CUresult take(struct slab *slab, unsigned int at, size_t bytes, struct range **ret)
{
	unsigned int units = (unsigned int)(round_up(bytes, UNIT_BYTES) / UNIT_BYTES);
	struct range *range = range_new(RANGE_DEVICE, slab->view->va + at * UNIT_BYTES, bytes);

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(slab->taken + at, true, units);
	slab->used += units;
	range->slab = slab;
	range->view = slab->view;
	*ret = range;
	return CUDA_SUCCESS;
}

CUresult slab_alloc(CUcontext ctx, size_t bytes, struct range **ret)
{
	unsigned int units = (unsigned int)(round_up(bytes, UNIT_BYTES) / UNIT_BYTES);
	struct slab *slab;
	CUresult r;
	int at;

	for (size_t i = 0; i < ctx->slabs.n; i++) {
		slab = ctx->slabs.slots[i].value;
		at = find_run(slab, units);
		if (at >= 0)
			return take(slab, (unsigned int)at, bytes, ret);
	}
	slab = slab_new(ctx, &r);
	return slab ? take(slab, 0, bytes, ret) : r;
}

/* Gives back the units of @range, and the slab with the last of them. */
void slab_free(struct range *range)
{
	struct slab *slab = range->slab;
	size_t at = (range->base - (uintptr_t)slab->view->va) / UNIT_BYTES;
	unsigned int units = (unsigned int)(round_up(range->bytes, UNIT_BYTES) / UNIT_BYTES);

	memset(slab->taken + at, false, units);
	slab->used -= units;
	if (slab->used)
		return;
	handle_remove(&slab->ctx->slabs, slab);
	view_free(slab->view, false);
	free(slab);
}
