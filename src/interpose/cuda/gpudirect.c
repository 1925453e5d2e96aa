// SPDX-License-Identifier: MIT
/*
 * Whether something on this machine can register device memory (GPUDirect RDMA), which memory must be
 * made for: a module on top of the driver's, or a network card. Reads /sys, and nothing else.
 */
#include "interpose/cuda/gpudirect.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/paths.h"

/* Names of modules have _ in /sys, and either in what makes them. */
static bool is_same(const char *a, const char *b)
{
	for (; *a && *b; a++, b++)
		if (*a != *b && !(*a == '-' && *b == '_'))
			return false;
	return *a == *b;
}

/* The driver's own modules register memory for nobody else. */
static bool is_foreign(const char *module)
{
	static const char *const own[] = { "nvidia_uvm", "nvidia_modeset", "nvidia_drm" };

	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		if (is_same(module, own[i]))
			return false;
	return true;
}

static bool is_card(const char *name)
{
	return true;
}

/* 1: something there counts, 0: nothing; -errno. */
static int look(const char *root, const char *where, bool (*counts)(const char *name))
{
	auto_free char *path = path_format("%s%s", root, where);
	auto_closedir DIR *dir = path ? opendir(path) : NULL;
	struct dirent *entry;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && counts(entry->d_name))
			return 1;
	return 0;
}

bool gpudirect_possible(const char *root)
{
	int saved = errno;
	int module = look(root, "/sys/module/nvidia/holders", is_foreign);
	int card = look(root, "/sys/class/infiniband", is_card);

	errno = saved;
	return module || (card && card != -ENOENT);
}

bool gpudirect_possible_here(void)
{
	enum { UNKNOWN, NO, YES };
	static atomic_int known;
	int found = UNKNOWN, answer = atomic_load(&known);

	/* The first answer stays: all memory of a process is alike. */
	if (answer == UNKNOWN) {
		answer = gpudirect_possible("") ? YES : NO;
		if (!atomic_compare_exchange_strong(&known, &found, answer))
			answer = found;
	}
	return answer == YES;
}
