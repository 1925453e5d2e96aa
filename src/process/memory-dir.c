// SPDX-License-Identifier: MIT
/* Directories in memory; see memory-dir.h. The child is forked from a program with threads, so what runs in it is
 * async-signal-safe. */
#include "process/memory-dir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mount.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/machine.h"
#include "base/packet.h"
#include "base/size.h"
#include "process/reap.h"

enum { ID_MAP_BYTES = 48, SIZE_BYTES = 32 };

/* Names of what is written in the child, made before it: snprintf(3) is not for children. */
struct texts {
	char size[SIZE_BYTES];
	char uids[ID_MAP_BYTES], gids[ID_MAP_BYTES];
};

static void make_texts(struct texts *ret, uint64_t max_bytes)
{
	snprintf(ret->size, sizeof(ret->size), "%" PRIu64, max_bytes);
	snprintf(ret->uids, sizeof(ret->uids), "%u %u 1", geteuid(), geteuid());
	snprintf(ret->gids, sizeof(ret->gids), "%u %u 1", getegid(), getegid());
}

/* By system calls: these are newer than the C library has to be. */
static int mount_tmpfs(const struct texts *t)
{
	auto_close int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);

	if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", t->size, 0) < 0 ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0700", 0) < 0)
		return -errno;
	/* Since 6.4, and not in a user namespace. */
	syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "noswap", NULL, 0);
	if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -errno;
	int fd = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
			      MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	return fd < 0 ? -errno : fd;
}

/* ---- for who may not mount ---- */

static int write_text(const char *path, const char *text)
{
	auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_full(fd, text, strlen(text));
}

/* In the namespace we are who we are outside, so that files made from outside are those of the same user. */
static int map_ids(const struct texts *t)
{
	int r = write_text("/proc/self/setgroups", "deny"); /* without it no group may be mapped */

	if (r == 0)
		r = write_text("/proc/self/uid_map", t->uids);
	return r == 0 ? write_text("/proc/self/gid_map", t->gids) : r;
}

static _Noreturn void child_main(const struct texts *t, int socket_fd)
{
	int code = -map_ids(t);
	auto_close int fd = code ? -1 : mount_tmpfs(t);

	if (!code && fd < 0)
		code = -fd;
	packet_send(socket_fd, &code, sizeof(code), &fd, fd >= 0, DEADLINE_NEVER);
	_exit(0);
}

static int receive_dir(int socket_fd)
{
	int fd = -1, code;
	struct packet_fds fds = { .items = &fd, .room = 1 };
	ssize_t n = packet_receive(socket_fd, &code, sizeof(code), &fds, DEADLINE_NEVER);

	if (n < 0)
		return (int)n;
	if (fds.state == PACKET_LOST_FDS)
		return -EMFILE;
	if (n != (ssize_t)sizeof(code) || (code == 0 && fds.n != 1))
		return -EPIPE;
	return code ? -code : fd;
}

/* Under the lock of reaping: nobody else waits for the child. No handler of ours runs in it. */
static int fork_child(const struct texts *t)
{
	int pair[2], status;
	sigset_t all, before;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	auto_close int ours = pair[0];
	auto_close int theirs = pair[1];
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
	int code = pid < 0 ? -errno : 0;

	if (pid == 0)
		child_main(t, theirs);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return code;
	close(take_fd(&theirs));
	int fd = receive_dir(ours);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return fd;
}

static int mount_in_namespace(const struct texts *t)
{
	int r = fault_point("memory-dir.namespace");

	if (r < 0)
		return r;
	reap_lock();
	r = fork_child(t);
	reap_unlock();
	return r;
}

static int refuse(int code, struct brumate_error *err)
{
	brumate_fail(err, EPERM,
		     "no file system in memory can be had, and nothing may reach a disk in the "
		     "clear: neither root's rights nor a user namespace (%s)",
		     strerror(code));
	brumate_hint(err,
		     "allow users to make user namespaces (user.max_user_namespaces), let root "
		     "make and restore encrypted checkpoints, or put the store on an "
		     "encrypted file system");
	return -EPERM;
}

int memory_dir_open(uint64_t max_bytes, struct brumate_error *err)
{
	uint64_t available = machine_room_bytes();
	struct texts texts;

	if (max_bytes > available) {
		brumate_fail(err, ENOMEM,
			     "the plain text, which is kept in memory, needs %s; %s are "
			     "available",
			     SIZE_TEXT(max_bytes), SIZE_TEXT(available));
		return -ENOMEM;
	}
	make_texts(&texts, max_bytes);
	auto_close int mounted = mount_tmpfs(&texts);
	bool alone = mounted == -EPERM;
	if (alone)
		mounted = mount_in_namespace(&texts);
	/* A limit of the namespaces' number (ENOSPC, EUSERS), or a security module (EACCES), forbids it as well. */
	if (alone &&
	    (mounted == -EPERM || mounted == -EACCES || mounted == -ENOSPC || mounted == -EUSERS))
		return refuse(-mounted, err);
	if (mounted < 0)
		return brumate_fail(err, -mounted, "a file system in memory: %s",
				    strerror(-mounted));
	/* What fsmount(2) gives is a place only (O_PATH): this one can be listed and synced. */
	int fd = openat(mounted, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? brumate_fail(err, errno, "a file system in memory: %m") : fd;
}
