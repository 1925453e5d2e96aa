// SPDX-License-Identifier: MIT
/* An import of this very program is replaced, wherever the program calls it, and put back. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <unistd.h>

static pid_t other(void)
{
	return 42;
}

int main(void)
{
	pid_t real = getppid();
	void *before = import_replace("getppid", (void *)other);

	if (!before)
		SKIP("a program without imports by name");
	CHECK(getppid() == 42);
	CHECK(import_replace("getppid", before) == (void *)other);
	CHECK(getppid() == real);
	CHECK(!import_replace("no_such_function", (void *)other));
	return 0;
}
