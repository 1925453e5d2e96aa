// SPDX-License-Identifier: MIT
/*
 * A child that looks at descriptors before they come to us. A process that closes a file of a file system in user space
 * (FUSE) waits for its server, perhaps for ever; no signal ends the wait, and as long as it lasts the process keeps all
 * that it has open. No other call takes a descriptor out of a table, and a process that ends closes each. So a
 * descriptor of such a file must not get into our table, nor one whose last close waits for another process: a socket
 * with SO_LINGER, a terminal until it has written all. Only memory and the driver's devices may. The child looks at a
 * copy of what comes, and has nothing else open. Not for two threads at once.
 */
#pragma once

#include <stdbool.h>

struct scout;

/** Starts one (@ret owned) for the packets of @socket_fd (borrowed; it has a copy until it ends). @simulated: device memory
 * is files of a disk. 0, -errno. */
int scout_start(struct scout **ret, int socket_fd, bool simulated);

/**
 * Looks at what comes with the next packet, which is there and is left to be received. Returns 0: all may be closed;
 * -EBADMSG: something may not, and the caller closes the socket, then ends the scout, which disposes of the packet; -errno.
 */
int scout_look(struct scout *s);

/** Ends it (owned; may be NULL), and sets @s to NULL. */
void scout_end(struct scout **s);
