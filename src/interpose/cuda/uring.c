// SPDX-License-Identifier: MIT
/*
 * No io_uring for those who use one only where there is one. CRIU cannot save any, and libuv (torchrun's store,
 * Node.js) makes one in every process whatever it is told: it asks by syscall(2), and goes on without. Who makes one by
 * an instruction of its own, as liburing does, has it, and is not saved.
 */
#include <errno.h>

#include "interpose/core/agent.h"
#include "interpose/cuda/entry.h"

int uring_refused(void)
{
	return init_is_off() || !agent_is_wanted() ? 0 : ENOSYS;
}
