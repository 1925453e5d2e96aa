// SPDX-License-Identifier: MIT
/* An import of this very program, which it has not called yet, is replaced, wherever the program calls it, and put back. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <unistd.h>

static pid_t (*real)(void);

static pid_t other(void)
{
	return real() + 1;
}

static pid_t another(void)
{
	return 42;
}

int main(void)
{
	real = import_replace("getppid", (void *)other);
	if (!real)
		SKIP("a program without imports by name");
	const pid_t first = getppid();
	CHECK(first == real() + 1);
	CHECK(getppid() == first); /* the call of what was there does not put it back */
	CHECK(import_replace("getppid", (void *)another));
	CHECK(getppid() == 42);
	CHECK(import_replace("getppid", (void *)real));
	CHECK(getppid() == real());
	CHECK(!import_replace("no_such_function", (void *)other));
	return 0;
}
