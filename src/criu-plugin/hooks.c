// SPDX-License-Identifier: MIT
/*
 * Which hooks the CRIU has that we are in. See plugin.h, "which CRIU this is in". It is told by the size of the table in which CRIU lists
 * who has which hook: a list's head for all plugins and one for each kind. Nothing is called or read there.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "criu-plugin/plugin.h"

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
