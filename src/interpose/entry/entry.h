// SPDX-License-Identifier: MIT
/*
 * What the files about entry points share: the trampolines that are exported in place of the driver's
 * functions, where each of them leads, and the driver's library as it is loaded.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Trampolines have numbers: those of driver.def in its order, then the spare ones. */
enum {
#define CALL(name)  ENTRY_##name,
#define ENTRY(name) ENTRY_##name,
#include "driver.def"
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

/** Loads and resolves the driver once; false where there is none. Cheap afterwards. */
bool resolve_driver(void);

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

/* ---- the process ---- */

/** BRUMATE_INTERPOSE=off: everything goes straight through. */
bool init_is_off(void);

/** Around the driver's call that initialises it: the agent starts before it, and what is to come at exit() is
 * registered after the first that @works. */
void init_begin(void);
void init_end(bool works);

/** Has the gate passed at exit() before the driver shuts down. Handlers run last first: it is called when the
 * driver may have registered its own, and does something the first two times. */
void init_watch_end(void);

/** Whether some call has returned a lasting result: what is done without the driver is to ask it first. */
bool calls_have_failed(void);

/*
 * ---- what the vendor's folder has ----
 *
 * driver.def is the list of its calls, with ENTRY_FAILED: results from there on may be lasting.
 */

/** A wrapper: what an entry point of that (exported, versioned) name goes to instead of the driver; called inside the
 * gate. Tables end with a NULL. */
struct wrapper {
	const char *name;
	void *function;
};
extern const struct wrapper wrappers[]; /* of memory and contexts */
extern const struct wrapper
	driver_wrappers[]; /* of what initialises the driver, or hands out its functions */

/** The soname of the driver's library. */
extern const char driver_soname[];

/** Looks like the name of one of the driver's functions. It runs early (ELF_EARLY). */
bool driver_is_name(const char *name);

/** The driver's functions, by their numbers; NULL: it lacks that one. Called once, before any wrapper runs. */
void driver_fill(void *const functions[static ENTRY_NAMED]);

/** Called in the place of a function: where there is no driver, or an older one without it. */
int driver_missing(void);
int driver_no_function(void);

/** Whether a result is of something that went wrong in a context and stays there. */
bool driver_is_lasting(int result);

/** What the trampoline of a call that only looks leads to while all contexts are idle and the gate is closed; NULL: only the
 * driver can answer it. */
void *parked_answer(unsigned int slot);
