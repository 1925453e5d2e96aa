// SPDX-License-Identifier: MIT
/*
 * Restored threads end with a CRIU that is killed before it lets them run. See plugin.h. Owns the replacement of CRIU's calls of
 * ptrace(2).
 */
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#include "criu-plugin/plugin.h"

static long (*real_ptrace)(int request, ...);

static long our_ptrace(int request, pid_t pid, void *addr, void *data)
{
	if (request == PTRACE_SETOPTIONS)
		data = (void *)((uintptr_t)data | PTRACE_O_EXITKILL);
	return real_ptrace(request, pid, addr, data);
}

bool ties_begin(void)
{
	if (!real_ptrace)
		real_ptrace = import_replace("ptrace", (void *)our_ptrace);
	return real_ptrace;
}

void ties_end(void)
{
	if (real_ptrace)
		import_replace("ptrace", (void *)real_ptrace);
	real_ptrace = NULL;
}
