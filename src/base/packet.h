// SPDX-License-Identifier: MIT
/*
 * Messages of a Unix socket with file descriptors that ride along (SCM_RIGHTS). On a SOCK_SEQPACKET socket one
 * call sends or receives one packet; on a SOCK_STREAM socket it may do less, and the descriptors go with its
 * first byte.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	PACKET_FDS_MAX = 64,	    /* the descriptors in a packet at most, in all our protocols */
	PACKET_FDS_KERNEL_MAX = 253 /* SCM_MAX_FD of the kernel: in one of whoever does not keep to them */
};

enum packet_state {
	PACKET_WHOLE,
	PACKET_TOO_LONG, /* there was no room for all its bytes or descriptors; those are gone, closed */
	PACKET_LOST_FDS, /* this process may not open as many files (RLIMIT_NOFILE) */
	PACKET_UNREAD, /* nothing came: the peer has gone, and did not read all that was sent to it */
};

/** What came with a packet. */
struct packet_fds {
	int *items; /* the caller's room */
	size_t room;
	size_t n; /* of items, the caller's to close; close-on-exec */
	enum packet_state state;
};

/** Sends @buf with @n_fds (borrowed, at most PACKET_FDS_MAX). Waits until @deadline_ns while the peer is slow.
 * Returns the bytes sent, or -errno. Errors to act on: -EPIPE (the peer is gone), -ETIMEDOUT. */
ssize_t packet_send(int socket_fd, const void *buf, size_t len_bytes, const int *fds, size_t n_fds,
		    uint64_t deadline_ns);

/** Receives into @buf and @fds, for which the caller sets items and room. Returns the bytes received, whatever
 * @fds->state says; or -errno, and nothing came. Errors to act on: -EPIPE (the peer is gone), -ETIMEDOUT. */
ssize_t packet_receive(int socket_fd, void *buf, size_t room_bytes, struct packet_fds *fds,
		       uint64_t deadline_ns);

/** Waits for a packet and leaves it to be received. @fds gets copies of the descriptors that come with it; where it has no
 * room for any, only its state tells whether some do: it is PACKET_LOST_FDS then. Returns 0 or -errno, as packet_receive(). */
int packet_peek(int socket_fd, struct packet_fds *fds, uint64_t deadline_ns);

/** Closes @n descriptors. */
void packet_close_fds(const int *fds, size_t n);
