// SPDX-License-Identifier: MIT
/* Sockets of kinds that CRIU does not know, and what it does not take out of those that it knows. */
#include "process/scan-private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>

#include "base/fd.h"

enum { TABLE_BYTES_MAX = 64 << 20 };

static const char *const known[] = {
	"TCP",	  "TCPv6", "UDP",   "UDPv6", "UDP-Lite",    "UDPLITEv6", "PING",
	"PINGv6", "RAW",   "RAWv6", "UNIX",  "UNIX-STREAM", "NETLINK",	 "PACKET",
};

static void check_protocol(struct scan *s, const struct scan_fd *f)
{
	char path[64], name[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", f->process->id.pid, f->fd);
	ssize_t n = getxattr(path, "system.sockprotoname", name, sizeof(name) - 1);
	if (n <= 0)
		return; /* unknown: CRIU reports it, and the job goes on */
	name[n] = '\0';
	for (size_t i = 0; i < COUNT(known); i++)
		if (!*name || !strcmp(name, known[i]))
			return;
	scan_found(s, SCAN_REFUSE, f->process, "socket",
		   !strncmp(name, "MPTCP", 5)
			   ? "start it without MPTCP (for Go: GODEBUG=multipathtcp=0); suspend and "
			     "resume work"
			   : "close it before the checkpoint; suspend and resume work",
		   "has a socket of protocol %s (fd %d), which CRIU does not know",
		   !strcmp(name, "AF_VSOCK") ? "vsock" : name, f->fd);
}

void scan_protocols(struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++)
		if (S_ISSOCK(s->fds[i].st.st_mode))
			check_protocol(s, &s->fds[i]);
}

/* /proc/net/netlink: sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode */
void scan_netlink(struct scan *s)
{
	auto_free char *table = NULL;

	if (file_read(AT_FDCWD, "/proc/net/netlink", TABLE_BYTES_MAX, &table, NULL) < 0)
		return;
	for (const char *line = strchr(table, '\n'); line; line = strchr(line + 1, '\n')) {
		unsigned port, groups, waiting;
		unsigned long inode;
		const struct scan_fd *f;

		if (sscanf(line, " %*s %*d %u %x %u %*u %*d %*d %*d %lu", &port, &groups, &waiting,
			   &inode) != 4 ||
		    !inode || !(f = find_inode(s, "socket:", inode)))
			continue;
		if (waiting)
			scan_found(s, SCAN_REFUSE, f->process, "netlink-data",
				   "wait until it has read what came; suspend and resume work",
				   "has a netlink socket (fd %d) with what it has not read yet",
				   f->fd);
		else if (groups && !port)
			scan_found(s, SCAN_REFUSE, f->process, "netlink-groups",
				   "close it before the checkpoint; suspend and resume work",
				   "has a netlink socket (fd %d) of groups, but without an address",
				   f->fd);
	}
}

/* CRIU drops what has come. */
static void check_datagrams(struct scan *s, const char *path)
{
	auto_free char *table = NULL;

	if (file_read(AT_FDCWD, path, TABLE_BYTES_MAX, &table, NULL) < 0)
		return;
	for (const char *line = strchr(table, '\n'); line; line = strchr(line + 1, '\n')) {
		unsigned waiting;
		unsigned long inode;
		const struct scan_fd *f;

		if (sscanf(line, " %*d: %*s %*s %*x %*x:%x %*s %*s %*s %*s %lu", &waiting,
			   &inode) == 2 &&
		    waiting && (f = find_inode(s, "socket:", inode)))
			scan_found(s, SCAN_NOTE, f->process, "udp",
				   "they are lost as on the network",
				   "has not read datagrams that have come (UDP, fd %d): a restore "
				   "does not bring them back",
				   f->fd);
	}
}

void scan_datagrams(struct scan *s)
{
	bool has_socket = false;

	for (size_t i = 0; i < s->n_fds && !has_socket; i++)
		has_socket = S_ISSOCK(s->fds[i].st.st_mode) && !s->fds[i].is_unix;
	for (int v6 = 0; v6 < 2 && has_socket; v6++)
		check_datagrams(s, v6 ? "/proc/net/udp6" : "/proc/net/udp");
}
