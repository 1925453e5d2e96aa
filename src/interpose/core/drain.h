// SPDX-License-Identifier: MIT
/* Closing the gate over an idle GPU, together with the other members of the job. */
#pragma once

#include <stdint.h>

/**
 * Closes the gate, which is open, at a moment when no thread is inside, all contexts of the process are idle,
 * no stream is being captured, and the same is so for all members of the job. @fd is of a struct agent_drain
 * (wire/agent.h), in which this process is @member; -1: there are no others. Returns 0; or -ETIMEDOUT, -errno,
 * and then the gate is open again and @why, which is static, says what it waited for. @ret_failed: what is wrong
 * with a context for good (backend_is_lasting(), -ESHUTDOWN); 0: nothing.
 */
int drain(unsigned int member, int fd, uint64_t deadline_ns, int *ret_failed, const char **why);
