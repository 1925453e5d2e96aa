// SPDX-License-Identifier: MIT
/*
 * Takes pieces away, brings them back from descriptors, and makes them the process's own again. Only
 * the agent's thread comes here, with the gate closed: nobody else reads or writes the tables.
 */
#include <string.h>

#include "interpose/core/memory.h"

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

/* Memory at addresses of its own, for copies: pieces one behind the other, which the driver gives access
 * to and unmaps in one call each. */
struct scratch {
	CUdeviceptr va;
	uint64_t bytes, mapped_bytes;
};

/* Its addresses are of a length that nobody asks for again: kept, they would drive others out. */
static void scratch_fini(struct scratch *scratch)
{
	if (scratch->mapped_bytes)
		driver.cuMemUnmap(scratch->va, scratch->mapped_bytes);
	if (scratch->va)
		driver.cuMemAddressFree(scratch->va, scratch->bytes);
}

static CUresult scratch_init(struct scratch *ret, uint64_t bytes)
{
	CUdeviceptr va;
	CUresult r = addresses_reserve(&va, bytes);

	if (!r)
		*ret = (struct scratch){ .va = va, .bytes = bytes };
	return r;
}

static CUresult scratch_map(struct scratch *scratch, uint64_t bytes,
			    CUmemGenericAllocationHandle handle)
{
	CUresult r = driver.cuMemMap(scratch->va + scratch->mapped_bytes, bytes, 0, handle, 0);

	if (!r)
		scratch->mapped_bytes += bytes;
	return r;
}

static CUresult scratch_grant(const struct scratch *scratch, int device)
{
	CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, device },
				 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	return driver.cuMemSetAccess(scratch->va, scratch->mapped_bytes, &desc, 1);
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

/* A piece whose copy is under way. */
struct owning {
	struct piece *piece;
	CUmemGenericAllocationHandle own;
	struct scratch from; /* where it cannot be read as it is mapped */
	bool copied;
};

/* Pieces of one device: their memory to be, at addresses where it can be written meanwhile. */
struct copies {
	struct owning all[PIECES_OWN_MAX];
	size_t n;
	struct scratch to;
};

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

static CUresult create_one(struct copies *copies, struct piece *piece)
{
	struct owning *o = &copies->all[copies->n];
	CUmemAllocationProp prop = piece->asked;
	CUresult r;

	prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = driver.cuMemCreate(&o->own, piece->bytes, &prop, 0);
	if (r)
		return r;
	o->piece = piece;
	copies->n++;
	return CUDA_SUCCESS;
}

static CUresult map_own(struct copies *copies)
{
	uint64_t bytes = 0;
	CUresult r;

	for (size_t i = 0; i < copies->n; i++)
		bytes += copies->all[i].piece->bytes;
	r = scratch_init(&copies->to, bytes);
	for (size_t i = 0; i < copies->n && !r; i++)
		r = scratch_map(&copies->to, copies->all[i].piece->bytes, copies->all[i].own);
	return r ? r : scratch_grant(&copies->to, copies->all[0].piece->device);
}

static CUresult copy_one(struct owning *o, CUdeviceptr to)
{
	struct piece *piece = o->piece;
	CUdeviceptr source = readable_at(piece);
	CUresult r = CUDA_SUCCESS;

	if (!source) {
		r = scratch_init(&o->from, piece->bytes);
		if (!r)
			r = scratch_map(&o->from, piece->bytes, piece->handle);
		if (!r)
			r = scratch_grant(&o->from, piece->device);
		source = o->from.va;
	}
	if (!r)
		r = driver.cuMemcpyDtoDAsync_v2(to, source, piece->bytes, NULL);
	o->copied = !r;
	return r;
}

static CUresult begin_copies(struct copies *copies)
{
	CUresult r = map_own(copies);
	CUdeviceptr to = copies->to.va;

	for (size_t i = 0; i < copies->n && !r; i++) {
		r = copy_one(&copies->all[i], to);
		to += copies->all[i].piece->bytes;
	}
	return r;
}

static CUresult wait_for_copies(void)
{
	CUresult r = CUDA_SUCCESS;

	for (int tries = 0; tries == 0 || (r && tries < WAIT_TRIES); tries++)
		r = driver.cuCtxSynchronize();
	return r;
}

/* What was copied takes its place; what was not is let go. */
static CUresult end_copies(struct copies *copies)
{
	CUresult first = CUDA_SUCCESS;

	scratch_fini(&copies->to);
	for (size_t i = 0; i < copies->n; i++) {
		struct owning *o = &copies->all[i];
		CUresult r = CUDA_SUCCESS;

		scratch_fini(&o->from);
		if (o->copied)
			r = exchange(o->piece, o->own);
		else
			driver.cuMemRelease(o->own);
		first = first ? first : r;
	}
	return first;
}

/* With a context of their GPU current. */
static CUresult own_created(struct copies *copies)
{
	CUresult begun = begin_copies(copies);
	CUresult r = wait_for_copies();

	if (!r) /* else what a copy may still be using stays where it is, and is lost */
		r = end_copies(copies);
	return begun ? begun : r;
}

CUresult pieces_own(struct piece *const pieces[], size_t n)
{
	struct copies copies = { .n = 0 };
	CUresult created = CUDA_SUCCESS, owned;
	CUcontext retained;

	while (copies.n < n && !created)
		created = create_one(&copies, pieces[copies.n]);
	if (!copies.n)
		return created;
	owned = context_enter(pieces[0]->device, &retained);
	if (owned) {
		for (size_t i = 0; i < copies.n; i++)
			driver.cuMemRelease(copies.all[i].own);
		return created ? created : owned;
	}
	owned = own_created(&copies);
	context_leave(pieces[0]->device, retained);
	return created ? created : owned;
}
