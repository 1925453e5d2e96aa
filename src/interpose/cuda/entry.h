// SPDX-License-Identifier: MIT
/*
 * What the files about entry points share: the trampolines that are exported in place of the driver's
 * functions, where each of them leads, and the driver's library as it is loaded.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"

/* Trampolines have numbers: those of driver.def in its order, then the spare ones. */
enum {
#define CALL(name)  ENTRY_##name,
#define ENTRY(name) ENTRY_##name,
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
	ENTRY_NAMED,
	ENTRY_SPARE = 512, /* as in the assembler */
	ENTRY__MAX = ENTRY_NAMED + ENTRY_SPARE,
};

/* ---- trampolines (entry-x86_64.S, entry-aarch64.S) ---- */

/** The address of a trampoline, and whether @address is that of one. */
void *entry_address(unsigned int slot);
bool entry_is_ours(const void *address);

/** Where a trampoline leads: a wrapper, or the driver's function. NULL: not known yet. */
void *entry_target(unsigned int slot);
void entry_set_target(unsigned int slot, void *target);

/** Takes a spare trampoline for @target, or finds the one it has; NULL when all are taken. */
void *entry_spare(void *target);

/* ---- the driver's library ---- */

/** Looks like the name of one of the driver's functions; what a debugger uses (cudbg…) does not. */
bool resolve_is_name(const char *name);

/** What the program is to call in place of @address: a trampoline where @address is a function of
 * the driver, else @address. */
void *resolve_replace(void *address);

/** The trampoline of that exported name; NULL if the driver, which must be resolved, has no such. */
void *resolve_entry(const char *name);

/** Gives a function of the driver that has no name a trampoline; NULL when none is left. */
void *resolve_adopt(void *function);

/** The wrapper for that exported name, or NULL. */
void *resolve_wrapper(const char *name);

/** @address lies in the driver's library, whether that is resolved yet or not. */
bool resolve_is_driver(const void *address);

/* ---- the driver by name (lookup.c) ---- */

/* What dlsym and dlopen are to do: jump to the loader's function, or return the result. In two
 * registers. */
struct lookup_answer {
	void *result;
	void *jump;
};

CUresult lookup_proc_address(const char *symbol, void **fn, int cuda_version, cuuint64_t flags);
CUresult lookup_proc_address_v2(const char *symbol, void **fn, int cuda_version, cuuint64_t flags,
				CUdriverProcAddressQueryResult *status);

/* ---- while the GPU is away (parked.c) ---- */

/** What the trampoline of a call that only looks leads to while all contexts are idle and the gate is closed; NULL: only the
 * driver can answer it. */
void *parked_answer(unsigned int slot);

/* ---- the process ---- */

/** BRUMATE_INTERPOSE=off: everything goes straight through. */
bool init_is_off(void);

/** cuInit, the agent before it and what is to come at exit() after it. */
CUresult init_driver(unsigned int flags);
