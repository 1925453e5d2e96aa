// SPDX-License-Identifier: MIT
/* What the machine has: the keys of /proc/meminfo by their whole names, and the cores of this process. */
#include "base/machine.h"
#include "check.h"

#include <sched.h>
#include <sys/sysinfo.h>

static void meminfo(void)
{
	uint64_t total = 0, free_bytes = 7, untouched = 7;
	struct sysinfo info;

	CHECK(sysinfo(&info) == 0);
	CHECK(machine_meminfo("MemTotal", &total));
	CHECK(total == (uint64_t)info.totalram * info.mem_unit);
	CHECK(machine_meminfo("MemFree", &free_bytes) && free_bytes < total);
	CHECK(free_bytes % 1024 == 0);
	/* A name that another one begins with, and none at all. */
	CHECK(!machine_meminfo("Mem", &untouched) && untouched == 7);
	CHECK(!machine_meminfo("NoSuchKey", &untouched) && untouched == 7);
}

static void cores(void)
{
	cpu_set_t all, one;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	CHECK(machine_cores() == (unsigned)CPU_COUNT(&all));
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	CHECK(machine_cores() == 1);
}

int main(void)
{
	meminfo();
	cores();
	return 0;
}
