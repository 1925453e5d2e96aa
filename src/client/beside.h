// SPDX-License-Identifier: MIT
/* Sockets in the directory of a job's agents, to which its processes connect by themselves. */
#pragma once

/** Listens at @name in the directory of agents @dir_fd, where any process of the job may connect, or send packets
 * (@type SOCK_DGRAM, which has no @backlog). Returns the socket (owned, not blocking), or -errno. */
int beside_listen(int dir_fd, const char *name, int type, int backlog);
