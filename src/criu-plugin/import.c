// SPDX-License-Identifier: MIT
/*
 * Replaces imports of the main program, or of a library. Its dynamic section says where its relocations are; those that hold the
 * address of a function by name are its imports. Where the linker made them read-only they are made writable for
 * the moment of the change.
 */
#include "criu-plugin/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { IMPORT_SLOT = R_X86_64_JUMP_SLOT, IMPORT_DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { IMPORT_SLOT = R_AARCH64_JUMP_SLOT, IMPORT_DATA = R_AARCH64_GLOB_DAT };
#endif

struct import_search {
	const void *inside; /* NULL: the main program */
	const char *name;
	void *replacement;
	void *found; /* the previous value */
};

struct imports {
	uintptr_t base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const ElfW(Rela) * slots, *data;
	size_t slots_bytes, data_bytes;
	const ElfW(Phdr) * headers;
	size_t n_headers;
};

/* glibc turns the addresses of a dynamic section into absolute ones, musl does not. */
static const void *address_in(const struct imports *m, ElfW(Addr) address)
{
	return (const void *)(address < m->base ? m->base + address : address);
}

static void read_dynamic(struct imports *m, const ElfW(Dyn) * d)
{
	for (; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			m->symbols = address_in(m, d->d_un.d_ptr);
		else if (d->d_tag == DT_STRTAB)
			m->strings = address_in(m, d->d_un.d_ptr);
		else if (d->d_tag == DT_JMPREL)
			m->slots = address_in(m, d->d_un.d_ptr);
		else if (d->d_tag == DT_PLTRELSZ)
			m->slots_bytes = d->d_un.d_val;
		else if (d->d_tag == DT_RELA)
			m->data = address_in(m, d->d_un.d_ptr);
		else if (d->d_tag == DT_RELASZ)
			m->data_bytes = d->d_un.d_val;
	}
}

static bool is_read_only(const struct imports *m, uintptr_t address)
{
	for (size_t i = 0; i < m->n_headers; i++) {
		const ElfW(Phdr) *h = &m->headers[i];
		uintptr_t start = m->base + h->p_vaddr;

		if (h->p_type == PT_GNU_RELRO && address >= start && address < start + h->p_memsz)
			return true;
	}
	return false;
}

static bool lies_in(const struct imports *m, const void *address)
{
	for (size_t i = 0; i < m->n_headers; i++) {
		const ElfW(Phdr) *h = &m->headers[i];

		if (h->p_type == PT_LOAD &&
		    (uintptr_t)address - (m->base + h->p_vaddr) < h->p_memsz)
			return true;
	}
	return false;
}

static void replace_import(const struct imports *m, struct import_search *s, uintptr_t where)
{
	uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *page = (void *)(where & ~(page_bytes - 1));
	bool protect = is_read_only(m, where);
	void *before = *(void **)where;

	if (protect && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) < 0)
		return;
	__atomic_store_n((void **)where, s->replacement, __ATOMIC_RELEASE);
	if (protect)
		mprotect(page, page_bytes, PROT_READ);
	/* An import that was not called yet points to code of the program that would look the function up and store it,
	 * overwriting the replacement. */
	void *resolved = lies_in(m, before) ? dlsym(RTLD_NEXT, s->name) : NULL;
	s->found = resolved ? resolved : before;
}

static void search_table(const struct imports *m, struct import_search *s, const ElfW(Rela) * table,
			 size_t bytes)
{
	for (size_t i = 0; table && i < bytes / sizeof(*table); i++) {
		unsigned type = (unsigned)ELF64_R_TYPE(table[i].r_info);
		const ElfW(Sym) *symbol = &m->symbols[ELF64_R_SYM(table[i].r_info)];

		if ((type == IMPORT_SLOT || type == IMPORT_DATA) &&
		    !strcmp(m->strings + symbol->st_name, s->name))
			replace_import(m, s, m->base + table[i].r_offset);
	}
}

/* The main program is the first; the search ends with what is looked for. */
static int search_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct import_search *s = arg;
	struct imports m = { .base = info->dlpi_addr,
			     .headers = info->dlpi_phdr,
			     .n_headers = info->dlpi_phnum };

	(void)size;
	if (s->inside && !lies_in(&m, s->inside))
		return 0;
	for (size_t i = 0; i < m.n_headers; i++)
		if (m.headers[i].p_type == PT_DYNAMIC)
			read_dynamic(&m, (const void *)(m.base + m.headers[i].p_vaddr));
	if (m.symbols && m.strings) {
		search_table(&m, s, m.slots, m.slots_bytes);
		search_table(&m, s, m.data, m.data_bytes);
	}
	return 1;
}

void *import_replace(const char *name, void *replacement)
{
	return import_replace_in(NULL, name, replacement);
}

void *import_replace_in(const void *inside, const char *name, void *replacement)
{
	struct import_search s = { .inside = inside, .name = name, .replacement = replacement };

	dl_iterate_phdr(search_object, &s);
	return s.found;
}
