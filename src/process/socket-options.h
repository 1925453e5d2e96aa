// SPDX-License-Identifier: MIT
/*
 * Options of sockets, of which CRIU brings back some only, and sets some that were not set. They are read while the processes
 * stand still, written down as text (docs/image-format.md, "Sockets"), and set again where a restored socket has others.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "process/process.h"

enum {
	SOCKET_OPTION_BYTES = 32,
	SOCKET_OPTIONS_BYTES_MAX = 64 << 20,
	SOCKET_OPTIONS_MAX = 1 << 20
};

/** Name of the file among CRIU's images. */
#define SOCKET_OPTIONS_FILE "sockets"

/** The value of an option. Which options there are, a table says, which both sides have: others are left as they are. */
struct socket_option {
	pid_t pid; /* as its own pid namespace numbers it */
	int fd, level, name;
	uint8_t value[SOCKET_OPTION_BYTES];
	size_t len_bytes;
};

struct socket_options {
	struct socket_option *items; /* owned */
	size_t n;
};
#define SOCKET_OPTIONS_EMPTY ((struct socket_options){ 0 })
void socket_options_fini(struct socket_options *o);
DEFINE_AUTO_FINI(struct socket_options, socket_options_fini)

/** Called with a copy of the descriptor @number (borrowed) of a process; <0 ends the walk. */
typedef int (*sockets_fn)(void *arg, const struct proc_info *info, int number, int fd);

/** Calls @fn for all sockets of @tree, each once. A socket that cannot be reached is left out. 0, -ENOMEM, or what @fn returned. */
int sockets_each(const struct proc_tree *tree, sockets_fn fn, void *arg);

/** Reads those of all sockets of @tree, each once. A socket that cannot be reached is left out. 0, -ENOMEM. */
int socket_options_read(struct socket_options *ret, const struct proc_tree *tree);

/** As text (owned); NULL without memory. */
char *socket_options_encode(const struct socket_options *o, size_t *ret_len_bytes);

/** Pure, for foreign bytes. -EBADMSG, -ENOMEM. */
int socket_options_decode(struct socket_options *ret, const char *text, size_t len_bytes);

/** Called with what could not be set, a sentence. */
typedef void (*socket_options_note_fn)(void *arg, const char *text);

/**
 * Sets them again at the sockets of @tree, whose processes stand still, with the rights of user @uid and group @gid, so
 * that a record from elsewhere sets nothing that the user may not. What cannot be set is noted. 0, or -errno where the
 * rights cannot be had.
 */
int socket_options_apply(const struct socket_options *o, const struct proc_tree *tree, uid_t uid,
			 gid_t gid, socket_options_note_fn note, void *arg);
