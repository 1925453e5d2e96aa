// SPDX-License-Identifier: MIT
/* Kinds of open files: on disks and in memory, pipes, events, timers, watches. */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 5000, BUSY_MS = 1000 };

/* An open file with bytes in it, at some offset. */
static int file_with_bytes(const char *path, int flags)
{
	char bytes[FILE_BYTES];
	int fd =
		open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600 + chance(8) * 8 + chance(8));

	pattern(bytes, sizeof(bytes));
	if (fd < 0 || write(fd, bytes, sizeof(bytes)) != sizeof(bytes))
		return -1;
	close(fd);
	fd = open(path, flags);
	if (fd >= 0 && (flags & O_PATH) == 0)
		lseek(fd, chance(FILE_BYTES), SEEK_SET);
	return fd;
}

static bool make_file(void)
{
	return look_at_fd(file_with_bytes(new_path(""), kind->detail | (chance(2) ? O_CLOEXEC : 0)),
			  "fd");
}

static bool make_high_number(void)
{
	int fd = file_with_bytes(new_path(""), O_RDWR);

	return look_at_fd(fcntl(fd, F_DUPFD, 500 + chance(400)), "fd") && close(fd) == 0;
}

/* Two that share an offset, and one that does not. */
static int shared_fds[3];

static bool make_shared_offset(void)
{
	const char *path = new_path("");

	shared_fds[0] = file_with_bytes(path, O_RDWR);
	shared_fds[1] = dup(shared_fds[0]);
	shared_fds[2] = open(path, O_RDWR);
	return look_at_fd(shared_fds[0], "one") && look_at_fd(shared_fds[1], "same") &&
	       look_at_fd(shared_fds[2], "other");
}

static const char *use_shared_offset(void)
{
	off_t was = lseek(shared_fds[0], 0, SEEK_CUR), other = lseek(shared_fds[2], 0, SEEK_CUR);

	lseek(shared_fds[1], 77, SEEK_SET);
	if (lseek(shared_fds[0], 0, SEEK_CUR) != 77 || lseek(shared_fds[2], 0, SEEK_CUR) != other)
		return "offsets are not shared as before";
	lseek(shared_fds[0], was, SEEK_SET);
	return NULL;
}

static bool make_deleted(void)
{
	const char *path = new_path("");
	int fd = file_with_bytes(path, O_RDWR);

	return unlink(path) == 0 && look_at_fd(fd, "fd");
}

static bool make_deleted_linked(void)
{
	const char *path = new_path(""), *other = new_path("-link");
	int fd = file_with_bytes(path, O_RDWR);

	return link(path, other) == 0 && unlink(path) == 0 && look_at_fd(fd, "fd") &&
	       look_at_path(other, "link");
}

static bool make_renamed(void)
{
	const char *path = new_path("");
	int fd = file_with_bytes(path, O_RDWR);

	return rename(path, new_path("-renamed")) == 0 && look_at_fd(fd, "fd");
}

static bool make_replaced(void)
{
	const char *path = new_path(""), *new = new_path("-new");
	int fd = file_with_bytes(path, O_RDWR);

	close(file_with_bytes(new, O_RDWR));
	return rename(new, path) == 0 && look_at_fd(fd, "fd") && look_at_path(path, "path");
}

static bool make_tmpfile(void)
{
	char dir[4096];

	snprintf(dir, sizeof(dir), "%s", new_path(""));
	*strrchr(dir, '/') = '\0';
	int fd = open(dir, O_TMPFILE | O_RDWR, 0600);
	return fd >= 0 && write(fd, "hello", 5) == 5 && look_at_fd(fd, "fd");
}

static bool make_sparse(void)
{
	int fd = open(new_path(""), O_RDWR | O_CREAT, 0600);

	return ftruncate(fd, (off_t)1 << 33) == 0 &&
	       pwrite(fd, "end", 3, ((off_t)1 << 33) - 3) == 3 && look_at_fd(fd, "fd");
}

static bool make_xattr(void)
{
	int fd = file_with_bytes(new_path(""), O_RDWR);

	return fsetxattr(fd, "user.brumate", "value", 5, 0) == 0 && look_at_fd(fd, "fd");
}

static bool make_deleted_xattr(void)
{
	const char *path = new_path("");
	int fd = file_with_bytes(path, O_RDWR);

	return fsetxattr(fd, "user.brumate", "value", 5, 0) == 0 && unlink(path) == 0 &&
	       look_at_fd(fd, "fd");
}

static bool make_directory(void)
{
	const char *path = new_path("");
	char entries[64];

	if (mkdir(path, 0700 + chance(64)) < 0)
		return false;
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	if (kind->detail && rmdir(path) < 0)
		return false;
	return (kind->detail || syscall(SYS_getdents64, fd, entries, 32) >= 0) &&
	       look_at_fd(fd, "fd");
}

static bool make_symlink(void)
{
	const char *path = new_path("");

	return symlink("nowhere", path) == 0 && look_at_fd(open(path, O_PATH | O_NOFOLLOW), "fd");
}

static bool make_device(void)
{
	static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/random",
					       "/dev/urandom", "/dev/full" };

	return look_at_fd(open(devices[kind->detail], chance(2) ? O_RDWR : O_RDONLY), "fd");
}

static bool make_proc(void)
{
	static const char *const files[] = { "/proc/self/maps", "/proc/meminfo",
					     "/proc/self/ns/uts", "/sys/kernel/mm", "/proc/self" };

	return look_at_fd(open(files[kind->detail], O_RDONLY), "fd");
}

static bool make_owned(void)
{
	int ends[2];
	struct f_owner_ex owner = { chance(2) ? F_OWNER_PID : F_OWNER_PGRP,
				    chance(2) ? getpid() : getpgrp() };

	return pipe(ends) == 0 && fcntl(ends[0], F_SETOWN_EX, &owner) == 0 &&
	       fcntl(ends[0], F_SETSIG, SIGRTMIN + 3) == 0 && look_at_fd(ends[0], "read") &&
	       look_at_fd(ends[1], "write");
}

/* ---- locks ---- */

static int lock_fd;

static bool make_posix_lock(void)
{
	struct flock lock = { .l_type = chance(2) ? F_WRLCK : F_RDLCK,
			      .l_start = chance(100),
			      .l_len = chance(100) };

	lock_fd = file_with_bytes(new_path(""), O_RDWR);
	return fcntl(lock_fd, kind->detail, &lock) == 0 && look_at_fd(lock_fd, "fd");
}

static bool make_flock(void)
{
	int fd = file_with_bytes(new_path(""), O_RDWR);

	return flock(fd, kind->detail) == 0 && look_at_fd(fd, "fd");
}

static bool make_lease(void)
{
	int fd = file_with_bytes(new_path(""), kind->detail == F_RDLCK ? O_RDONLY : O_RDWR);

	return fcntl(fd, F_SETLEASE, kind->detail) == 0 && look_at_fd(fd, "fd");
}

/* ---- memfds ---- */

static bool make_memfd(void)
{
	int fd = memfd_create("object", (unsigned)kind->detail);
	char bytes[FILE_BYTES];

	pattern(bytes, sizeof(bytes));
	if (fd < 0 || (kind->detail & MFD_HUGETLB ? ftruncate(fd, 2 << 20) < 0
						  : write(fd, bytes, sizeof(bytes)) < 0))
		return false;
	if (kind->detail & MFD_ALLOW_SEALING)
		fcntl(fd, F_ADD_SEALS, (int)(1 + chance(15)));
	return look_at_fd(fd, "fd");
}

static bool make_memfd_read_only(void)
{
	char path[64];
	int fd = memfd_create("object", 0);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return write(fd, "hello", 5) == 5 && look_at_fd(open(path, O_RDONLY), "read") &&
	       look_at_fd(fd, "write");
}

static bool make_shm(void)
{
	char name[64];

	snprintf(name, sizeof(name), "/dev/shm/objects-%d-%u", (int)getpid(), chance(1 << 30));
	int fd = file_with_bytes(name, O_RDWR);
	if (kind->detail)
		unlink(name);
	return look_at_fd(fd, "fd");
}

/* ---- pipes ---- */

static int pipe_fds[2];

static bool make_pipe(void)
{
	char bytes[300];

	pattern(bytes, sizeof(bytes));
	return pipe2(pipe_fds, kind->detail) == 0 &&
	       write(pipe_fds[1], bytes, 100 + chance(200)) > 0 &&
	       look_at_fd(pipe_fds[0], "read") && look_at_fd(pipe_fds[1], "write");
}

static int empty_pipe[2];

static bool make_empty_pipe(void)
{
	return pipe2(empty_pipe, O_CLOEXEC) == 0 &&
	       fcntl(empty_pipe[1], F_SETPIPE_SZ, 4096 << chance(6)) > 0 &&
	       look_at_fd(empty_pipe[0], "read") && look_at_fd(empty_pipe[1], "write");
}

static const char *use_empty_pipe(void)
{
	return passes(empty_pipe[1], empty_pipe[0]) ? NULL : "does not pass";
}

static bool make_full_pipe(void)
{
	int ends[2];
	char bytes[4096];

	if (pipe2(ends, O_NONBLOCK) < 0)
		return false;
	pattern(bytes, sizeof(bytes));
	while (write(ends[1], bytes, sizeof(bytes)) > 0)
		;
	return look_at_fd(ends[0], "read") && look_at_fd(ends[1], "write");
}

static bool make_half_pipe(void)
{
	int ends[2];

	if (pipe(ends) < 0 || write(ends[1], "left", 4) != 4)
		return false;
	close(ends[kind->detail]);
	return look_at_fd(ends[!kind->detail], "end");
}

static int fifo_fd;

static bool make_fifo(void)
{
	const char *path = new_path("");

	if (mkfifo(path, 0600) < 0)
		return false;
	fifo_fd = open(path, O_RDWR | O_NONBLOCK);
	if (kind->detail)
		unlink(path);
	return look_at_fd(fifo_fd, "fd");
}

static const char *use_fifo(void)
{
	return passes(fifo_fd, fifo_fd) ? NULL : "does not pass";
}

/* ---- events ---- */

static bool make_eventfd(void)
{
	return look_at_fd(eventfd(chance(1000), kind->detail), "fd");
}

static int semaphore_fd;

static bool make_semaphore(void)
{
	return look_at_fd(semaphore_fd = eventfd(7, EFD_SEMAPHORE | EFD_NONBLOCK), "fd");
}

static const char *use_semaphore(void)
{
	uint64_t n = 0, one = 1;

	if (read(semaphore_fd, &n, 8) != 8 || n != 1)
		return "is no semaphore";
	return write(semaphore_fd, &one, 8) == 8 ? NULL : "takes nothing";
}

static bool make_signalfd(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (int i = 0; i < 5; i++)
		sigaddset(&set, (int)(SIGRTMIN + 4 + chance(20)));
	return look_at_fd(signalfd(-1, &set, SFD_NONBLOCK), "fd");
}

static bool make_pidfd(void)
{
	pid_t pid = kind->detail ? idle_child(NULL) : getpid();

	return look_at_fd((int)syscall(SYS_pidfd_open, pid, chance(2) ? O_NONBLOCK : 0), "fd");
}

/* ---- timers ---- */

static int ticks_fds[16];

static bool make_periodic(void)
{
	struct itimerspec spec = { .it_interval.tv_nsec = 1000000 * (1 + chance(30)),
				   .it_value.tv_nsec = 1 };

	int fd = ticks_fds[kind->detail] = timerfd_create(kind->detail, TFD_NONBLOCK);
	return fd >= 0 && timerfd_settime(fd, 0, &spec, NULL) == 0 && look_at_fd(fd, "fd");
}

/* It expired many times unread, and goes on ticking. */
static const char *use_periodic(void)
{
	uint64_t n;

	for (int i = 0; i < 2; i++)
		if (!is_readable(ticks_fds[kind->detail], BUSY_MS) ||
		    read(ticks_fds[kind->detail], &n, 8) != 8)
			return i ? "does not tick again" : "does not tick";
	return NULL;
}

static int expired_fd;

static bool make_expired(void)
{
	struct itimerspec spec = { .it_value.tv_nsec = 1 };

	expired_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	return timerfd_settime(expired_fd, 0, &spec, NULL) == 0 &&
	       is_readable(expired_fd, BUSY_MS) && look_at_fd(expired_fd, "fd");
}

static const char *use_expired(void)
{
	return is_readable(expired_fd, 100) ? NULL : "expired, and is not readable any more";
}

static bool make_distant(void)
{
	struct timespec now;
	struct itimerspec spec = { .it_value.tv_sec = 100000 };

	clock_gettime(kind->detail, &now);
	bool absolute = chance(2);
	spec.it_value.tv_sec += absolute ? now.tv_sec : 0;
	int fd = timerfd_create(kind->detail, 0);
	return fd >= 0 && timerfd_settime(fd, absolute ? TFD_TIMER_ABSTIME : 0, &spec, NULL) == 0 &&
	       look_at_fd(fd, "fd");
}

static bool make_unarmed(void)
{
	return look_at_fd(timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC), "fd");
}

static int cancel_fd;

static bool make_cancelled(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	struct itimerspec spec = { .it_value.tv_sec = now.tv_sec + 100000 };
	cancel_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
	return timerfd_settime(cancel_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &spec,
			       NULL) == 0 &&
	       look_at_fd(cancel_fd, "fd");
}

/* ---- watches ---- */

static int epoll_fd, epoll_pipe[2];

static bool make_epoll(void)
{
	static const uint32_t how[] = { 0, EPOLLET, EPOLLONESHOT, EPOLLRDHUP, EPOLLEXCLUSIVE };

	epoll_fd = epoll_create1(chance(2) ? EPOLL_CLOEXEC : 0);
	for (int i = 0; i < 4; i++) {
		struct epoll_event event = { .events = EPOLLIN | how[chance(5)],
					     .data.u64 = chance(1 << 30) };
		int fd = eventfd(0, 0);

		if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
			return false;
	}
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 99 };
	return pipe(epoll_pipe) == 0 &&
	       epoll_ctl(epoll_fd, EPOLL_CTL_ADD, epoll_pipe[0], &event) == 0 &&
	       look_at_fd(epoll_fd, "fd");
}

static const char *use_epoll(void)
{
	struct epoll_event event;
	char byte;

	if (write(epoll_pipe[1], "x", 1) != 1 || !is_readable(epoll_fd, BUSY_MS) ||
	    epoll_wait(epoll_fd, &event, 1, 0) != 1 || event.data.u64 != 99)
		return "does not wake";
	return read(epoll_pipe[0], &byte, 1) == 1 ? NULL : "reads nothing";
}

static bool make_nested_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 };
	int inner = epoll_create1(0), outer = epoll_create1(0), fd = eventfd(0, 0);

	return epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event) == 0 &&
	       epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0 && look_at_fd(inner, "inner") &&
	       look_at_fd(outer, "outer");
}

/* The number is closed, the description lives on under another. */
static int orphan_epoll, orphan_pipe[2];

static bool make_epoll_without_number(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 5 };

	if (pipe(orphan_pipe) < 0)
		return false;
	orphan_epoll = epoll_create1(0);
	if (epoll_ctl(orphan_epoll, EPOLL_CTL_ADD, orphan_pipe[0], &event) < 0)
		return false;
	int other = dup(orphan_pipe[0]);
	close(orphan_pipe[0]);
	orphan_pipe[0] = other;
	return look_at_fd(orphan_epoll, "fd");
}

static const char *use_epoll_without_number(void)
{
	struct epoll_event event;
	char byte;

	if (write(orphan_pipe[1], "x", 1) != 1 || epoll_wait(orphan_epoll, &event, 1, BUSY_MS) != 1)
		return "does not wake";
	return read(orphan_pipe[0], &byte, 1) == 1 ? NULL : "reads nothing";
}

static int watch_fd;
static const char *watched;

static bool make_inotify(void)
{
	watched = new_path("");
	watch_fd = inotify_init1(IN_NONBLOCK);
	return mkdir(watched, 0700) == 0 &&
	       inotify_add_watch(watch_fd, watched, IN_CREATE | IN_DELETE) >= 0 &&
	       inotify_add_watch(watch_fd, "/tmp", IN_DELETE_SELF) >= 0 &&
	       look_at_fd(watch_fd, "fd");
}

static const char *use_inotify(void)
{
	char path[4200], events[4096];

	snprintf(path, sizeof(path), "%s/touched", watched);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	unlink(path);
	bool told = is_readable(watch_fd, BUSY_MS);
	while (read(watch_fd, events, sizeof(events)) > 0)
		;
	return told ? NULL : "tells nothing";
}

static int deleted_watch, deleted_file;

static bool make_inotify_deleted(void)
{
	const char *path = new_path("");

	deleted_file = file_with_bytes(path, O_RDWR);
	deleted_watch = inotify_init1(IN_NONBLOCK);
	return inotify_add_watch(deleted_watch, path, IN_MODIFY) >= 0 && unlink(path) == 0 &&
	       look_at_fd(deleted_watch, "fd") && look_at_fd(deleted_file, "file");
}

static const char *use_inotify_deleted(void)
{
	char events[4096];

	if (pwrite(deleted_file, "x", 1, 0) != 1)
		return "cannot be written";
	bool told = is_readable(deleted_watch, BUSY_MS);
	while (read(deleted_watch, events, sizeof(events)) > 0)
		;
	return told ? NULL : "tells nothing";
}

static bool make_fanotify(void)
{
	const char *path = new_path("");
	int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);

	return mkdir(path, 0700) == 0 &&
	       fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, path) == 0 &&
	       look_at_fd(fd, "fd");
}

/* ---- terminals ---- */

static int master_fd, slave_fd;

static bool make_terminal(void)
{
	struct winsize size = { .ws_row = 11, .ws_col = 77 };

	if (openpty(&master_fd, &slave_fd, NULL, NULL, &size) < 0)
		return false;
	struct termios t;
	tcgetattr(slave_fd, &t);
	if (kind->detail)
		cfmakeraw(&t);
	t.c_cc[VMIN] = (cc_t)(1 + chance(5));
	tcsetattr(slave_fd, TCSANOW, &t);
	return look_at_fd(master_fd, "master") && look_at_fd(slave_fd, "slave");
}

#define OPEN_KIND(title, flags)                           \
	{                                                 \
		"file-" title, make_file, .detail = flags \
	}

const struct kind kinds_of_files[] = {
	OPEN_KIND("read-only", O_RDONLY),
	OPEN_KIND("write-only", O_WRONLY),
	OPEN_KIND("read-write", O_RDWR),
	OPEN_KIND("append", O_RDWR | O_APPEND),
	OPEN_KIND("nonblock", O_RDWR | O_NONBLOCK),
	OPEN_KIND("sync", O_RDWR | O_SYNC),
	OPEN_KIND("dsync", O_RDWR | O_DSYNC),
	OPEN_KIND("direct", O_RDWR | O_DIRECT),
	OPEN_KIND("noatime", O_RDONLY | O_NOATIME),
	OPEN_KIND("path", O_PATH),
	OPEN_KIND("nofollow", O_RDONLY | O_NOFOLLOW),
	{ "file-high-number", make_high_number },
	{ "file-shared-offset", make_shared_offset, use_shared_offset },
	{ "file-deleted", make_deleted },
	{ "file-deleted-linked", make_deleted_linked },
	{ "file-renamed", make_renamed },
	{ "file-replaced", make_replaced },
	{ "file-tmpfile", make_tmpfile },
	{ "file-sparse", make_sparse },
	{ "file-xattr", make_xattr },
	{ "file-deleted-xattr", make_deleted_xattr },
	{ "file-shm", make_shm },
	{ "file-shm-deleted", make_shm, .detail = 1 },
	{ "directory", make_directory },
	{ "directory-deleted", make_directory, .detail = 1 },
	{ "symlink", make_symlink },
	{ "device-null", make_device, .detail = 0 },
	{ "device-zero", make_device, .detail = 1 },
	{ "device-random", make_device, .detail = 2 },
	{ "device-urandom", make_device, .detail = 3 },
	{ "device-full", make_device, .detail = 4 },
	{ "proc-maps", make_proc, .detail = 0 },
	{ "proc-meminfo", make_proc, .detail = 1 },
	{ "proc-namespace", make_proc, .detail = 2 },
	{ "sys-directory", make_proc, .detail = 3 },
	{ "proc-directory", make_proc, .detail = 4 },
	{ "owner-of-signals", make_owned },
	{ "lock-posix", make_posix_lock, .detail = F_SETLK },
	{ "lock-ofd", make_posix_lock, .detail = F_OFD_SETLK },
	{ "lock-flock-shared", make_flock, .detail = LOCK_SH },
	{ "lock-flock", make_flock, .detail = LOCK_EX },
	{ "lease-read", make_lease, .detail = F_RDLCK },
	{ "lease-write", make_lease, .detail = F_WRLCK },
	{ "memfd", make_memfd },
	{ "memfd-cloexec", make_memfd, .detail = MFD_CLOEXEC },
	{ "memfd-sealed", make_memfd, .detail = MFD_ALLOW_SEALING },
	{ "memfd-huge", make_memfd, .detail = MFD_HUGETLB },
	{ "memfd-noexec", make_memfd, .detail = 8 },
	{ "memfd-read-only", make_memfd_read_only },
	{ "pipe-data", make_pipe },
	{ "pipe-data-nonblock", make_pipe, .detail = O_NONBLOCK },
	{ "pipe-packets", make_pipe, .detail = O_DIRECT },
	{ "pipe-empty", make_empty_pipe, use_empty_pipe },
	{ "pipe-full", make_full_pipe },
	{ "pipe-no-reader", make_half_pipe, .detail = 0 },
	{ "pipe-no-writer", make_half_pipe, .detail = 1 },
	{ "fifo", make_fifo, use_fifo },
	{ "fifo-deleted", make_fifo, use_fifo, .detail = 1 },
	{ "eventfd", make_eventfd },
	{ "eventfd-nonblock", make_eventfd, .detail = EFD_NONBLOCK },
	{ "eventfd-semaphore", make_semaphore, use_semaphore },
	{ "signalfd", make_signalfd },
	{ "pidfd-self", make_pidfd },
	{ "pidfd-child", make_pidfd, .detail = 1 },
	{ "timerfd-periodic-realtime", make_periodic, use_periodic, CLOCK_REALTIME },
	{ "timerfd-periodic-monotonic", make_periodic, use_periodic, CLOCK_MONOTONIC },
	{ "timerfd-periodic-boottime", make_periodic, use_periodic, CLOCK_BOOTTIME },
	{ "timerfd-expired", make_expired, use_expired },
	{ "timerfd-distant-realtime", make_distant, .detail = CLOCK_REALTIME },
	{ "timerfd-distant-monotonic", make_distant, .detail = CLOCK_MONOTONIC },
	{ "timerfd-distant-boottime", make_distant, .detail = CLOCK_BOOTTIME },
	{ "timerfd-distant-alarm", make_distant, .detail = CLOCK_BOOTTIME_ALARM },
	{ "timerfd-unarmed", make_unarmed },
	{ "timerfd-cancelled", make_cancelled },
	{ "epoll", make_epoll, use_epoll },
	{ "epoll-nested", make_nested_epoll },
	{ "epoll-without-number", make_epoll_without_number, use_epoll_without_number },
	{ "inotify", make_inotify, use_inotify },
	{ "inotify-deleted", make_inotify_deleted, use_inotify_deleted },
	{ "fanotify", make_fanotify },
	{ "terminal", make_terminal },
	{ "terminal-raw", make_terminal, .detail = 1 },
	{ 0 },
};
