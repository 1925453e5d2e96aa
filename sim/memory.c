// SPDX-License-Identifier: MIT
/*
 * Memory by address: physical allocations, their mappings (views), and the ranges a program knows.
 * Device pointers are addresses of this process. When pages go, at a checkpoint or an unmap, their
 * addresses stay reserved, because what comes back must come back there.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

CUresult vram_result(int r)
{
	if (r == -ENOSPC)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return r < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* Addresses with nothing behind them. */
void *va_reserve(size_t bytes, size_t align)
{
	size_t room;
	char *start, *at;

	if (__builtin_add_overflow(bytes, align, &room))
		return NULL;
	start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		return NULL;
	at = (char *)round_up((uintptr_t)start, align);
	if (at > start)
		munmap(start, (size_t)(at - start));
	munmap(at + bytes, room - (size_t)(at - start) - bytes);
	return at;
}

static int va_empty(void *va, size_t bytes)
{
	void *at = mmap(va, bytes, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return at == MAP_FAILED ? -errno : 0;
}

static struct phys *phys_register(struct phys *phys)
{
	if (handle_add(&sim.physes, phys) < 0) {
		vram_drop(&phys->file);
		free(phys);
		return NULL;
	}
	return phys;
}

struct phys *phys_new(int device, size_t bytes, CUresult *ret_error)
{
	struct phys *phys = calloc(1, sizeof(*phys));
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	if (phys)
		r = vram_result(vram_create(&phys->file, sim.gpu_of[device], bytes));
	if (r) {
		free(phys);
		*ret_error = r;
		return NULL;
	}
	phys->device = device;
	*ret_error = CUDA_ERROR_OUT_OF_MEMORY;
	return phys_register(phys);
}

/* Takes the allocation @file, made by another process. NULL without memory. */
struct phys *phys_adopt(const struct vram_file *file)
{
	struct phys *phys = calloc(1, sizeof(*phys));
	struct vram_file mine = *file;

	if (!phys) {
		vram_drop(&mine);
		return NULL;
	}
	phys->file = mine;
	phys->device = -1;
	for (int i = 0; i < sim.n_devices; i++)
		if (sim.gpu_of[i] == file->gpu)
			phys->device = i;
	return phys_register(phys);
}

void phys_put(struct phys *phys)
{
	if (phys->handles || phys->views)
		return;
	handle_remove(&sim.physes, phys);
	ipc_withdraw(phys);
	vram_drop(&phys->file);
	free(phys);
}

/* Maps the pages of @view at its address. */
int view_map(struct phys_view *view)
{
	int fd = vram_open(&view->phys->file);
	void *at;
	int r = fd < 0 ? fd : 0;

	if (r < 0)
		return r;
	at = mmap(view->va, view->bytes, view->prot, MAP_SHARED | MAP_FIXED, fd,
		  (off_t)view->offset);
	/* As device memory is not there in a forked child. */
	if (at == MAP_FAILED || madvise(at, view->bytes, MADV_DONTFORK) < 0)
		r = -errno;
	close(fd);
	return r;
}

void view_unmap(struct phys_view *view)
{
	va_empty(view->va, view->bytes);
}

/* On failure releases @phys, like view_free(). */
struct phys_view *view_new(void *va, size_t bytes, struct phys *phys, size_t offset, int prot)
{
	struct phys_view *view = calloc(1, sizeof(*view));

	if (!view) {
		phys_put(phys);
		return NULL;
	}
	*view = (struct phys_view){
		.va = va, .bytes = bytes, .offset = offset, .prot = prot, .phys = phys
	};
	if (sim_table_add(&sim.views, (uintptr_t)va, view) < 0) {
		free(view);
		phys_put(phys);
		return NULL;
	}
	phys->views++;
	if (view_map(view) < 0) {
		view_free(view, true);
		return NULL;
	}
	return view;
}

void view_free(struct phys_view *view, bool keep_reserved)
{
	struct phys *phys = view->phys;

	if (keep_reserved)
		va_empty(view->va, view->bytes);
	else
		munmap(view->va, view->bytes);
	sim_table_remove(&sim.views, (uintptr_t)view->va);
	free(view);
	phys->views--;
	phys_put(phys);
}

struct range *range_new(enum range_kind kind, void *base, size_t bytes)
{
	struct range *range = calloc(1, sizeof(*range));

	if (!range)
		return NULL;
	range->kind = kind;
	range->base = (CUdeviceptr)(uintptr_t)base;
	range->bytes = bytes;
	range->device = -1;
	range->id = ++sim.next_id;
	if (sim_table_add(&sim.ranges, range->base, range) < 0) {
		free(range);
		return NULL;
	}
	return range;
}

struct range *range_find(CUdeviceptr ptr)
{
	struct range *range = sim_table_floor(&sim.ranges, ptr);

	return range && ptr - range->base < range->bytes ? range : NULL;
}

/* Forgets the range; its memory is the caller's business. */
void range_drop(struct range *range)
{
	sim_table_remove(&sim.ranges, range->base);
	free(range->advice);
	free(range);
}

static bool may_touch(const struct range *range, CUcontext ctx)
{
	switch (range->kind) {
	case RANGE_VMM:
		return range->access & 1ull << ctx->device;
	case RANGE_DEVICE:
	case RANGE_IPC:
		return range->device == ctx->device || ctx->peers & 1ull << range->device ||
		       range->access & 1ull << ctx->device;
	case RANGE_HOST:
	case RANGE_REGISTERED:
	case RANGE_MANAGED:
		return true;
	}
	return false;
}

/* A kernel sees addresses: what lies side by side is as good as one allocation. */
bool memory_reachable(CUdeviceptr ptr, size_t bytes, CUcontext ctx)
{
	CUdeviceptr end = ptr + bytes;

	if (end < ptr)
		return false;
	while (ptr < end) {
		struct range *range = range_find(ptr);

		if (!range || !may_touch(range, ctx))
			return false;
		ptr = range->base + range->bytes;
	}
	return true;
}

/* A copy stays within one allocation, or within mappings side by side. */
bool memory_known(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr end = ptr + bytes;

	if (end < ptr)
		return false;
	while (ptr < end) {
		struct range *range = range_find(ptr);

		if (!range || (range->kind == RANGE_VMM && !range->access))
			return false;
		ptr = range->base + range->bytes;
		if (ptr < end && range->kind != RANGE_VMM)
			return false;
	}
	return true;
}

bool memory_pinned(const void *ptr, size_t bytes)
{
	struct range *range = range_find((uintptr_t)ptr);

	return range && range->device < 0 && (uintptr_t)ptr + bytes <= range->base + range->bytes;
}

static CUresult alloc_whole(CUcontext ctx, size_t bytes, struct range **ret)
{
	size_t room = round_up(bytes, SIM_GRANULE_BYTES);
	struct phys *phys;
	struct phys_view *view;
	CUresult r;
	void *va;

	if (room < bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	phys = phys_new(ctx->device, room, &r);
	if (!phys)
		return r;
	va = va_reserve(room, SIM_GRANULE_BYTES);
	if (!va) {
		phys_put(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	view = view_new(va, room, phys, 0, PROT_READ | PROT_WRITE);
	if (!view) {
		munmap(va, room);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret = range_new(RANGE_DEVICE, va, bytes);
	if (!*ret) {
		view_free(view, false);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*ret)->view = view;
	return CUDA_SUCCESS;
}

CUresult sim_memory_alloc(CUcontext ctx, CUdeviceptr *ret, size_t bytes)
{
	struct range *range;
	CUresult r;

	if (!ret || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	/* Half a granule and less share one, as the vendor's small allocations do. */
	r = bytes <= SIM_GRANULE_BYTES / 2 ? slab_alloc(ctx, bytes, &range)
					   : alloc_whole(ctx, bytes, &range);
	if (r)
		return r;
	range->device = ctx->device;
	range->ctx = ctx;
	*ret = range->base;
	return CUDA_SUCCESS;
}

static void free_device(struct range *range)
{
	if (range->slab)
		slab_free(range);
	else
		view_free(range->view, false);
	range_drop(range);
}

CUresult sim_memory_free(CUdeviceptr ptr)
{
	struct range *range = sim_table_get(&sim.ranges, ptr);

	if (!ptr)
		return CUDA_SUCCESS;
	if (!range || (range->kind != RANGE_DEVICE && range->kind != RANGE_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	if (range->kind == RANGE_MANAGED) {
		munmap((void *)(uintptr_t)range->base, round_up(range->bytes, SIM_PAGE_BYTES));
		range_drop(range);
	} else {
		free_device(range);
	}
	return CUDA_SUCCESS;
}

void memory_free_of_context(CUcontext ctx)
{
	for (size_t i = sim.ranges.n; i-- > 0;) {
		struct range *range = sim.ranges.slots[i].value;

		if (range->ctx != ctx)
			continue;
		if (range->kind == RANGE_IPC)
			view_free(range->view, false);
		else if (range->kind == RANGE_HOST)
			munmap((void *)(uintptr_t)range->base,
			       round_up(range->bytes, SIM_PAGE_BYTES));
		if (range->kind == RANGE_DEVICE || range->kind == RANGE_MANAGED)
			sim_memory_free(range->base);
		else
			range_drop(range);
	}
}

static CUresult alloc_pitch(CUcontext ctx, CUdeviceptr *ret, size_t *ret_pitch, size_t width,
			    size_t height, unsigned int element)
{
	size_t pitch = round_up(width, 512), bytes;
	CUresult r;

	if (!ret_pitch || !width || !height || (element != 4 && element != 8 && element != 16) ||
	    pitch < width || __builtin_mul_overflow(pitch, height, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	r = sim_memory_alloc(ctx, ret, bytes);
	if (!r)
		*ret_pitch = pitch;
	return r;
}

/* As on hardware, a free waits for the work that may still use the memory. */
static CUresult free_when_idle(CUcontext ctx, CUdeviceptr ptr)
{
	struct range *range = sim_table_get(&sim.ranges, ptr);
	CUresult r = capture_forbids_unsafe();

	if (r)
		return r;
	context_wait_idle(range && range->ctx ? range->ctx : ctx);
	return sim_memory_free(ptr);
}

static CUresult op_free(struct stream_op *op)
{
	CUresult r;

	if (op->status)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim.lock);
	r = sim_memory_free(op->free_ptr);
	pthread_mutex_unlock(&sim.lock);
	return r;
}

static CUresult alloc_async(CUcontext ctx, CUdeviceptr *ret, size_t bytes, CUstream handle)
{
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return sim_memory_alloc(ctx, ret, bytes);
}

static CUresult free_async(CUcontext ctx, CUdeviceptr ptr, CUstream handle)
{
	struct stream_op op = { .run = op_free, .free_ptr = ptr };
	struct range *range = sim_table_get(&sim.ranges, ptr);
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!range || range->kind != RANGE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_submit(stream, &op, NULL);
}

static CUresult mem_info(CUcontext ctx, size_t *free_bytes, size_t *total)
{
	int gpu = sim.gpu_of[ctx->device];
	uint64_t all = config_get()->machine.gpu[gpu].vram_bytes, used;

	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	if (vram_used(gpu, &used) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*total = all;
	*free_bytes = used < all ? all - used : 0;
	return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
	struct range *range = range_find(ptr);

	if (!range || (range->device < 0 && range->kind != RANGE_MANAGED))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = range->base;
	if (bytes)
		*bytes = range->bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	return API_CTX_LOCKED(({
		CUresult forbidden = capture_forbids_unsafe();
		forbidden ? forbidden : sim_memory_alloc(ctx, ptr, bytes);
	}));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width_bytes, size_t height,
			    unsigned int element_bytes)
{
	return API_CTX_LOCKED(alloc_pitch(ctx, ptr, pitch, width_bytes, height, element_bytes));
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	return API_CTX_LOCKED(free_when_idle(ctx, ptr));
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(alloc_async(ctx, ptr, bytes, stream));
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	return API_CTX_LOCKED(free_async(ctx, ptr, stream));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	return API_CTX_LOCKED(mem_info(ctx, free_bytes, total_bytes));
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
	return API_LOCKED(address_range(base, bytes, ptr));
}
