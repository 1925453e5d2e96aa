// SPDX-License-Identifier: MIT
/*
 * Host memory for the first copy of a container's device memory, ready before its engine wants one. Of a job its shim knows. A
 * container with brumate's library is looked for by what is there: processes that use a GPU and have an agent. Nothing is asked of
 * them, and nothing that they say counts but where their agents are: how much they have the broker learns from the driver,
 * and it decides how much of that is made ready.
 */
#pragma once

/** Does it from now on, in a thread of its own, as far as the configuration wants it. Where that cannot be, there is a line
 * in the log. */
void container_prepare_start(void);
