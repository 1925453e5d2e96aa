// SPDX-License-Identifier: MIT
/* Device memory in several processes: it lives exactly as long as somebody holds it. */
#include <signal.h>
#include <unistd.h>

#include "sim.h"

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};
static const CUmemAccessDesc access_desc = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
					     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
	CUdeviceptr va;

	CHECK(cu.cuMemAddressReserve(&va, 4 * MIB, 0, 0, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemMap(va, 4 * MIB, 0, handle, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemSetAccess(va, 4 * MIB, &access_desc, 1) == CUDA_SUCCESS);
	return va;
}

/* Makes memory, fills it, and sends its descriptor. */
static void exporter(int socket)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va;
	int fd;

	start_driver(0);
	CHECK(cu.cuMemCreate(&handle, 4 * MIB, &prop, 0) == CUDA_SUCCESS);
	va = map(handle);
	CHECK(cu.cuMemsetD32_v2(va, 0xb0a710ad, MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					      0) == CUDA_SUCCESS);
	send_fd(socket, fd);
	hear(socket);
}

static void test_outlives_its_maker(void)
{
	size_t before = free_bytes();
	CUmemGenericAllocationHandle handle;
	struct child child;
	uint32_t value;
	CUdeviceptr va;
	int fd, other;

	child_start(&child, "exporter");
	fd = receive_fd(child.socket);
	child_kill(&child);
	CHECK(before - free_bytes() == 4 * MIB); /* held by a descriptor alone */
	CHECK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	close(fd);
	va = map(handle);
	CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, va + 4 * MIB - 4, 4) == CUDA_SUCCESS);
	CHECK(value == 0xb0a710ad);
	CHECK(cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)va) == CUDA_SUCCESS);
	CHECK(cu.cuMemExportToShareableHandle(&other, handle,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					      0) == CUDA_ERROR_INVALID_VALUE); /* imported */
	CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
	CHECK(before - free_bytes() == 4 * MIB); /* held by a mapping alone */
	CHECK(cu.cuMemUnmap(va, 4 * MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemAddressFree(va, 4 * MIB) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
}

static void test_foreign_descriptor(void)
{
	CUmemGenericAllocationHandle handle;
	int ends[2];

	CHECK(!pipe(ends));
	CHECK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)ends[0],
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)9999,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	close(ends[0]);
	close(ends[1]);
}

static void holder(int socket)
{
	CUdeviceptr ptr;

	start_driver(0);
	CHECK(cu.cuMemAlloc_v2(&ptr, 40 * MIB) == CUDA_SUCCESS);
	say(socket, 1);
	hear(socket);
}

/* A process that is killed leaves nothing in use, not even for an allocation that comes first. */
static void test_killed(void)
{
	size_t before = free_bytes();
	struct child child;
	CUdeviceptr ptr;

	child_start(&child, "holder");
	hear(child.socket);
	CHECK(cu.cuMemAlloc_v2(&ptr, 40 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(before - free_bytes() >= 40 * MIB);
	child_kill(&child);
	CHECK(cu.cuMemAlloc_v2(&ptr, 40 * MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemFree_v2(ptr) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
}

static void ipc_exporter(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr, same;
	uint64_t words[8];
	uint32_t value;

	start_driver(0);
	CHECK(cu.cuMemAlloc_v2(&ptr, 1000) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32_v2(ptr, 99, 250) == CUDA_SUCCESS);
	CHECK(cu.cuIpcGetMemHandle(&handle, ptr) == CUDA_SUCCESS);
	CHECK(cu.cuIpcOpenMemHandle_v2(&same, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
	memcpy(words, &handle, sizeof(words));
	for (int i = 0; i < 8; i++)
		say(socket, words[i]);
	hear(socket);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr + 4, 4) == CUDA_SUCCESS);
	say(socket, value);
	hear(socket);
}

static void test_legacy_ipc(void)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr, again;
	struct child child;
	uint64_t words[8];
	uint32_t value;

	child_start(&child, "ipc_exporter");
	for (int i = 0; i < 8; i++)
		words[i] = hear(child.socket);
	memcpy(&handle, words, sizeof(handle));
	CHECK(cu.cuIpcOpenMemHandle_v2(&ptr, handle, 1) == CUDA_SUCCESS);
	CHECK(cu.cuIpcOpenMemHandle_v2(&again, handle, 1) == CUDA_SUCCESS);
	CHECK(again == ptr);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr + 996, 4) == CUDA_SUCCESS);
	CHECK(value == 99);
	CHECK(cu.cuMemsetD32_v2(ptr + 4, 100, 1) == CUDA_SUCCESS);
	say(child.socket, 1);
	CHECK(hear(child.socket) == 100);
	CHECK(cu.cuIpcCloseMemHandle(ptr) == CUDA_SUCCESS);
	CHECK(cu.cuIpcCloseMemHandle(ptr) == CUDA_SUCCESS);
	CHECK(cu.cuIpcCloseMemHandle(ptr) == CUDA_ERROR_INVALID_VALUE);
	child_kill(&child);
	CHECK(cu.cuIpcOpenMemHandle_v2(&ptr, handle, 1) == CUDA_ERROR_INVALID_VALUE);
}

static const struct child_body bodies[] = {
	{ "exporter", exporter },
	{ "holder", holder },
	{ "ipc_exporter", ipc_exporter },
	{ NULL },
};

int main(int argc, char **argv)
{
	child_main(argc, argv, bodies);
	make_machine("64");
	start_driver(0);
	test_outlives_its_maker();
	test_foreign_descriptor();
	test_killed();
	test_legacy_ipc();
	return 0;
}
