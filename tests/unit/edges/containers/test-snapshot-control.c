// SPDX-License-Identifier: MIT
/* The directory by which a container is told of its snapshot: found by the environment of its first process, written to, and
 * not waited for where it is of a file system that does not answer. */
#include "edges/containers/snapshot-control.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "check.h"

static char dir[] = "/tmp/brumate-control-XXXXXX";

/* A process whose environment names @path. */
static struct proc_id start_init(const char *path)
{
	char variable[128], *env[] = { variable, NULL },
			    *argv[] = { (char *)"sleep", (char *)"600", NULL };
	struct proc_info info = { 0 };
	int go[2];
	char byte;

	snprintf(variable, sizeof(variable), "SNAPSHOT_CONTROL_DIR=%s", path);
	CHECK(pipe2(go, O_CLOEXEC) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		execve("/bin/sleep", argv, env);
		_exit(127);
	}
	close(go[1]);
	CHECK(read(go[0], &byte, 1) == 0); /* it runs its program */
	close(go[0]);
	CHECK(proc_read(&info, pid, NULL) == 0);
	return info.id;
}

static void end_init(struct proc_id id)
{
	CHECK(kill(id.pid, SIGKILL) == 0 && waitpid(id.pid, NULL, 0) == id.pid);
}

static void one_that_answers(void)
{
	auto_(snapshot_control_fini) struct snapshot_control c = SNAPSHOT_CONTROL_NONE;
	struct proc_id init = start_init(dir);
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(snapshot_control_open(&c, init, &err) == 1 && c.dir_fd >= 0);
	CHECK(snapshot_control_wait(&c, deadline_in_ms(50), &err) == -ETIMEDOUT);
	close(openat(c.dir_fd, "ready-for-snapshot", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	CHECK(snapshot_control_wait(&c, deadline_in_ms(10000), &err) == 0);
	CHECK(snapshot_control_tell(&c, SNAPSHOT_COMPLETE, &err) == 0);
	CHECK(faccessat(c.dir_fd, SNAPSHOT_COMPLETE, F_OK, 0) == 0);
	CHECK(snapshot_control_tell(&c, SNAPSHOT_COMPLETE, &err) == 0); /* it stays */
	end_init(init);
}

static void one_that_is_not_there(void)
{
	struct snapshot_control c = SNAPSHOT_CONTROL_NONE;
	struct proc_id init = start_init("/tmp/brumate-no-such-directory");

	CHECK(snapshot_control_open(&c, init, NULL) == -ENOENT && c.dir_fd < 0);
	end_init(init);
}

/* Nobody reads its questions. */
static bool mount_silent(int *ret, const char *path)
{
	char options[64];

	*ret = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", *ret);
	return *ret >= 0 && unshare(CLONE_NEWNS) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(path, 0700) == 0 &&
	       mount("test", path, "fuse", 0, options) == 0;
}

static void one_that_does_not_answer(void)
{
	struct snapshot_control c = SNAPSHOT_CONTROL_NONE;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char at[64], inside[80];
	int fuse_fd;

	snprintf(at, sizeof(at), "%s/silent", dir);
	snprintf(inside, sizeof(inside), "%s/control", at);
	if (!mount_silent(&fuse_fd, at)) {
		puts("not tried: a directory of a file system that does not answer");
		return;
	}
	struct proc_id init = start_init(inside);
	uint64_t start_ns = clock_now_ns();

	CHECK(snapshot_control_open(&c, init, &err) == -EREMOTEIO && c.dir_fd < 0);
	CHECK(clock_since_s(start_ns) < 20 && strstr(err.text, "need not answer"));
	end_init(init);
	CHECK(umount2(at, MNT_FORCE) == 0 || umount2(at, MNT_DETACH) == 0);
	close(fuse_fd);
}

int main(void)
{
	if (geteuid()) {
		puts("skip: to become another user takes root");
		return 77;
	}
	CHECK(mkdtemp(dir));
	one_that_answers();
	one_that_is_not_there();
	one_that_does_not_answer();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
