// SPDX-License-Identifier: MIT
/*
 * The program's own use of the virtual memory API. Memory it creates gets handles that are fds, so
 * that it can be taken away; the handles the program sees are ours, and stay what they are when the
 * memory behind them is exchanged. Kinds of memory we do not know are left to the driver as they are.
 */
#include <errno.h>

#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

/* The driver's handles are addresses or small numbers. */
#define HANDLE_TAG  (0xb7u * (1ull << 56))
#define HANDLE_MASK (0xffull << 56)

static const char bound[] = "bound to a multicast object";

/* The piece of a handle of ours, pinned. */
static struct piece *pin_handle(CUmemGenericAllocationHandle handle)
{
	struct piece *piece = NULL;

	if ((handle & HANDLE_MASK) != HANDLE_TAG)
		return NULL;
	memory_lock();
	piece = tree_get(&memory.pieces, handle & ~HANDLE_MASK);
	if (piece && !piece->refs)
		piece = NULL;
	if (piece)
		piece->pins++;
	memory_unlock();
	return piece;
}

/* Gives the program a handle of a piece that is pinned, and removes the pin. */
static CUmemGenericAllocationHandle hand_out_piece(struct piece *piece)
{
	CUmemGenericAllocationHandle handle = HANDLE_TAG | piece->node.start;

	memory_lock();
	piece->refs++;
	piece->pins--;
	memory_unlock();
	return handle;
}

/*
 * ---- what is withheld ----
 *
 * Features that the driver has but does not restore, and that programs do not need: they ask first, or fall back when
 * it is refused. A program with an agent gets the answer that there are none. NCCL shares host memory by files of
 * /dev/shm instead of by cuMemCreate(), and neither it nor others multicast over NVLink then.
 */

/* The driver does not restore a process with memory on the host (H200, driver 580: 999). Of what is shared by descriptors,
 * only pieces can be taken apart; of what is shared by other handles (fabric), nothing. */
static bool memory_is_withheld(const CUmemAllocationProp *prop)
{
	unsigned int handles = prop->requestedHandleTypes;

	if (!memory_managed() ||
	    (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	     (!handles || handles == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
		return false;
	memory_note_withheld(AGENT_WITHHELD_SHARING);
	return true;
}

/* What the attribute is of, or 0. */
static unsigned int withheld_feature(CUdevice_attribute attribute)
{
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
		return AGENT_WITHHELD_MULTICAST;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return AGENT_WITHHELD_SHARING;
	default:
		return 0;
	}
}

CUresult device_attribute(int *ret, CUdevice_attribute attribute, CUdevice device)
{
	CUresult r = driver.cuDeviceGetAttribute(ret, attribute, device);
	unsigned int what = withheld_feature(attribute);

	if (r || !what || !*ret || !memory_managed())
		return r;
	memory_note_withheld(what);
	*ret = 0;
	return r;
}

CUresult multicast_create(CUmemGenericAllocationHandle *ret, const void *prop)
{
	if (!memory_managed())
		return driver.cuMulticastCreate(ret, prop);
	memory_note_withheld(AGENT_WITHHELD_MULTICAST);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- memory by cuMemCreate() ---- */

static bool is_known_kind(const CUmemAllocationProp *prop)
{
	const struct device *device;

	if (!memory_managed() || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->allocFlags.usage ||
	    prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return false;
	device = device_get(prop->location.id);
	return device && device->usable;
}

/* Addresses that the program had and freed are as free as the driver would have them. */
CUresult vmm_reserve(CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr hint,
		     unsigned long long flags)
{
	CUresult r;

	if (hint)
		addresses_drop(hint, bytes);
	r = driver.cuMemAddressReserve(ret, bytes, alignment, hint, flags);
	if (r == CUDA_ERROR_OUT_OF_MEMORY && addresses_drop_all())
		r = driver.cuMemAddressReserve(ret, bytes, alignment, hint, flags);
	return r;
}

CUresult vmm_unreserve(CUdeviceptr ptr, size_t bytes)
{
	if (addresses_are_spare(ptr))
		return CUDA_ERROR_INVALID_VALUE;
	return driver.cuMemAddressFree(ptr, bytes);
}

CUresult vmm_create(CUmemGenericAllocationHandle *ret, size_t bytes,
		    const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult r;

	if (ret && prop && !flags && is_known_kind(prop)) {
		struct memory_kind kind = kind_of(prop);
		struct piece *piece;
		int made = piece_new(&piece, bytes, &kind);

		if (!made)
			*ret = hand_out_piece(piece);
		if (!made || made == -ENOMEM)
			return to_driver(made);
	}
	if (prop && memory_is_withheld(prop))
		return CUDA_ERROR_NOT_SUPPORTED;
	r = driver.cuMemCreate(ret, bytes, prop, flags);
	if (!r)
		memory_count_driver(bytes, true);
	return r;
}

CUresult vmm_release(CUmemGenericAllocationHandle handle)
{
	struct piece *piece = pin_handle(handle);

	if (!piece)
		return driver.cuMemRelease(handle);
	piece_unref(piece);
	piece_unpin(piece);
	return CUDA_SUCCESS;
}

CUresult vmm_map(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		 unsigned long long flags)
{
	struct piece *piece;
	CUresult r;

	if (addresses_are_spare(ptr))
		return CUDA_ERROR_INVALID_VALUE;
	piece = pin_handle(handle);
	if (!piece)
		return driver.cuMemMap(ptr, bytes, offset, handle, flags);
	r = flags ? driver.cuMemMap(ptr, bytes, offset, piece->handle, flags)
		  : to_driver(piece_map(piece, ptr, bytes, offset));
	piece_unpin(piece);
	return r;
}

CUresult vmm_unmap(CUdeviceptr ptr, size_t bytes)
{
	return to_driver(range_unmap(ptr, bytes));
}

CUresult vmm_set_access(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = driver.cuMemSetAccess(ptr, bytes, desc, count);

	for (size_t i = 0; i < count && !r; i++) {
		struct access access = { desc[i].location.id, desc[i].flags };

		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
			range_note_access(ptr, bytes, &access, 1);
	}
	return r;
}

static void share_piece(struct piece *piece, const char *how)
{
	memory_lock();
	piece->shared = how;
	memory_unlock();
}

CUresult vmm_export(void *ret, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
		    unsigned long long flags)
{
	struct piece *piece = pin_handle(handle);
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	if (!piece)
		return share_memory(ret, handle, type, flags);
	if (ret && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	    prop_of(&piece->kind).requestedHandleTypes & type)
		r = to_driver(lent_file(ret, piece));
	piece_unpin(piece);
	return r;
}

CUresult vmm_import(CUmemGenericAllocationHandle *ret, void *os_handle,
		    CUmemAllocationHandleType type)
{
	struct piece *piece;
	int fd = (int)(intptr_t)os_handle, r;

	if (!memory_managed() || !ret || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return share_memory_import(ret, os_handle, type);
	r = lent_import(&piece, fd);
	if (r == -ENODATA) {
		r = piece_import(&piece, fd, 0, NULL);
		if (!r)
			share_piece(piece, "imported from a file descriptor");
	}
	if (r)
		return to_driver(r);
	*ret = hand_out_piece(piece);
	return CUDA_SUCCESS;
}

CUresult vmm_retain(CUmemGenericAllocationHandle *ret, void *addr)
{
	CUdeviceptr va = (uintptr_t)addr;
	struct piece *piece;
	bool ours;

	memory_lock();
	ours = tree_find(&memory.regions, va);
	piece = ours ? NULL : piece_at(va);
	if (piece && ret)
		piece->pins++;
	memory_unlock();
	/* The driver answers so for memory by cuMemAlloc. */
	if (ours || (piece && !ret))
		return CUDA_ERROR_INVALID_VALUE;
	if (!piece)
		return driver.cuMemRetainAllocationHandle(ret, addr);
	*ret = hand_out_piece(piece);
	return CUDA_SUCCESS;
}

CUresult vmm_bind(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
		  CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
		  unsigned long long flags)
{
	struct piece *piece = pin_handle(handle);
	CUresult r = driver.cuMulticastBindMem(
		multicast, multicast_offset, piece ? piece->handle : handle, offset, bytes, flags);

	if (!piece)
		return r;
	if (!r)
		share_piece(piece, bound);
	piece_unpin(piece);
	return r;
}

/* What of [ptr, ptr + bytes) is in pieces can be reached in other ways than by us. */
static void share_range(CUdeviceptr ptr, size_t bytes, const char *how)
{
	struct mapping *mapping;

	memory_lock();
	mapping = tree_find(&memory.mappings, ptr);
	while (mapping && (mapping->node.start <= ptr || mapping->node.start - ptr < bytes)) {
		mapping->piece->shared = how;
		mapping = tree_next(&memory.mappings, mapping);
	}
	memory_unlock();
}

CUresult vmm_bind_address(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
			  CUdeviceptr ptr, size_t bytes, unsigned long long flags)
{
	CUresult r = driver.cuMulticastBindAddr(multicast, multicast_offset, ptr, bytes, flags);

	if (!r)
		share_range(ptr, bytes, bound);
	return r;
}

CUresult vmm_range_handle(void *ret, CUdeviceptr ptr, size_t bytes, int type,
			  unsigned long long flags)
{
	CUresult r = driver.cuMemGetHandleForAddressRange(ret, ptr, bytes, type, flags);

	if (!r)
		share_range(ptr, bytes, "exported as a dma-buf");
	return r;
}

CUresult vmm_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct piece *piece = pin_handle(handle);

	if (!piece)
		return driver.cuMemGetAllocationPropertiesFromHandle(prop, handle);
	if (prop)
		*prop = prop_of(&piece->kind);
	piece_unpin(piece);
	return prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
