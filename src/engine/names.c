// SPDX-License-Identifier: MIT
/* The names of all steps, for tests that inject a fault at each. */
#include "engine/engine.h"

#include <stdio.h>

#include "engine/steps.h"

enum { NAMES_MAX = 64 };

const char *const *engine_step_names(void)
{
	static const struct {
		const char *kind;
		const struct step *(*plan)(size_t *ret_n);
	} plans[] = {
		{ "suspend", suspend_plan },
		{ "resume", resume_plan },
		{ "checkpoint", checkpoint_plan },
		{ "restore", restore_plan },
	};
	static char text[NAMES_MAX][64];
	static const char *names[NAMES_MAX + 1];
	size_t n = 0;

	for (size_t p = 0; p < sizeof(plans) / sizeof(plans[0]); p++) {
		size_t n_steps;
		const struct step *steps = plans[p].plan(&n_steps);

		for (size_t i = 0; i < n_steps && n < NAMES_MAX; i++, n++) {
			snprintf(text[n], sizeof(text[n]), "%s.%s", plans[p].kind, steps[i].name);
			names[n] = text[n];
		}
	}
	names[n] = NULL;
	return names;
}
