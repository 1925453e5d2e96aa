// SPDX-License-Identifier: MIT
/*
 * Memory that two processes or two GPUs share. Exporter and importer of a legacy handle use one half
 * each, so both check what they wrote themselves; the handle passes between them in the file --path.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kinds.h"

#define MIB ((size_t)1 << 20)

static struct gpu gpus[2];
static struct array memory, second;

static bool step_memory(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL);
}

static const char *path_of(const struct options *options)
{
	if (!options->path)
		die("this kind needs --path");
	return options->path;
}

/* Written under another name first: whoever sees the file sees all of it. */
static void write_handle(const char *path, const CUipcMemHandle *handle)
{
	char part[4096];

	if ((size_t)snprintf(part, sizeof(part), "%s.part", path) >= sizeof(part))
		die("%s: name too long", path);
	FILE *file = fopen(part, "we");
	if (!file || fwrite(handle, sizeof(*handle), 1, file) != 1 || fclose(file) ||
	    rename(part, path) < 0)
		die("%s: %s", path, strerror(errno));
}

static void setup_ipc_export(const struct options *options)
{
	size_t half = options->mib * MIB / 2;
	CUipcMemHandle handle;
	CUdeviceptr address;

	gpu_open(&gpus[0], 0);
	CHECKED(cuMemAlloc_v2(&address, 2 * half));
	CHECKED(cuIpcGetMemHandle(&handle, address));
	array_over(&memory, &gpus[0], address, half);
	write_handle(path_of(options), &handle);
}

static void setup_ipc_import(const struct options *options)
{
	size_t half = options->mib * MIB / 2;
	CUipcMemHandle handle;
	CUdeviceptr address;

	gpu_open(&gpus[0], 0);
	FILE *file = fopen(path_of(options), "re");
	if (!file || fread(&handle, sizeof(handle), 1, file) != 1)
		die("%s: no handle there", options->path);
	fclose(file);
	CHECKED(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	array_over(&memory, &gpus[0], address + half, half);
}

static const CUmemAllocationProp exportable = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
};

static CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes)
{
	CUmemAccessDesc access = { exportable.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr address;

	CHECKED(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	CHECKED(cuMemMap(address, bytes, 0, handle, 0));
	CHECKED(cuMemSetAccess(address, bytes, &access, 1));
	return address;
}

static size_t whole_granules(size_t bytes)
{
	size_t granule;

	CHECKED(cuMemGetAllocationGranularity(&granule, &exportable,
					      CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	return (bytes + granule - 1) / granule * granule;
}

/* The fd stays open in this process, as in a program that hands memory out on request. */
static void setup_vmm_exported(const struct options *options)
{
	CUmemGenericAllocationHandle handle;
	int fd = -1;

	gpu_open(&gpus[0], 0);
	size_t bytes = whole_granules(options->mib * MIB);
	CHECKED(cuMemCreate(&handle, bytes, &exportable, 0));
	CHECKED(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	array_over(&memory, &gpus[0], map_handle(handle, bytes), bytes);
}

/* An event that others could open, recorded and waited for in each step. */
static CUevent event;

static void setup_event_exported(const struct options *options)
{
	CUipcEventHandle handle;

	gpu_open(&gpus[0], 0);
	CHECKED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	CHECKED(cuIpcGetEventHandle(&handle, event));
	array_alloc(&memory, &gpus[0], 1, options->mib * MIB);
}

static bool step_event(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	CHECKED(cuEventRecord(event, NULL));
	CHECKED(cuStreamWaitEvent(NULL, event, 0));
	CHECKED(cuEventSynchronize(event));
	return array_check(&memory, NULL);
}

static void open_both(bool peer_access)
{
	gpu_open(&gpus[0], 0);
	gpu_open(&gpus[1], 1);
	if (peer_access)
		CHECKED(cuCtxEnablePeerAccess(gpus[0].ctx, 0));
	CHECKED(cuCtxSetCurrent(gpus[0].ctx));
	if (peer_access)
		CHECKED(cuCtxEnablePeerAccess(gpus[1].ctx, 0));
}

static void setup_two_gpus(const struct options *options)
{
	open_both(false);
	array_alloc(&memory, &gpus[0], 1, options->mib * MIB);
	CHECKED(cuCtxSetCurrent(gpus[1].ctx));
	array_alloc(&second, &gpus[1], 1, options->mib * MIB);
}

static bool step_on(int ordinal, struct array *array)
{
	CHECKED(cuCtxSetCurrent(gpus[ordinal].ctx));
	array_add(array, NULL);
	return array_check(array, NULL);
}

static bool step_two_gpus(void *state, uint64_t n)
{
	return step_on(0, &memory) && step_on(1, &second);
}

/* A kernel on GPU 0 writes its array into the memory of GPU 1. */
static void setup_peer(const struct options *options)
{
	open_both(true);
	array_alloc(&memory, &gpus[0], 1, options->mib * MIB);
	CHECKED(cuCtxSetCurrent(gpus[1].ctx));
	array_alloc(&second, &gpus[1], 1, options->mib * MIB);
}

static bool step_peer(void *state, uint64_t n)
{
	uint64_t words = memory.words * 2;

	if (!step_on(0, &memory))
		return false;
	LAUNCH(gpus[0].copy_u32, 256, NULL, &second.chunks[0], &memory.chunks[0], &words);
	CHECKED(cuCtxSynchronize());
	CHECKED(cuCtxSetCurrent(gpus[1].ctx));
	second.added = memory.added;
	return array_check(&second, NULL);
}

/* The same by copies, in turn by addresses alone and by contexts: what the driver does then by way of the host. */
static bool step_across(void *state, uint64_t n)
{
	CUdeviceptr from = memory.chunks[0], to = second.chunks[0];
	size_t bytes = memory.words * sizeof(uint64_t);

	if (!step_on(0, &memory))
		return false;
	if (n % 2)
		CHECKED(cuMemcpyDtoD_v2(to, from, bytes));
	else
		CHECKED(cuMemcpyPeerAsync(to, gpus[1].ctx, from, gpus[0].ctx, bytes, NULL));
	CHECKED(cuCtxSynchronize());
	CHECKED(cuCtxSetCurrent(gpus[1].ctx));
	second.added = memory.added;
	return array_check(&second, NULL);
}

const struct kind shared_kinds[] = {
	{ "ipc-export", "memory with a legacy IPC handle, in --path", setup_ipc_export,
	  step_memory },
	{ "ipc-import", "memory opened by the handle in --path", setup_ipc_import, step_memory },
	{ "vmm-exported", "memory exported as an fd that stays open", setup_vmm_exported,
	  step_memory },
	{ "event-exported", "an event with a legacy IPC handle", setup_event_exported, step_event },
	{ "two-gpus", "memory on two GPUs, no peer access", setup_two_gpus, step_two_gpus },
	{ "across", "copies between two GPUs without that access", setup_two_gpus, step_across },
	{ "peer", "two GPUs with access to each other", setup_peer, step_peer },
	{ NULL },
};
