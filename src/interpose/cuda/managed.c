// SPDX-License-Identifier: MIT
/*
 * Managed memory, where the user wants it saved: the driver can save a process only while it has none. So what the
 * program allocates is host memory of its own, which all GPUs reach at the same address. It stays where it is through
 * every operation, and CRIU saves it with the rest. What GPUs do with it goes over the link, and is not atomic to
 * the processors: docs/driver-behaviour.md has both measured. So it is the user's choice, BRUMATE_MANAGED=host.
 *
 * Advice, and where memory is wanted, move nothing here; they are remembered for who asks.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/machine.h"
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

enum { HUGE_BYTES = 2 << 20, NOWHERE = -2 };

struct place {
	CUmemLocationType type;
	int id;
};

static const struct place no_place = { CU_MEM_LOCATION_TYPE_INVALID, NOWHERE };

/* What the program got; its node is that of the block. */
struct managed {
	struct block block;
	size_t mapped_bytes;
	bool read_mostly;
	struct place preferred, prefetched;
	uint64_t accessed_by; /* bit per device, and the last for the processors */
};

enum { ACCESSED_BY_HOST = DEVICES_MAX - 1 };

/* Whether the user wants it so. The first answer stays. */
static bool is_wanted(void)
{
	static atomic_int known;
	int found = atomic_load_explicit(&known, memory_order_relaxed);

	if (!found) {
		const char *value = getenv("BRUMATE_MANAGED");

		found = value && !strcmp(value, "host") ? 1 : -1;
		atomic_store(&known, found);
	}
	return found > 0;
}

/* ---- allocation ---- */

/* Whether the GPU reaches registered host memory at the address that the host has for it. */
static bool can_share_addresses(CUdevice device)
{
	int same = 0;

	return !driver.cuDeviceGetAttribute(
		       &same, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
		       device) &&
	       same;
}

static void *map_pages(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	/* A forked child does not get this memory, as it does not get the driver's: no copy-on-write takes pages away
	 * that GPUs use. */
	madvise(at, bytes, MADV_DONTFORK);
	if (bytes >= HUGE_BYTES)
		madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

static CUresult register_pages(void *at, size_t bytes)
{
	bool captured = capture_active();
	int mode = captured ? capture_relax() : 0;
	CUresult r = driver.cuMemHostRegister_v2(
		at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);

	if (captured)
		capture_restore(mode);
	return r;
}

static void unregister_pages(struct managed *m)
{
	void *at = (void *)(uintptr_t)m->block.node.start;

	driver.cuMemHostUnregister(at);
	munmap(at, m->mapped_bytes);
	free(m);
}

static void free_deferred(void)
{
	struct block *block, *next;

	if (!capture_forbid())
		return;
	memory_lock();
	block = memory.managed_later;
	memory.managed_later = NULL;
	memory_unlock();
	for (; block; block = next) {
		struct managed *m = (struct managed *)block;

		next = block->next;
		backend_wait(m->block.context);
		unregister_pages(m);
	}
	capture_permit();
}

/* Our memory is taken all at once, while the driver takes page by page what is used. Where the machine does not say, it is tried. */
static bool has_room(size_t bytes)
{
	const uint64_t room_bytes = machine_room_bytes();

	return !room_bytes || bytes <= room_bytes;
}

static CUresult make(struct managed **ret, const struct context *context, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + page - 1) / page * page;
	struct managed *m;
	CUresult r;
	void *at;

	if (mapped < bytes || !has_room(mapped))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = calloc(1, sizeof(*m));
	at = m ? map_pages(mapped) : NULL;
	if (!at) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r = register_pages(at, mapped);
	if (r) {
		munmap(at, mapped);
		free(m);
		return r;
	}
	m->block = (struct block){ .node = { .start = (uintptr_t)at, .bytes = bytes },
				   .context = context->handle,
				   .device = context->device,
				   .on_host = true };
	m->mapped_bytes = mapped;
	m->preferred = m->prefetched = no_place;
	*ret = m;
	return CUDA_SUCCESS;
}

CUresult managed_alloc(CUdeviceptr *ret, size_t bytes, unsigned int flags)
{
	struct context *context;
	struct managed *m;
	CUresult r;

	if (!memory_managed() || !is_wanted())
		return CUDA_ERROR_NOT_SUPPORTED;
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	if (!can_share_addresses(context->device))
		return CUDA_ERROR_NOT_SUPPORTED;
	free_deferred();
	r = make(&m, context, bytes);
	if (r)
		return r;
	*ret = m->block.node.start;
	memory_lock();
	m->block.id = ++memory.last_id;
	tree_add(&memory.managed, &m->block.node);
	memory_unlock();
	return CUDA_SUCCESS;
}

/* While a stream is being captured nothing may wait: it is freed later. */
static void free_now_or_later(struct managed *m)
{
	if (capture_forbid()) {
		backend_wait(m->block.context);
		capture_permit();
		unregister_pages(m);
		return;
	}
	memory_lock();
	m->block.next = memory.managed_later;
	memory.managed_later = &m->block;
	memory_unlock();
}

bool managed_free(CUdeviceptr ptr, CUresult *ret)
{
	struct managed *m;

	memory_lock();
	m = tree_take(&memory.managed, ptr);
	memory_unlock();
	if (!m)
		return false;
	free_now_or_later(m);
	free_deferred();
	*ret = CUDA_SUCCESS;
	return true;
}

/* The driver releases what was registered in a context that it destroys. */
void managed_drop(CUcontext context)
{
	for (;;) {
		struct managed *m = NULL;

		memory_lock();
		while ((m = tree_next(&memory.managed, m)) && m->block.context != context)
			;
		if (m)
			tree_remove(&memory.managed, &m->block.node);
		memory_unlock();
		if (!m)
			return;
		unregister_pages(m);
	}
}

/* ---- where it is wanted ---- */

/* What has all of [ptr, ptr + bytes); with the lock. */
static struct managed *find(CUdeviceptr ptr, size_t bytes)
{
	struct managed *m = bytes ? tree_find(&memory.managed, ptr) : NULL;

	return m && bytes <= m->block.node.bytes - (ptr - m->block.node.start) ? m : NULL;
}

static bool is_ours(CUdeviceptr ptr, size_t bytes)
{
	bool ours;

	memory_lock();
	ours = find(ptr, bytes);
	memory_unlock();
	return ours;
}

static bool is_place(struct place place)
{
	if (place.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return place.id >= 0 && place.id < ACCESSED_BY_HOST && device_get(place.id) &&
		       memory.devices[place.id].total_bytes;
	return place.type >= CU_MEM_LOCATION_TYPE_HOST;
}

/* CUDA before 12.2 had numbers of devices for places, and this one for the host. */
static struct place place_of(CUdevice device)
{
	return device == CU_DEVICE_CPU ? (struct place){ CU_MEM_LOCATION_TYPE_HOST, device }
				       : (struct place){ CU_MEM_LOCATION_TYPE_DEVICE, device };
}

static void note_advice(struct managed *m, CUmem_advise advice, struct place place)
{
	uint64_t bit =
		1ull << (place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : ACCESSED_BY_HOST);

	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		m->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		return;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		m->preferred = place;
		return;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		m->preferred = no_place;
		return;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		m->accessed_by |= bit;
		return;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		m->accessed_by &= ~bit;
	}
}

static bool needs_no_place(CUmem_advise advice)
{
	return advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
	       advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
	       advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
}

static CUresult advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, struct place place)
{
	struct managed *m;

	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	if (!needs_no_place(advice) && !is_place(place))
		return CUDA_ERROR_INVALID_DEVICE;
	memory_lock();
	m = find(ptr, bytes);
	if (m && bytes == m->block.node.bytes) /* advice about a part of a block is not kept */
		note_advice(m, advice, place);
	memory_unlock();
	return CUDA_SUCCESS;
}

CUresult managed_advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice device)
{
	if (!is_ours(ptr, bytes))
		return driver.cuMemAdvise(ptr, bytes, advice, device);
	return advise(ptr, bytes, advice, place_of(device));
}

CUresult managed_advise_v2(CUdeviceptr ptr, size_t bytes, CUmem_advise advice,
			   CUmemLocation location)
{
	if (!is_ours(ptr, bytes))
		return driver.cuMemAdvise_v2(ptr, bytes, advice, location);
	return advise(ptr, bytes, advice, (struct place){ location.type, location.id });
}

static CUresult prefetch(CUdeviceptr ptr, size_t bytes, struct place place)
{
	struct managed *m;

	if (!is_place(place))
		return CUDA_ERROR_INVALID_DEVICE;
	memory_lock();
	m = find(ptr, bytes);
	if (m && bytes == m->block.node.bytes)
		m->prefetched = place;
	memory_unlock();
	return CUDA_SUCCESS;
}

#define PREFETCH(name, suffix)                                                                   \
	CUresult managed_prefetch##suffix(CUdeviceptr ptr, size_t bytes, CUdevice device,        \
					  CUstream stream)                                       \
	{                                                                                        \
		if (!is_ours(ptr, bytes))                                                        \
			return driver.name##suffix(ptr, bytes, device, stream);                  \
		return prefetch(ptr, bytes, place_of(device));                                   \
	}                                                                                        \
	CUresult managed_prefetch_v2##suffix(CUdeviceptr ptr, size_t bytes, CUmemLocation where, \
					     unsigned int flags, CUstream stream)                \
	{                                                                                        \
		if (!is_ours(ptr, bytes))                                                        \
			return driver.name##_v2##suffix(ptr, bytes, where, flags, stream);       \
		return flags ? CUDA_ERROR_INVALID_VALUE                                          \
			     : prefetch(ptr, bytes, (struct place){ where.type, where.id });     \
	}
PREFETCH(cuMemPrefetchAsync, )
PREFETCH(cuMemPrefetchAsync, _ptsz)

/* Whose GPU or stream it is attached to says which accesses are allowed at the same time: here all are. */
static CUresult attach(CUdeviceptr ptr, size_t bytes, unsigned int flags, CUresult *ret)
{
	const struct managed *m;
	size_t whole = 0;

	memory_lock();
	m = tree_get(&memory.managed, ptr);
	if (m)
		whole = m->block.node.bytes;
	memory_unlock();
	if (!whole)
		return false;
	*ret = (bytes && bytes != whole) ||
			       (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
				flags != CU_MEM_ATTACH_SINGLE)
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
	return true;
}

CUresult managed_attach(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags)
{
	CUresult r;

	return attach(ptr, bytes, flags, &r)
		       ? r
		       : driver.cuStreamAttachMemAsync(stream, ptr, bytes, flags);
}

CUresult managed_attach_ptsz(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags)
{
	CUresult r;

	return attach(ptr, bytes, flags, &r)
		       ? r
		       : driver.cuStreamAttachMemAsync_ptsz(stream, ptr, bytes, flags);
}

/* ---- questions ---- */

static int number_of(struct place place)
{
	return place.type == CU_MEM_LOCATION_TYPE_DEVICE    ? place.id
	       : place.type == CU_MEM_LOCATION_TYPE_INVALID ? NOWHERE
							    : CU_DEVICE_CPU;
}

/* Lists as many as there is room for; what is left over names nobody. */
static CUresult tell_accessed_by(const struct managed *m, int *ret, size_t bytes)
{
	size_t n = 0;

	if (!bytes || bytes % sizeof(*ret))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i <= ACCESSED_BY_HOST && n < bytes / sizeof(*ret); i++)
		if (m->accessed_by >> i & 1)
			ret[n++] = i == ACCESSED_BY_HOST ? CU_DEVICE_CPU : i;
	while (n < bytes / sizeof(*ret))
		ret[n++] = NOWHERE;
	return CUDA_SUCCESS;
}

static CUresult tell(const struct managed *m, void *data, size_t bytes,
		     CUmem_range_attribute attribute)
{
	int value;

	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		return tell_accessed_by(m, data, bytes);
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		value = m->read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		value = number_of(m->preferred);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		value = number_of(m->prefetched);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		value = (int)m->preferred.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		value = m->preferred.id;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		value = (int)m->prefetched.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		value = m->prefetched.id;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (bytes != sizeof(value))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &value, sizeof(value));
	return CUDA_SUCCESS;
}

CUresult managed_range(void *data, size_t data_bytes, CUmem_range_attribute attribute,
		       CUdeviceptr ptr, size_t bytes)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	const struct managed *m;

	memory_lock();
	m = find(ptr, bytes);
	if (m && data)
		r = tell(m, data, data_bytes, attribute);
	memory_unlock();
	return m ? r : driver.cuMemRangeGetAttribute(data, data_bytes, attribute, ptr, bytes);
}

CUresult managed_ranges(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
			size_t n, CUdeviceptr ptr, size_t bytes)
{
	CUresult r = CUDA_SUCCESS;

	if (!is_ours(ptr, bytes))
		return driver.cuMemRangeGetAttributes(data, data_bytes, attributes, n, ptr, bytes);
	if (!data || !data_bytes || !attributes || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n && !r; i++)
		r = managed_range(data[i], data_bytes[i], attributes[i], ptr, bytes);
	return r;
}
