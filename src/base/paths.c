// SPDX-License-Identifier: MIT
/* Where things live: compiled-in directories, each overridden by its variable. */
#include "base/paths.h"
#include "base/cleanup.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *from_env(const char *variable, const char *fallback)
{
	const char *value = secure_getenv(variable);

	return value && *value ? value : fallback;
}

const char *path_runtime_dir(void)
{
	return from_env("BRUMATE_RUNTIME_DIR", BRUMATE_DEFAULT_RUNTIME_DIR);
}

const char *path_state_dir(void)
{
	return from_env("BRUMATE_STATE_DIR", BRUMATE_DEFAULT_STATE_DIR);
}

const char *path_log_dir(void)
{
	return from_env("BRUMATE_LOG_DIR", BRUMATE_DEFAULT_LOG_DIR);
}

const char *path_config(void)
{
	return from_env("BRUMATE_CONFIG", BRUMATE_DEFAULT_CONFIG);
}

char *path_format(const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	int n = vasprintf(&text, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : text;
}

char *path_find_helper(const char *name)
{
	const char *given = secure_getenv("BRUMATE_LIBEXEC_DIR");
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';

	/* A build directory has each program in a folder of its own, and all of them linked above. */
	auto_free char *above = path_format("%s/..", self);
	const char *dirs[] = { given, self, above, BRUMATE_DEFAULT_LIBEXEC_DIR };
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		if (!dirs[i] || !*dirs[i])
			continue;
		auto_free char *path = path_format("%s/%s", dirs[i], name);
		if (path && access(path, F_OK) == 0)
			return take_ptr(&path);
	}
	return NULL;
}
