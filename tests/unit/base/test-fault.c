// SPDX-License-Identifier: MIT
/* Fault points fire once, at their own name, with the action that the file says. */
#include "scratch.h"

#include "base/clock.h"
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static int top;

static bool armed(void)
{
	return faccessat(top, "fault", F_OK, 0) == 0;
}

static void test_errors(void)
{
	static const struct {
		const char *line;
		int want;
	} rows[] = {
		{ "here error:28\n", -28 }, { "here error:-28\n", -28 }, { "here error:5", -5 },
		{ "here error\n", -EIO },   { "here delay:0\n", 0 },	 { "here nonsense\n", 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		put_text(top, "fault", rows[i].line);
		CHECK(fault_point("her") == 0 && fault_point("here.not") == 0 && armed());
		CHECK(fault_point("here") == rows[i].want);
		CHECK(!armed() && fault_point("here") == 0);
	}
	put_text(top, "fault", "here error:5\nthere error:7\nhere error:9\n");
	CHECK(fault_point("there") == 0 && fault_point("here") == -5 && armed());
	CHECK(fault_point("here") == 0 && fault_point("there") == -7 && armed());
	CHECK(fault_point("here") == -9 && !armed());
	put_text(top, "fault", "here\n");
	CHECK(fault_point("here") == 0);
	put_text(top, "fault", "");
	CHECK(fault_point("here") == 0 && fault_point("") == 0);
}

static void test_delay(void)
{
	uint64_t start = clock_now_ns();

	put_text(top, "fault", "here delay:50\n");
	CHECK(fault_point("here") == 0);
	CHECK(clock_since_s(start) >= 0.05);
}

static void *pass(void *arg)
{
	atomic_store((atomic_int *)arg, fault_point("here"));
	return NULL;
}

static void test_hold(void)
{
	pthread_t thread;
	atomic_int result = -1;
	int fd;

	put_text(top, "fault", "here hold\n");
	CHECK(pthread_create(&thread, NULL, pass, &result) == 0);
	while ((fd = openat(top, "fault.held", O_WRONLY | O_CLOEXEC)) < 0)
		CHECK(errno == ENOENT && result == -1);
	CHECK(pthread_join(thread, NULL) == 0 && result == 0 && !armed());
	CHECK(faccessat(top, "fault.held", F_OK, 0) < 0);
	close(fd);
}

static pid_t start_child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		pause();
		_exit(0);
	}
	return pid;
}

static void test_kill(void)
{
	int status;
	pid_t self = fork();

	CHECK(self >= 0);
	if (self == 0) {
		put_text(top, "fault", "here kill\n");
		fault_point("here");
		_exit(0);
	}
	CHECK(waitpid(self, &status, 0) == self);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !armed());

	pid_t job = start_child(), criu = start_child();
	fault_register_peer("job", job);
	fault_register_peer("criu", criu);
	fault_register_peer("criu", 0);
	put_text(top, "fault", "here kill:criu\n");
	CHECK(fault_point("here") == 0 && !armed()); /* forgotten: nobody dies */
	fault_register_peer("criu", criu);
	put_text(top, "fault", "here kill:criu\n");
	CHECK(fault_point("here") == 0);
	CHECK(waitpid(criu, &status, 0) == criu && WTERMSIG(status) == SIGKILL);
	CHECK(waitpid(job, &status, WNOHANG) == 0);
	put_text(top, "fault", "here kill:job\n");
	CHECK(fault_point("here") == 0);
	CHECK(waitpid(job, &status, 0) == job && WTERMSIG(status) == SIGKILL);
}

static void expect_stopped(pid_t pid)
{
	char text[32] = { 0 };
	int status;

	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) && !armed());
	int fd = openat(top, "fault.stopped", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && atoi(text) == pid);
	close(fd);
	CHECK(unlinkat(top, "fault.stopped", 0) == 0);
	CHECK(kill(pid, SIGCONT) == 0);
}

static void test_stop(void)
{
	int status;
	pid_t job = start_child();

	fault_register_peer("job", job);
	put_text(top, "fault", "here stop:job\n");
	CHECK(fault_point("here") == 0);
	expect_stopped(job);
	CHECK(kill(job, SIGKILL) == 0 && waitpid(job, &status, 0) == job);
	fault_register_peer("job", 0);
	put_text(top, "fault", "here stop:job\n");
	CHECK(fault_point("here") == 0 && !armed() && faccessat(top, "fault.stopped", F_OK, 0) < 0);

	put_text(top, "fault", "here stop\n");
	pid_t self = fork();

	CHECK(self >= 0);
	if (self == 0) {
		fault_point("here");
		_exit(0);
	}
	expect_stopped(self);
	CHECK(waitpid(self, &status, 0) == self && WIFEXITED(status));
}

int main(void)
{
	char path[PATH_MAX + 16];

	unsetenv("BRUMATE_FAULT_FILE");
	CHECK(fault_point("here") == 0);
	top = new_scratch();
	snprintf(path, sizeof(path), "%s/fault", scratch);
	setenv("BRUMATE_FAULT_FILE", path, 1);
	CHECK(fault_point("here") == 0); /* no file, no fault */
	test_errors();
	test_delay();
	test_hold();
	test_kill();
	test_stop();
	close(top);
	remove_scratch();
	return 0;
}
