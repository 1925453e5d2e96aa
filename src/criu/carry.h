// SPDX-License-Identifier: MIT
/*
 * Connections that the caller makes again, in the images of a dump. CRIU, asked for no state of TCP connections
 * (criu_tcp.is_carried), writes them down as sockets; here they become external files, which our plugin is
 * given at the restore.
 */
#pragma once

#include "base/error.h"
#include "process/connections.h"

enum { CRIU_CONNECTION_KEY_BYTES = 64, CRIU_LISTENER_KEY_BYTES = 96 };

/** How criu_inherit names the new end that is file @file of the images. */
void criu_connection_key(char ret[static CRIU_CONNECTION_KEY_BYTES], uint32_t file);

/** How criu_inherit names the socket that listens at @address, as in process/listeners.h. */
void criu_listener_key(char ret[static CRIU_LISTENER_KEY_BYTES], const char *address);

/**
 * Makes external files of the sockets of @c in the images beneath @dir_fd, and sets the numbers of their files in @c. Errors to act on:
 * -EOPNOTSUPP (the images have a connection that is not of @c).
 */
int criu_carry_connections(int dir_fd, struct connections *c, struct brumate_error *err);
