// SPDX-License-Identifier: MIT
/*
 * Saving and restoring the device side of this process, on its restore thread, with the gate closed.
 *
 * H200: the data goes to fresh private anonymous memory of the process itself, the process then maps
 * no device and holds no memory of it; addresses of device memory are the same after the restore.
 * Some states that can be saved cannot be restored, and a restore that failed cannot be repeated:
 * that is imitated here, because it is what brumate has to keep its users from.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl.h"
#include "sim.h"

/* The bytes of an allocation that were ever written; the rest is zero. */
struct saved {
	char *data;
	size_t bytes;
	struct extent {
		off_t start;
		size_t bytes;
	} * extents;
	size_t n_extents;
};

static CUresult lost; /* what every restore of what was saved will return; 0: it can be restored */
static bool stuck;    /* a restore ran out of device memory */

static void saved_free(struct saved *saved)
{
	if (!saved)
		return;
	if (saved->data)
		munmap(saved->data, saved->bytes);
	free(saved->extents);
	free(saved);
}

static int add_extent(struct saved *saved, off_t start, off_t end)
{
	struct extent *extents = realloc(saved->extents, (saved->n_extents + 1) * sizeof(*extents));

	if (!extents)
		return -ENOMEM;
	saved->extents = extents;
	extents[saved->n_extents++] = (struct extent){ start, (size_t)(end - start) };
	return 0;
}

static int read_extent(int fd, char *data, const struct extent *extent)
{
	size_t at = 0;

	while (at < extent->bytes) {
		ssize_t n = pread(fd, data + extent->start + at, extent->bytes - at,
				  extent->start + (off_t)at);

		if (n <= 0)
			return n ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

static int write_extent(int fd, const char *data, const struct extent *extent)
{
	size_t at = 0;

	while (at < extent->bytes) {
		ssize_t n = pwrite(fd, data + extent->start + at, extent->bytes - at,
				   extent->start + (off_t)at);

		if (n <= 0)
			return n ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

static int read_data(struct saved *saved, int fd)
{
	off_t start, end = 0;
	int r = 0;

	while (!r && (start = lseek(fd, end, SEEK_DATA)) >= 0) {
		end = lseek(fd, start, SEEK_HOLE);
		r = add_extent(saved, start, end);
		if (!r)
			r = read_extent(fd, saved->data, &saved->extents[saved->n_extents - 1]);
	}
	return r;
}

static int save(struct phys *phys)
{
	auto_close int fd = vram_open(&phys->file);
	struct saved *saved = fd < 0 ? NULL : calloc(1, sizeof(*saved));
	int r = -ENOMEM;

	if (!saved)
		return fd < 0 ? fd : r;
	saved->bytes = phys->file.bytes;
	saved->data = mmap(NULL, saved->bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (saved->data == MAP_FAILED)
		saved->data = NULL;
	else
		r = read_data(saved, fd);
	if (r < 0)
		saved_free(saved);
	else
		phys->saved = saved;
	return r;
}

static void forget_saved(void)
{
	for (size_t i = 0; i < sim.physes.n; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		saved_free(phys->saved);
		phys->saved = NULL;
	}
}

/* Memory of others is theirs to save. */
static bool foreign(const struct phys *phys)
{
	return phys->imported || phys->ipc_opened;
}

static int save_all(uint64_t *ret_bytes)
{
	int r = 0;

	*ret_bytes = 0;
	for (size_t i = 0; i < sim.physes.n && !r; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		if (foreign(phys))
			continue;
		r = save(phys);
		*ret_bytes += phys->file.bytes;
	}
	if (r < 0)
		forget_saved();
	return r;
}

/* Makes a copy of @bytes take as long as it would at @gbps. */
static void pace(uint64_t start_ns, uint64_t bytes, double gbps)
{
	uint64_t end = start_ns;
	struct timespec until;

	if (!(gbps > 0))
		return;
	end += (uint64_t)((double)bytes / gbps);
	until = (struct timespec){ (time_t)(end / NS_PER_S), (long)(end % NS_PER_S) };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static bool has_managed_memory(void)
{
	for (size_t i = 0; i < sim.ranges.n; i++)
		if (((struct range *)sim.ranges.slots[i].value)->kind == RANGE_MANAGED)
			return true;
	return false;
}

/* What the driver will find it cannot restore. */
static CUresult find_lost(void)
{
	for (size_t i = 0; i < sim.physes.n; i++) {
		const struct phys *phys = sim.physes.slots[i].value;

		/* H200: if memory imported by fd was not released, both ends restore with 801. */
		if (phys->imported)
			return CUDA_ERROR_NOT_SUPPORTED;
		/* H200: host memory by cuMemCreate: 999, shared (by ranks of NCCL) or not. */
		if (phys->prop.location.type >= CU_MEM_LOCATION_TYPE_HOST)
			return CUDA_ERROR_UNKNOWN;
		/* H200: legacy IPC: the importer's restore fails with 1; by others: driver 610 can, in a job. */
		if (phys->ipc_opened && !(config_get()->driver >= 610 && phys->ipc_same_job))
			return CUDA_ERROR_INVALID_VALUE;
	}
	/* Not measured: an event of another process, as memory of one. */
	if (shared_events_are_open())
		return CUDA_ERROR_INVALID_VALUE;
	/* H200: one process, two GPUs, peer access: saved, but the restore fails with 1. */
	return contexts_have_peers() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Releases everything on the GPUs: mappings, memory, handles. */
static void drop_device(void)
{
	for (size_t i = 0; i < sim.views.n; i++)
		view_unmap(sim.views.slots[i].value);
	for (size_t i = 0; i < sim.physes.n; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		vram_drop(&phys->file);
		phys->ipc_away = phys->ipc_opened;
	}
	contexts_drop_vram();
	shared_events_save();
	handle_close();
}

static CUresult save_locked(void)
{
	uint64_t start, bytes;

	/* H200: managed memory is refused, and the process stays locked. MIG likewise, by its docs. */
	if (has_managed_memory() || config_get()->machine.mig)
		return CUDA_ERROR_NOT_SUPPORTED;
	streams_wait(NULL, DEADLINE_NEVER);
	lost = find_lost();
	stuck = false;
	start = clock_now_ns();
	int r = save_all(&bytes);
	if (r < 0)
		return r == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
	pace(start, bytes + stacks_bytes(), config_get()->out_gbps);
	CUresult noted = sim_job_file_note_save();
	if (noted) {
		forget_saved();
		return noted;
	}
	drop_device();
	return CUDA_SUCCESS;
}

CUresult checkpoint_save(void)
{
	CUresult r;

	pthread_mutex_lock(&sim.lock);
	r = save_locked();
	pthread_mutex_unlock(&sim.lock);
	return r;
}

/* The GPU that replaces @gpu, or -1 when @request does not say. */
static int replacement(const struct restore_request *request, int gpu)
{
	CUuuid old;

	uuid_of_gpu(&old, gpu);
	for (uint32_t i = 0; i < request->n_pairs; i++)
		if (gpu_of_uuid(&config_get()->machine, &request->pairs[i].oldUuid) < 0)
			return -1;
	for (uint32_t i = 0; i < request->n_pairs; i++)
		if (!memcmp(&request->pairs[i].oldUuid, &old, sizeof(old)))
			return gpu_of_uuid(&request->machine, &request->pairs[i].newUuid);
	return request->n_pairs ? -1 : gpu;
}

/* Decides which GPU each device is on from now on; changes nothing if that cannot be. */
static CUresult choose_gpus(const struct restore_request *request, int *ret_gpu_of)
{
	const struct config_machine *old = &config_get()->machine, *new = &request->machine;
	uint64_t taken = 0;

	for (int i = 0; i < sim.n_devices; i++) {
		int gpu = replacement(request, sim.gpu_of[i]);

		/*
		 * H200: every GPU the process sees must be listed, none that is unknown, none
		 * twice; the state stays, and a second restore with a right list works.
		 */
		if (gpu < 0 || gpu >= (int)new->n_gpus || taken & 1ull << gpu)
			return CUDA_ERROR_INVALID_VALUE;
		/* A GPU of another kind cannot take over. */
		if (strcmp(old->gpu[sim.gpu_of[i]].model, new->gpu[gpu].model))
			return CUDA_ERROR_NOT_SUPPORTED;
		taken |= 1ull << gpu;
		ret_gpu_of[i] = gpu;
	}
	return CUDA_SUCCESS;
}

static CUresult bring_back(struct phys *phys)
{
	uint64_t bytes = phys->file.bytes;
	const struct saved *saved = phys->saved;
	int r;

	/* It may be of a process that is restored after this one. */
	if (phys->ipc_opened)
		return CUDA_SUCCESS;
	r = vram_create(&phys->file, sim.gpu_of[phys->device], bytes);
	if (r < 0)
		return vram_result(r);

	auto_close int fd = vram_open(&phys->file);

	r = fd < 0 ? fd : 0;
	for (size_t i = 0; i < saved->n_extents && !r; i++)
		r = write_extent(fd, saved->data, &saved->extents[i]);
	if (!r && *phys->ipc_name)
		return ipc_publish(phys);
	return vram_result(r);
}

/* Either those of memory that is another process's and has been away, or all others. */
static CUresult map_views(bool away)
{
	for (size_t i = 0; i < sim.views.n; i++) {
		struct phys_view *view = sim.views.slots[i].value;

		if (view->phys->ipc_away == away && view_map(view) < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

static CUresult bring_back_all(uint64_t *ret_bytes)
{
	CUresult r = contexts_take_vram();

	*ret_bytes = 0;
	for (size_t i = 0; i < sim.physes.n && !r; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		*ret_bytes += phys->file.bytes;
		r = bring_back(phys);
	}
	return r ? r : map_views(false);
}

/* What was opened by legacy IPC is there once all members of the job are restored, that is, when they are unlocked. */
CUresult checkpoint_open_shared(void)
{
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&sim.lock);
	for (size_t i = 0; i < sim.physes.n && !r; i++) {
		struct phys *phys = sim.physes.slots[i].value;

		if (phys->ipc_opened && phys->ipc_away)
			r = ipc_reopen(phys);
	}
	if (!r)
		r = map_views(true);
	for (size_t i = 0; i < sim.physes.n && !r; i++)
		((struct phys *)sim.physes.slots[i].value)->ipc_away = false;
	pthread_mutex_unlock(&sim.lock);
	return r;
}

static CUresult restore_device(void)
{
	uint64_t start = clock_now_ns(), bytes;
	CUresult r = handle_open();

	if (!r)
		r = bring_back_all(&bytes);
	if (!r)
		r = shared_events_restore();
	if (r) {
		drop_device();
		/* H200: out of memory cannot be repaired: the next restore returns 304. */
		stuck = r != CUDA_ERROR_NOT_READY;
		return r;
	}
	pace(start, bytes + stacks_bytes(), config_get()->in_gbps);
	forget_saved();
	return CUDA_SUCCESS;
}

static CUresult restore_locked(const struct restore_request *request)
{
	int gpu_of[CONFIG_GPUS_MAX] = { 0 };
	CUresult r;

	if (stuck)
		return CUDA_ERROR_OPERATING_SYSTEM;
	/* H200: a process whose restore failed is lost: it stays checkpointed for ever. */
	if (lost)
		return lost;
	/* By others: the file of a job is no use where it is a copy from before the checkpoint. */
	if (!sim_job_file_is_current())
		return CUDA_ERROR_INVALID_VALUE;
	r = choose_gpus(request, gpu_of);
	if (r)
		return r;
	memcpy(sim.gpu_of, gpu_of, (size_t)sim.n_devices * sizeof(*gpu_of));
	config_get()->machine = request->machine;
	if (vram_init() < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	return restore_device();
}

void checkpoint_lose(void)
{
	stuck = true;
}

CUresult checkpoint_restore(const struct restore_request *request)
{
	CUresult r;

	pthread_mutex_lock(&sim.lock);
	r = restore_locked(request);
	pthread_mutex_unlock(&sim.lock);
	return r;
}
