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

/** A function of the C library's own, whatever replaces it; NULL if there is none. */
void *elf_libc_function(const char *name);
