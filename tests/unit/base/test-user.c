// SPDX-License-Identifier: MIT
/* Files touched with the rights of another user, by one thread while others keep theirs. */
#include "base/user.h"

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "scratch.h"

enum { SOMEBODY = 12345, THEIRS = 23456 };

static int top;

static bool may_write(const char *name)
{
	auto_close int fd = openat(top, name, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 || errno == EACCES);
	return fd >= 0;
}

/* What the kernel says of this thread: "Uid:\treal\teffective\tsaved\tfiles". */
static void check_ids(unsigned real, unsigned effective, bool may_all)
{
	auto_free char *text = NULL;
	unsigned ids[4];
	unsigned long long caps;

	CHECK(file_read(AT_FDCWD, "/proc/thread-self/status", 1 << 16, &text, NULL) == 0);
	CHECK(sscanf(strstr(text, "Uid:"), "Uid: %u %u %u %u", &ids[0], &ids[1], &ids[2],
		     &ids[3]) == 4);
	CHECK(ids[0] == real && ids[1] == effective && ids[2] == real && ids[3] == effective);
	CHECK(sscanf(strstr(text, "CapEff:"), "CapEff: %llx", &caps) == 1);
	CHECK((caps != 0) == may_all);
}

static void test_rights(void)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	struct stat st;

	put_text(top, "roots", "");
	put_text(top, "theirs", "");
	put_text(top, "of-group", "");
	CHECK(fchownat(top, "theirs", SOMEBODY, THEIRS, 0) == 0);
	CHECK(fchownat(top, "of-group", 0, THEIRS, 0) == 0 &&
	      fchmodat(top, "of-group", 0660, 0) == 0);
	CHECK(fchmod(top, 0777) == 0);
	CHECK(may_write("roots") && may_write("theirs"));

	CHECK(user_files_enter(&user, SOMEBODY, THEIRS, NULL) == 0);
	check_ids(0, SOMEBODY, false);
	CHECK(!may_write("roots") && may_write("theirs") && may_write("of-group"));
	CHECK(mkdirat(top, "made", 0700) == 0);
	CHECK(fstatat(top, "made", &st, 0) == 0 && st.st_uid == SOMEBODY && st.st_gid == THEIRS);
}

/* A thread of before, as those of a shim are. */
static int go[2];

static void *wait_and_look(void *arg)
{
	char c;

	CHECK(read(go[0], &c, 1) == 1);
	check_ids(0, 0, true);
	CHECK(may_write("roots"));
	return NULL;
}

static void test_one_thread_alone(void)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	pthread_t thread;

	CHECK(pipe(go) == 0 && fchmod(top, 0777) == 0);
	put_text(top, "roots", "");
	CHECK(pthread_create(&thread, NULL, wait_and_look, NULL) == 0);
	CHECK(user_files_enter(&user, SOMEBODY, THEIRS, NULL) == 0);
	CHECK(write(go[1], "x", 1) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(!may_write("roots"));
	user_files_leave(&user);
	check_ids(0, 0, true);
	CHECK(may_write("roots"));
	CHECK(prctl(PR_GET_DUMPABLE) == 1);
}

/* Root's own groups open nothing to a user, and are root's again afterwards. */
static void test_groups(void)
{
	struct user_files user;
	const gid_t roots[] = { 4711, 4712 };
	gid_t now[8];

	CHECK(setgroups(2, roots) == 0);
	put_text(top, "of-4711", "");
	CHECK(fchownat(top, "of-4711", 0, 4711, 0) == 0 && fchmodat(top, "of-4711", 0060, 0) == 0);
	CHECK(user_files_enter(&user, SOMEBODY, THEIRS, NULL) == 0);
	CHECK(!may_write("of-4711"));
	user_files_leave(&user);
	CHECK(getgroups(8, now) == 2 && now[0] == 4711 && now[1] == 4712);
}

/* ---- signals ---- */

/* A process of that user which does nothing. */
static pid_t process_of(uid_t uid)
{
	int ready[2];
	char c;

	CHECK(pipe(ready) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(user_become(uid, uid, NULL, 0) == 0);
		check_ids(uid, uid, uid == 0);
		CHECK(getgroups(0, NULL) == 0 && getegid() == uid);
		CHECK(write(ready[1], "r", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &c, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static bool may_signal(pid_t pid)
{
	CHECK(kill(pid, 0) == 0 || errno == EPERM);
	return kill(pid, 0) == 0;
}

/* Whether user @uid may signal this thread. */
static bool may_be_signalled_by(uid_t uid)
{
	pid_t me = getpid(), thread = (pid_t)syscall(SYS_gettid);
	int status;
	/* The child begins with the rights of this thread, and goes back to root's first. */
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		if (setresuid(0, 0, 0) < 0 || setresuid(uid, uid, uid) < 0)
			_exit(2);
		_exit(syscall(SYS_tgkill, me, thread, 0) == 0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) < 2);
	return WEXITSTATUS(status);
}

static void test_signals(void)
{
	struct user_signals user;
	const pid_t theirs = process_of(SOMEBODY), roots = process_of(0),
		    others = process_of(SOMEBODY + 1);

	CHECK(may_signal(theirs) && may_signal(roots) && may_signal(others));
	CHECK(user_signals_enter(&user, SOMEBODY) == 0 && user.entered);
	CHECK(may_signal(theirs) && !may_signal(roots) && !may_signal(others));
	CHECK(!may_be_signalled_by(SOMEBODY));
	user_signals_leave(&user);
	check_ids(0, 0, true);
	CHECK(may_signal(roots) && prctl(PR_GET_DUMPABLE) == 1);
	CHECK(user_signals_enter(&user, 0) == 0 && !user.entered);
	user_signals_leave(&user);
	for (int i = 0; i < 3; i++) {
		const pid_t pid = (const pid_t[]){ theirs, roots, others }[i];

		CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	}
}

static void test_nothing_to_do(void)
{
	struct user_files user;

	CHECK(user_files_enter(&user, 0, 0, NULL) == 0);
	CHECK(!user.entered);
	user_files_leave(&user);
	user_files_leave(&user);
}

static void test_not_root(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct user_files user;

	CHECK(setgroups(0, NULL) == 0 && setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0);
	CHECK(user_files_enter(&user, SOMEBODY, THEIRS, NULL) == 0);
	CHECK(user_files_enter(&user, SOMEBODY + 1, THEIRS, &err) == -EPERM);
	CHECK(strstr(err.text, "only root"));
}

static void test_of_the_database(void)
{
	auto_free gid_t *groups = NULL;
	size_t n;

	CHECK(user_groups(&groups, &n, 0, 0, NULL) == 0);
	CHECK(n >= 1 && groups[0] == 0);
	cleanup_free(&groups);
	CHECK(user_groups(&groups, &n, 0x7ffffff0, 77, NULL) == 0);
	CHECK(n == 1 && groups[0] == 77);
}

int main(void)
{
	if (geteuid() != 0)
		SKIP("needs root, who alone can act for others");
	top = new_scratch();
	test_of_the_database();
	test_rights();
	remove_scratch();
	top = new_scratch();
	test_one_thread_alone();
	test_groups();
	test_nothing_to_do();
	test_signals();
	remove_scratch();
	test_not_root();
	return 0;
}
