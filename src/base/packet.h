// SPDX-License-Identifier: MIT
/*
 * Messages of a Unix socket with file descriptors (SCM_RIGHTS). On a SOCK_SEQPACKET socket one call sends or receives
 * one packet; on a SOCK_STREAM socket it may do less, and the descriptors are sent with its first byte.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	PACKET_FDS_MAX = 64,	    /* our limit for a packet, in all our protocols */
	PACKET_FDS_KERNEL_MAX = 253 /* SCM_MAX_FD, for peers that ignore our limit */
};

enum packet_state {
	PACKET_WHOLE,
	PACKET_TOO_LONG, /* there was not enough room for its bytes or descriptors; the rest is lost, closed */
	PACKET_LOST_FDS, /* out of descriptors in this process (RLIMIT_NOFILE) */
	PACKET_UNREAD, /* nothing arrived: the peer has gone without reading all that was sent to it */
};

/** The descriptors of a packet. */
struct packet_fds {
	int *items; /* memory of the caller */
	size_t room;
	size_t n; /* of items, to be closed by the caller; close-on-exec */
	enum packet_state state;
};

/** Sends @buf with @n_fds (borrowed, at most PACKET_FDS_MAX). Waits until @deadline_ns while the peer is slow,
 * or more descriptors of this user are on their way than RLIMIT_NOFILE allows.
 * Returns the bytes sent, or -errno. Errors to act on: -EPIPE (the peer is gone), -ETIMEDOUT. */
ssize_t packet_send(int socket_fd, const void *buf, size_t len_bytes, const int *fds, size_t n_fds,
		    uint64_t deadline_ns);

/** Receives into @buf and @fds, of which the caller sets items and room. Returns the bytes received, also if
 * @fds->state is not PACKET_WHOLE; or -errno, and nothing was received. Errors to act on: -EPIPE (the peer is gone),
 * -ETIMEDOUT. */
ssize_t packet_receive(int socket_fd, void *buf, size_t room_bytes, struct packet_fds *fds,
		       uint64_t deadline_ns);

/** Waits for a packet and leaves it to be received. @fds gets duplicates of its descriptors; if @fds has no room for
 * any, only its state says whether there are some: it is PACKET_LOST_FDS then. Returns 0 or -errno, like
 * packet_receive(). */
int packet_peek(int socket_fd, struct packet_fds *fds, uint64_t deadline_ns);

/** Closes @n descriptors. */
void packet_close_fds(const int *fds, size_t n);
