// SPDX-License-Identifier: MIT
/*
 * A program that asks the driver for all sorts of right and wrong things about memory and prints what it
 * is told: the answers must be the same with the interposer and without.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver-abi.h"

enum { MIB = 1 << 20 };

#define SAY(call) printf("%d: %s: %d\n", __LINE__, #call, (int)(call))

static void attributes(CUdeviceptr base, CUdeviceptr ptr)
{
	for (int which = 1; which <= 20; which++) {
		uint64_t value = 0;
		CUresult r = cuPointerGetAttribute(&value, (CUpointer_attribute)which, ptr);

		/* Numbers that are the driver's to choose. */
		if (which == CU_POINTER_ATTRIBUTE_BUFFER_ID)
			value = !!value;
		if (which == CU_POINTER_ATTRIBUTE_CONTEXT)
			value = !!value;
		if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
		    which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
			value = value ? value - base : 0;
		printf("  attribute %d: %d %" PRIu64 "\n", which, (int)r, r ? 0 : value);
	}
}

static void range(CUdeviceptr base, CUdeviceptr ptr)
{
	CUdeviceptr start = 0;
	size_t bytes = 0;
	CUresult r = cuMemGetAddressRange_v2(&start, &bytes, ptr);

	printf("  range: %d %" PRIu64 " %zu\n", (int)r, (uint64_t)(r ? 0 : start - base), bytes);
}

static void allocations(void)
{
	static const size_t sizes[] = { 1, 511, 4096, MIB, 2 * MIB - 1, 2 * MIB, 7 * MIB + 3 };
	CUdeviceptr ptr;
	size_t pitch = 0;
	unsigned int one = 1;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		SAY(cuMemAlloc_v2(&ptr, sizes[i]));
		printf("  aligned: %d\n", ptr % 512 == 0);
		attributes(ptr, ptr);
		attributes(ptr, ptr + sizes[i] / 2);
		range(ptr, ptr + sizes[i] - 1);
		SAY(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
		SAY(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr));
		attributes(ptr, ptr);
		SAY(cuMemFree_v2(ptr + 1));
		SAY(cuMemFree_v2(ptr));
		SAY(cuMemFree_v2(ptr));
		attributes(ptr, ptr);
		range(ptr, ptr);
	}
	SAY(cuMemAllocPitch_v2(&ptr, &pitch, 1000, 7, 4));
	printf("  pitch %zu\n", pitch);
	range(ptr, ptr + 100);
	SAY(cuMemFree_v2(ptr));
	SAY(cuMemAllocPitch_v2(&ptr, &pitch, 1000, 7, 3));
	SAY(cuMemAllocPitch_v2(&ptr, &pitch, 0, 7, 4));
	SAY(cuMemAllocPitch_v2(&ptr, NULL, 8, 7, 4));
}

static void wrong(void)
{
	CUdeviceptr ptr = 0;
	size_t bytes = 0;
	void *data[1] = { &bytes };
	CUpointer_attribute which[1] = { CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	CUipcMemHandle handle;

	SAY(cuMemAlloc_v2(&ptr, 0));
	SAY(cuMemAlloc_v2(NULL, 8));
	SAY(cuMemAlloc_v2(&ptr, SIZE_MAX));
	SAY(cuMemAlloc_v2(&ptr, 1ull << 45));
	SAY(cuMemFree_v2(0));
	SAY(cuMemFree_v2(12345));
	SAY(cuMemGetAddressRange_v2(&ptr, &bytes, 12345));
	SAY(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12345));
	SAY(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12345));
	SAY(cuPointerGetAttributes(1, which, data, 12345));
	SAY(cuPointerGetAttributes(0, which, data, 12345));
	SAY(cuPointerSetAttribute(&bytes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 12345));
	SAY(cuMemGetInfo_v2(NULL, &bytes));
	SAY(cuIpcGetMemHandle(&handle, 12345));
	memset(&handle, 7, sizeof(handle));
	SAY(cuIpcOpenMemHandle_v2(&ptr, handle, 1));
	SAY(cuIpcCloseMemHandle(12345));
	SAY(cuMemAlloc_v2(&ptr, 4096));
	SAY(cuIpcGetMemHandle(&handle, ptr));
	SAY(cuIpcGetMemHandle(NULL, ptr));
	SAY(cuIpcOpenMemHandle_v2(&ptr, handle, 1));
	SAY(cuIpcOpenMemHandle_v2(&ptr, handle, 6));
	SAY(cuIpcCloseMemHandle(ptr));
	SAY(cuMemFree_v2(ptr));
}

static void vmm(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemAccessDesc desc = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle = 0, again = 0, none = 77;
	CUmemAllocationProp told = { 0 };
	unsigned long long flags = 9;
	CUdeviceptr va = 0;
	int fd = -1;

	SAY(cuMemCreate(&handle, 100, &prop, 0));
	SAY(cuMemCreate(&handle, 0, &prop, 0));
	SAY(cuMemCreate(NULL, 2 * MIB, &prop, 0));
	SAY(cuMemCreate(&handle, 2 * MIB, NULL, 0));
	SAY(cuMemCreate(&handle, 2 * MIB, &prop, 1));
	SAY(cuMemCreate(&handle, 1ull << 45, &prop, 0));
	prop.location.id = 55;
	SAY(cuMemCreate(&handle, 2 * MIB, &prop, 0));
	prop.location.id = 0;
	SAY(cuMemCreate(&handle, 4 * MIB, &prop, 0));
	SAY(cuMemGetAllocationPropertiesFromHandle(&told, handle));
	printf("  same: %d\n", !memcmp(&told, &prop, sizeof(told)));
	SAY(cuMemGetAllocationPropertiesFromHandle(&told, none));
	SAY(cuMemGetAllocationPropertiesFromHandle(NULL, handle));
	SAY(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	SAY(cuMemAddressReserve(&va, 4 * MIB, 0, 0, 0));
	SAY(cuMemMap(va, 4 * MIB, 0, none, 0));
	SAY(cuMemMap(va, 8 * MIB, 0, handle, 0));
	SAY(cuMemMap(va, 2 * MIB, 4 * MIB, handle, 0));
	SAY(cuMemMap(va, 2 * MIB, 2 * MIB, handle, 1));
	SAY(cuMemMap(va, 4 * MIB, 0, handle, 0));
	SAY(cuMemMap(va, 4 * MIB, 0, handle, 0));
	SAY(cuMemSetAccess(va, 2 * MIB, &desc, 1));
	SAY(cuMemSetAccess(va, 4 * MIB, NULL, 1));
	SAY(cuMemSetAccess(va, 4 * MIB, &desc, 1));
	SAY(cuMemGetAccess(&flags, &desc.location, va + 5));
	printf("  access %llu\n", flags);
	attributes(va, va + 100);
	range(va, va + 100);
	SAY(cuMemFree_v2(va));
	SAY(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 5)));
	printf("  same: %d\n", again == handle);
	SAY(cuMemRelease(handle));
	SAY(cuMemRelease(again));
	SAY(cuMemRelease(again));
	SAY(cuMemUnmap(va, 2 * MIB));
	SAY(cuMemAddressFree(va, 4 * MIB));
	SAY(cuMemUnmap(va, 4 * MIB));
	SAY(cuMemUnmap(va, 4 * MIB));
	SAY(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va));
	SAY(cuMemAddressFree(va, 4 * MIB));
	SAY(cuMemAddressFree(va, 4 * MIB));
}

static void peers(CUcontext a)
{
	CUcontext b;
	CUdeviceptr ptr, other;

	SAY(cuCtxCreate_v2(&b, 0, 1));
	SAY(cuMemAlloc_v2(&other, 3 * MIB));
	SAY(cuCtxEnablePeerAccess(b, 0));
	SAY(cuCtxEnablePeerAccess(NULL, 0));
	SAY(cuCtxDisablePeerAccess(a));
	SAY(cuCtxEnablePeerAccess(a, 1));
	SAY(cuCtxEnablePeerAccess(a, 0));
	SAY(cuCtxEnablePeerAccess(a, 0));
	SAY(cuCtxSetCurrent(a));
	SAY(cuMemAlloc_v2(&ptr, 3 * MIB));
	SAY(cuMemcpyDtoD_v2(ptr, other, 3 * MIB));
	SAY(cuMemcpyDtoDAsync_v2(ptr, other, 3 * MIB, NULL));
	SAY(cuMemcpy(ptr, other, 3 * MIB));
	SAY(cuMemcpyPeer(ptr, a, other, b, 3 * MIB));
	SAY(cuCtxDisablePeerAccess(b));
	SAY(cuCtxSetCurrent(b));
	SAY(cuCtxDisablePeerAccess(a));
	SAY(cuCtxDisablePeerAccess(a));
	SAY(cuMemFree_v2(ptr));
	SAY(cuCtxDestroy_v2(b));
	SAY(cuMemFree_v2(other));
	SAY(cuCtxSetCurrent(a));
	SAY(cuMemFree_v2(other));
	attributes(other, other);
}

int main(void)
{
	CUdeviceptr ptr;
	CUcontext ctx;

	SAY(cuMemAlloc_v2(&ptr, 8));
	SAY(cuInit(0));
	SAY(cuMemAlloc_v2(&ptr, 8));
	SAY(cuMemFree_v2(8));
	SAY(cuDevicePrimaryCtxRetain(&ctx, 0));
	SAY(cuCtxSetCurrent(ctx));
	wrong();
	allocations();
	vmm();
	peers(ctx);
	SAY(cuMemAlloc_v2(&ptr, 8));
	SAY(cuCtxSetCurrent(NULL));
	SAY(cuMemFree_v2(ptr));
	range(ptr, ptr);
	SAY(cuCtxSetCurrent(ctx));
	SAY(cuDevicePrimaryCtxReset_v2(0));
	SAY(cuMemAlloc_v2(&ptr, 8));
	SAY(cuDevicePrimaryCtxRetain(&ctx, 0));
	SAY(cuMemFree_v2(ptr));
	SAY(cuMemAlloc_v2(&ptr, 8));
	SAY(cuDevicePrimaryCtxRelease_v2(0));
	SAY(cuMemFree_v2(ptr));
	return 0;
}
