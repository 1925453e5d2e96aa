// SPDX-License-Identifier: MIT
/* What threads tell of themselves to somebody who lacks CAP_SYS_NICE; see src/criu-plugin/tellings.c. */
#include "check.h"
#include "criu-plugin/plugin.h"
#include "sanitized.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { SLACK_NS = 77000, OTHER_SLACK_NS = 88000, SET_RULES = 65, GET_RULES = 66 };

static int told_pipe[2], end_pipe[2];

static void *second(void *arg)
{
	const pid_t tid = (pid_t)syscall(SYS_gettid);

	prctl(PR_SET_TIMERSLACK, OTHER_SLACK_NS);
	prctl(PR_SET_KEEPCAPS, 1);
	CHECK(write(told_pipe[1], &tid, sizeof(tid)) == sizeof(tid));
	for (;;)
		pause();
	return arg;
}

static pid_t start(pid_t *ret_second, bool has_keyring)
{
	CHECK(pipe(told_pipe) == 0 && pipe(end_pipe) == 0);
	const pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		pthread_t thread;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_TIMERSLACK, SLACK_NS);
		prctl(SET_RULES, 1, 0, 0, 0);
		if (has_keyring) {
			syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
			syscall(SYS_add_key, "user", "ticket", "x", 1, KEY_SPEC_SESSION_KEYRING);
		}
		CHECK(pthread_create(&thread, NULL, second, NULL) == 0);
		char word;
		const ssize_t n = read(end_pipe[0], &word, 1);
		_exit(n == 1 ? word : 1);
	}
	CHECK(read(told_pipe[0], ret_second, sizeof(*ret_second)) == sizeof(*ret_second));
	return pid;
}

static void seize(pid_t tid)
{
	int status;

	CHECK(ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
}

/* Who may do everything is told the timer slack of others. */
static void go_without_nice(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	CHECK(syscall(SYS_capget, &head, data) == 0);
	data[CAP_TO_INDEX(CAP_SYS_NICE)].effective &= ~CAP_TO_MASK(CAP_SYS_NICE);
	CHECK(syscall(SYS_capset, &head, data) == 0);
}

static const struct thread_told *find(const struct thread_tellings *t, pid_t tid)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->items[i].tid == tid)
			return &t->items[i];
	return NULL;
}

/* The wait in which it was asked goes on as if nothing had been. */
static void expect_goes_on(pid_t pid, pid_t other)
{
	const char word = 77;
	int status;

	CHECK(ptrace(PTRACE_DETACH, other, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	CHECK(write(end_pipe[1], &word, 1) == 1);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == word);
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0);
	while (waitpid(-1, NULL, __WALL) > 0) /* its threads, which we trace, too */
		;
}

int main(void)
{
	if (SANITIZED_THREADS) {
		printf("skip: a process has a thread of the sanitizer's own, which nobody "
		       "traces\n");
		return 77;
	}
	auto_free struct thread_tellings *t = calloc(1, sizeof(*t));
	pid_t other;
	const pid_t pid = start(&other, false);
	const bool has_rules = prctl(GET_RULES, 0, 0, 0, 0) >= 0;

	CHECK(t);
	seize(pid);
	seize(other);
	tellings_read(t, pid);
	const struct thread_told *of_process = find(t, pid), *of_thread;
	if (geteuid() == 0) /* the rest the kernel tells us */
		CHECK(t->n == has_rules && (!has_rules || (of_process->write_or_run == 1 &&
							   !of_process->timer_slack_ns)));
	go_without_nice();
	*t = (struct thread_tellings){ 0 };
	tellings_read(t, pid);
	of_process = find(t, pid);
	of_thread = find(t, other);
	CHECK(t->n_unknown == 0 && of_process && of_thread);
	CHECK(of_process->pid == pid && of_thread->pid == pid);
	CHECK(of_process->timer_slack_ns == SLACK_NS && !of_process->keeps_capabilities);
	CHECK(of_process->write_or_run == has_rules);
	CHECK(of_thread->timer_slack_ns == OTHER_SLACK_NS && of_thread->keeps_capabilities);
	CHECK(!of_thread->write_or_run && !t->n_keyrings);
	expect_goes_on(pid, other);
	if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) > 0) {
		const pid_t another = start(&other, true);

		seize(another);
		CHECK(tellings_read(t, another) == has_rules);
		CHECK(t->n_keyrings == 1);
		end(another);
	}
	return 0;
}
