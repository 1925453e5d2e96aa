// SPDX-License-Identifier: MIT
/*
 * The driver by name: dlsym, dlvsym and cuGetProcAddress. The loader or the driver always answers
 * first; only an answer that is the driver's own function becomes a trampoline, so somebody else's
 * function of that name stays what it is. Lookups that depend on who asks, and all that do not
 * concern the driver, are the loader's: the assembler jumps there with the caller's address in place.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "interpose/cuda/elf-object.h"
#include "interpose/cuda/entry.h"
#include "interpose/cuda/interpose.h"

struct request {
	void *handle;
	const char *name, *version; /* version: NULL for dlsym */
};

/* What the assembler calls. */
struct answer lookup_dlsym(void *handle, const char *name, const void *unused, void *caller);
struct answer lookup_dlvsym(void *handle, const char *name, const char *version, void *caller);

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
static void *ask(const struct request *request, void *handle)
{
	void *function = loader_function(request->version);

	if (!function)
		return NULL;
	if (request->version)
		return ((dlvsym_fn)function)(handle, request->name, request->version);
	return ((dlsym_fn)function)(handle, request->name);
}

static struct answer give(void *address)
{
	if (address)
		dlerror(); /* a lookup on the way here may have failed */
	return (struct answer){ .result = resolve_replace(address) };
}

ELF_EARLY static struct answer leave_to_loader(const struct request *request)
{
	return (struct answer){ .jump = loader_function(request->version) };
}

/* What the caller's own object and those it needs have by that name. */
static void *ask_scope(const struct request *request, const struct elf_object *caller)
{
	void *handle, *address;

	handle = *caller->path ? dlopen(caller->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	if (!handle)
		return NULL;
	address = ask(request, handle);
	dlclose(handle);
	return address;
}

/* The program's scope comes before the caller's own. Without this library, what comes after it is
 * what the loader would find. */
static struct answer lookup_default(const struct request *request, const struct elf_object *caller)
{
	void *address = ask(request, RTLD_DEFAULT);

	if (address && !entry_is_ours(address))
		return resolve_is_driver(address) ? give(address) : leave_to_loader(request);
	address = ask(request, RTLD_NEXT);
	if (!address)
		address = ask_scope(request, caller);
	return give(address && entry_is_ours(address) ? NULL : address);
}

/* What comes after this library comes after the caller too, unless an object between them has it, or
 * the caller itself comes later than what was found. */
static struct answer lookup_next(const struct request *request, const struct elf_object *caller)
{
	void *address = ask(request, RTLD_NEXT);
	struct elf_object self, library;

	if (!elf_find_address(&self, entry_address(0)) ||
	    elf_defined_between(request->name, caller->position, self.position))
		return leave_to_loader(request);
	if (caller->position < self.position)
		return give(address);
	if (resolve_is_driver(address) && elf_find_address(&library, address) &&
	    caller->position < library.position)
		return give(address);
	address = ask_scope(request, caller);
	return resolve_is_driver(address) ? give(address) : leave_to_loader(request);
}

static struct answer lookup_driver(const struct request *request, void *caller_address)
{
	struct elf_object caller;

	if (resolve_is_driver(caller_address))
		return leave_to_loader(request);
	if (request->handle != RTLD_DEFAULT && request->handle != RTLD_NEXT) {
		void *address = ask(request, request->handle);

		/* The program's own handle leads to what is exported here. */
		if (address && entry_is_ours(address))
			address = ask(request, RTLD_NEXT);
		return address ? give(address) : (struct answer){ NULL, NULL };
	}
	if (!elf_find_address(&caller, caller_address))
		return leave_to_loader(request);
	if (request->handle == RTLD_DEFAULT)
		return lookup_default(request, &caller);
	return lookup_next(request, &caller);
}

/* Lookups of no concern here come first of all: the process may not be set up yet. */
ELF_EARLY static struct answer lookup(const struct request *request, void *caller)
{
	struct answer answer;
	int saved;

	if (!request->name || !resolve_is_name(request->name) || init_is_off())
		return leave_to_loader(request);
	saved = errno;
	answer = lookup_driver(request, caller);
	errno = saved;
	return answer;
}

ELF_EARLY struct answer lookup_dlsym(void *handle, const char *name, const void *unused,
				     void *caller)
{
	struct request request = { .handle = handle, .name = name };

	return lookup(&request, caller);
}

ELF_EARLY struct answer lookup_dlvsym(void *handle, const char *name, const char *version,
				      void *caller)
{
	struct request request = { .handle = handle, .name = name, .version = version };

	return lookup(&request, caller);
}

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

static void replace(const char *symbol, void **fn, cuuint64_t flags)
{
	void *address = *fn, *instead;

	if (!address || entry_is_ours(address) || !resolve_is_name(symbol))
		return;
	instead = resolve_replace(address);
	*fn = instead != address ? instead : replace_unexported(symbol, flags, address);
}

CUresult lookup_proc_address(const char *symbol, void **fn, int cuda_version, cuuint64_t flags)
{
	CUresult r = driver.cuGetProcAddress(symbol, fn, cuda_version, flags);

	if (r == CUDA_SUCCESS)
		replace(symbol, fn, flags);
	return r;
}

CUresult lookup_proc_address_v2(const char *symbol, void **fn, int cuda_version, cuuint64_t flags,
				CUdriverProcAddressQueryResult *status)
{
	CUresult r = driver.cuGetProcAddress_v2(symbol, fn, cuda_version, flags, status);

	if (r == CUDA_SUCCESS)
		replace(symbol, fn, flags);
	return r;
}
