// SPDX-License-Identifier: MIT
/* What a job's command finds in its environment beside what its user gave: our library and the place
 * where its agent listens. */
#include "shim/shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "wire/agent.h"

static const char preload[] = "LD_PRELOAD=", agent_dir[] = AGENT_DIR_VARIABLE "=";

static bool is_of(const char *entry, const char *variable)
{
	return !strncmp(entry, variable, strlen(variable));
}

/* Ours comes first: what else is preloaded stays. */
static char *preload_entry(char *const *env)
{
	auto_free char *library = path_find_helper("libbrumate-cuda.so");
	const char *before = "";

	for (char *const *e = env; *e; e++)
		if (is_of(*e, preload))
			before = *e + strlen(preload);
	if (!library)
		return NULL;
	return path_format("%s%s%s%s", preload, library, *before ? ":" : "", before);
}

int agent_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
		      struct brumate_error *err)
{
	size_t n = 0, kept = 0;

	while (env[n])
		n++;
	auto_free char **all = calloc(n + 3, sizeof(*all));
	auto_free char *dir = job_agent_dir(job);
	auto_free char *library = preload_entry(env);
	auto_free char *variable = dir ? path_format("%s%s", agent_dir, dir) : NULL;

	if (!all || !variable)
		return brumate_fail(err, ENOMEM, "%m");
	if (!library)
		return brumate_fail(err, ENOENT, "libbrumate-cuda.so is not installed");
	for (size_t i = 0; i < n; i++)
		if (!is_of(env[i], preload) && !is_of(env[i], agent_dir))
			all[kept++] = env[i];
	*ret_own = kept;
	all[kept++] = take_ptr(&library);
	all[kept++] = take_ptr(&variable);
	*ret = take_ptr(&all);
	return 0;
}
