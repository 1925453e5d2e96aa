// SPDX-License-Identifier: MIT
/*
 * Connections that stand still: each TCP socket of a tree that has a peer, be it of this machine, gets a filter that
 * drops every packet that comes in. Where all ends of the connections of several trees are held, nothing passes between them: no byte, no reset
 * of a kernel that has not got the other end yet. Nothing is lost, as the sender keeps what was not acknowledged. The filter belongs to the
 * socket: CRIU saves it with it and puts it back right after the connection is made, it goes when the socket goes, and it takes
 * no right over the network, so no rule of a firewall can be left behind.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "process/process.h"

/** Room for an end of a connection as text: "192.0.2.1:80", "[2001:db8::1]:80". */
enum { SOCKET_END_BYTES = 144 };

/** Holds those of @tree; ones that are held stay so. Best while the tree is frozen, as it may open more. @ret_n: how many are held.
 * Errors to act on: -EOPNOTSUPP (a socket has a filter of its own, which the text names). */
int sockets_hold(size_t *ret_n, const struct proc_tree *tree, struct brumate_error *err);

/** Releases them. Harmless where none is held. 0, or the first -errno; the others go on. */
int sockets_let_go(const struct proc_tree *tree, struct brumate_error *err);

/** The TCP connections of @tree, which may be running, as text (owned): a line "open LOCAL PEER WHO" or, of one whose other end has sent its
 * last byte, "ended LOCAL PEER WHO" for each socket. The other end's line has LOCAL and PEER exchanged: a loopback address is followed by
 * "@" and what tells its machine and namespace. 0, -ENOMEM. */
int sockets_list(char **ret, const struct proc_tree *tree);

/** Closes those that @ends names, lines "LOCAL PEER" without such places, the first after a newline: their programs get ECONNRESET. */
int sockets_close(size_t *ret_n, const struct proc_tree *tree, const char *ends,
		  struct brumate_error *err);
