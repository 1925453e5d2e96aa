// SPDX-License-Identifier: MIT
/* The same program with the interposer and without is told the same. Arguments: both of them. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"
#include "wire/agent.h"

enum { LINES_MIN = 700, LINE_BYTES = 512 };

static char machine[64];

static void remove_machine(void)
{
	remove_tree(AT_FDCWD, machine);
}

static void set_environment(void)
{
	char dir[96];

	snprintf(machine, sizeof(machine), "/dev/shm/brumate-test-%d", getpid());
	snprintf(dir, sizeof(dir), "%s/agent", machine);
	CHECK(mkdir_parents(dir, 0700) == 0);
	atexit(remove_machine);
	setenv("BRUMATE_SIM_DIR", machine, 1);
	setenv("BRUMATE_SIM_VRAM_MIB", "256", 1);
	setenv("BRUMATE_SIM_GPUS", "2", 1);
	setenv(AGENT_DIR_VARIABLE, dir, 1);
}

int main(int argc, char **argv)
{
	char plain[LINE_BYTES], interposed[LINE_BYTES];
	int n = 0;

	CHECK(argc == 3);
	set_environment();

	FILE *a = popen(argv[1], "r"), *b = popen(argv[2], "r");

	CHECK(a && b);
	while (fgets(plain, sizeof(plain), a)) {
		CHECK(fgets(interposed, sizeof(interposed), b));
		CHECK_STR(interposed, plain);
		n++;
	}
	CHECK(!fgets(interposed, sizeof(interposed), b));
	CHECK(pclose(a) == 0 && pclose(b) == 0);
	CHECK(n >= LINES_MIN);
	return 0;
}
