// SPDX-License-Identifier: MIT
/* Functions of an open library by name: all, or the name of the first that is not there. */
#include "base/symbols.h"
#include "check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	struct {
		int (*abs)(int);
		size_t (*strlen)(const char *);
		void (*none)(void);
	} table = { 0 };
	const struct symbol symbols[] = {
		{ "abs", (void **)&table.abs },
		{ "no_such_function", (void **)&table.none },
		{ "strlen", (void **)&table.strlen },
	};
	void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	CHECK(symbols_resolve(library, symbols, 1) == NULL);
	CHECK(table.abs(-3) == 3 && !table.strlen);
	CHECK(symbols_resolve(library, symbols + 2, 1) == NULL);
	CHECK(table.strlen("four") == 4);
	CHECK_STR(symbols_resolve(library, symbols, 3), "no_such_function");
	CHECK(symbols_resolve(library, symbols, 0) == NULL);
	dlclose(library);
	return 0;
}
