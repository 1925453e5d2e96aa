// SPDX-License-Identifier: MIT
/* Makes a library under test of the product's entry points: one wrapper, and the hooks. */
#include "hooks.h"

#include "close-gate.h"
#include "interpose/core/agent.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/core/wake.h"
#include "interpose/cuda/calls.h"
#include "interpose/entry/entry.h"

extern const struct hooks brumate_test_hooks;

static unsigned long wrapped;

static CUresult count_devices(int *count)
{
	__atomic_fetch_add(&wrapped, 1, __ATOMIC_RELAXED);
	return driver.cuDeviceGetCount(count);
}

const struct wrapper wrappers[] = {
	{ "cuDeviceGetCount", (void *)count_devices },
	{ NULL, NULL },
};

/* The product has these with its memory. */
static unsigned long started, forgotten;

void agent_start(void)
{
	__atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
}

void agent_set_life(enum agent_life life)
{
}

enum agent_life agent_life(void)
{
	return AGENT_LIFE_READY;
}

void *parked_answer(unsigned int slot)
{
	return NULL;
}

void wake_ask(const char *call)
{
}

void wake_ask_again(void)
{
}

void wake_forget(void)
{
}

void wake_note_use(void)
{
}

void memory_forget(void)
{
	__atomic_fetch_add(&forgotten, 1, __ATOMIC_RELAXED);
}

void agent_forget(void)
{
}

static const char *const names[] = {
#define CALL(name)  #name,
#define ENTRY(name) #name,
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
};

__attribute__((visibility("default"))) const struct hooks brumate_test_hooks = {
	.gate_close = close_gate,
	.gate_open = gate_open,
	.gate_exempt = gate_exempt,
	.is_ours = entry_is_ours,
	.entry = entry_address,
	.first_spare = ENTRY_NAMED,
	.n_entries = ENTRY__MAX,
	.names = names,
	.driver = &driver,
	.wrapped = &wrapped,
	.started = &started,
	.forgotten = &forgotten,
};
