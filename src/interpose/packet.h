// SPDX-License-Identifier: MIT
/* Packets with descriptors on a SOCK_SEQPACKET socket. Descriptors arrive close-on-exec. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "wire/agent.h"

/** Sends one packet; @fds borrowed. 0 or -errno. */
int packet_send(int socket, const void *buf, size_t len_bytes, const int *fds, size_t n_fds);

/** Receives one into @buf: its length; 0 when hung up; -EMSGSIZE if it, or what came with it, was too
 * large; -errno. The caller owns the descriptors in @fds whatever is returned. */
ssize_t packet_receive(int socket, void *buf, size_t room_bytes, int fds[static AGENT_PIECES_MAX],
		       size_t *ret_n_fds);

void packet_close_fds(const int *fds, size_t n_fds);
