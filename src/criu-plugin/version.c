// SPDX-License-Identifier: MIT
/*
 * The signature of a hook changed in CRIU 4.2, and the number of the interface did not. What changed too is how many hooks
 * there are, and so the size of the table in which CRIU lists who has which: a list's head for all plugins and one for each.
 */
#include "criu-plugin/version.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>

extern const char cr_plugin_ctl[] __attribute__((weak));

struct list_head {
	void *next, *previous;
};

unsigned criu_hook_kinds(void)
{
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	if (!cr_plugin_ctl || !dladdr1(cr_plugin_ctl, &info, (void **)&symbol, RTLD_DL_SYMENT) ||
	    !symbol || symbol->st_size < 2 * sizeof(struct list_head))
		return 0;
	return (unsigned)(symbol->st_size / sizeof(struct list_head)) - 1;
}
