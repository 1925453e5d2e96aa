// SPDX-License-Identifier: MIT
/* File descriptors that ride along with a message of a unix socket (SCM_RIGHTS). */
#pragma once

#include <stddef.h>
#include <sys/socket.h>

/** Room for the control part of a message with @n fds: an aligned array of these bytes. */
#define FD_PASS_BYTES(n) CMSG_SPACE((n) * sizeof(int))

/** Has @n_fds (borrowed, at least one) ride along with @msg; @control, zeroed, has room for them. */
void fd_pass_put(struct msghdr *msg, void *control, const int *fds, size_t n_fds);

/** Takes the fds that came with a received @msg: the first @room to @ret (the caller's then), others are
 * closed. Returns how many came, which may be more than @room. */
size_t fd_pass_take(struct msghdr *msg, int *ret, size_t room);
