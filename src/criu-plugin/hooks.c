// SPDX-License-Identifier: MIT
/*
 * Determines which hooks the CRIU around us has. See plugin.h, "which CRIU this is in". The answer comes from the
 * size of the table in which CRIU lists the plugins of each hook: one list head for all plugins and one for each
 * hook. Nothing in it is read.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

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
	    !symbol || symbol->st_size % sizeof(struct list_head) != 0 ||
	    symbol->st_size < 2 * sizeof(struct list_head))
		return 0;
	return (unsigned)(symbol->st_size / sizeof(struct list_head)) - 1;
}

int criu_no_retry(bool *flag)
{
	unsigned kinds = criu_hook_kinds();

	if (kinds == 0)
		return -ELIBBAD;
	if (kinds >= CRIU_HOOKS_WITH_RETRY)
		*flag = false;
	return 0;
}

const char *criu_strerror(int error)
{
	return error == -ELIBBAD
		       ? "this CRIU's table of hooks (cr_plugin_ctl) is hidden or not known, "
			 "so what it passes to them cannot be told: use CRIU as its own "
			 "Makefile builds it"
		       : strerror(-error);
}
