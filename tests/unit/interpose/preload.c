// SPDX-License-Identifier: MIT
/* Starting a test with the library under test loaded before it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "preload.h"

static void append(const char *name, const char *more)
{
	const char *old = getenv(name);
	char value[1024];

	snprintf(value, sizeof(value), "%s%s%s", old ? old : "", old && *old ? ":" : "", more);
	CHECK(!setenv(name, value, 1));
}

const struct hooks *preload(char **argv)
{
	const struct hooks *hooks = dlsym(RTLD_DEFAULT, HOOKS_NAME);
	const char *library = getenv("TEST_LIBRARY"), *driver = getenv("TEST_DRIVER_DIR");

	if (hooks)
		return hooks;
	CHECK(library && driver && !getenv("LD_PRELOAD"));
	CHECK(!setenv("LD_PRELOAD", library, 1));
	CHECK(!setenv("LD_LIBRARY_PATH", driver, 1));
	append("ASAN_OPTIONS", "verify_asan_link_order=0");
	execv("/proc/self/exe", argv);
	CHECK(!"started anew");
	return NULL;
}

void run_mode(const char *mode, const char *variable, const char *value)
{
	char *argv[] = { "/proc/self/exe", (char *)mode, NULL };
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		if (variable)
			setenv(variable, value, 1);
		execv(argv[0], argv);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	if (status)
		fprintf(stderr, "%s: status %#x\n", mode, status);
	CHECK(!status);
}
