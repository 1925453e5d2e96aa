// SPDX-License-Identifier: MIT
/*
 * TCP sockets on which a tree accepts connections, held by copies of their descriptors when the tree has ended: the kernel goes on
 * taking connections, which wait to be accepted. A restored process is given the same sockets again
 * (src/criu-plugin/listeners.c).
 */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/ports.h"
#include "process/process.h"

enum {
	LISTENERS_MAX = 16,
	LISTENER_NAME_BYTES = 64, /* "192.0.2.1:80", "[::1]:80" */
	LISTENERS_BYTES =
		LISTENERS_MAX * LISTENER_NAME_BYTES, /* of all, with a space between two */
};

struct listeners {
	struct listener {
		int fd; /* owned */
		char name[LISTENER_NAME_BYTES];
	} items[LISTENERS_MAX];
	size_t n;
};
#define LISTENERS_EMPTY ((struct listeners){ .n = 0 })
void listeners_fini(struct listeners *l);
DEFINE_AUTO_FINI(struct listeners, listeners_fini)

/**
 * Before listeners_take(), while @tree may be running: connections to it from outside are reset, as nobody will answer them. Errors to act
 * on (besides -ENOMEM): -EOPNOTSUPP (it listens nowhere, at too many ports, or with two sockets at one), -EBUSY (a client waits for an answer: what its connection
 * brought is newer than what was sent; or, without CAP_NET_ADMIN, anybody is connected).
 */
int listeners_prepare(const struct proc_tree *tree, struct brumate_error *err);

/** Copies of those of @tree, which stands still. Errors as above; -EBUSY also for a connection that has come since. */
int listeners_take(struct listeners *ret, const struct proc_tree *tree, struct brumate_error *err);

/** Sockets that listen at the addresses of @names, as listeners_names() gave them, in the place of ones that are lost. -EADDRINUSE,
 * -EBADMSG, -errno. */
int listeners_bind(struct listeners *ret, const char *names, struct brumate_error *err);

/** Adds one that listens already (takes it), such as a service manager's. -EINVAL: it is none; -E2BIG. */
int listeners_add(struct listeners *l, int fd, struct brumate_error *err);

void listeners_names(char ret[static LISTENERS_BYTES], const struct listeners *l);

/** Whether one of them has the address @name. */
bool listeners_have(const struct listeners *l, const char *name);

/** Whether they are at the addresses of @names, as listeners_names() gave them, each once, and at no other. */
bool listeners_are_at(const struct listeners *l, const char *names);

/** Resets the connections that wait at @l->items[@i]. */
void listener_hang_up(const struct listeners *l, size_t i);
