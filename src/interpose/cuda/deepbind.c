// SPDX-License-Identifier: MIT
/*
 * Libraries loaded with RTLD_DEEPBIND look into themselves and what they need before they look here,
 * so their calls of the driver and of dlsym would go past us. Once such a one is loaded, what it is
 * bound to is replaced as a lookup would have been. Any other dlopen is the loader's alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/cuda/elf-object.h"
#include "interpose/cuda/entry.h"
#include "interpose/cuda/interpose.h"

/* What the assembler calls, and what it exports. */
struct answer lookup_dlopen(const char *name, int flags, const void *unused, void *caller);
extern const char entry_dlsym[], entry_dlvsym[], entry_dlopen[];

typedef void *(*dlopen_fn)(const char *name, int flags);
typedef void *(*dlsym_fn)(void *handle, const char *name);

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
	if (!resolve_is_name(name))
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
static void bind(const struct elf_object *object, void **slot, void *to)
{
	uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)slot & ~(page_bytes - 1));
	bool read_only = (uintptr_t)slot - object->relro < object->relro_bytes;

	if (read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
		return;
	__atomic_store_n(slot, to, __ATOMIC_RELEASE);
}

static void rebind(const struct elf_object *object)
{
	void *handle = *object->path ? dlopen(object->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	const char *name;
	void **slot, *to;

	if (!handle)
		return;
	for (size_t i = 0; (slot = elf_reference(object, i, &name)); i++) {
		to = replacement(name, *slot, handle);
		if (to && to != *slot)
			bind(object, slot, to);
	}
	dlclose(handle);
}

/* The loader finds a name without a path by the caller's own list of folders, if it has one. */
static bool depends_on_caller(const char *name, const void *address)
{
	struct elf_object caller;

	return !strchr(name, '/') && (!elf_find_address(&caller, address) || caller.has_runpath);
}

/* Another thread may have loaded it a moment ago and be at it still: who gets it must find it bound. */
static void rebind_opened(void *handle)
{
	struct elf_object object;
	struct link_map *map;

	if (!dlinfo(handle, RTLD_DI_LINKMAP, &map) && !resolve_is_driver(map->l_ld) &&
	    elf_find_address(&object, map->l_ld))
		rebind(&object);
}

ELF_EARLY struct answer lookup_dlopen(const char *name, int flags, const void *unused, void *caller)
{
	void *real = elf_next_function("dlopen"), *handle;
	struct elf_object object;
	unsigned int position;

	if (!(flags & RTLD_DEEPBIND) || !name || init_is_off() || depends_on_caller(name, caller))
		return (struct answer){ .jump = real };
	position = elf_count(); /* new ones come last */
	handle = ((dlopen_fn)real)(name, flags);
	for (; handle && elf_find_position(&object, position); position++)
		if (!resolve_is_driver((const void *)object.symbols))
			rebind(&object);
	if (handle)
		rebind_opened(handle);
	return (struct answer){ .result = handle };
}
