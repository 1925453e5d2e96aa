// SPDX-License-Identifier: MIT
/*
 * Loaded ELF objects: which one holds an address or has a soname, and the functions it defines. The code that finds the
 * C library's functions runs for any caller of dlsym, even a sanitizer that is just setting itself up: it is not
 * instrumented and calls nothing that such a library replaces.
 */

#include "interpose/entry/elf-object.h"

/* References to a symbol of another object, by its address alone. */
#if defined(__x86_64__)
enum {
	RELOCATION_ABSOLUTE = R_X86_64_64,
	RELOCATION_DATA = R_X86_64_GLOB_DAT,
	RELOCATION_CALL = R_X86_64_JUMP_SLOT
};
#elif defined(__aarch64__)
enum {
	RELOCATION_ABSOLUTE = R_AARCH64_ABS64,
	RELOCATION_DATA = R_AARCH64_GLOB_DAT,
	RELOCATION_CALL = R_AARCH64_JUMP_SLOT
};
#else
#error "elf-object.c does not know this machine's relocations"
#endif

struct search {
	struct elf_object *ret;
	const void *address;
	const char *soname;
	unsigned int position;
	const char *defines;
	unsigned int from, to; /* positions between them, where to is set */
};

ELF_EARLY static bool same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

/* glibc stores the addresses of most tables relocated, other loaders and read-only objects do not. */
ELF_EARLY static const void *table(uintptr_t base, ElfW(Addr) value)
{
	return (const void *)(value < base ? base + value : value);
}

ELF_EARLY static void read_dynamic(struct elf_object *object, const ElfW(Dyn) * dynamic)
{
	const ElfW(Dyn) *soname = NULL;

	for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; d++) {
		const void *at = table(object->base, d->d_un.d_ptr);

		if (d->d_tag == DT_SYMTAB)
			object->symbols = at;
		else if (d->d_tag == DT_STRTAB)
			object->strings = at;
		else if (d->d_tag == DT_GNU_HASH)
			object->gnu_hash = at;
		else if (d->d_tag == DT_HASH)
			object->hash = at;
		else if (d->d_tag == DT_VERSYM)
			object->versions = at;
		else if (d->d_tag == DT_SONAME)
			soname = d;
		else if (d->d_tag == DT_RUNPATH || d->d_tag == DT_RPATH)
			object->has_runpath = true;
	}
	if (soname && object->strings)
		object->soname = object->strings + soname->d_un.d_val;
}

static void read_relocations(struct elf_object *object, const ElfW(Dyn) * dynamic)
{
	for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_RELA)
			object->relocations = table(object->base, d->d_un.d_ptr);
		else if (d->d_tag == DT_RELASZ)
			object->n_relocations = d->d_un.d_val / sizeof(ElfW(Rela));
		else if (d->d_tag == DT_JMPREL)
			object->plt = table(object->base, d->d_un.d_ptr);
		else if (d->d_tag == DT_PLTRELSZ)
			object->n_plt = d->d_un.d_val / sizeof(ElfW(Rela));
	}
}

static void read_header(struct elf_object *object, const ElfW(Phdr) * header)
{
	uintptr_t at = object->base + header->p_vaddr;

	if (header->p_type == PT_DYNAMIC) {
		read_dynamic(object, (const void *)at);
		read_relocations(object, (const void *)at);
	} else if (header->p_type == PT_GNU_RELRO) {
		object->relro = at;
		object->relro_bytes = header->p_memsz;
	}
}

static bool holds(const struct dl_phdr_info *info, const void *address)
{
	for (unsigned int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD &&
		    (uintptr_t)address - (info->dlpi_addr + p->p_vaddr) < p->p_memsz)
			return true;
	}
	return false;
}

static bool matches(const struct search *search, const struct elf_object *object)
{
	if (search->soname && !same(object->soname, search->soname))
		return false;
	if (search->to && (object->position <= search->from || object->position >= search->to))
		return false;
	return !search->defines || elf_function(object, search->defines);
}

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;
	struct elf_object object = { .base = info->dlpi_addr,
				     .path = info->dlpi_name,
				     .soname = "",
				     .position = search->position++ };

	if (search->address && !holds(info, search->address))
		return 0;
	for (unsigned int i = 0; i < info->dlpi_phnum; i++)
		read_header(&object, &info->dlpi_phdr[i]);
	if (!matches(search, &object))
		return 0;
	*search->ret = object;
	return 1;
}

bool elf_find_address(struct elf_object *ret, const void *address)
{
	struct search search = { .ret = ret, .address = address };

	return address && dl_iterate_phdr(visit, &search) == 1;
}

bool elf_find_soname(struct elf_object *ret, const char *soname)
{
	struct search search = { .ret = ret, .soname = soname };

	return dl_iterate_phdr(visit, &search) == 1;
}

/* The GNU table tells the number of symbols only by the end of the chain of its last bucket. */
ELF_EARLY static uint32_t gnu_symbols(const uint32_t *table)
{
	uint32_t n_buckets = table[0], first = table[1], n_bloom = table[2], last = 0;
	const uint32_t *buckets = table + 4 + n_bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chains = buckets + n_buckets;

	for (uint32_t i = 0; i < n_buckets; i++)
		if (buckets[i] > last)
			last = buckets[i];
	if (last < first)
		return first;
	while (!(chains[last - first] & 1))
		last++;
	return last + 1;
}

ELF_EARLY static uint32_t n_symbols(const struct elf_object *object)
{
	if (!object->symbols || !object->strings)
		return 0;
	if (object->gnu_hash)
		return gnu_symbols(object->gnu_hash);
	return object->hash ? object->hash[1] : 0;
}

/* Returns the function if it is defined here; of one with versions only the default counts. */
ELF_EARLY static void *function_at(const struct elf_object *object, uint32_t i)
{
	const ElfW(Sym) *s = &object->symbols[i];

	if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || s->st_shndx == SHN_UNDEF || !s->st_value)
		return NULL;
	if (ELF64_ST_BIND(s->st_info) == STB_LOCAL ||
	    (object->versions && object->versions[i] & 0x8000))
		return NULL;
	return (void *)(object->base + s->st_value);
}

ELF_EARLY void *elf_function(const struct elf_object *object, const char *name)
{
	for (uint32_t i = 0, n = n_symbols(object); i < n; i++)
		if (same(object->strings + object->symbols[i].st_name, name) &&
		    function_at(object, i))
			return function_at(object, i);
	return NULL;
}

void elf_each_function(const struct elf_object *object,
		       void (*fn)(const char *name, void *function, void *arg), void *arg)
{
	for (uint32_t i = 0, n = n_symbols(object); i < n; i++) {
		void *function = function_at(object, i);

		if (function)
			fn(object->strings + object->symbols[i].st_name, function, arg);
	}
}

bool elf_defined_between(const char *name, unsigned int from, unsigned int to)
{
	struct elf_object found;
	struct search search = { .ret = &found, .defines = name, .from = from, .to = to };

	return dl_iterate_phdr(visit, &search) == 1;
}

bool elf_find_position(struct elf_object *ret, unsigned int position)
{
	struct search search = { .ret = ret, .from = position - 1, .to = position + 1 };

	return position && dl_iterate_phdr(visit, &search) == 1;
}

static int count(struct dl_phdr_info *info, size_t size, void *arg)
{
	++*(unsigned int *)arg;
	return 0;
}

unsigned int elf_count(void)
{
	unsigned int n = 0;

	dl_iterate_phdr(count, &n);
	return n;
}

void **elf_reference(const struct elf_object *object, size_t i, const char **ret_name)
{
	static void *none;
	const ElfW(Rela) * rela;
	unsigned int type;

	if (!object->symbols || !object->strings || i >= object->n_relocations + object->n_plt)
		return NULL;
	rela = i < object->n_relocations ? &object->relocations[i]
					 : &object->plt[i - object->n_relocations];
	type = ELF64_R_TYPE(rela->r_info);
	*ret_name = "";
	if (rela->r_addend || !ELF64_R_SYM(rela->r_info) ||
	    (type != RELOCATION_ABSOLUTE && type != RELOCATION_DATA && type != RELOCATION_CALL))
		return &none;
	*ret_name = object->strings + object->symbols[ELF64_R_SYM(rela->r_info)].st_name;
	return (void **)(object->base + rela->r_offset);
}

ELF_EARLY static void *function_of(const struct link_map *map, const char *name)
{
	struct elf_object object = { .base = map->l_addr, .soname = "" };

	read_dynamic(&object, map->l_ld);
	return elf_function(&object, name);
}

ELF_EARLY void *elf_next_function(const char *name)
{
	bool after = false;
	void *function;

	for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
		if (map->l_ld == _DYNAMIC) /* this library's */
			after = true;
		else if (after && (function = function_of(map, name)))
			return function;
	}
	return NULL;
}
