// SPDX-License-Identifier: MIT
/* A place apart: what becomes of which mount, and that what is done there is done there alone. */
#include "process/apart.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "little.h"

static void kinds(void)
{
	CHECK(apart_kind_of("ext4", "/") == APART_OVERLAY);
	CHECK(apart_kind_of("tmpfs", "/dev/shm") == APART_OVERLAY);
	CHECK(apart_kind_of("tmpfs", "/dev") == APART_READ_ONLY);
	CHECK(apart_kind_of("tmpfs", "/sys/fs/cgroup") == APART_READ_ONLY);
	CHECK(apart_kind_of("cgroup2", "/anywhere") == APART_READ_ONLY);
	CHECK(apart_kind_of("devpts", "/dev/pts") == APART_LIKE_IT);
	CHECK(apart_kind_of("proc", "/proc") == APART_LEFT_OUT);
	CHECK(apart_kind_of("fuse.sshfs", "/mnt") == APART_FAR);
	CHECK(apart_kind_of("nfs4", "/home") == APART_FAR);
}

struct files {
	char dir[64], kept[96], changed[96], removed[96], made[96];
};

static void write_file(const char *path, const char *text)
{
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

static long size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) < 0 ? -1 : (long)st.st_size;
}

/* The kernel's own file systems have no programs. */
static int all_are_nosuid(void)
{
	FILE *f = fopen("/proc/self/mounts", "re");
	char line[4096], path[1024], options[1024];
	int n = 0;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*s %1023s %*s %1023s", path, options) != 2 ||
		    !strstr(options, "nosuid"))
			return 5;
		n++;
	}
	return f && n ? 0 : 6;
}

/* In a child that has entered the place: 0, or the number of what is not as it should be. */
static int change_all(const struct files *f)
{
	int fd = open(f->changed, O_RDWR | O_CLOEXEC);

	if (fd < 0 || size_of(f->changed) != 1 << 20 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return 1;
	if (size_of(f->kept) != 4 || unlink(f->removed) < 0 || size_of(f->removed) != -1)
		return 2;
	int made = open(f->made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (made < 0 || write(made, "new", 3) != 3 || write(fd, "other", 5) != 5)
		return 3;
	return access("/proc/self/status", R_OK) < 0 || access("/dev/null", W_OK) < 0
		       ? 4
		       : all_are_nosuid();
}

static int changed_apart(pid_t init, const struct files *f)
{
	const int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC |
			  (geteuid() ? CLONE_NEWUSER : 0);
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int fd = (int)syscall(SYS_pidfd_open, init, 0);

		if (fd < 0 || setns(fd, flags) < 0)
			_exit(9);
		pid = fork(); /* its children are in the pid namespace */
		if (pid == 0)
			_exit(change_all(f));
		_exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
									   : 8);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void nothing_comes_out(void)
{
	struct files f;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(apart_end) struct apart a = APART_NONE;

	snprintf(f.dir, sizeof(f.dir), "/tmp/brumate-apart-XXXXXX");
	CHECK(mkdtemp(f.dir));
	snprintf(f.kept, sizeof(f.kept), "%s/kept", f.dir);
	snprintf(f.changed, sizeof(f.changed), "%s/changed", f.dir);
	snprintf(f.removed, sizeof(f.removed), "%s/removed", f.dir);
	snprintf(f.made, sizeof(f.made), "%s/made", f.dir);
	write_file(f.kept, "kept");
	write_file(f.changed, "this is longer than it will be");
	write_file(f.removed, "");
	auto_close int lock = open(f.changed, O_RDWR | O_CLOEXEC);
	CHECK(lock >= 0 && flock(lock, LOCK_EX) == 0);

	const char *folders[] = { f.dir };
	const struct apart_stand_in stand_ins[] = { { f.changed, 1 << 20 } };
	const struct apart_view view = { .folders = folders,
					 .n_folders = 1,
					 .stand_ins = stand_ins,
					 .n_stand_ins = 1,
					 .highest_pid = 5000 };
	int r = apart_start(&a, &view, &err);
	if (r < 0 && brumate_exit_code(&err) == EXIT_UNSUPPORTED)
		SKIP("%s", err.text);
	CHECK(r == 0);
	CHECK(changed_apart(a.init.pid, &f) == 0);
	const struct proc_id init = a.init;
	apart_end(&a);
	CHECK(proc_is_gone(init));

	CHECK(size_of(f.changed) == 30 && size_of(f.removed) == 0 && size_of(f.made) == -1);
	CHECK(unlink(f.kept) == 0 && unlink(f.changed) == 0 && unlink(f.removed) == 0 &&
	      rmdir(f.dir) == 0);
}

int main(void)
{
	kinds();
	nothing_comes_out();
	return 0;
}
