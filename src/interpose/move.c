// SPDX-License-Identifier: MIT
/*
 * Takes pieces away, brings them back from descriptors, and makes them the process's own again. Only
 * the agent's thread comes here, with the gate closed: nobody else reads or writes the tables.
 */
#include <string.h>

#include "interpose/memory.h"

static void set_away(struct piece *piece, bool away)
{
	memory_lock();
	if (piece->away != away)
		memory.away += away ? 1 : -1u;
	piece->away = away;
	memory_unlock();
}

static CUresult unmap_all(struct piece *piece)
{
	for (struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next) {
		CUresult r = CUDA_SUCCESS;

		if (mapping->mapped)
			r = driver.cuMemUnmap(mapping->node.start, mapping->node.bytes);
		if (r)
			return r;
		mapping->mapped = false;
	}
	return CUDA_SUCCESS;
}

static CUresult grant_again(const struct mapping *mapping)
{
	CUmemAccessDesc desc[DEVICES_MAX];
	size_t n = 0;

	for (int i = 0; i < DEVICES_MAX; i++)
		if (mapping->access[i])
			desc[n++] = (CUmemAccessDesc){ { CU_MEM_LOCATION_TYPE_DEVICE, i },
						       mapping->access[i] };
	return n ? driver.cuMemSetAccess(mapping->node.start, mapping->node.bytes, desc, n)
		 : CUDA_SUCCESS;
}

static CUresult map_all(struct piece *piece)
{
	for (struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next) {
		CUresult r = CUDA_SUCCESS;

		if (!mapping->mapped)
			r = driver.cuMemMap(mapping->node.start, mapping->node.bytes,
					    mapping->offset, piece->handle, 0);
		if (r)
			return r;
		mapping->mapped = true;
		r = grant_again(mapping);
		if (r)
			return r;
	}
	return CUDA_SUCCESS;
}

CUresult piece_take(struct piece *piece)
{
	CUresult r;

	if (piece->away && !piece->handle)
		return CUDA_SUCCESS;
	set_away(piece, true);
	r = unmap_all(piece);
	if (!r)
		r = driver.cuMemRelease(piece->handle);
	if (!r)
		piece->handle = 0;
	return r;
}

CUresult piece_bring(struct piece *piece, int fd)
{
	CUresult r = CUDA_SUCCESS;

	if (!piece->away)
		return CUDA_SUCCESS;
	if (!piece->handle) {
		r = driver.cuMemImportFromShareableHandle(&piece->handle, (void *)(intptr_t)fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (r)
			return r;
		piece->imported = true;
	}
	r = map_all(piece);
	if (!r)
		set_away(piece, false);
	return r;
}

enum { WAIT_TRIES = 3 };

/* Memory at addresses of its own, for a copy. */
struct scratch {
	CUdeviceptr va;
	uint64_t bytes;
	bool mapped;
};

static void scratch_fini(struct scratch *scratch)
{
	CUresult r =
		scratch->mapped ? driver.cuMemUnmap(scratch->va, scratch->bytes) : CUDA_SUCCESS;

	if (scratch->va)
		addresses_release(scratch->va, scratch->bytes, r);
}

static CUresult scratch_map(struct scratch *ret, const struct piece *piece,
			    CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, piece->device },
				 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult r = addresses_reserve(&ret->va, piece->bytes);

	if (r) {
		ret->va = 0;
		return r;
	}
	ret->bytes = piece->bytes;
	r = driver.cuMemMap(ret->va, piece->bytes, 0, handle, 0);
	ret->mapped = !r;
	return r ? r : driver.cuMemSetAccess(ret->va, piece->bytes, &desc, 1);
}

/* Where the whole piece can be read already; 0: nowhere. */
static CUdeviceptr readable_at(const struct piece *piece)
{
	for (const struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next)
		if (!mapping->offset && mapping->node.bytes == piece->bytes &&
		    mapping->access[piece->device])
			return mapping->node.start;
	return 0;
}

/* A copy of a piece under way, and where it can be read and written meanwhile. */
struct owning {
	CUmemGenericAllocationHandle own;
	struct scratch from, to;
	CUresult result;
};

static CUresult begin_copy(struct owning *o, const struct piece *piece)
{
	CUdeviceptr source = readable_at(piece);
	CUresult r = CUDA_SUCCESS;

	if (!source) {
		r = scratch_map(&o->from, piece, piece->handle);
		source = o->from.va;
	}
	if (!r)
		r = scratch_map(&o->to, piece, o->own);
	return r ? r : driver.cuMemcpyDtoDAsync_v2(o->to.va, source, piece->bytes, NULL);
}

/* Puts @own where the imported memory is. On failure the imported memory is back, or the piece away. */
static CUresult exchange(struct piece *piece, CUmemGenericAllocationHandle own)
{
	CUmemGenericAllocationHandle imported = piece->handle;
	CUresult r = unmap_all(piece);

	piece->handle = own;
	if (!r)
		r = map_all(piece);
	if (!r) {
		driver.cuMemRelease(imported);
		piece->imported = false;
		return CUDA_SUCCESS;
	}
	unmap_all(piece);
	piece->handle = imported;
	driver.cuMemRelease(own);
	if (map_all(piece))
		set_away(piece, true);
	return r;
}

static CUresult begin_owning(struct owning *ret, const struct piece *piece)
{
	CUmemAllocationProp prop = piece->asked;
	CUcontext retained;
	CUresult r;

	prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = driver.cuMemCreate(&ret->own, piece->bytes, &prop, 0);
	if (r) {
		ret->own = 0;
		return r;
	}
	r = context_enter(piece->device, &retained);
	if (!r) {
		r = begin_copy(ret, piece);
		context_leave(piece->device, retained);
	}
	return r;
}

static CUresult wait_for_copies(int device)
{
	CUcontext retained;
	CUresult r = context_enter(device, &retained);

	if (r)
		return r;
	for (int tries = 0; tries == 0 || (r && tries < WAIT_TRIES); tries++)
		r = driver.cuCtxSynchronize();
	context_leave(device, retained);
	return r;
}

static CUresult end_owning(struct owning *o, struct piece *piece)
{
	CUcontext retained;
	CUresult r = o->result, entered = context_enter(piece->device, &retained);

	scratch_fini(&o->to);
	scratch_fini(&o->from);
	if (!r)
		r = exchange(piece, o->own);
	else if (o->own)
		driver.cuMemRelease(o->own);
	if (!entered)
		context_leave(piece->device, retained);
	return r;
}

CUresult pieces_own(struct piece *const pieces[], size_t n)
{
	struct owning all[PIECES_OWN_MAX] = { 0 };
	CUresult r = CUDA_SUCCESS;
	size_t begun = 0;

	while (begun < n && !r) {
		r = all[begun].result = begin_owning(&all[begun], pieces[begun]);
		begun++;
	}
	CUresult copied = begun ? wait_for_copies(pieces[0]->device) : CUDA_SUCCESS;
	if (copied) /* what a copy may still be using stays where it is, and is lost */
		return r ? r : copied;
	for (size_t i = 0; i < begun; i++) {
		CUresult ended = end_owning(&all[i], pieces[i]);

		r = r ? r : ended;
	}
	return r;
}
