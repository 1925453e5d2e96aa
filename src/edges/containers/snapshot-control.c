// SPDX-License-Identifier: MIT
/* Informs a container's program of the progress of a snapshot; see snapshot-control.h. */
#include "edges/containers/snapshot-control.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"
#include "process/aside.h"
#include "process/credentials.h"

enum { ENVIRONMENT_BYTES_MAX = 4 << 20, ANSWER_TIMEOUT_MS = 5000 };

static const char ready_file[] = "ready-for-snapshot";

/* The second is the older name. */
static const char *const variables[] = { "SNAPSHOT_CONTROL_DIR=", "DYN_SNAPSHOT_CONTROL_DIR=" };

void snapshot_control_fini(struct snapshot_control *c)
{
	cleanup_close(&c->dir_fd);
	*c = SNAPSHOT_CONTROL_NONE;
}

/* ---- where it is ---- */

/* The value of the first variable of that name; NULL: there is none. */
static const char *find_variable(const char *environment, size_t len, const char *name)
{
	for (const char *p = environment; p < environment + len; p += strlen(p) + 1)
		if (!strncmp(p, name, strlen(name)))
			return p + strlen(name);
	return NULL;
}

static int read_environment(char **ret, size_t *ret_len, struct proc_id init,
			    struct brumate_error *err)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/environ", init.pid);
	int r = file_read(AT_FDCWD, path, ENVIRONMENT_BYTES_MAX, ret, ret_len);
	return r < 0 ? brumate_fail(err, -r, "%s: %s", path, strerror(-r)) : 0;
}

/* Values read by pid belong to this process only if it still exists. */
static int check_same(struct proc_id init, struct brumate_error *err)
{
	return proc_look(init) == PROC_ALIVE
		       ? 0
		       : brumate_fail(err, ESRCH, "the container has ended in the meantime");
}

/* What a child is to open, and the way back for it. */
struct inside {
	char root[64];
	const char *dir;
	int back_fd;
};

/* A file system in user space is the container's to answer, or not: nothing of it comes to us. */
static int send_inside(void *arg)
{
	const struct inside *in = arg;
	const struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
				      .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS |
						 RESOLVE_NO_MAGICLINKS };
	struct statfs fs;
	int root = open(in->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = root < 0 ? -1 : (int)syscall(SYS_openat2, root, in->dir, &how, sizeof(how));

	if (fd < 0 || fstatfs(fd, &fs) < 0)
		return errno;
	if (fs.f_type == FUSE_SUPER_MAGIC)
		return EREMOTEIO;
	ssize_t n = packet_send(in->back_fd, "", 1, &fd, 1, 0);
	return n < 0 ? (int)-n : 0;
}

static int take_inside(struct inside *in, int back[2])
{
	int fd = -1;
	char byte;
	struct packet_fds fds = { &fd, 1 };

	in->back_fd = back[1];
	int r = aside_run(send_inside, in, back[1], ANSWER_TIMEOUT_MS);
	if (r == 0) {
		ssize_t n = packet_receive(back[0], &byte, 1, &fds, 0);

		r = n < 0 ? (int)n : fds.n == 1 ? fd : -EMFILE;
	}
	return r;
}

static int open_inside(struct proc_id init, const char *dir, struct brumate_error *err)
{
	struct inside in = { .dir = dir };
	int back[2];

	snprintf(in.root, sizeof(in.root), "/proc/%d/root", init.pid);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, back) < 0)
		return brumate_fail(err, errno, "socket: %m");
	int r = take_inside(&in, back);
	close(back[0]);
	close(back[1]);
	if (r >= 0)
		return r;
	if (r == -ETIMEDOUT || r == -EREMOTEIO)
		return brumate_fail(err, EREMOTEIO,
				    "SNAPSHOT_CONTROL_DIR of the container, %.200s, is of a file "
				    "system in user space, which need not answer",
				    dir);
	return brumate_fail(err, -r, "SNAPSHOT_CONTROL_DIR of the container, %.200s: %m", dir);
}

int snapshot_control_open(struct snapshot_control *ret, struct proc_id init,
			  struct brumate_error *err)
{
	auto_(snapshot_control_fini) struct snapshot_control c = { .init = init, .dir_fd = -1 };
	auto_free char *environment = NULL;
	const char *dir = NULL;
	size_t len = 0;
	int r = read_environment(&environment, &len, init, err);

	for (size_t i = 0; i < 2 && r == 0 && !dir; i++)
		dir = find_variable(environment, len, variables[i]);
	if (r < 0 || !dir)
		return r;
	if (*dir != '/')
		return brumate_fail(err, EBADMSG,
				    "SNAPSHOT_CONTROL_DIR of the container is no absolute path");
	c.dir_fd = open_inside(init, dir, err);
	r = c.dir_fd < 0 ? c.dir_fd : check_same(init, err);
	if (r < 0)
		return r;
	*ret = take_struct(c, SNAPSHOT_CONTROL_NONE);
	return 1;
}

/* ---- what its program says ---- */

static int is_ready(const struct snapshot_control *c)
{
	struct statx st;

	/* What is mounted at that name is not asked. */
	if (statx(c->dir_fd, ready_file, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
		  STATX_TYPE, &st) == 0)
		return 1;
	return errno == ENOENT ? 0 : -errno;
}

/* Waits for a change in the directory, or the end of the container. */
static int wait_for_news(int watch, int pidfd, uint64_t deadline_ns)
{
	struct pollfd fds[] = { { .fd = watch, .events = POLLIN },
				{ .fd = pidfd, .events = POLLIN } };
	char events[4096];
	int n = poll(fds, 2, deadline_left_ms(deadline_ns));

	if (n < 0)
		return errno == EINTR ? -ECANCELED : -errno;
	if (n == 0)
		return -ETIMEDOUT;
	if (fds[1].revents)
		return -ESRCH;
	return read(watch, events, sizeof(events)) < 0 ? -errno : 0;
}

int snapshot_control_wait(const struct snapshot_control *c, uint64_t deadline_ns,
			  struct brumate_error *err)
{
	char path[64];
	auto_close int watch = inotify_init1(IN_CLOEXEC);
	auto_close int pidfd = proc_open(c->init);
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", c->dir_fd);
	if (watch < 0 || inotify_add_watch(watch, path, IN_CREATE | IN_MOVED_TO) < 0)
		return brumate_fail(err, errno, "SNAPSHOT_CONTROL_DIR: %m");
	if (pidfd < 0)
		return brumate_fail(err, -pidfd, "the container has ended in the meantime");
	while ((r = is_ready(c)) == 0)
		if ((r = wait_for_news(watch, pidfd, deadline_ns)) < 0)
			break;
	switch (r) {
	case -ETIMEDOUT:
		brumate_fail(err, ETIMEDOUT, "the container is not ready: it has written no %s",
			     ready_file);
		brumate_hint(err, "--timeout allows it more time");
		return r;
	case -ESRCH:
		return brumate_fail(err, ESRCH, "the container has ended and was never ready");
	case -ECANCELED:
		return brumate_fail(err, ECANCELED, "cancelled before the container was ready");
	default:
		return r < 0 ? brumate_fail(err, -r, "SNAPSHOT_CONTROL_DIR: %s", strerror(-r)) : 0;
	}
}

/* ---- what it is told ---- */

struct telling {
	const struct credentials *who;
	int dir_fd;
	const char *name;
};

/* In a child: as the user of the container's first process, without capabilities. */
static int write_as(void *arg)
{
	const struct telling *t = arg;
	const struct credentials *who = t->who;
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

	if (setgroups(who->n_groups, who->groups) < 0 ||
	    setresgid(who->gids[CREDENTIALS_FILES], who->gids[CREDENTIALS_FILES],
		      who->gids[CREDENTIALS_FILES]) < 0 ||
	    setresuid(who->uids[CREDENTIALS_FILES], who->uids[CREDENTIALS_FILES],
		      who->uids[CREDENTIALS_FILES]) < 0 ||
	    syscall(SYS_capset, &header, none) < 0)
		return errno;
	int fd = openat(t->dir_fd, t->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0644);
	return fd >= 0 || errno == EEXIST ? 0 : errno;
}

int snapshot_control_tell(const struct snapshot_control *c, const char *name,
			  struct brumate_error *err)
{
	auto_(credentials_fini) struct credentials who = CREDENTIALS_EMPTY;
	int r = credentials_read(&who, c->init.pid);

	if (r < 0)
		return brumate_fail(err, -r, "the rights of the container: %s", strerror(-r));
	r = check_same(c->init, err);
	if (r < 0)
		return r;
	r = aside_run(write_as, &(struct telling){ &who, c->dir_fd, name }, c->dir_fd,
		      ANSWER_TIMEOUT_MS);
	return r < 0 ? brumate_fail(err, -r, "%s in SNAPSHOT_CONTROL_DIR: %s", name, strerror(-r))
		     : 0;
}
