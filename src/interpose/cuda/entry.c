// SPDX-License-Identifier: MIT
/* Where trampolines lead, and what each of them does around the call: the gate. */
#include <errno.h>
#include <stdatomic.h>

#include "interpose/cuda/entry.h"
#include "interpose/cuda/interpose.h"

enum { TRAMPOLINE_BYTES = 16 };

extern const char entry_first[]; /* the trampolines, side by side */

/* What the assembler uses. */
void *entry_begin(unsigned int slot);
void entry_end(void);
extern _Atomic(void *) entry_targets[ENTRY__MAX];

_Atomic(void *) entry_targets[ENTRY__MAX];

void *entry_address(unsigned int slot)
{
	return (void *)(entry_first + (size_t)slot * TRAMPOLINE_BYTES);
}

bool entry_is_ours(const void *address)
{
	return (uintptr_t)address - (uintptr_t)entry_first < (size_t)ENTRY__MAX * TRAMPOLINE_BYTES;
}

void *entry_target(unsigned int slot)
{
	return atomic_load_explicit(&entry_targets[slot], memory_order_acquire);
}

void entry_set_target(unsigned int slot, void *target)
{
	atomic_store_explicit(&entry_targets[slot], target, memory_order_release);
}

void *entry_spare(void *target)
{
	for (unsigned int slot = ENTRY_NAMED; slot < ENTRY__MAX; slot++) {
		void *there = NULL;

		if (atomic_compare_exchange_strong(&entry_targets[slot], &there, target) ||
		    there == target)
			return entry_address(slot);
	}
	return NULL;
}

/* Called where there is no driver, or an older one without this function. */
static CUresult no_driver(void)
{
	return CUDA_ERROR_NO_DEVICE;
}

static CUresult no_function(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* Once a function: kept out of what every call passes. */
__attribute__((noinline, cold)) static void *find_target(unsigned int slot)
{
	int saved = errno;
	bool there = driver_resolve();
	void *target = entry_target(slot);

	errno = saved;
	if (target)
		return target;
	return there ? (void *)no_function : (void *)no_driver;
}

void *entry_begin(unsigned int slot)
{
	void *target = entry_target(slot);

	if (__builtin_expect(!target, 0))
		target = find_target(slot);
	if (!init_is_off())
		gate_enter();
	return target;
}

void entry_end(void)
{
	if (!init_is_off())
		gate_leave();
}
