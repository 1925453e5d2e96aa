// SPDX-License-Identifier: MIT
/*
 * What interpose/entry asks about CUDA's driver: how its library and its functions are called, which results of theirs
 * last, and the calls by which it hands out its own functions.
 */
#include <stdio.h>

#include "interpose/cuda/calls.h"
#include "interpose/entry/elf-object.h"
#include "interpose/entry/entry.h"

struct driver_calls driver;

const char driver_soname[] = "libcuda.so.1";

void driver_fill(void *const functions[static ENTRY_NAMED])
{
#define CALL(name) driver.name = (__typeof__(name) *)functions[ENTRY_##name];
#define ENTRY(name)
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
}

/* cudbg… are a debugger's, not calls. */
ELF_EARLY bool driver_is_name(const char *name)
{
	return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

int driver_missing(void)
{
	return CUDA_ERROR_NO_DEVICE;
}

int driver_no_function(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* What NVIDIA documents to make a context, or the whole process, unusable. Others are of the call. */
bool driver_is_lasting(int result)
{
	switch (result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

static CUresult init(unsigned int flags)
{
	init_begin();
	CUresult r = driver.cuInit(flags);

	init_end(r == CUDA_SUCCESS);
	return r;
}

/* ---- functions by name ---- */

/*
 * A function that the driver gave and does not export. Where a wrapper of ours stands for the newest
 * function of that name, it is that one; any other is gated by a trampoline of its own.
 */
static void *replace_unexported(const char *symbol, cuuint64_t flags, void *address)
{
	static const char *const versions[] = { "_v3", "_v2", "" };
	const char *threads[] = { "_ptsz", "_ptds", "" };
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	char name[128];
	void *entry;

	for (size_t t = per_thread ? 0 : 2; t < 3; t++)
		for (size_t v = 0; v < 3; v++) {
			snprintf(name, sizeof(name), "%s%s%s", symbol, versions[v], threads[t]);
			entry = resolve_entry(name);
			if (entry && resolve_wrapper(name))
				return entry;
		}
	entry = resolve_adopt(address);
	return entry ? entry : address;
}

static void replace_found(const char *symbol, void **fn, cuuint64_t flags)
{
	void *address = *fn, *instead;

	if (!address || entry_is_ours(address) || !driver_is_name(symbol))
		return;
	instead = resolve_replace(address);
	*fn = instead != address ? instead : replace_unexported(symbol, flags, address);
}

static CUresult get_proc_address(const char *symbol, void **fn, int cuda_version, cuuint64_t flags)
{
	CUresult r = driver.cuGetProcAddress(symbol, fn, cuda_version, flags);

	if (r == CUDA_SUCCESS)
		replace_found(symbol, fn, flags);
	return r;
}

static CUresult get_proc_address_v2(const char *symbol, void **fn, int cuda_version,
				    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CUresult r = driver.cuGetProcAddress_v2(symbol, fn, cuda_version, flags, status);

	if (r == CUDA_SUCCESS)
		replace_found(symbol, fn, flags);
	return r;
}

const struct wrapper driver_wrappers[] = {
	{ "cuGetProcAddress", (void *)get_proc_address },
	{ "cuGetProcAddress_v2", (void *)get_proc_address_v2 },
	{ "cuInit", (void *)init },
	{ NULL, NULL },
};
