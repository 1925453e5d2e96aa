// SPDX-License-Identifier: MIT
/* See symbols.h. */
#include "base/symbols.h"

#include <dlfcn.h>

const char *symbols_resolve(void *library, const struct symbol *symbols, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		*symbols[i].slot = dlsym(library, symbols[i].name);
		if (!*symbols[i].slot)
			return symbols[i].name;
	}
	return NULL;
}
