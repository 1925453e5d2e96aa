// SPDX-License-Identifier: MIT
/*
 * The driver by name: dlsym and dlvsym. The loader or the driver always answers first; only an answer
 * that is the driver's own function becomes a trampoline, so another library's function of that name stays what it is.
 * Lookups that depend on who asks, and all that do not concern the driver, are the loader's: the assembler jumps there
 * with the caller's address in place.
 *
 * Libraries loaded with RTLD_DEEPBIND look into themselves and what they need before they look here,
 * so their calls of the driver and of dlsym would go past us. Once such a one is loaded, what it is
 * bound to is replaced as a lookup would have been. Any other dlopen is the loader's alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/entry/elf-object.h"
#include "interpose/entry/entry.h"

struct lookup_request {
	void *handle;
	const char *name, *version; /* version: NULL for dlsym */
};

/* What the assembler calls. */
struct lookup_answer lookup_dlsym(void *handle, const char *name, const void *unused, void *caller);
struct lookup_answer lookup_dlvsym(void *handle, const char *name, const char *version,
				   void *caller);

typedef void *(*dlsym_fn)(void *handle, const char *name);
typedef void *(*dlvsym_fn)(void *handle, const char *name, const char *version);

/* The loader's own function: read from tables, since every lookup by name leads here. */
ELF_EARLY static void *loader_function(const char *version)
{
	static _Atomic(void *) real_dlsym, real_dlvsym;
	_Atomic(void *) *known = version ? &real_dlvsym : &real_dlsym;
	void *function = atomic_load_explicit(known, memory_order_relaxed);

	if (!function) {
		function = elf_next_function(version ? "dlvsym" : "dlsym");
		atomic_store_explicit(known, function, memory_order_relaxed);
	}
	return function;
}

/* The loader's answer to a request made by this library. */
static void *ask_loader(const struct lookup_request *request, void *handle)
{
	void *function = loader_function(request->version);

	if (!function)
		return NULL;
	if (request->version)
		return ((dlvsym_fn)function)(handle, request->name, request->version);
	return ((dlsym_fn)function)(handle, request->name);
}

static struct lookup_answer give_replaced(void *address)
{
	if (address)
		dlerror(); /* a lookup on the way here may have failed */
	return (struct lookup_answer){ .result = resolve_replace(address) };
}

ELF_EARLY static struct lookup_answer leave_to_loader(const struct lookup_request *request)
{
	return (struct lookup_answer){ .jump = loader_function(request->version) };
}

/* What the caller's own object and those it needs have by that name. */
static void *ask_scope(const struct lookup_request *request, const struct elf_object *caller)
{
	void *handle, *address;

	handle = *caller->path ? dlopen(caller->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	if (!handle)
		return NULL;
	address = ask_loader(request, handle);
	dlclose(handle);
	return address;
}

/* The program's scope comes before the caller's own. Without this library, what comes after it is
 * what the loader would find. */
static struct lookup_answer lookup_default(const struct lookup_request *request,
					   const struct elf_object *caller)
{
	void *address = ask_loader(request, RTLD_DEFAULT);

	if (address && !entry_is_ours(address))
		return resolve_is_driver(address) ? give_replaced(address)
						  : leave_to_loader(request);
	address = ask_loader(request, RTLD_NEXT);
	if (!address)
		address = ask_scope(request, caller);
	return give_replaced(address && entry_is_ours(address) ? NULL : address);
}

/* What comes after this library comes after the caller too, unless an object between them has it, or
 * the caller itself comes later than what was found. */
static struct lookup_answer lookup_next(const struct lookup_request *request,
					const struct elf_object *caller)
{
	void *address = ask_loader(request, RTLD_NEXT);
	struct elf_object self, library;

	if (!elf_find_address(&self, entry_address(0)) ||
	    elf_defined_between(request->name, caller->position, self.position))
		return leave_to_loader(request);
	if (caller->position < self.position)
		return give_replaced(address);
	if (resolve_is_driver(address) && elf_find_address(&library, address) &&
	    caller->position < library.position)
		return give_replaced(address);
	address = ask_scope(request, caller);
	return resolve_is_driver(address) ? give_replaced(address) : leave_to_loader(request);
}

static struct lookup_answer lookup_driver(const struct lookup_request *request,
					  void *caller_address)
{
	struct elf_object caller;

	if (resolve_is_driver(caller_address))
		return leave_to_loader(request);
	if (request->handle != RTLD_DEFAULT && request->handle != RTLD_NEXT) {
		void *address = ask_loader(request, request->handle);

		/* The program's own handle leads to what is exported here. */
		if (address && entry_is_ours(address))
			address = ask_loader(request, RTLD_NEXT);
		return address ? give_replaced(address) : (struct lookup_answer){ NULL, NULL };
	}
	if (!elf_find_address(&caller, caller_address))
		return leave_to_loader(request);
	if (request->handle == RTLD_DEFAULT)
		return lookup_default(request, &caller);
	return lookup_next(request, &caller);
}

/* Lookups of no concern here come first of all: the process may not be set up yet. */
ELF_EARLY static struct lookup_answer lookup(const struct lookup_request *request, void *caller)
{
	struct lookup_answer answer;
	int saved;

	if (!request->name || !driver_is_name(request->name) || init_is_off())
		return leave_to_loader(request);
	saved = errno;
	answer = lookup_driver(request, caller);
	errno = saved;
	return answer;
}

ELF_EARLY struct lookup_answer lookup_dlsym(void *handle, const char *name, const void *unused,
					    void *caller)
{
	struct lookup_request request = { .handle = handle, .name = name };

	return lookup(&request, caller);
}

ELF_EARLY struct lookup_answer lookup_dlvsym(void *handle, const char *name, const char *version,
					     void *caller)
{
	struct lookup_request request = { .handle = handle, .name = name, .version = version };

	return lookup(&request, caller);
}

/* ---- libraries loaded with RTLD_DEEPBIND ---- */

/* What the assembler calls, and what it exports. */
struct lookup_answer lookup_dlopen(const char *name, int flags, const void *unused, void *caller);
extern const char entry_dlsym[], entry_dlvsym[], entry_dlopen[];

typedef void *(*dlopen_fn)(const char *name, int flags);

static const struct replaced {
	const char *name;
	const void *ours;
} replaced[] = {
	{ "dlsym", entry_dlsym },
	{ "dlvsym", entry_dlvsym },
	{ "dlopen", entry_dlopen },
};

/* What a reference of that name is to be bound to, NULL: leave it. Not yet bound, as lazy binding
 * has it, counts as bound to what the library would find. */
static void *replacement(const char *name, void *bound, void *handle)
{
	void *found, *instead;

	for (size_t i = 0; i < sizeof(replaced) / sizeof(*replaced); i++)
		if (!strcmp(replaced[i].name, name))
			return (void *)replaced[i].ours;
	if (!driver_is_name(name))
		return NULL;
	found = resolve_is_driver(bound) ? bound
					 : ((dlsym_fn)elf_next_function("dlsym"))(handle, name);
	if (!found)
		dlerror();
	instead = resolve_replace(found);
	return instead != found ? instead : NULL;
}

/* Parts of the table may have been made read-only once bound. What is opened here stays writable:
 * another thread may be binding in the same page, and a lock would not outlive a fork. */
static void bind_reference(const struct elf_object *object, void **slot, void *to)
{
	uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)slot & ~(page_bytes - 1));
	bool read_only = (uintptr_t)slot - object->relro < object->relro_bytes;

	if (read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
		return;
	__atomic_store_n(slot, to, __ATOMIC_RELEASE);
}

static void rebind_object(const struct elf_object *object)
{
	void *handle = *object->path ? dlopen(object->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	const char *name;
	void **slot, *to;

	if (!handle)
		return;
	for (size_t i = 0; (slot = elf_reference(object, i, &name)); i++) {
		to = replacement(name, *slot, handle);
		if (to && to != *slot)
			bind_reference(object, slot, to);
	}
	dlclose(handle);
}

/* The loader finds a name without a path by the caller's own list of folders, if it has one. */
static bool depends_on_caller(const char *name, const void *address)
{
	struct elf_object caller;

	return !strchr(name, '/') && (!elf_find_address(&caller, address) || caller.has_runpath);
}

/* Another thread may have loaded it a moment ago and be rebinding it still: every caller that gets the handle must find
 * it bound. */
static void rebind_opened(void *handle)
{
	struct elf_object object;
	struct link_map *map;

	if (!dlinfo(handle, RTLD_DI_LINKMAP, &map) && !resolve_is_driver(map->l_ld) &&
	    elf_find_address(&object, map->l_ld))
		rebind_object(&object);
}

ELF_EARLY struct lookup_answer lookup_dlopen(const char *name, int flags, const void *unused,
					     void *caller)
{
	void *real = elf_next_function("dlopen"), *handle;
	struct elf_object object;
	unsigned int position;

	if (!(flags & RTLD_DEEPBIND) || !name || init_is_off() || depends_on_caller(name, caller))
		return (struct lookup_answer){ .jump = real };
	position = elf_count(); /* new ones come last */
	handle = ((dlopen_fn)real)(name, flags);
	for (; handle && elf_find_position(&object, position); position++)
		if (!resolve_is_driver((const void *)object.symbols))
			rebind_object(&object);
	if (handle)
		rebind_opened(handle);
	return (struct lookup_answer){ .result = handle };
}
