// SPDX-License-Identifier: MIT
/*
 * Entry points: what each trampoline does around a call (the gate), and where it leads. The driver's library
 * is found as the program loaded it, or loaded, and every trampoline is led to a wrapper or to the driver's
 * function. Any number of threads may come first at once, some with the loader's lock held: no lock of ours is
 * ever held while the loader is called. There is no constructor: other libraries' constructors may use the
 * driver before one of ours had run.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/core/agent.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/entry/elf-object.h"
#include "interpose/entry/entry.h"

/* ---- the process: whether this library is to do anything at all, and the start of the agent ---- */

enum { MODE_UNKNOWN, MODE_ON, MODE_OFF };

static int read_mode(atomic_int *mode)
{
	const char *value = getenv("BRUMATE_INTERPOSE");
	int found = value && !strcmp(value, "off") ? MODE_OFF : MODE_ON, unknown = MODE_UNKNOWN;

	/* The first answer stays: a program may change its environment. */
	atomic_compare_exchange_strong(mode, &unknown, found);
	return atomic_load(mode);
}

bool init_is_off(void)
{
	static atomic_int mode;
	int known = atomic_load_explicit(&mode, memory_order_relaxed);

	return (known == MODE_UNKNOWN ? read_mode(&mode) : known) == MODE_OFF;
}

/* In the child of a fork the tables describe memory of the parent's, and the agent is the parent's. */
static void forget_parent(void)
{
	memory_forget();
	agent_forget();
}

static void watch_forks(void)
{
	static atomic_bool watching;

	if (!atomic_exchange(&watching, true))
		pthread_atfork(NULL, NULL, forget_parent);
}

/* A job that is suspended goes on with its end when it is resumed: what ends the driver comes after this. */
static void begin_end(void)
{
	gate_enter();
	agent_set_life(AGENT_LIFE_ENDING);
	gate_leave();
}

void init_watch_end(void)
{
	static atomic_uint times;

	if (atomic_load_explicit(&times, memory_order_relaxed) < 2 &&
	    atomic_fetch_add(&times, 1) < 2)
		atexit(begin_end);
}

static atomic_bool begun; /* the driver has been initialised */

void init_begin(void)
{
	if (atomic_load(&begun))
		return;
	watch_forks();
	agent_start();
	agent_set_life(AGENT_LIFE_STARTING);
	gate_pass();
}

void init_end(bool works)
{
	if (works && !atomic_exchange(&begun, true))
		init_watch_end();
	if (agent_life() == AGENT_LIFE_STARTING)
		agent_set_life(AGENT_LIFE_READY);
}

/*
 * ---- io_uring ----
 *
 * Refused when asked for by syscall(2). CRIU cannot save any, and libuv (torchrun's store, Node.js) asks for one in
 * every process, regardless of its settings; it uses that function, and works without one. A program that makes one by
 * an instruction of its own, as liburing does, has it, and cannot be saved.
 */

/* What uring-x86_64.S (or another machine's) calls: the errno for who asks for an io_uring; 0: it is for the kernel to say. */
int uring_refused(void);

int uring_refused(void)
{
	return init_is_off() || !agent_is_wanted() ? 0 : ENOSYS;
}

/* ---- trampolines ---- */

enum { TRAMPOLINE_BYTES = 16 };

extern const char entry_first[]; /* the trampolines, side by side */

/* What the assembler uses. */
void *entry_begin(unsigned int slot);
void entry_end(int result);
void entry_failed(int result);
extern _Atomic(void *) entry_targets[ENTRY__MAX];

_Atomic(void *) entry_targets[ENTRY__MAX];

static const char *const entry_names[ENTRY_NAMED] = {
#define CALL(name)  #name,
#define ENTRY(name) #name,
#include "driver.def"
#undef CALL
#undef ENTRY
};

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

/* It runs once for each function, so it is kept out of what every call passes. */
__attribute__((noinline, cold)) static void *find_target(unsigned int slot)
{
	int saved = errno;
	bool there = resolve_driver();
	void *target = entry_target(slot);

	errno = saved;
	if (target)
		return target;
	return there ? (void *)driver_no_function : (void *)driver_missing;
}

void *entry_begin(unsigned int slot)
{
	void *target = entry_target(slot);

	if (__builtin_expect(!target, 0))
		target = find_target(slot);
	if (init_is_off())
		return target;
	void *answer = parked_answer(slot);
	const struct gate_call call = { slot < ENTRY_NAMED ? entry_names[slot] : NULL, answer };
	return gate_enter_call(&call) ? target : answer;
}

/* ---- contexts that have failed ---- */

static atomic_bool has_failed;

bool calls_have_failed(void)
{
	return atomic_load_explicit(&has_failed, memory_order_relaxed);
}

void entry_failed(int result)
{
	if (driver_is_lasting(result))
		atomic_store_explicit(&has_failed, true, memory_order_relaxed);
}

void entry_end(int result)
{
	if (result)
		entry_failed(result);
	if (!init_is_off())
		gate_leave();
}

/* ---- the driver's library ---- */

static atomic_bool resolved;
static void *functions[ENTRY_NAMED]; /* the driver's, by their numbers */

/* The driver's functions by address: which trampoline stands for each. Open addressing. */
enum { MAP_SIZE = 8192 };
static struct {
	_Atomic(void *) function;
	_Atomic(void *) trampoline;
} trampoline_of[MAP_SIZE];

static size_t map_start(const void *function)
{
	return (uintptr_t)function * 0x9e3779b97f4a7c15ull >> 51;
}

_Static_assert(MAP_SIZE == 1 << (64 - 51), "a hash of 13 bits");

static void map_set(void *function, void *trampoline)
{
	for (size_t i = map_start(function), n = 0; n < MAP_SIZE; i = (i + 1) % MAP_SIZE, n++) {
		void *there = NULL;

		if (atomic_compare_exchange_strong(&trampoline_of[i].function, &there, function) ||
		    there == function) {
			atomic_store(&trampoline_of[i].trampoline, trampoline);
			return;
		}
	}
}

static void *map_find(const void *function)
{
	for (size_t i = map_start(function), n = 0; n < MAP_SIZE; i = (i + 1) % MAP_SIZE, n++) {
		void *there = atomic_load(&trampoline_of[i].function);

		if (!there)
			return NULL;
		if (there == function)
			return atomic_load(&trampoline_of[i].trampoline);
	}
	return NULL;
}

void *resolve_adopt(void *function)
{
	void *trampoline = entry_spare(function);

	if (trampoline)
		map_set(function, trampoline);
	return trampoline;
}

static void *find_wrapper(const struct wrapper *w, const char *name)
{
	for (; w->name; w++)
		if (!strcmp(w->name, name))
			return w->function;
	return NULL;
}

void *resolve_wrapper(const char *name)
{
	void *own = find_wrapper(driver_wrappers, name);

	return own ? own : find_wrapper(wrappers, name);
}

/* The number of a name in driver.def, which is sorted; ENTRY_NAMED if it is not there. */
static unsigned int name_slot(const char *name)
{
	unsigned int low = 0, high = ENTRY_NAMED;

	while (low < high) {
		unsigned int middle = (low + high) / 2;
		int order = strcmp(entry_names[middle], name);

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

/* Two entry_names may be one function: the one that has a wrapper stands for it. */
static void lead_named(void)
{
	for (unsigned int slot = 0; slot < ENTRY_NAMED; slot++) {
		void *function = functions[slot];
		void *wrapper = init_is_off() ? NULL : resolve_wrapper(entry_names[slot]);

		if (!function)
			continue;
		if (wrapper || !map_find(function))
			map_set(function, entry_address(slot));
		entry_set_target(slot, wrapper ? wrapper : function);
	}
}

/* Leads a function of a newer driver, which driver.def does not know. */
static void lead_unknown(const char *name, void *function, void *arg)
{
	if (driver_is_name(name) && !map_find(function))
		resolve_adopt(function);
}

/* A reference of ours keeps the library loaded, even if the program drops its own. */
static bool load_driver(struct elf_object *ret)
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

static void fill_tables(const struct elf_object *object)
{
	elf_each_function(object, note_function, NULL);
	driver_fill(functions);
	lead_named();
	elf_each_function(object, lead_unknown, NULL);
	atomic_store_explicit(&resolved, true, memory_order_release);
}

bool resolve_driver(void)
{
	struct elf_object object;

	if (atomic_load_explicit(&resolved, memory_order_acquire))
		return true;
	if (!load_driver(&object))
		return false;
	if (take_turn())
		fill_tables(&object);
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
	if (!atomic_load(&resolved) && (!resolve_is_driver(address) || !resolve_driver()))
		return address;
	trampoline = map_find(address);
	return trampoline ? trampoline : address;
}

void *resolve_entry(const char *name)
{
	unsigned int slot = name_slot(name);

	return slot < ENTRY_NAMED && functions[slot] ? entry_address(slot) : NULL;
}
