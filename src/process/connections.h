// SPDX-License-Identifier: MIT
/*
 * TCP connections between processes of one tree, carried without a capability. While the processes stand still, the bytes that each end
 * has received and nobody has read are looked at through copies of the descriptors, which changes nothing; later such connections
 * are made again between the same addresses, and the bytes are sent again. CRIU is given the new ends (criu/carry.h). What is written
 * down is in docs/image-format.md, "Connections".
 */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

/** Name of the file among CRIU's images. */
#define CONNECTIONS_FILE "connections"

enum { CONNECTIONS_BYTES_MAX = 1 << 30, CONNECTIONS_MAX = 1 << 14 };

union connection_address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Bits of what shutdown(2) has been asked for. */
enum { CONNECTION_SENDS_NO_MORE = 1, CONNECTION_RECEIVES_NO_MORE = 2 };

struct connection_end {
	uint64_t inode;
	uint32_t
		file; /* its number in CRIU's images; set by the caller; 0: the end is another tree's */
	int fd;	   /* owned: a copy of the job's descriptor, or the end that was made; -1: none */
	int flags; /* O_NONBLOCK … */
	union connection_address address;
	unsigned shut;		       /* CONNECTION_SENDS_NO_MORE and the like */
	int send_bytes, receive_bytes; /* buffers of a fixed size; 0: the kernel decides */
	uint8_t *queue;		       /* owned: received, and not read */
	size_t queue_bytes;
	pid_t pid;
	int number; /* of one of its descriptors */
	char comm[32];
};

/** The first end is the one that accepts when the connection is made again. */
struct connection_pair {
	struct connection_end ends[2];
	int elsewhere; /* the end of another tree, of which its address alone is known; -1: none */
};

/** Other trees, of which each is looked at, and restored, at the same time by another process of ours. */
struct connection_others {
	int (*drained)(
		void *arg,
		struct brumate_error *
			err); /* NULL: none. Returns when all that any has sent has been received */
	void *arg;
	int fd; /* readable: they are not waited for any more */
	const char
		*secret; /* that only they know: each proves so before it is sent anything else */
};

struct connections {
	struct connection_pair *items; /* owned */
	size_t n;
};
#define CONNECTIONS_EMPTY ((struct connections){ 0 })
void connections_fini(struct connections *c);
DEFINE_AUTO_FINI(struct connections, connections_fini)

/** Whether CRIU, as we would start it, may save and restore TCP connections itself (CAP_NET_ADMIN). */
bool connections_may_be_repaired(void);

/** Why the TCP connection of socket @fd cannot be carried without CAP_NET_ADMIN, regardless of its other end, as in "has a TCP connection
 * that both ends have closed" (which is in no table of the kernel's); NULL: nothing is in the way, or it is no connection. */
const char *connection_find_obstacle(int fd);

/**
 * Reads those of @tree, which stands still, and keeps copies of their descriptors. Errors to act on: -EOPNOTSUPP (one that cannot be
 * carried, by name), -EAGAIN (bytes are under way that the receiver has no room for).
 */
int connections_read(struct connections *ret, const struct proc_tree *tree,
		     const struct connection_others *others, struct brumate_error *err);

/** As bytes (owned); NULL without memory. */
char *connections_encode(const struct connections *c, size_t *ret_len_bytes);

/** Pure, for foreign bytes. -EBADMSG, -ENOMEM. */
int connections_decode(struct connections *ret, const char *bytes, size_t len_bytes);

/** Called again and again while the kernel remembers a connection that has ended, which is in the way. <0 (with @err): do not wait. */
typedef int (*connections_wait_fn)(void *arg, struct brumate_error *err);

/** Makes them again; each as by connection_abort() until connection_keep(): if we or CRIU die in between, no address stays
 * taken. @is_apart: between any addresses, for what never runs. @others: NULL: an end of theirs is one that has closed. @wait (may be NULL:
 * none waits): that takes a minute at most. -EADDRINUSE and others, by name. */
int connections_make(struct connections *c, bool is_apart, const struct connection_others *others,
		     connections_wait_fn wait, void *arg, struct brumate_error *err);

/** Has the end of @fd leave nothing behind when the last descriptor is closed: the address is free at once. */
void connection_abort(int fd);

/** It is closed as any other from here on. */
void connection_keep(int fd);
