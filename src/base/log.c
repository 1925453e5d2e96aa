// SPDX-License-Identifier: MIT
/* Logging of programs: one write(2) a line, so lines of several threads do not mix. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program = "brumate";
static enum log_level threshold = LOG_INFO;

void log_init(const char *name)
{
	static const struct {
		const char *name;
		enum log_level level;
	} levels[] = {
		{ "error", LOG_ERROR },
		{ "warn", LOG_WARN },
		{ "info", LOG_INFO },
		{ "debug", LOG_DEBUG },
	};
	const char *wanted = getenv("BRUMATE_LOG_LEVEL");

	program = name;
	for (size_t i = 0; wanted && i < sizeof(levels) / sizeof(levels[0]); i++)
		if (!strcmp(wanted, levels[i].name))
			threshold = levels[i].level;
}

void log_print(enum log_level level, const char *fmt, ...)
{
	if (level > threshold)
		return;

	int saved = errno;
	char line[1400], prefix[8] = "";
	if (!isatty(STDERR_FILENO))
		snprintf(prefix, sizeof(prefix), "<%d>", (int)level);
	int n = snprintf(line, sizeof(line), "%s%s[%d]: ", prefix, program, getpid());

	va_list ap;
	va_start(ap, fmt);
	errno = saved;
	vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	strcat(line, "\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		errno = 0; /* there is no other place to report it */
	errno = saved;
}
