// SPDX-License-Identifier: MIT
/* Functions of a library that is opened at run time, into a typed table. */
#pragma once

#include <dlfcn.h>
#include <stddef.h>

struct symbol {
	const char *name;
	void **slot; /* of the table */
};

/** Fills all slots. Returns the name of the first symbol that @library (of dlopen) lacks, or NULL. */
static inline const char *symbols_resolve(void *library, const struct symbol *symbols, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		*symbols[i].slot = dlsym(library, symbols[i].name);
		if (!*symbols[i].slot)
			return symbols[i].name;
	}
	return NULL;
}
