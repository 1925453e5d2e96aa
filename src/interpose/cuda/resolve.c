// SPDX-License-Identifier: MIT
/*
 * The driver: finds its library as the program loaded it, or loads it, and leads every trampoline to
 * a wrapper or to the driver's function. Any number of threads may come first at once, some with the
 * loader's lock held: no lock of ours is ever held while the loader is called.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "interpose/cuda/elf-object.h"
#include "interpose/cuda/entry.h"
#include "interpose/cuda/interpose.h"

static const char driver_soname[] = "libcuda.so.1";

struct driver driver;

static atomic_bool resolved;
static void *functions[ENTRY_NAMED]; /* the driver's, by their numbers */

static const char *const names[ENTRY_NAMED] = {
#define CALL(name)  #name,
#define ENTRY(name) #name,
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
};

/* What this side does about entry points itself. */
static const struct wrapper own[] = {
	{ "cuGetProcAddress", (void *)lookup_proc_address },
	{ "cuGetProcAddress_v2", (void *)lookup_proc_address_v2 },
	{ "cuInit", (void *)init_driver },
};

/* The driver's functions by address: which trampoline stands for each. Open addressing. */
enum { MAP_SIZE = 8192 };
static struct {
	_Atomic(void *) function;
	_Atomic(void *) trampoline;
} map[MAP_SIZE];

static size_t map_start(const void *function)
{
	return (uintptr_t)function * 0x9e3779b97f4a7c15ull >> 51;
}

_Static_assert(MAP_SIZE == 1 << (64 - 51), "a hash of 13 bits");

static void map_set(void *function, void *trampoline)
{
	for (size_t i = map_start(function), n = 0; n < MAP_SIZE; i = (i + 1) % MAP_SIZE, n++) {
		void *there = NULL;

		if (atomic_compare_exchange_strong(&map[i].function, &there, function) ||
		    there == function) {
			atomic_store(&map[i].trampoline, trampoline);
			return;
		}
	}
}

static void *map_find(const void *function)
{
	for (size_t i = map_start(function), n = 0; n < MAP_SIZE; i = (i + 1) % MAP_SIZE, n++) {
		void *there = atomic_load(&map[i].function);

		if (!there)
			return NULL;
		if (there == function)
			return atomic_load(&map[i].trampoline);
	}
	return NULL;
}

ELF_EARLY bool resolve_is_name(const char *name)
{
	return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

void *resolve_adopt(void *function)
{
	void *trampoline = entry_spare(function);

	if (trampoline)
		map_set(function, trampoline);
	return trampoline;
}

void *resolve_wrapper(const char *name)
{
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		if (!strcmp(own[i].name, name))
			return own[i].function;
	for (const struct wrapper *w = wrappers; w->name && *w->name; w++)
		if (!strcmp(w->name, name))
			return w->function;
	return NULL;
}

/* The number of a name in driver.def, which is sorted; ENTRY_NAMED if it is not there. */
static unsigned int name_slot(const char *name)
{
	unsigned int low = 0, high = ENTRY_NAMED;

	while (low < high) {
		unsigned int middle = (low + high) / 2;
		int order = strcmp(names[middle], name);

		if (!order)
			return middle;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return ENTRY_NAMED;
}

static void note_function(const char *name, void *function, void *arg)
{
	unsigned int slot = name_slot(name);

	if (slot < ENTRY_NAMED)
		functions[slot] = function;
}

static void fill_driver(void)
{
#define CALL(name) driver.name = (__typeof__(name) *)functions[ENTRY_##name];
#define ENTRY(name)
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
}

/* Two names may be one function: the one that has a wrapper stands for it. */
static void lead_named(void)
{
	for (unsigned int slot = 0; slot < ENTRY_NAMED; slot++) {
		void *function = functions[slot];
		void *wrapper = init_is_off() ? NULL : resolve_wrapper(names[slot]);

		if (!function)
			continue;
		if (wrapper || !map_find(function))
			map_set(function, entry_address(slot));
		entry_set_target(slot, wrapper ? wrapper : function);
	}
}

/* A newer driver's function that driver.def does not know. cudbg… are a debugger's, not calls. */
static void lead_unknown(const char *name, void *function, void *arg)
{
	if (resolve_is_name(name) && !map_find(function))
		resolve_adopt(function);
}

/* A reference of ours keeps the library loaded, whatever the program does with its own. */
static bool load(struct elf_object *ret)
{
	if (elf_find_soname(ret, driver_soname))
		return dlopen(ret->path, RTLD_LAZY | RTLD_NOLOAD);
	return dlopen(driver_soname, RTLD_LAZY) && elf_find_soname(ret, driver_soname);
}

/* One thread fills the tables. In the child of a fork that came meanwhile it is another one. */
static bool take_turn(void)
{
	static atomic_int filler;
	int self = getpid(), seen = 0;

	if (atomic_compare_exchange_strong(&filler, &seen, self))
		return true;
	return seen != self && atomic_compare_exchange_strong(&filler, &seen, self);
}

static void fill(const struct elf_object *object)
{
	elf_each_function(object, note_function, NULL);
	fill_driver();
	lead_named();
	elf_each_function(object, lead_unknown, NULL);
	atomic_store_explicit(&resolved, true, memory_order_release);
}

bool driver_resolve(void)
{
	struct elf_object object;

	if (atomic_load_explicit(&resolved, memory_order_acquire))
		return true;
	if (!load(&object))
		return false;
	if (take_turn())
		fill(&object);
	while (!atomic_load_explicit(&resolved, memory_order_acquire))
		sched_yield(); /* a moment: who fills waits for nothing */
	return true;
}

bool resolve_is_driver(const void *address)
{
	struct elf_object object;

	return elf_find_address(&object, address) && !strcmp(object.soname, driver_soname);
}

void *resolve_replace(void *address)
{
	void *trampoline;

	if (!address || entry_is_ours(address))
		return address;
	if (!atomic_load(&resolved) && (!resolve_is_driver(address) || !driver_resolve()))
		return address;
	trampoline = map_find(address);
	return trampoline ? trampoline : address;
}

void *resolve_entry(const char *name)
{
	unsigned int slot = name_slot(name);

	return slot < ENTRY_NAMED && functions[slot] ? entry_address(slot) : NULL;
}
