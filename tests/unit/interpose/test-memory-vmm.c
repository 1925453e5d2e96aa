// SPDX-License-Identifier: MIT
/* Programs that use the virtual memory API themselves. */
#include "job.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, GRANULE = 2 * MIB };

static const CUmemAllocationProp plain = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static const CUmemAccessDesc writable = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
					  CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

/* As PyTorch's expandable segments: a large range that grows and shrinks. */
static void test_expandable(void)
{
	enum { PARTS = 8, PART = 2 * GRANULE };
	CUmemGenericAllocationHandle handles[PARTS];
	CUdeviceptr base;

	CHECK(!cuMemAddressReserve(&base, (size_t)PARTS * PART, 0, 0, 0));
	for (unsigned int i = 0; i < PARTS; i++) {
		CHECK(!cuMemCreate(&handles[i], PART, &plain, 0));
		CHECK(!cuMemMap(base + (size_t)i * PART, PART, 0, handles[i], 0));
		CHECK(!cuMemSetAccess(base + (size_t)i * PART, PART, &writable, 1));
		fill(base + (size_t)i * PART, PART, i);
		agent_cycle();
	}
	for (unsigned int i = 0; i < PARTS; i += 2) {
		CHECK(!cuMemUnmap(base + (size_t)i * PART, PART));
		CHECK(!cuMemRelease(handles[i]));
	}
	agent_cycle();
	for (unsigned int i = 1; i < PARTS; i += 2) {
		CHECK(holds(base + (size_t)i * PART, PART, i));
		CHECK(!cuMemUnmap(base + (size_t)i * PART, PART));
		CHECK(!cuMemRelease(handles[i]));
		CHECK(cuMemRelease(handles[i]) == CUDA_ERROR_INVALID_VALUE);
	}
	CHECK(!cuMemAddressFree(base, (size_t)PARTS * PART));
}

/* One handle in several places, in parts, with less than all access; released while mapped. */
static void test_aliases(void)
{
	CUmemAccessDesc readable = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
				     CU_MEM_ACCESS_FLAGS_PROT_READ };
	CUmemGenericAllocationHandle handle, again;
	unsigned long long flags;
	CUdeviceptr a, b;

	CHECK(!cuMemCreate(&handle, 2 * GRANULE, &plain, 0));
	CHECK(!cuMemAddressReserve(&a, 2 * GRANULE, 0, 0, 0));
	CHECK(!cuMemAddressReserve(&b, GRANULE, 0, 0, 0));
	CHECK(!cuMemMap(a, 2 * GRANULE, 0, handle, 0));
	CHECK(!cuMemMap(b, GRANULE, GRANULE, handle, 0));
	CHECK(!cuMemSetAccess(a, 2 * GRANULE, &writable, 1));
	CHECK(!cuMemSetAccess(b, GRANULE, &readable, 1));
	CHECK(!cuMemRelease(handle));
	fill(a, GRANULE, 1);
	fill(a + GRANULE, GRANULE, 2);
	agent_cycle();
	CHECK(holds(a, GRANULE, 1) && holds(a + GRANULE, GRANULE, 2) && holds(b, GRANULE, 2));
	CHECK(!cuMemGetAccess(&flags, &readable.location, b));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
	fill(a + GRANULE, GRANULE, 3);
	CHECK(holds(b, GRANULE, 3));
	CHECK(!cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b));
	CHECK(again == handle);
	CHECK(!cuMemUnmap(a, 2 * GRANULE) && !cuMemUnmap(b, GRANULE));
	agent_cycle(); /* held by its handle alone */
	CHECK(!cuMemMap(b, GRANULE, GRANULE, again, 0));
	CHECK(!cuMemSetAccess(b, GRANULE, &writable, 1));
	CHECK(holds(b, GRANULE, 3));
	CHECK(!cuMemRelease(again));
	CHECK(!cuMemUnmap(b, GRANULE));
	CHECK(cuMemMap(b, GRANULE, 0, again, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemAddressFree(a, 2 * GRANULE) && !cuMemAddressFree(b, GRANULE));
}

static unsigned int withheld(void)
{
	struct agent_reply reply;
	int conn = agent_connect();

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	close(conn);
	return reply.n & (AGENT_WITHHELD_MULTICAST | AGENT_WITHHELD_SHARING);
}

/* NCCL asks for a little host memory that it could share, and takes files where it gets none. What a process has for itself
 * alone the driver does not restore either. */
static void test_withheld(void)
{
	CUmemAllocationProp host = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 } };
	CUmemAllocationProp fabric = plain;
	CUmemGenericAllocationHandle handle;
	size_t granule;
	int value = 7;

	CHECK(!withheld());
	CHECK(!cuMemGetAllocationGranularity(&granule, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(cuMemCreate(&handle, granule, &host, 0) == CUDA_ERROR_NOT_SUPPORTED);
	CHECK(withheld() == AGENT_WITHHELD_SHARING);
	host.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CHECK(cuMemCreate(&handle, granule, &host, 0) == CUDA_ERROR_NOT_SUPPORTED);
	CHECK(withheld() == AGENT_WITHHELD_SHARING);
	fabric.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	CHECK(cuMemCreate(&handle, GRANULE, &fabric, 0) == CUDA_ERROR_NOT_SUPPORTED);
	CHECK(!cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0) && !value);
	value = 7;
	CHECK(!cuDeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
	CHECK(!value);
	CHECK(withheld() == (AGENT_WITHHELD_MULTICAST | AGENT_WITHHELD_SHARING));
	CHECK(!cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0) && value == 32);
	CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 55) ==
	      CUDA_ERROR_INVALID_DEVICE);
}

/* The program sees the properties it asked for. What it exported is taken away as all of its memory; the
 * descriptor stands for it before and after. */
static void test_sharing(void)
{
	CUmemAllocationProp exportable = plain, told;
	CUmemGenericAllocationHandle handle, imported;
	CUdeviceptr va;
	int fd;

	CHECK(!cuMemCreate(&handle, GRANULE, &plain, 0));
	CHECK(!cuMemGetAllocationPropertiesFromHandle(&told, handle));
	CHECK(!memcmp(&told, &plain, sizeof(told)));
	CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					   0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemRelease(handle));

	exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CHECK(!cuMemCreate(&handle, GRANULE, &exportable, 0));
	CHECK(!cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0));
	CHECK(!cuMemAddressReserve(&va, 2 * GRANULE, 0, 0, 0));
	CHECK(!cuMemMap(va, GRANULE, 0, handle, 0));
	CHECK(!cuMemSetAccess(va, GRANULE, &writable, 1));
	fill(va, GRANULE, 5);
	agent_cycle();
	CHECK(!cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(!cuMemMap(va + GRANULE, GRANULE, 0, imported, 0));
	CHECK(!cuMemSetAccess(va + GRANULE, GRANULE, &writable, 1));
	CHECK(!cuMemRelease(handle));
	CHECK(!cuMemUnmap(va, GRANULE));
	agent_cycle();
	CHECK(holds(va + GRANULE, GRANULE, 5));
	CHECK(!cuMemUnmap(va + GRANULE, GRANULE));
	CHECK(!cuMemRelease(imported));
	CHECK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	close(fd);
	CHECK(!cuMemAddressFree(va, 2 * GRANULE));
}

/* What no file of ours stands for nobody can be asked for: it is not taken away. */
static void test_unknown_import(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	struct agent_reply reply;
	int conn = agent_connect();
	struct parked parked;

	CHECK(!cuMemAlloc_v2(&ptr, 8 * MIB));
	parked = agent_park(conn);
	agent_map(conn, &parked);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0 && agent_do(conn, AGENT_OPEN, &reply) == 0);
	CHECK(!cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)parked.fds[0],
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	parked_free(&parked);
	CHECK(!cuMemFree_v2(ptr));
	CUdeviceptr va;
	CHECK(!cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0));
	CHECK(!cuMemMap(va, 8 * MIB, 0, handle, 0));
	CHECK(agent_gate(conn, &reply) == -EOPNOTSUPP);
	CHECK(reply.gate == AGENT_GATE_OPEN);
	CHECK(strstr(reply.text, "8388608 bytes"));
	CHECK(!cuMemUnmap(va, 8 * MIB) && !cuMemRelease(handle));
	CHECK(!cuMemAddressFree(va, 8 * MIB));
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
}

/* Room for one more of two: what cannot be owned stays imported, and the data right. */
static void test_own_without_room(void)
{
	struct agent_reply reply;
	struct parked parked;
	CUdeviceptr ptr[3];
	int conn = agent_connect();

	for (unsigned int i = 0; i < 3; i++) {
		CHECK(!cuMemAlloc_v2(&ptr[i], 150 * MIB));
		fill(ptr[i], 150 * MIB, i);
	}
	parked = agent_park(conn);
	CHECK(parked.n == 3);
	agent_map(conn, &parked);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0);
	CHECK(reply.n == 3);
	/* The first goes: with its room, and who held it, one more can be the process's own. */
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	CHECK(!cuMemFree_v2(ptr[0]));
	parked_free(&parked);
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0);
	CHECK(reply.n == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	CHECK(holds(ptr[1], 150 * MIB, 1) && holds(ptr[2], 150 * MIB, 2));
	CHECK(!cuMemFree_v2(ptr[1]) && !cuMemFree_v2(ptr[2]));
	close(conn);
}

int main(void)
{
	size_t before, after, total;

	job_start("512");
	CHECK(!cuMemGetInfo_v2(&before, &total));
	test_withheld();
	test_expandable();
	test_aliases();
	test_sharing();
	test_unknown_import();
	test_own_without_room();
	CHECK(!cuMemGetInfo_v2(&after, &total));
	CHECK(before == after);
	return 0;
}
