// SPDX-License-Identifier: MIT
/*
 * What CRIU expects of a plugin, and offers it: interface 0.2, which every CRIU since 3.x loads. Declared
 * here by its facts (names, numbers, layout), so that nothing of CRIU is needed to build.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum criu_hook {
	CRIU_HOOK_DUMP_EXT_FILE = 2,	 /* int (int fd, int id) */
	CRIU_HOOK_RESTORE_EXT_FILE = 3,	 /* int (int id, bool *retry), the flag since CRIU 4.2 */
	CRIU_HOOK_HANDLE_DEVICE_VMA = 7, /* int (int fd, const struct stat *), the file mapped */
	/* int (const char *path, const uint64_t address, const uint64_t old_offset, uint64_t *new_offset,
	 * int *fd); 1: map that instead */
	CRIU_HOOK_UPDATE_VMA_MAP = 8,
	CRIU_HOOKS = 12,
};

enum criu_stage { CRIU_STAGE_DUMP, CRIU_STAGE_PRE_DUMP, CRIU_STAGE_RESTORE };

enum { CRIU_PLUGIN_ABI = 0 << 16 | 2 << 8 };

/** CRIU looks it up under the name CR_PLUGIN_DESC. A hook returns -ENOTSUP for what is not its own. */
struct criu_plugin {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int result);
	unsigned version, n_hooks;
	void *hooks[CRIU_HOOKS];
};

enum criu_log_level { CRIU_LOG_ERROR = 1, CRIU_LOG_WARNING = 2, CRIU_LOG_INFO = 3 };

/* Exported by CRIU; absent where the plugin's code is tested alone. */
extern void print_on_level(unsigned level, const char *format, ...)
	__attribute__((weak, format(printf, 2, 3)));
/** Names a plugin without which CRIU refuses to restore the image being dumped. */
extern int add_inventory_plugin(const char *name) __attribute__((weak));
/** True if the image names it; a plugin that does not ask is taken for absent. */
extern bool check_and_remove_inventory_plugin(const char *name, size_t len) __attribute__((weak));
/** fd (borrowed) of the directory with the images. */
extern int criu_get_image_dir(void) __attribute__((weak));
