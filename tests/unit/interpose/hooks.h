// SPDX-License-Identifier: MIT
/* What the library under test shows to tests beside its entry points; found by dlsym(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define HOOKS_NAME "brumate_test_hooks"

struct hooks {
	int (*gate_close)(uint64_t deadline_ns);
	void (*gate_open)(void);
	void (*gate_exempt)(void);
	bool (*is_ours)(const void *address);
	void *(*entry)(unsigned int slot); /* the trampoline of that number */
	unsigned int first_spare, n_entries;
	const char *const *names; /* of driver.def, first_spare of them */
	const struct driver_calls *driver;
	unsigned long *wrapped;	  /* calls of the wrapper of cuDeviceGetCount */
	unsigned long *started;	  /* the agent */
	unsigned long *forgotten; /* memory, in the child of a fork */
};
