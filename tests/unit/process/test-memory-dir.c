// SPDX-License-Identifier: MIT
/* A directory in memory is bounded, has no path, and can be had by every user. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "process/memory-dir.h"

enum { USER = 60001, SKIPPED = 77 };

static void test_too_much(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(memory_dir_open(1ull << 60, &err) == -ENOMEM && strstr(err.text, "kept in memory"));
}

static void test_dir(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	static char fill[1 << 20];
	struct statfs fs;
	struct stat st;
	auto_close int dir_fd = memory_dir_open(1 << 20, &err);

	if (dir_fd < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(dir_fd >= 0);
	CHECK(fstatfs(dir_fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC);
	CHECK(fstat(dir_fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700);

	CHECK(mkdirat(dir_fd, "below", 0700) == 0);
	auto_close int fd = openat(dir_fd, "below/a", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && fd_write_full(fd, "text", 4) == 0 && fsync(fd) == 0);
	CHECK(fstat(fd, &st) == 0 && st.st_uid == geteuid() && st.st_gid == getegid());
	/* CRIU opens it so. */
	auto_free char *path = path_format("/proc/%d/fd/%d/below/a", getpid(), dir_fd);
	CHECK(path && access(path, R_OK) == 0);
	CHECK(fsync(dir_fd) == 0);

	auto_close int full = openat(dir_fd, "fill", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd_write_full(full, fill, sizeof(fill)) == -ENOSPC);
}

/* The exit status of a child. */
static int in_child(void (*function)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		function();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void become_user(void)
{
	if (geteuid() == 0 && (setresgid(USER, USER, USER) < 0 || setresuid(USER, USER, USER) < 0))
		_exit(SKIPPED);
	/* A change of ids takes it away, and with it our own files in /proc. exec(2) gives it back. */
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void try_namespace(void)
{
	become_user();
	_exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0 ? SKIPPED : 0);
}

static void test_as_user(void)
{
	become_user();
	test_dir();
}

/* No user may have one: it is said, with what helps. */
static void test_refused(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char path[] = "/tmp/brumate-fault-XXXXXX";

	become_user();
	auto_close int fd = mkstemp(path); /* the fault point removes it */
	CHECK(fd >= 0 && fd_write_full(fd, "memory-dir.namespace error:28\n", 30) == 0);
	CHECK(setenv("BRUMATE_FAULT_FILE", path, 1) == 0);
	CHECK(memory_dir_open(1 << 20, &err) == -EPERM);
	CHECK(strstr(err.text, "user namespace") && strstr(err.hint, "max_user_namespaces"));
}

int main(void)
{
	test_too_much();
	CHECK(in_child(test_refused) == 0);
	if (in_child(try_namespace) == SKIPPED) {
		printf("users can make no namespaces here\n");
		return SKIPPED;
	}
	if (geteuid() == 0)
		test_dir();
	CHECK(in_child(test_as_user) == 0);
	return 0;
}
