// SPDX-License-Identifier: MIT
/* Holders of an internet address or of a unix socket's file on this machine, from the kernel's socket diagnosis. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/error.h"
#include "process/process.h"

/** Where a socket is bound. */
union port_address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/** Reads "1.2.3.4:80" or "[::1]:80"; its length, 0 where it is neither. */
socklen_t port_address_parse(union port_address *ret, const char *text);

/** What is bound at an address, or at all of its port. */
struct port_use {
	size_t n_sockets; /* that is open */
	size_t n_ended; /* TCP connections that have ended there, which the kernel remembers for a minute */
	pid_t pid; /* a process that holds one of the sockets; 0: unknown */
	char comm[PROC_COMM_BYTES];
};

/* * Finds the holder of @address. Errors to act on: none, the kernel may not tell. */
int port_look(struct port_use *ret, const union port_address *address, bool is_tcp,
	      struct brumate_error *err);

/* * Has the kernel forget the connections that have ended at @address. Errors to act on: -EPERM (it takes CAP_NET_ADMIN),
 * -EOPNOTSUPP (this kernel does not do that): they time out. */
int port_forget_ended(const union port_address *address, struct brumate_error *err);

/** The same of the connection between @address and @peer (NULL: any), also where its process has closed it and it waits for the other end. */
int port_forget_connection(const union port_address *address, const union port_address *peer,
			   struct brumate_error *err);

/** Resets the connection at @address to @peer, for both ends, also where another process holds the one at @address. -EPERM (it takes CAP_NET_ADMIN), -EOPNOTSUPP. */
int port_reset_connection(const union port_address *address, const union port_address *peer);

/* * Whether the unix socket with number @inode is bound at the file @st, under any name: such names may be relative, or
 * those of another mount namespace. 1, 0, or -errno: unknown. */
int port_is_at_file(unsigned inode, const struct stat *st);

/** Finds a process that has the socket with number @inode open. Returns 1, or 0 where none can be seen to. */
int port_find_holder(struct proc_info *ret, unsigned inode);

struct nlmsghdr;

/** Gets one message of the kernel's answer. <0 ends. */
typedef int (*port_answer_fn)(void *arg, const struct nlmsghdr *answer);

/** Asks the kernel's socket diagnosis (sock_diag(7)) for all that @request is for; each answer has @least_bytes. 0, what @fn returned,
 * or -errno. */
int port_diagnose(const void *request, size_t bytes, size_t least_bytes, port_answer_fn fn,
		  void *arg);
