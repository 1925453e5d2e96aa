// SPDX-License-Identifier: MIT
/*
 * Legacy IPC: allocations opened by another process through 64 bytes that travel anyhow. A handle
 * names a link in $BRUMATE_SIM_DIR/ipc/ that leads to the allocation, so that an exporter that was
 * restored can say where its memory is now.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sim.h"

enum { IPC_MAGIC = 0x42695043, IPC_NAME_BYTES = 40 };

struct ipc_handle {
	uint32_t magic;
	uint32_t piece_bytes; /* of an allocation carved from a slab; 0: all of the file */
	uint64_t offset;
	uint64_t job; /* of the exporter; 0: none */
	char name[IPC_NAME_BYTES];
};
_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "one fits in the other");

static int open_ipc_dir(void)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/ipc", config_get()->dir);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Links to nothing belong to dead processes, or to ones that will publish again when restored. */
static void remove_stale(int dir)
{
	auto_close int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!d)
		return;
	fd = -1;
	while ((entry = readdir(d)))
		if (entry->d_name[0] != '.' && faccessat(dir, entry->d_name, F_OK, 0) < 0)
			unlinkat(dir, entry->d_name, 0);
}

CUresult ipc_publish(struct phys *phys)
{
	auto_close int dir = open_ipc_dir();
	char target[VRAM_NAME_BYTES + 32];

	if (dir < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	remove_stale(dir);
	snprintf(target, sizeof(target), "../gpu%d/%s", phys->file.gpu, phys->file.name);
	unlinkat(dir, phys->ipc_name, 0);
	return symlinkat(target, dir, phys->ipc_name) < 0 ? CUDA_ERROR_OPERATING_SYSTEM
							  : CUDA_SUCCESS;
}

void ipc_withdraw(struct phys *phys)
{
	if (!*phys->ipc_name || phys->ipc_opened)
		return;

	auto_close int dir = open_ipc_dir();

	if (dir >= 0)
		unlinkat(dir, phys->ipc_name, 0);
}

/* Holds what @name leads to now. */
static int find_published(const char *name, struct vram_file *ret)
{
	auto_close int dir = open_ipc_dir();
	char target[VRAM_NAME_BYTES + 32], file[VRAM_NAME_BYTES];
	unsigned int gpu;
	ssize_t n = dir < 0 ? -1 : readlinkat(dir, name, target, sizeof(target) - 1);

	if (n < 0)
		return -ENOENT;
	target[n] = '\0';
	if (sscanf(target, "../gpu%u/%47[0-9-]", &gpu, file) != 2 ||
	    gpu >= config_get()->machine.n_gpus)
		return -ENOENT;
	return vram_find(ret, (int)gpu, file);
}

CUresult ipc_reopen(struct phys *phys)
{
	int r = find_published(phys->ipc_name, &phys->file);

	/* The exporter has not been restored yet. */
	return r < 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult get_handle(CUipcMemHandle *ret, CUdeviceptr ptr)
{
	struct range *range = range_find(ptr);
	struct ipc_handle handle = { .magic = IPC_MAGIC, .job = sim_job_file_identity() };
	struct phys *phys;

	if (!ret || !range || range->kind != RANGE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	phys = range->view->phys;
	if (!*phys->ipc_name) {
		snprintf(phys->ipc_name, IPC_NAME_BYTES, "%d-%llu", getpid(),
			 (unsigned long long)clock_now_ns());
		CUresult r = ipc_publish(phys);

		if (r) {
			*phys->ipc_name = '\0';
			return r;
		}
	}
	/* As on hardware: the handle is of the whole allocation, wherever in it @ptr points. */
	handle.offset = range->base - (uintptr_t)range->view->va;
	handle.piece_bytes = range->slab ? (uint32_t)range->bytes : 0;
	memcpy(handle.name, phys->ipc_name, IPC_NAME_BYTES);
	memcpy(ret, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/* An allocation of this process with the name @name. */
static struct phys *find_known(const char *name)
{
	for (size_t i = 0; i < sim.physes.n; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		if (!strcmp(phys->ipc_name, name))
			return phys;
	}
	return NULL;
}

static struct range *find_opened(const struct phys *phys, uint64_t offset)
{
	for (size_t i = 0; i < sim.ranges.n; i++) {
		struct range *range = sim.ranges.slots[i].value;

		if (range->kind == RANGE_IPC && range->view->phys == phys &&
		    range->base == (uintptr_t)range->view->va + offset)
			return range;
	}
	return NULL;
}

static CUresult map_opened(CUcontext ctx, struct phys *phys, const struct ipc_handle *handle,
			   unsigned int flags, CUdeviceptr *ret)
{
	size_t bytes = phys->file.bytes;
	char *va = va_reserve(bytes, SIM_GRANULE_BYTES);
	struct phys_view *view = NULL;
	struct range *range = NULL;

	if (va)
		view = view_new(va, bytes, phys, 0, PROT_READ | PROT_WRITE);
	else
		phys_put(phys);
	if (view)
		range = range_new(RANGE_IPC, va + handle->offset,
				  handle->piece_bytes ? handle->piece_bytes : bytes);
	if (!range) {
		if (view)
			view_free(view, true);
		if (va)
			munmap(va, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->view = view;
	range->ctx = ctx;
	range->device = phys->device;
	range->opened = 1;
	range->access = 1ull << phys->device;
	if (flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		range->access |= 1ull << ctx->device;
	*ret = range->base;
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUcontext ctx, CUdeviceptr *ret, const CUipcMemHandle *wire,
			    unsigned int flags)
{
	struct ipc_handle handle;
	struct vram_file file;
	struct phys *phys;
	struct range *range;

	memcpy(&handle, wire, sizeof(handle));
	if (!ret || flags & ~(unsigned int)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    handle.magic != IPC_MAGIC || !memchr(handle.name, '\0', IPC_NAME_BYTES) ||
	    strspn(handle.name, "0123456789-") != strlen(handle.name) || !*handle.name)
		return CUDA_ERROR_INVALID_VALUE;
	phys = find_known(handle.name);
	/* The maker itself cannot open it. */
	if (phys && !phys->ipc_opened)
		return CUDA_ERROR_INVALID_CONTEXT;
	range = phys ? find_opened(phys, handle.offset) : NULL;
	if (range) {
		range->opened++;
		*ret = range->base;
		return CUDA_SUCCESS;
	}
	if (!phys) {
		if (find_published(handle.name, &file) < 0)
			return CUDA_ERROR_INVALID_VALUE;
		phys = phys_adopt(&file);
		if (!phys)
			return CUDA_ERROR_OUT_OF_MEMORY;
		phys->ipc_opened = true;
		phys->ipc_same_job = handle.job && handle.job == sim_job_file_identity();
		strcpy(phys->ipc_name, handle.name);
	}
	if (phys->device < 0 || handle.offset >= phys->file.bytes ||
	    handle.piece_bytes > phys->file.bytes - handle.offset) {
		phys_put(phys);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return map_opened(ctx, phys, &handle, flags, ret);
}

static CUresult close_handle(CUdeviceptr ptr)
{
	struct range *range = sim_table_get(&sim.ranges, ptr);

	if (!range || range->kind != RANGE_IPC)
		return CUDA_ERROR_INVALID_VALUE;
	if (--range->opened)
		return CUDA_SUCCESS;
	if (range->ctx->alive)
		context_wait_idle(range->ctx);
	view_free(range->view, false);
	range_drop(range);
	return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	return API_CTX_LOCKED(get_handle(handle, ptr));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return API_CTX_LOCKED(open_handle(ctx, ptr, &handle, flags));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	return API_CTX_LOCKED(close_handle(ptr));
}
