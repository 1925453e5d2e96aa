// SPDX-License-Identifier: MIT
/* Device and host memory of the simulated driver: amounts, copies, what it tells about pointers. */
#include <sys/wait.h>
#include <unistd.h>

#include "sim.h"

static void test_amounts(void)
{
	size_t before = free_bytes(), bytes;
	CUdeviceptr small[100], large, base;

	for (int i = 0; i < 100; i++)
		CHECK(cu.cuMemAlloc_v2(&small[i], 1000) == CUDA_SUCCESS);
	/* Small ones share a granule. */
	CHECK(before - free_bytes() == 2 * MIB);
	CHECK(cu.cuMemAlloc_v2(&large, 3 * MIB) == CUDA_SUCCESS);
	CHECK(before - free_bytes() == 6 * MIB);
	CHECK(cu.cuMemGetAddressRange_v2(&base, &bytes, large + 12345) == CUDA_SUCCESS);
	CHECK(base == large && bytes == 3 * MIB);
	CHECK(cu.cuMemGetAddressRange_v2(&base, &bytes, small[7] + 999) == CUDA_SUCCESS);
	CHECK(base == small[7] && bytes == 1000);
	CHECK(cu.cuMemFree_v2(large) == CUDA_SUCCESS);
	for (int i = 0; i < 100; i++)
		CHECK(cu.cuMemFree_v2(small[i]) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
	CHECK(cu.cuMemFree_v2(large) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemFree_v2(0) == CUDA_SUCCESS);
}

static void test_limit(void)
{
	size_t before = free_bytes();
	CUdeviceptr first, second;

	CHECK(cu.cuMemAlloc_v2(&first, before + 1) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuMemAlloc_v2(&first, SIZE_MAX - 100) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuMemAlloc_v2(&first, before) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&second, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuMemFree_v2(first) == CUDA_SUCCESS);
}

static void test_copies(void)
{
	uint32_t out[64], in[64];
	CUdeviceptr a, b;

	for (uint32_t i = 0; i < 64; i++)
		in[i] = i * i;
	CHECK(cu.cuMemAlloc_v2(&a, 4096) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&b, 4096) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyHtoD_v2(a, in, sizeof(in)) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoD_v2(b, a, sizeof(in)) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(out, b, sizeof(out)) == CUDA_SUCCESS);
	CHECK(!memcmp(in, out, sizeof(in)));
	CHECK(cu.cuMemsetD32_v2(b, 0x01020304, 64) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD8_v2(b, 0xff, 4) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(out, b, sizeof(out)) == CUDA_SUCCESS);
	CHECK(out[0] == 0xffffffff && out[1] == 0x01020304 && out[63] == 0x01020304);
	/* Past the end of the allocation, and from memory that is none of a device. */
	CHECK(cu.cuMemcpyHtoD_v2(a + 4090, in, 16) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemcpyDtoD_v2(b, (uintptr_t)in, 16) == CUDA_ERROR_INVALID_VALUE);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

static void test_rectangle(void)
{
	char in[4][8] = { "abcdefg", "hijklmn", "opqrstu", "vwxyz01" }, out[2][3];
	CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST,
			       .srcHost = in,
			       .srcPitch = 8,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstPitch = 512,
			       .WidthInBytes = 8,
			       .Height = 4 };
	CUdeviceptr ptr;

	CHECK(cu.cuMemAlloc_v2(&ptr, 2048) == CUDA_SUCCESS);
	copy.dstDevice = ptr;
	CHECK(cu.cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
	copy = (CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_DEVICE,
				.srcDevice = ptr,
				.srcPitch = 512,
				.srcXInBytes = 2,
				.srcY = 1,
				.dstMemoryType = CU_MEMORYTYPE_HOST,
				.dstHost = out,
				.dstPitch = 3,
				.WidthInBytes = 3,
				.Height = 2 };
	CHECK(cu.cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
	CHECK(!memcmp(out, "jklqrs", 6));
	cu.cuMemFree_v2(ptr);
}

static void test_host_memory(void)
{
	static char buffer[8192];
	unsigned int type;
	void *pinned;

	CHECK(cu.cuMemAllocHost_v2(&pinned, 100) == CUDA_SUCCESS);
	CHECK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       (uintptr_t)pinned) == CUDA_SUCCESS);
	CHECK(type == CU_MEMORYTYPE_HOST);
	CHECK(cu.cuMemFreeHost(pinned) == CUDA_SUCCESS);
	CHECK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       (uintptr_t)buffer) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemHostRegister_v2(buffer, sizeof(buffer), 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemHostRegister_v2(buffer + 4096, 10, 0) ==
	      CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK(cu.cuMemHostUnregister(buffer) == CUDA_SUCCESS);
	CHECK(cu.cuMemHostUnregister(buffer) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static CUmemAllocationProp on_device(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
}

/* One allocation at two addresses is one memory. */
static void test_aliases(void)
{
	CUmemAllocationProp prop = on_device(0);
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle, again;
	size_t before = free_bytes();
	CUdeviceptr va, start;
	uint32_t value = 0, mapped = 1;

	CHECK(cu.cuMemCreate(&handle, 3 * MIB, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemCreate(&handle, 4 * MIB, &prop, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0) == CUDA_SUCCESS);
	CHECK(cu.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, va) == CUDA_SUCCESS);
	CHECK(!mapped);
	CHECK(cu.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemMap(va, 4 * MIB, 0, handle, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemMap(va + 2 * MIB, 2 * MIB, 0, handle, 0) == CUDA_ERROR_ALREADY_MAPPED);
	CHECK(cu.cuMemMap(va + 4 * MIB, 2 * MIB, 2 * MIB, handle, 0) == CUDA_SUCCESS);
	CHECK(cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
				       va + 5 * MIB) == CUDA_SUCCESS);
	CHECK(start == va);
	CHECK(cu.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, va) == CUDA_SUCCESS);
	CHECK(mapped == 1);
	CHECK(cu.cuMemsetD32_v2(va, 1, 1) ==
	      CUDA_ERROR_INVALID_VALUE); /* nobody may touch it yet */
	CHECK(cu.cuMemSetAccess(va, 6 * MIB, &access, 1) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32_v2(va + 2 * MIB, 4711, 1) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, va + 4 * MIB, 4) == CUDA_SUCCESS);
	CHECK(value == 4711);
	CHECK(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va) == CUDA_SUCCESS);
	CHECK(again == handle);
	CHECK(cu.cuMemRelease(again) == CUDA_SUCCESS);
	CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
	CHECK(cu.cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
	CHECK(before - free_bytes() == 4 * MIB); /* the mappings hold it */
	CHECK(cu.cuMemUnmap(va, 2 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuMemUnmap(va, 6 * MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemAddressFree(va, 8 * MIB) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
}

/* A forked child has neither the driver nor its memory; the parent keeps both. */
static void test_fork(void)
{
	CUdeviceptr ptr, other;
	int status, version;
	pid_t pid;

	CHECK(cu.cuMemAlloc_v2(&ptr, 4 * MIB) == CUDA_SUCCESS);
	pid = fork();
	if (!pid) {
		if (cu.cuMemAlloc_v2(&other, 100) != CUDA_ERROR_NOT_INITIALIZED ||
		    cu.cuInit(0) != CUDA_ERROR_NOT_INITIALIZED ||
		    cu.cuDriverGetVersion(&version) != CUDA_SUCCESS)
			_exit(1);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	CHECK(cu.cuMemsetD8_v2(ptr, 1, 4 * MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemFree_v2(ptr) == CUDA_SUCCESS);
}

int main(void)
{
	make_machine("64");
	start_driver(0);
	test_amounts();
	test_limit();
	test_copies();
	test_rectangle();
	test_host_memory();
	test_aliases();
	test_fork();
	return 0;
}
