// SPDX-License-Identifier: MIT
/* Memory and cores; see machine.h. */
#include "base/machine.h"
#include "base/cleanup.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

bool machine_meminfo(const char *key, uint64_t *ret_bytes)
{
	auto_fclose FILE *f = fopen("/proc/meminfo", "re");
	char line[256];
	unsigned long long kib;
	size_t len = strlen(key);

	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, len) || sscanf(line + len, ": %llu", &kib) != 1)
			continue;
		*ret_bytes = kib << 10;
		return true;
	}
	return false;
}

unsigned machine_cores(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : (unsigned)CPU_COUNT(&cpus);
}
