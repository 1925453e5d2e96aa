// SPDX-License-Identifier: MIT
/*
 * Connections that stand still: each TCP socket of a tree that has a peer beyond this machine's loopback gets a filter that
 * drops every packet that comes in. Where all ends of the connections of several trees are held, nothing passes between them: no byte, no reset
 * of a kernel that has not got the other end yet. Nothing is lost, as the sender keeps what was not acknowledged. The filter belongs to the
 * socket: CRIU saves it with it and a restored socket has it from its first moment on, it goes when the socket goes, and it takes
 * no right over the network, so no rule of a firewall can be left behind.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "process/process.h"

/** Holds those of @tree; ones that are held stay so. Best while the tree is frozen, as it may open more. @ret_n: how many are held.
 * Errors to act on: -EOPNOTSUPP (a socket has a filter of its own, which the text names). */
int sockets_hold(size_t *ret_n, const struct proc_tree *tree, struct brumate_error *err);

/** Releases them. Harmless where none is held. 0, or the first -errno; the others go on. */
int sockets_let_go(const struct proc_tree *tree, struct brumate_error *err);
