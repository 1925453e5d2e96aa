// SPDX-License-Identifier: MIT
/* What will not checkpoint; see scan.h. All is gathered first, then each check looks through it: a check is one row
 * of the table at the end. */
#include "process/connections.h"
#include "process/scan-private.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/unix_diag.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fd.h"
#include "gpu/vendor.h"
#include "process/alarms.h"
#include "process/connections.h"
#include "process/leftover.h"
#include "process/pidns.h"
#include "process/ports.h"

enum {
	MAPS_BYTES_MAX = 64 << 20,
	TCP_BYTES_MAX = 64 << 20,
	TIMERS_BYTES_MAX = 16 << 20,
	TCP_ESTABLISHED = 1,
	TCP_CLOSE = 7,
	TCP_LISTEN = 10,
	NAME_BYTES = 108,	   /* of a unix socket */
	UNINTERRUPTIBLE_MS = 1000, /* what all of a tree get to end such waits */
	LOOK_AGAIN_MS = 5,
	ACCEPT_LOOKS = 20,	 /* of 10 ms: what a busy machine takes to accept a connection */
	THREAD_BYTES_MAX = 4096, /* of what /proc says of one */
};

void scan_report_fini(struct scan_report *r)
{
	free(r->items);
	*r = SCAN_REPORT_EMPTY;
}

int scan_add(struct scan_report *r, const struct scan_finding *f)
{
	return array_add(r->items, r->n, *f);
}

/* Records a finding about @p: text is "process PID (COMM) " and what @fmt makes. */
static void add_finding(struct scan *s, enum scan_level level, unsigned scope,
			const struct proc_info *p, const char *what, const char *hint,
			const char *fmt, ...) __attribute__((format(printf, 7, 8)));

void scan_vfound(struct scan *s, enum scan_level level, unsigned scope, const struct proc_info *p,
		 const char *what, const char *hint, const char *fmt, va_list ap)
{
	struct scan_finding f = { .level = level, .scope = scope, .pid = p->id.pid };
	int n = snprintf(f.text, sizeof(f.text), "process %d (%s) ", p->id.pid, p->comm);

	vsnprintf(f.text + n, sizeof(f.text) - (size_t)n, fmt, ap);
	snprintf(f.what, sizeof(f.what), "%s", what);
	snprintf(f.hint, sizeof(f.hint), "%s", hint);
	int r = scan_add(&s->report, &f);
	if (r < 0 && !s->r)
		s->r = r;
}

static void add_finding(struct scan *s, enum scan_level level, unsigned scope,
			const struct proc_info *p, const char *what, const char *hint,
			const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	scan_vfound(s, level, scope, p, what, hint, fmt, ap);
	va_end(ap);
}

/* ---- open files ---- */

static void read_fdinfo(struct scan_fd *f)
{
	char path[64];
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", f->process->id.pid, f->fd);
	f->flags = f->mount_id = -1;
	if (file_read(AT_FDCWD, path, SCAN_FDINFO_BYTES_MAX, &text, NULL) < 0)
		return;

	const char *flags = strstr(text, "flags:"), *pid = strstr(text, "\nPid:");
	const char *mount = strstr(text, "\nmnt_id:");
	f->is_leased = scan_has_write_lease(text);
	f->wakes = strstr(text, "\nclockid: 8\n") || strstr(text, "\nclockid: 9\n");
	if (flags)
		f->flags = (int)strtol(flags + strlen("flags:"), NULL, 8);
	if (mount)
		f->mount_id = atoi(mount + strlen("\nmnt_id:"));
	if (pid)
		f->pidfd_pid = (pid_t)strtol(pid + strlen("\nPid:"), NULL, 10);
}

int scan_stat_fd(int dir_fd, const char *name, struct stat *ret)
{
	struct statx st;

	if (statx(dir_fd, name, AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &st) < 0)
		return -errno;
	*ret = (struct stat){ .st_dev = makedev(st.stx_dev_major, st.stx_dev_minor),
			      .st_ino = st.stx_ino,
			      .st_mode = st.stx_mode,
			      .st_nlink = st.stx_nlink,
			      .st_rdev = makedev(st.stx_rdev_major, st.stx_rdev_minor),
			      .st_uid = st.stx_uid,
			      .st_gid = st.stx_gid,
			      .st_blocks = (blkcnt_t)st.stx_blocks,
			      .st_blksize = (blksize_t)st.stx_blksize,
			      .st_size = (off_t)st.stx_size };
	return 0;
}

bool scan_is_tmpfs(dev_t dev)
{
	auto_free char *mounts = NULL;
	char number[32];
	char *rest;

	if (file_read(AT_FDCWD, "/proc/self/mountinfo", MAPS_BYTES_MAX, &mounts, NULL) < 0)
		return false;
	snprintf(number, sizeof(number), " %u:%u ", major(dev), minor(dev));
	rest = mounts;
	for (char *line; (line = strsep(&rest, "\n"));)
		if (strstr(line, number) && strstr(line, " - tmpfs "))
			return true;
	return false;
}

bool scan_is_too_long(const struct stat *st)
{
	return S_ISREG(st->st_mode) && st->st_nlink == 0 && st->st_size > (off_t)UINT32_MAX;
}

static void gather_fd(struct scan *s, const struct proc_info *p, int dir_fd, const char *name)
{
	struct scan_fd f = { .process = p, .fd = atoi(name) };
	ssize_t n = readlinkat(dir_fd, name, f.target, sizeof(f.target) - 1);

	if (n < 0 || scan_stat_fd(dir_fd, name, &f.st) < 0)
		return; /* closed meanwhile */
	f.target[n] = '\0';
	read_fdinfo(&f);
	if (array_add(s->fds, s->n_fds, f) < 0)
		s->r = -ENOMEM;
}

static void gather_fds(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_closedir DIR *dir = proc_dir_open(p->id.pid, "fd");

		if (!dir)
			continue; /* ended, or found by the check of rights */
		for (struct dirent *e; (e = readdir(dir));)
			if (e->d_name[0] != '.')
				gather_fd(s, p, dirfd(dir), e->d_name);
	}
}

/* Kernel objects behind a descriptor, by the name /proc gives them. */
static const struct {
	const char *target, *what, *name, *hint;
} objects[] = {
	{ "[io_uring]", "io_uring", "an io_uring", "set sysctl kernel.io_uring_disabled=2" },
	{ "[perf_event]", "perf_event", "a perf event", "stop profiling it" },
	{ "[userfaultfd]", "userfaultfd", "a userfaultfd", "close it before the checkpoint" },
	{ "bpf-", "bpf", "a BPF object", "close it before the checkpoint" },
	{ "[landlock-ruleset]", "landlock", "a landlock ruleset", "close it once it is enforced" },
};

/* Kernel objects that CRIU saves. */
static const char *const known_objects[] = {
	"[eventfd]", "[eventpoll]", "[timerfd]", "[signalfd]", "inotify", "[fanotify]", "[pidfd]",
};

static void check_object(struct scan *s, const struct scan_fd *f, const char *name)
{
	/* As with device files of GPUs: what the simulated driver holds in its place goes with the GPU state. */
	if (f->flags >= 0 && f->flags & GPU_SIMULATED_DEVICE_FLAG &&
	    scan_uses_gpu(f->process->id.pid) > 0)
		return;
	for (size_t i = 0; i < COUNT(objects); i++) {
		if (strncmp(name, objects[i].target, strlen(objects[i].target)))
			continue;
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, objects[i].what, objects[i].hint,
			    "has %s (fd %d)", objects[i].name, f->fd);
		return;
	}
	for (size_t i = 0; i < COUNT(known_objects); i++)
		if (!strcmp(name, known_objects[i]))
			return;
	add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "kernel-object",
		    "close it before the checkpoint", "has %s (fd %d), which CRIU does not know",
		    name, f->fd);
}

static void check_pidfd(struct scan *s, const struct scan_fd *f)
{
	if (f->pidfd_pid > 0 && !tree_has(s, f->pidfd_pid))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "pidfd",
			    "close it before the checkpoint",
			    "has a pidfd (fd %d) of process %d, which is not of the job", f->fd,
			    f->pidfd_pid);
	else if (f->flags >= 0 && f->flags & O_EXCL) /* of pidfd_open(2): of a thread */
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "pidfd",
			    "close it before the checkpoint",
			    "has a pidfd (fd %d) of a thread, which CRIU does not save", f->fd);
}

static bool device_is_known(dev_t dev)
{
	enum { MEMORY = 1, NUL = 3, ZERO = 5, FULL = 7, URANDOM = 9 }; /* between them: random */
	enum { CONSOLE = 4, TTY = 5, PTS_FIRST = 136, PTS_LAST = 143 };

	if (major(dev) == MEMORY)
		return minor(dev) == NUL || minor(dev) == ZERO ||
		       (minor(dev) >= FULL && minor(dev) <= URANDOM);
	return major(dev) == CONSOLE || major(dev) == TTY ||
	       (major(dev) >= PTS_FIRST && major(dev) <= PTS_LAST);
}

static void check_device(struct scan *s, const struct scan_fd *f)
{
	const struct gpu_vendor *divided = gpu_vendor_of_partition(f->target);

	if (divided)
		add_finding(s, SCAN_REFUSE, SCAN_GPU, f->process, divided->partition.kind,
			    divided->partition.hint,
			    "uses %s (fd %d), which the driver cannot save",
			    divided->partition.part, f->fd);
	else if (!gpu_is_device(f->target, strlen(f->target)) && !device_is_known(f->st.st_rdev))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "device",
			    "close it before the checkpoint", "has device %.150s open (fd %d)",
			    f->target, f->fd);
}

static void check_regular(struct scan *s, const struct scan_fd *f)
{
	if (!strncmp(f->target, "/secretmem", strlen("/secretmem")))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "memfd_secret",
			    "close it before the checkpoint",
			    "has a memfd_secret (fd %d), which no other process can read", f->fd);
	else if (scan_is_too_long(&f->st) && strncmp(f->target, "/memfd:", strlen("/memfd:")) &&
		 !scan_is_tmpfs(f->st.st_dev))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "deleted-file",
			    "give the file a name, or make it smaller than 4 GiB",
			    "has a deleted file of %llu bytes open (fd %d): %.100s",
			    (unsigned long long)f->st.st_size, f->fd, f->target);
}

/* The GPU is used through a service of the vendor's. */
static void add_sharing(struct scan *s, const struct proc_info *process, const char *path)
{
	const struct gpu_vendor *vendor = gpu_vendor_of_service(path);

	if (vendor)
		add_finding(s, SCAN_REFUSE, SCAN_GPU, process, vendor->sharing_service.kind,
			    vendor->sharing_service.hint,
			    "uses the GPU through %s, which the driver cannot save",
			    vendor->sharing_service.name);
}

static void check_fds(struct scan *s)
{
	static const char anon[] = "anon_inode:";

	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];

		add_sharing(s, f->process, f->target);
		if (f->pidfd_pid)
			check_pidfd(s, f);
		else if (!strncmp(f->target, anon, strlen(anon)))
			check_object(s, f, f->target + strlen(anon));
		else if (S_ISCHR(f->st.st_mode))
			check_device(s, f);
		else if (S_ISREG(f->st.st_mode))
			check_regular(s, f);
	}
}

static bool tree_has_end(const struct scan *s, ino_t inode, int wanted)
{
	for (size_t i = 0; i < s->n_fds; i++) {
		int mode = s->fds[i].flags & O_ACCMODE;

		if (s->fds[i].st.st_ino == inode && S_ISFIFO(s->fds[i].st.st_mode) &&
		    (mode == wanted || mode == O_RDWR))
			return true;
	}
	return false;
}

static void check_pipes(struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];
		int other = (f->flags & O_ACCMODE) == O_RDONLY ? O_WRONLY : O_RDONLY;

		if (S_ISFIFO(f->st.st_mode) && f->flags >= 0 && !strncmp(f->target, "pipe:", 5) &&
		    !tree_has_end(s, f->st.st_ino, other))
			add_finding(s, SCAN_NOTE, SCAN_CRIU, f->process, "pipe",
				    "send output to a file, as brumate run does",
				    "has a pipe to outside the job (fd %d)", f->fd);
		/* CRIU is a writer of it for a moment. */
		else if (S_ISFIFO(f->st.st_mode) && *f->target == '/' && f->flags >= 0 &&
			 f->flags & O_NONBLOCK && (f->flags & O_ACCMODE) == O_RDONLY &&
			 !tree_has_end(s, f->st.st_ino, O_WRONLY))
			add_finding(
				s, SCAN_NOTE, SCAN_CRIU, f->process, "fifo",
				"a program that takes that for an end had better open it for "
				"reading and writing",
				"reads a FIFO that nobody has open for writing (fd %d): after a "
				"restore it looks as if a writer had gone",
				f->fd);
	}
}

/* ---- TCP connections ---- */

struct tcp_line {
	char local[64], remote[64];
	unsigned state;
	unsigned n_waiting; /* of a listening socket: connections that nobody has accepted yet */
	unsigned long inode;
};

/* An address of IPv4 in a socket of IPv6 is as the other end has it. */
static void unmap(char *address)
{
	static const char prefix[] = "0000000000000000FFFF0000";
	const size_t n = strlen(prefix);

	if (!strncmp(address, prefix, n))
		memmove(address, address + n, strlen(address + n) + 1);
}

static bool parse_tcp(const char *line, struct tcp_line *ret)
{
	if (sscanf(line, " %*d: %63s %63s %x %*x:%x %*s %*s %*s %*s %lu", ret->local, ret->remote,
		   &ret->state, &ret->n_waiting, &ret->inode) != 5)
		return false;
	unmap(ret->local);
	unmap(ret->remote);
	return true;
}

/* The other end may be in the tree too: then it is the line with the addresses exchanged. */
static bool other_end_is_ours(const struct scan *s, const char *table, const struct tcp_line *c)
{
	for (const char *line = table; line; line = strchr(line + 1, '\n')) {
		struct tcp_line o;

		if (parse_tcp(line, &o) && !strcmp(o.local, c->remote) &&
		    !strcmp(o.remote, c->local))
			return find_inode(s, "socket:", o.inode);
	}
	return false;
}

static void add_in_flight(struct scan *s, const struct scan_fd *f, unsigned n)
{
	add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, SCAN_TCP_IN_FLIGHT,
		    "wait until it has accepted them; or leave them out by "
		    "--tcp-skip-in-flight: their clients see the connection end",
		    "listens (fd %d), and has not accepted %u TCP connection%s yet", f->fd, n,
		    n == 1 ? "" : "s");
}

static void refuse_connection(struct scan *s, const struct scan_fd *f, bool is_open)
{
	add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, is_open ? SCAN_TCP_OUTSIDE : SCAN_TCP,
		    "close it before the checkpoint, or save both ends as a set (brumate set); "
		    "suspend and resume work",
		    "has a TCP connection (fd %d) whose other end is not of the job, or has been "
		    "closed; that takes CAP_NET_ADMIN to save",
		    f->fd);
}

static void check_tcp_table(struct scan *s, const char *table)
{
	const bool may_repair = connections_may_be_repaired();

	for (const char *line = strchr(table, '\n'); line; line = strchr(line + 1, '\n')) {
		struct tcp_line c;
		const struct scan_fd *f;

		if (!parse_tcp(line, &c) || !(f = find_inode(s, "socket:", c.inode)))
			continue;
		if (c.state == TCP_LISTEN && c.n_waiting)
			add_in_flight(s, f, c.n_waiting);
		if (c.state != TCP_LISTEN && c.state != TCP_CLOSE && !may_repair &&
		    !other_end_is_ours(s, table, &c)) {
			refuse_connection(s, f, c.state == TCP_ESTABLISHED);
			continue;
		}
		if (c.state != TCP_ESTABLISHED || other_end_is_ours(s, table, &c))
			continue;
		add_finding(s, SCAN_NOTE, SCAN_CRIU, f->process, SCAN_TCP,
			    "it survives a restore on this machine soon after; use --tcp-close "
			    "otherwise",
			    "has a TCP connection to outside the job (fd %d)", f->fd);
	}
}

static void check_connection(struct scan *s, const struct scan_fd *f)
{
	auto_close int fd = proc_descriptor(f->process->id.pid, f->fd);
	const char *obstacle = fd < 0 ? NULL : connection_find_obstacle(fd);

	if (obstacle)
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, SCAN_TCP,
			    "close it before the checkpoint, or let root make the checkpoint; "
			    "suspend and resume work",
			    "has a TCP connection (fd %d) %s; that takes CAP_NET_ADMIN to save",
			    f->fd, obstacle);
}

static bool may_have_tcp(const struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++)
		if (S_ISSOCK(s->fds[i].st.st_mode) && !s->fds[i].is_unix)
			return true;
	return false;
}

/* For each table the kernel walks all of its hash table, which takes milliseconds where there is much memory. */
static void check_tcp(struct scan *s)
{
	if (!may_have_tcp(s))
		return;
	for (size_t i = 0; i < s->n_fds && !connections_may_be_repaired(); i++)
		if (S_ISSOCK(s->fds[i].st.st_mode) && !s->fds[i].is_unix)
			check_connection(s, &s->fds[i]);
	auto_free char *v4 = NULL, *v6 = NULL, *both = NULL;

	/* The ends of one connection may be in one each. */
	file_read(AT_FDCWD, "/proc/net/tcp", TCP_BYTES_MAX, &v4, NULL);
	file_read(AT_FDCWD, "/proc/net/tcp6", TCP_BYTES_MAX, &v6, NULL);
	if (asprintf(&both, "%s%s", v4 ? v4 : "", v6 ? v6 : "") < 0)
		both = NULL;
	if (both)
		check_tcp_table(s, both);
}

/* ---- Unix sockets: only the kernel's socket diagnosis tells who the peer is ---- */

struct unix_socket {
	unsigned inode, peer; /* peer 0: not connected, or not accepted yet */
	int type;
	int state;
	bool has_ended;	 /* both ways */
	unsigned n_sent; /* bytes that the other end has not read; not of one that listens */
	const uint32_t *
		waiting; /* of one that listens: clients that it has not accepted; 0: closed since */
	size_t n_waiting;
	char name[NAME_BYTES + 1]; /* of the peer's address or its own */
};

static void parse_queues(struct unix_socket *ret, const struct rtattr *a, size_t len)
{
	if (a->rta_type == UNIX_DIAG_SHUTDOWN && len >= sizeof(uint8_t))
		ret->has_ended = *(const uint8_t *)RTA_DATA(a) == (1 << SHUT_RD | 1 << SHUT_WR);
	if (a->rta_type == UNIX_DIAG_RQLEN && len >= sizeof(struct unix_diag_rqlen) &&
	    ret->state != TCP_LISTEN)
		ret->n_sent = ((const struct unix_diag_rqlen *)RTA_DATA(a))->udiag_wqueue;
	if (a->rta_type == UNIX_DIAG_ICONS) {
		ret->waiting = RTA_DATA(a);
		ret->n_waiting = len / sizeof(*ret->waiting);
	}
}

static void parse_socket(struct unix_socket *ret, const struct nlmsghdr *h)
{
	const struct unix_diag_msg *d = NLMSG_DATA(h);
	int left = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*d)));

	*ret = (struct unix_socket){ .inode = d->udiag_ino,
				     .type = d->udiag_type,
				     .state = d->udiag_state };
	for (const struct rtattr *a = (const void *)(d + 1); RTA_OK(a, left);
	     a = RTA_NEXT(a, left)) {
		size_t len = RTA_PAYLOAD(a);

		if (a->rta_type == UNIX_DIAG_PEER && len >= sizeof(ret->peer))
			memcpy(&ret->peer, RTA_DATA(a), sizeof(ret->peer));
		if (a->rta_type == UNIX_DIAG_NAME)
			memcpy(ret->name, RTA_DATA(a), len < NAME_BYTES ? len : NAME_BYTES);
		parse_queues(ret, a, len);
	}
}

/* Several descriptors may be of one socket. */
static void note_unix(struct scan *s, const struct unix_socket *u)
{
	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i].st.st_ino == u->inode && S_ISSOCK(s->fds[i].st.st_mode))
			s->fds[i].is_unix = true;
}

/* What was added last is about this socket. */
static void note_inode(struct scan *s, unsigned inode)
{
	if (s->report.n)
		s->report.items[s->report.n - 1].inode = inode;
}

static void refuse_waiting_outside(struct scan *s, const struct scan_fd *f)
{
	add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "unix-in-flight",
		    "wait until it is accepted; suspend and resume work",
		    "waits for a process outside the job to accept its unix connection (fd %d)",
		    f->fd);
	note_inode(s, (unsigned)f->st.st_ino);
}

static void add_outside(struct scan *s, const struct unix_socket *u, const struct scan_fd *f)
{
	const struct scan_socket one = {
		.inode = u->inode,
		.is_packets = u->type == SOCK_SEQPACKET,
		.is_nonblocking = f->flags >= 0 && f->flags & O_NONBLOCK,
	};

	if (array_add(s->outside, s->n_outside, one) < 0)
		s->r = -ENOMEM;
}

static void refuse_outside(struct scan *s, const struct unix_socket *u, const struct scan_fd *f)
{
	add_outside(s, u, f);
	add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, SCAN_UNIX_OUTSIDE,
		    "close it before the checkpoint, or run both ends in one job; or "
		    "--drop-external: after a restore it finds the connection closed",
		    "is connected to a process outside the job by a unix socket (fd %d)", f->fd);
}

/* @f: the listening socket; NULL: it is not of the job. */
static void check_waiting(struct scan *s, const struct unix_socket *u, const struct scan_fd *f)
{
	unsigned n_outside = 0;

	for (size_t i = 0; i < u->n_waiting; i++) {
		const struct scan_fd *client =
			u->waiting[i] ? find_inode(s, "socket:", u->waiting[i]) : NULL;

		if (client && !f)
			refuse_waiting_outside(s, client);
		if (!f || client)
			continue;
		n_outside++;
		if (!u->waiting[i])
			add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "unix-in-flight",
				    "wait until it has accepted it; suspend and resume work",
				    "listens at a unix socket (fd %d), and has not accepted one "
				    "that was closed again",
				    f->fd);
	}
	if (n_outside)
		add_finding(s, SCAN_NOTE, SCAN_CRIU, f->process, "unix-in-flight",
			    "wait until it has accepted them; their clients see the connection end",
			    "listens at a unix socket (fd %d), and has not accepted %u "
			    "connection%s from outside the job, which a restore does not bring "
			    "back",
			    f->fd, n_outside, n_outside == 1 ? "" : "s");
}

static void check_socket(struct scan *s, const struct unix_socket *u)
{
	const struct scan_fd *f = find_inode(s, "socket:", u->inode);

	check_waiting(s, u, f);
	if (f && !u->peer && u->type != SOCK_DGRAM && u->state == TCP_ESTABLISHED && u->n_sent &&
	    !u->has_ended) {
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, f->process, "unix-in-flight",
			    "wait until it is accepted; suspend and resume work",
			    "has sent by a unix socket (fd %d) that nobody has accepted yet",
			    f->fd);
		note_inode(s, u->inode);
	}
	if (!f || !u->peer || find_inode(s, "socket:", u->peer))
		return;
	if (u->type == SOCK_DGRAM)
		add_finding(s, SCAN_NOTE, SCAN_CRIU, f->process, "unix-socket",
			    "it is connected again by its name at the restore",
			    "sends to a unix socket outside the job (fd %d)", f->fd);
	else
		refuse_outside(s, u, f);
}

/* The peer of a connection to such a service is unnamed on our side: its own end carries the name. */
static void check_socket_of_service(struct scan *s, const struct unix_socket *u)
{
	const struct scan_fd *f = u->peer ? find_inode(s, "socket:", u->peer) : NULL;

	if (f)
		add_sharing(s, f->process, u->name);
}

static int take_socket(void *arg, const struct nlmsghdr *answer)
{
	struct scan *s = arg;
	struct unix_socket u;

	parse_socket(&u, answer);
	note_unix(s, &u);
	check_socket(s, &u);
	check_socket_of_service(s, &u);
	return 0;
}

static void check_unix(struct scan *s)
{
	const struct unix_diag_req all = {
		.sdiag_family = AF_UNIX,
		.udiag_states = ~0u,
		.udiag_show =
			UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN,
	};
	int r = port_diagnose(&all, sizeof(all), sizeof(struct unix_diag_msg), take_socket, s);

	if (r < 0 && s->tree->n)
		add_finding(
			s, SCAN_NOTE, SCAN_CRIU, &s->tree->items[0], "unix-socket",
			"the kernel needs CONFIG_UNIX_DIAG for this",
			"may have unix sockets to outside the job: the kernel does not tell (%s)",
			strerror(-r));
}

/* ---- processes and their mappings ---- */

static int read_maps(pid_t pid, char **ret)
{
	return proc_file_read(pid, "maps", MAPS_BYTES_MAX, ret, NULL);
}

/* 1, 0, or -errno. */
static int find_gpu_device(pid_t pid, const struct gpu_vendor **ret)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	char target[64];
	struct dirent *e;
	int r;

	if (!dir)
		return -errno;
	while ((r = dir_next(dir, &e)) > 0) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		*ret = gpu_vendor_of_device(target, strlen(target));
		if (*ret)
			return 1;
	}
	return r;
}

static bool ends_meanwhile(pid_t pid)
{
	struct proc_info info;
	int r = proc_read(&info, pid, NULL);

	return r == -ESRCH || (r == 0 && info.ends);
}

bool scan_can_have_gpu_state(const struct proc_info *info)
{
	return info->n_threads != 1 || !gpu_clients_have_threads();
}

int scan_gpu_vendor(pid_t pid, const struct gpu_vendor **ret)
{
	auto_free char *maps = NULL;
	int by_maps = read_maps(pid, &maps);
	const struct gpu_vendor *vendor = by_maps < 0 ? NULL : gpu_vendor_of_library(maps);
	int r = vendor ? 1 : find_gpu_device(pid, &vendor);

	if (r == 0 && by_maps < 0)
		r = by_maps;
	if (r > 0)
		*ret = vendor;
	return r < 0 && ends_meanwhile(pid) ? 0 : r;
}

int scan_uses_gpu(pid_t pid)
{
	const struct gpu_vendor *vendor;

	return scan_gpu_vendor(pid, &vendor);
}

static bool same_ns(pid_t a, pid_t b, const char *name)
{
	char file[16], of_a[64], of_b[64];

	snprintf(file, sizeof(file), "ns/%s", name);
	/* What cannot be read here is found by the check of rights. */
	return proc_link_read(a, file, of_a, sizeof(of_a)) <= 0 ||
	       proc_link_read(b, file, of_b, sizeof(of_b)) <= 0 || !strcmp(of_a, of_b);
}

/* The process whose namespaces count as ours: our own init of a job's pid namespace, or ourselves. */
static pid_t home_of(const struct proc_info *root)
{
	struct proc_info init;
	pid_t pid = same_ns(root->id.pid, getpid(), "pid") ? 0 : pidns_translate(root->id.pid, 1);

	if (pid > 0 && proc_read(&init, pid, NULL) == 0 && !strcmp(init.comm, PIDNS_INIT_PROGRAM))
		return pid;
	return getpid();
}

static void check_namespaces(struct scan *s)
{
	static const char *const names[] = { "user", "mnt", "pid", "net", "ipc", "uts" };
	pid_t home = s->tree->n ? home_of(&s->tree->items[0]) : 0;

	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		for (size_t k = 0; p->state != 'Z' && k < sizeof(names) / sizeof(names[0]); k++) {
			if (same_ns(p->id.pid, home, names[k]))
				continue;
			add_finding(s, SCAN_REFUSE, SCAN_CRIU, p, "namespace",
				    "a container is saved by its engine, with brumate_plugin.so "
				    "in its CRIU",
				    "lives in another %s namespace", names[k]);
			break;
		}
	}
}

static void check_states(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		if (p->tracer_pid)
			add_finding(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, p, "traced",
				    "detach the debugger", "is traced by process %d",
				    p->tracer_pid);
		if (p->state == 'T')
			add_finding(s, SCAN_NOTE, SCAN_CRIU, p, "stopped",
				    "send it SIGCONT to make it run",
				    "is stopped, and will be after a restore");
		/* Of a forked child the driver has said whether it has GPU state. */
		if (p->state == 'T' && !p->is_fork && scan_can_have_gpu_state(p) &&
		    scan_uses_gpu(p->id.pid) != 0)
			add_finding(s, SCAN_REFUSE, SCAN_GPU, p, "stopped", "send it SIGCONT first",
				    "is stopped, so the driver cannot work in it");
		if (p->tty_nr && !tree_has(s, p->sid))
			add_finding(s, SCAN_NOTE, SCAN_CRIU, p, "terminal",
				    "start it with brumate run, which gives it no terminal",
				    "has a terminal from outside the job");
	}
}

/* ---- waits that no signal ends ---- */

/* 'D': it waits so. 0: it has ended. */
static char thread_state(pid_t pid, const char *tid)
{
	auto_free char *text = NULL;
	char path[64];

	snprintf(path, sizeof(path), "task/%.20s/stat", tid);
	if (proc_file_read(pid, path, THREAD_BYTES_MAX, &text, NULL) < 0)
		return 0;
	const char *state = proc_stat_field(text, 3);
	return state ? *state : '\0';
}

/* Most such waits are short: of a thread whose child by vfork(2) has yet to exec, of a read of a disk. The kernel tells
 * nobody of their end. */
static bool waits_on(pid_t pid, const char *tid, uint64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = LOOK_AGAIN_MS * (long)NS_PER_MS };
	char state = thread_state(pid, tid);

	while (state == 'D' && clock_now_ns() < deadline_ns) {
		nanosleep(&pause, NULL);
		state = thread_state(pid, tid);
	}
	return state == 'D';
}

/* Whether it waits in a call that makes a process, which it does for a child that has its memory: posix_spawn(3) and
 * vfork(2), as long as the child neither runs its program nor ends. */
static bool waits_for_child(pid_t pid, const char *tid)
{
	auto_free char *text = NULL;
	char path[64];
	long number;

	snprintf(path, sizeof(path), "task/%.20s/syscall", tid);
	if (proc_file_read(pid, path, THREAD_BYTES_MAX, &text, NULL) < 0 ||
	    sscanf(text, "%ld", &number) != 1)
		return false;
#ifdef SYS_vfork
	if (number == SYS_vfork)
		return true;
#endif
	return number == SYS_clone || number == SYS_clone3;
}

static void add_wait(struct scan *s, const struct proc_info *p, const char *tid)
{
	if (waits_for_child(p->id.pid, tid))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, p, "vfork",
			    "wait until that child runs its program",
			    "waits for a child that it made by vfork(2) or posix_spawn(3), and "
			    "does not stop before that runs a program or ends");
	else
		add_finding(s, SCAN_SUSPECT, SCAN_CRIU, p, "uninterruptible",
			    "wait until its input or output is done",
			    "is in an uninterruptible wait, and may not stop in time");
}

/* One thread that does not stop is enough. */
static void check_waits(struct scan *s)
{
	uint64_t deadline_ns = deadline_in_ms(UNINTERRUPTIBLE_MS);

	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_closedir DIR *dir = p->state == 'Z' ? NULL : proc_dir_open(p->id.pid, "task");
		struct dirent *e;

		while (dir && dir_next(dir, &e) > 0) {
			if (!waits_on(p->id.pid, e->d_name, deadline_ns))
				continue;
			add_wait(s, p, e->d_name);
			break;
		}
	}
}

static const struct {
	const char *mark, *what, *hint, *text;
} refused_mappings[] = {
	{ "/SYSV", "sysv-shm", "use POSIX shared memory or a file",
	  "has System V shared memory mapped" },
	{ "anon_inode:[io_uring]", "io_uring", "set sysctl kernel.io_uring_disabled=2",
	  "has an io_uring mapped" },
	{ "[uprobes]", "uprobes", "end the tracing of its functions, and start it anew",
	  "has been traced by uprobes, whose memory CRIU does not save" },
	{ "/secretmem", "memfd_secret", "close it before the checkpoint",
	  "has memfd_secret memory mapped" },
};

static void judge_mappings(struct scan_mappings *ret, const char *maps,
			   const struct gpu_vendor *of_device)
{
	for (size_t i = 0; i < COUNT(refused_mappings); i++)
		ret->refused |= strstr(maps, refused_mappings[i].mark) ? 1u << i : 0;
	ret->has_removed = strstr(maps, " (deleted)\n");
	ret->managed = gpu_vendor_of_managed(maps);
	ret->has_device =
		of_device && leftover_judge(maps, of_device, false, NULL, 0) != LEFTOVER_NONE;
}

static void gather_mappings(struct scan *s)
{
	size_t fd = 0;

	s->mappings = calloc(s->tree->n + 1, sizeof(*s->mappings));
	if (!s->mappings) {
		s->r = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		const struct gpu_vendor *of_device = NULL;
		auto_free char *maps = NULL;

		for (; fd < s->n_fds && s->fds[fd].process == p; fd++)
			if (!of_device)
				of_device = gpu_vendor_of_device(s->fds[fd].target,
								 strlen(s->fds[fd].target));
		s->mappings[i].r = p->state == 'Z' ? 0 : read_maps(p->id.pid, &maps);
		if (maps)
			judge_mappings(&s->mappings[i], maps, of_device);
	}
}

static void check_rights(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++)
		if (s->mappings[i].r == -EACCES || s->mappings[i].r == -EPERM)
			add_finding(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, &s->tree->items[i],
				    "permission", "run brumate as root", "may not be looked into");
}

/* CRIU writes down that it is a memfd, and looks for a file at the restore. */
static void check_program(struct scan *s, const struct proc_info *p)
{
	char path[PATH_MAX];

	if (proc_link_read(p->id.pid, "exe", path, sizeof(path)) >= 0 &&
	    !strncmp(path, "/memfd:", strlen("/memfd:")))
		add_finding(s, SCAN_REFUSE, SCAN_CRIU, p, "memfd-program",
			    "suspend and resume work; started from a file it can be saved",
			    "runs a program that is in memory only (memfd)");
}

static void check_mappings(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		check_program(s, p);
		for (size_t k = 0; k < COUNT(refused_mappings); k++)
			if (s->mappings[i].refused & 1u << k)
				add_finding(s, SCAN_REFUSE, SCAN_CRIU, p, refused_mappings[k].what,
					    refused_mappings[k].hint, "%s",
					    refused_mappings[k].text);
	}
}

/* A process without the mappings of the device has no state that the driver would save, nor would it close
 * the descriptors. A child that was forked has no use for them either; who opened them itself does. */
static void check_gpu_leftovers(struct scan *s)
{
	const struct proc_info *last = NULL;

	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];
		const struct gpu_vendor *vendor =
			gpu_vendor_of_device(f->target, strlen(f->target));
		const struct scan_mappings *m = &s->mappings[f->process - s->tree->items];

		if (f->process == last || !vendor)
			continue;
		last = f->process;
		if (m->r < 0 || m->has_device)
			continue;
		if (f->process->is_fork)
			add_finding(
				s, SCAN_NOTE, SCAN_CRIU, f->process, "gpu-device", "",
				"has %s open (fd %d) from before it was forked: a restore opens it "
				"again",
				f->target, f->fd);
		else
			add_finding(
				s, SCAN_SUSPECT, SCAN_CRIU, f->process, "gpu-device",
				"close it before the checkpoint",
				"has %s open (fd %d) but uses no GPU: what it does with it fails "
				"after a restore",
				f->target, f->fd);
	}
}

static void check_managed_memory(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		const struct gpu_vendor *vendor = s->mappings[i].managed;

		if (vendor)
			add_finding(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, p, "managed-memory",
				    vendor->managed_memory_hint,
				    "has managed memory, which the driver cannot save");
	}
}

/* ---- timers ---- */

/* How many of the timers there are of clock @clock ("\nClockID: 0\n"), other than such as signal a thread if @but_of_threads. */
static size_t count_timers(const char *timers, const char *clock, bool but_of_threads)
{
	size_t n = 0;

	for (const char *t = strstr(timers, "ID: "); t;) {
		const char *next = strstr(t + 1, "\nID: "), *end = next ? next : t + strlen(t);
		const char *its = strstr(t, clock), *thread = strstr(t, "/tid.");

		n += its && its < end && !(but_of_threads && thread && thread < end);
		t = next;
	}
	return n;
}

/* The clock of the CPU time of the thread that made the timer, which the kernel names to nobody. A timer that signals a thread is
 * taken for that thread's own (criu/mend.h). */
static bool has_timer_of_unknown_thread(const char *timers)
{
	return count_timers(timers, "\nClockID: -2\n", true);
}

static void check_timers(struct scan *s)
{
	const bool is_told = access(ALARM_QUEUES, R_OK) == 0;

	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_free char *text = NULL;

		if (p->state == 'Z' ||
		    proc_file_read(p->id.pid, "timers", TIMERS_BYTES_MAX, &text, NULL) < 0)
			continue;
		const size_t n_of_day =
			(is_told ? 0 : count_timers(text, "\nClockID: 0\n", false)) +
			count_timers(text, "\nClockID: 8\n", false) +
			count_timers(text, "\nClockID: 11\n", false);
		if (n_of_day)
			add_finding(s, SCAN_NOTE, SCAN_CRIU, p, "timer-of-day",
				    "timers behind descriptors (timerfd_create) do not",
				    "has %zu timer%s (timer_create) of the time of day, which the "
				    "kernel does not tell when set to an absolute time: such a one "
				    "comes later by the time that the job was on a disk",
				    n_of_day, n_of_day == 1 ? "" : "s");
		if (p->n_threads > 1 && has_timer_of_unknown_thread(text))
			add_finding(s, SCAN_REFUSE, SCAN_CRIU, p, "thread-timer",
				    "delete it before, or make it with pthread_getcpuclockid(3)",
				    "has a timer that counts the CPU time of one of its threads: "
				    "the kernel does not tell which");
	}
}

static const struct {
	const char *name;
	unsigned scopes; /* of what it may find */
	void (*run)(struct scan *s);
} checks[] = {
	{ "rights", SCAN_GPU | SCAN_CRIU, check_rights },
	{ "states", SCAN_GPU | SCAN_CRIU, check_states },
	{ "waits", SCAN_CRIU, check_waits },
	{ "namespaces", SCAN_CRIU, check_namespaces },
	{ "mappings", SCAN_CRIU, check_mappings },
	{ "files", SCAN_GPU | SCAN_CRIU, check_fds },
	{ "paths", SCAN_CRIU, scan_paths },
	{ "deleted names", SCAN_CRIU, scan_linked },
	{ "pipes", SCAN_CRIU, check_pipes },
	{ "pipes of other kinds", SCAN_CRIU, scan_special_pipes },
	{ "epolls", SCAN_CRIU, scan_epolls },
	{ "descriptors of special kinds", SCAN_CRIU, scan_special },
	{ "threads", SCAN_CRIU, scan_threads },
	{ "what processes share", SCAN_CRIU, scan_shared },
	{ "limits", SCAN_CRIU, scan_limits },
	{ "ended processes", SCAN_CRIU, scan_ended },
	{ "sealed memory", SCAN_SLOW, scan_sealed },
	{ "objects of System V", SCAN_CRIU, scan_system_v },
	{ "sandboxes", SCAN_CRIU, scan_sandboxes },
	{ "protocols", SCAN_CRIU, scan_protocols },
	{ "netlink sockets", SCAN_CRIU, scan_netlink },
	{ "unix sockets", SCAN_GPU | SCAN_CRIU, check_unix },
	{ "datagrams", SCAN_CRIU, scan_datagrams },
	{ "tcp", SCAN_CRIU, check_tcp }, /* uses what the check of unix sockets found */
	{ "timers", SCAN_CRIU, check_timers },
	{ "gpu leftovers", SCAN_CRIU, check_gpu_leftovers },
	{ "managed memory", SCAN_GPU | SCAN_CRIU, check_managed_memory },
};

/* Gathers what there is and runs the checks of @scopes over it. */
static int look(struct scan *s, unsigned scopes, struct brumate_error *err)
{
	gather_fds(s);
	gather_mappings(s);
	for (size_t i = 0; i < COUNT(checks) && !s->r; i++) {
		if (!(checks[i].scopes & scopes))
			continue;
		checks[i].run(s);
		if (s->r < 0)
			brumate_fail(err, -s->r, "looking for %s: %m", checks[i].name);
	}
	free(s->fds);
	free(s->outside);
	free(s->mappings);
	s->fds = NULL;
	s->mappings = NULL;
	s->outside = NULL;
	s->n_fds = s->n_outside = 0;
	return s->r;
}

static bool has_refusal(const struct scan_report *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->items[i].level == SCAN_REFUSE)
			return true;
	return false;
}

static bool has_in_flight(const struct scan_report *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->items[i].inode)
			return true;
	return false;
}

static bool has_like(const struct scan_report *r, const struct scan_finding *f)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->items[i].pid == f->pid && r->items[i].inode == f->inode &&
		    !strcmp(r->items[i].what, f->what))
			return true;
	return false;
}

/* What is refused stands at a second look, too: a process in the middle of exec(2) still has the files that it is
 * about to close, and a connection that is being made is accepted by then. */
static int look_again(struct scan *s, unsigned scopes, struct brumate_error *err)
{
	struct scan again = { .report = SCAN_REPORT_EMPTY, .tree = s->tree };
	int r = look(&again, scopes, err);
	size_t n = 0;

	for (size_t i = 0; i < s->report.n && r == 0; i++) {
		const struct scan_finding *f = &s->report.items[i];

		if (f->level != SCAN_REFUSE || has_like(&again.report, f))
			s->report.items[n++] = *f;
	}
	if (r == 0)
		s->report.n = n;
	scan_report_fini(&again.report);
	return r;
}

/* A process in the middle of exit(2) has files, and no mappings that would tell what they are. */
static void drop_ended(struct scan *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->report.n; i++)
		if (!strcmp(s->report.items[i].what, SCAN_ENDED) ||
		    !ends_meanwhile(s->report.items[i].pid))
			s->report.items[n++] = s->report.items[i];
	s->report.n = n;
}

int scan_tree(struct scan_report *ret, const struct proc_tree *tree, unsigned scopes,
	      struct brumate_error *err)
{
	const struct timespec pause = { .tv_nsec = 10 * (long)NS_PER_MS };
	struct scan s = { .report = SCAN_REPORT_EMPTY, .tree = tree };
	int r = look(&s, scopes, err);

	drop_ended(&s);
	if (r == 0 && has_refusal(&s.report))
		r = look_again(&s, scopes, err);
	for (int i = 0; i < ACCEPT_LOOKS && r == 0 && has_in_flight(&s.report); i++) {
		nanosleep(&pause, NULL);
		r = look_again(&s, scopes, err);
	}
	if (r < 0) {
		scan_report_fini(&s.report);
		return brumate_wrap(err, r, "scan");
	}
	*ret = s.report;
	return 0;
}

int scan_find_outside(struct scan_socket **ret, size_t *ret_n, const struct proc_tree *tree)
{
	struct scan s = { .report = SCAN_REPORT_EMPTY, .tree = tree };

	gather_fds(&s);
	if (s.r == 0)
		check_unix(&s);
	scan_report_fini(&s.report);
	free(s.fds);
	if (s.r < 0) {
		free(s.outside);
		return s.r;
	}
	*ret = s.outside;
	*ret_n = s.n_outside;
	return 0;
}
