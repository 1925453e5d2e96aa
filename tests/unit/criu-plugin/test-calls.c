// SPDX-License-Identifier: MIT
/* Waits that a tracer interrupts begin anew, as what they were, also where another stop has interrupted them before. */
#include "check.h"
#include "criu-plugin/calls.h"
#include "sanitized.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <sys/user.h>

/* ---- what the code and the arguments of a call tell ---- */

enum { BASE = 0x10000, BYTES = 256 };

static bool word_of(void *arg, uint64_t address, uint64_t *ret)
{
	const uint8_t *bytes = arg;

	if (address < BASE || address + sizeof(*ret) > BASE + BYTES)
		return false;
	memcpy(ret, bytes + (address - BASE), sizeof(*ret));
	return true;
}

static void test_code(void)
{
	static const struct {
		uint8_t code[12];
		int64_t nr;
	} cases[] = {
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_poll, 0, 0, 0, 0x0f, 0x05 }, SYS_poll },
		{ { 0, 0, 0, 0x48, 0xc7, 0xc0, SYS_nanosleep, 0, 0, 0, 0x0f, 0x05 },
		  SYS_nanosleep },
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_futex, 0, 0, 0, 0x0f, 0x05 }, SYS_futex },
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_clock_nanosleep, 0, 0, 0, 0x0f, 0x05 },
		  SYS_clock_nanosleep },
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_exit, 0, 0, 0, 0x0f, 0x05 }, -1 },
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_poll, 0, 0, 1, 0x0f, 0x05 }, -1 },
		{ { 0, 0, 0, 0, 0, 0xb9, SYS_poll, 0, 0, 0, 0x0f, 0x05 }, -1 },
		{ { 0, 0, 0, 0, 0, 0xb8, SYS_poll, 0, 0, 0, 0xcd, 0x80 }, -1 },
	};
	uint8_t bytes[BYTES] = { 0 };

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (size_t at = 16; at < 32; at++) {
			memcpy(bytes + at - 12, cases[i].code, 12);
			CHECK(call_by_code(BASE + at, word_of, bytes) == cases[i].nr);
		}
	CHECK(call_by_code(BASE + 4, word_of, bytes) == -1);
}

static void test_arguments(void)
{
	const struct timespec time = { 3600, 5 }, bad = { 1, 1000000000 };
	enum { TIME = BASE, BAD = BASE + 16, SET = BASE + 32, NOWHERE = 1 << 30 };
	const struct {
		uint64_t arguments[4];
		const char *wchan;
		int64_t nr;
	} cases[] = {
		{ { SET, 2, 1000, 0 }, "poll_schedule_timeout.constprop.0", SYS_poll },
		{ { 0, 0, 1000, 0 }, "do_restart_poll", SYS_poll },
		{ { SET, FUTEX_WAIT_PRIVATE, 0, TIME }, "futex_do_wait", SYS_futex },
		{ { SET, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, TIME },
		  "futex_wait_queue",
		  SYS_futex },
		{ { SET, FUTEX_WAIT, 0, TIME }, "", -1 },
		{ { SET, FUTEX_WAKE, 0, TIME }, "futex_do_wait", -1 },
		{ { TIME, 0, 77, 0 }, "hrtimer_nanosleep", SYS_nanosleep },
		{ { TIME, SET, 77, 0 }, "do_syscall_64", SYS_nanosleep },
		{ { TIME, 0, 77, 0 }, "0", -1 }, /* or a poll(2) of no descriptors */
		{ { BAD, 0, 77, 0 }, "hrtimer_nanosleep", -1 },
		{ { CLOCK_MONOTONIC, 0, TIME, 0 }, "hrtimer_nanosleep", SYS_clock_nanosleep },
		{ { (uint32_t)-6, 0, TIME, SET }, "do_cpu_nanosleep", SYS_clock_nanosleep },
		{ { CLOCK_MONOTONIC, TIMER_ABSTIME, TIME, 0 }, "hrtimer_nanosleep", -1 },
		{ { NOWHERE, 3, 1000, 0 }, "do_poll", -1 },
		{ { NOWHERE, NOWHERE, NOWHERE, NOWHERE }, "", -1 },
	};
	uint8_t bytes[BYTES] = { 0 };

	memcpy(bytes + TIME - BASE, &time, sizeof(time));
	memcpy(bytes + BAD - BASE, &bad, sizeof(bad));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		CHECK(call_by_arguments(cases[i].arguments, cases[i].wchan, word_of, bytes) ==
		      cases[i].nr);
}

/* ---- traced processes ---- */

static const struct timespec awhile = { .tv_nsec = 400000000 };

static int by_poll(void)
{
	return poll(NULL, 0, (int)(awhile.tv_nsec / 1000000)) ? errno : 0;
}

static int by_nanosleep(void)
{
	return syscall(SYS_nanosleep, &awhile, NULL) ? errno : 0;
}

static int by_clock_nanosleep(void)
{
	return clock_nanosleep(CLOCK_MONOTONIC, 0, &awhile, NULL);
}

static int by_futex(void)
{
	int word = 0;

	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &awhile, NULL, 0);
	return errno == ETIMEDOUT ? 0 : errno;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void stay_until(pid_t pid, const char *state)
{
	char path[64], text[512];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	do {
		FILE *file = fopen(path, "r");
		CHECK(file);
		text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
		fclose(file);
	} while (strncmp(strrchr(text, ')'), state, strlen(state)) != 0);
}

static void stop(pid_t pid)
{
	int status;

	CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
}

/* Waits; and once more from the moment on at which a tracer has looked at it. @before: stops that come before. */
static void must_begin_anew(int (*wait)(void), int before, int64_t nr)
{
	struct user_regs_struct r;
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(wait());
	stay_until(pid, ") S");
	for (int i = 0; i < before; i++) {
		CHECK(kill(pid, SIGSTOP) == 0);
		stay_until(pid, ") T");
		CHECK(kill(pid, SIGCONT) == 0);
		stay_until(pid, ") S");
	}
	stop(pid);
	CHECK(calls_restart(pid) == 0);
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &r) == 0);
	CHECK((int64_t)r.rax == -514 && (int64_t)r.orig_rax == nr);
	const uint64_t start_ns = now_ns();
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(now_ns() - start_ns >= (uint64_t)awhile.tv_nsec);
}

static void on_signal(int signal)
{
	(void)signal;
}

/* A signal that it handles has come: the call fails with EINTR, as it would. */
static void must_be_left_alone(void)
{
	struct user_regs_struct r;
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		signal(SIGUSR1, on_signal);
		_exit(by_nanosleep() == EINTR ? 0 : 1);
	}
	stay_until(pid, ") S");
	stop(pid);
	CHECK(kill(pid, SIGUSR1) == 0);
	CHECK(calls_restart(pid) == 0);
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &r) == 0 && (int64_t)r.rax == -516);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_traced(void)
{
	for (int before = 0; before < 3; before++) {
		must_begin_anew(by_poll, before, SYS_poll);
		must_begin_anew(by_nanosleep, before, SYS_nanosleep);
		must_begin_anew(by_clock_nanosleep, before, SYS_clock_nanosleep);
		must_begin_anew(by_futex, before, SYS_futex);
	}
	must_be_left_alone();
}

#else

static void test_code(void)
{
}

static void test_arguments(void)
{
}

static void test_traced(void)
{
}

#endif

/* ---- signals ---- */

static void test_signals(void)
{
	static const char status[] = "Name:\tx\nSigPnd:\t%s\nShdPnd:\t%s\nSigBlk:\t%s\nSigIgn:\t0\n"
				     "SigCgt:\t0000000000000202\nCapInh:\t0\n";
	static const struct {
		const char *own, *shared, *blocked;
		bool is_interrupted;
	} cases[] = {
		{ "0000000000000000", "0000000000000000", "0000000000000000", false },
		{ "0000000000000200", "0000000000000000", "0000000000000000", true },
		{ "0000000000000000", "0000000000000002", "0000000000000000", true },
		{ "0000000000000202", "0000000000000000", "0000000000000202", false },
		{ "0000000000020000", "0000000000000000", "0000000000000000", false },
	};
	char text[512];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		snprintf(text, sizeof(text), status, cases[i].own, cases[i].shared,
			 cases[i].blocked);
		CHECK(call_is_interrupted(text) == cases[i].is_interrupted);
	}
	CHECK(!call_is_interrupted(""));
}

int main(void)
{
	test_code();
	test_arguments();
	test_signals();
	if (SANITIZED_THREADS)
		SKIP("the thread sanitizer has a thread of its own, which nobody traces");
	test_traced();
	return 0;
}
