// SPDX-License-Identifier: MIT
/*
 * What the driver has and does not bring back, though programs do without it: they ask first, or fall back when it is
 * refused. A program with an agent is told that there is none. NCCL shares host memory by files of /dev/shm instead of
 * by cuMemCreate(), and neither it nor others multicast over NVLink then.
 */
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

/* By descriptors only pieces can be taken apart; by other handles (fabric, of other machines too) nothing can. */
bool memory_is_withheld(const CUmemAllocationProp *prop)
{
	unsigned int handles = prop->requestedHandleTypes;

	if (!memory_managed() || !handles ||
	    (handles == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	     prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE))
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
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
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
