// SPDX-License-Identifier: MIT
/* Loaded ELF objects and their dynamic symbols, read where the loader mapped them: no allocation, no
 * lock but the loader's own, no call that another library may have replaced. */
#pragma once

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** For what may run before the library of a sanitizer is set up. */
#define ELF_EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

struct elf_object {
	uintptr_t base;
	const char *path;      /* as the loader names it; "" for the program */
	const char *soname;    /* "" if it has none */
	unsigned int position; /* in the order of loading */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint32_t *hash;
	const ElfW(Half) * versions;
	const ElfW(Rela) * relocations, *plt; /* with their numbers */
	size_t n_relocations, n_plt;
	uintptr_t relro, relro_bytes; /* read-only once bound */
	bool has_runpath;
};

/** Finds the loaded object that holds @address. */
bool elf_find_address(struct elf_object *ret, const void *address);

/** Finds the first loaded object of that soname. */
bool elf_find_soname(struct elf_object *ret, const char *soname);

/** The function that @object defines as @name, in its default version; NULL if there is none. */
void *elf_function(const struct elf_object *object, const char *name);

/** Calls @fn with each function that @object defines. */
void elf_each_function(const struct elf_object *object,
		       void (*fn)(const char *name, void *function, void *arg), void *arg);

/** Whether an object loaded after the one at @from and before the one at @to defines @name. */
bool elf_defined_between(const char *name, unsigned int from, unsigned int to);

/** The function of that name that is found after this library: the C library's own, or that of
 * another library which replaces it too. */
void *elf_next_function(const char *name);

/** Finds the loaded object at that place in the order of loading; and how many there are. */
bool elf_find_position(struct elf_object *ret, unsigned int position);
unsigned int elf_count(void);

/** Where @object keeps the address of something of another's; NULL after the last. */
void **elf_reference(const struct elf_object *object, size_t i, const char **ret_name);
