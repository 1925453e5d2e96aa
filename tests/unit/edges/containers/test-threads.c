// SPDX-License-Identifier: MIT
/* Threads that a tracer holds step aside: they compute, they give locks up, and nothing of them is seen outside, nor is it lost. */
#include "check.h"
#include "edges/containers/plugin/threads.h"
#include "sanitized.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, PAGE = 4096 };

/* What parent and child see. */
static struct shared {
	_Atomic int tids[THREADS]; /* the main one, the worker, the caller, the one that faults */
	_Atomic long turns, calls, faults;
} * shared;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *page;

static void come(int place)
{
	shared->tids[place] = (int)syscall(SYS_gettid);
}

/* Mostly it holds the lock, and each of its turns takes calls that are about memory. */
static void *work(void *arg)
{
	come(1);
	for (;;) {
		pthread_mutex_lock(&lock);
		char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			       0);
		p[0] = 1;
		munmap(p, PAGE);
		shared->turns++;
		pthread_mutex_unlock(&lock);
	}
	return arg;
}

static void *call(void *arg)
{
	come(2);
	for (;;) {
		syscall(SYS_getppid);
		shared->calls++;
	}
	return arg;
}

static void handle_fault(int signal)
{
	shared->faults++;
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

static void *fault(void *arg)
{
	come(3);
	for (;;) {
		mprotect(page, PAGE, PROT_NONE);
		((volatile char *)page)[0] = 1;
	}
	return arg;
}

static _Noreturn void run_child(void)
{
	void *(*const functions[])(void *) = { work, call, fault };
	struct sigaction sa = { .sa_handler = handle_fault };
	pthread_t thread;
	sigset_t some;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&some);
	sigaddset(&some, SIGUSR2);
	sigprocmask(SIG_BLOCK, &some, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
		if (pthread_create(&thread, NULL, functions[i], NULL))
			_exit(2);
	come(0);
	for (;;)
		pause();
}

static void hold(pid_t tid)
{
	int status;

	CHECK(ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	if (status >> 16 != PTRACE_EVENT_STOP) { /* its fault was first */
		CHECK(ptrace(PTRACE_CONT, tid, NULL, (void *)(long)WSTOPSIG(status)) == 0);
		CHECK(waitpid(tid, &status, __WALL) == tid && status >> 16 == PTRACE_EVENT_STOP);
	}
}

static uint64_t mask_of(pid_t tid)
{
	uint64_t mask = 0;

	CHECK(ptrace(PTRACE_GETSIGMASK, tid, sizeof(mask), &mask) == 0);
	return mask;
}

static void wait_for(const _Atomic long *number, long more_than)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	while (*number <= more_than) /* the test's own time limit ends it */
		nanosleep(&pause, NULL);
}

static void check_that_they_step_aside(void)
{
	struct runner main_thread = { .tid = shared->tids[0], .is_agent = true };
	uint64_t masks[THREADS];

	for (int i = 0; i < THREADS; i++)
		hold(shared->tids[i]);
	for (int i = 0; i < THREADS; i++)
		masks[i] = mask_of(shared->tids[i]);
	CHECK(thread_let_run(&main_thread) == 0);
	struct bystanders *b = bystanders_find(&main_thread, 1);
	CHECK(b && bystanders_step(b) == 0);
	long turns = shared->turns, calls = shared->calls, faults = shared->faults;
	for (int i = 0; i < 100 && shared->turns == turns; i++)
		CHECK(bystanders_step(b) == 0);
	CHECK(shared->turns > turns);
	/* Whoever was just behind it has told so, and no more. */
	CHECK(shared->calls <= calls + 1 && shared->faults <= faults + 1);
	bystanders_free(b);
	CHECK(thread_stop_again(&main_thread) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(mask_of(shared->tids[i]) == masks[i]);
	for (int i = 0; i < THREADS; i++)
		CHECK(ptrace(PTRACE_DETACH, shared->tids[i], NULL, NULL) == 0);
	wait_for(&shared->turns, shared->turns);
	wait_for(&shared->calls, calls);
	wait_for(&shared->faults, faults);
}

static bool may(uint64_t nr, uint64_t first, uint64_t third, uint64_t fourth)
{
	const uint64_t arguments[6] = { first, 0, third, fourth, 0, 0 };

	return bystander_may_call(nr, arguments);
}

static void check_calls(void)
{
	CHECK(may(SYS_brk, 0, 0, 0) && may(SYS_futex, 0, 0, 0));
	CHECK(may(SYS_mmap, 0, 0, MAP_PRIVATE | MAP_ANONYMOUS));
	CHECK(!may(SYS_mmap, 0, 0, MAP_SHARED));
	CHECK(may(SYS_madvise, 0, MADV_DONTNEED, 0) && !may(SYS_madvise, 0, MADV_REMOVE, 0));
	CHECK(may(SYS_prctl, PR_SET_VMA, 0, 0) && !may(SYS_prctl, PR_SET_NAME, 0, 0));
	CHECK(!may(SYS_write, 0, 0, 0) && !may(SYS_ioctl, 0, 0, 0) &&
	      !may(SYS_exit_group, 0, 0, 0));
	CHECK(!may(SYS_rt_sigreturn, 0, 0, 0) && !may(SYS_rt_sigprocmask, 0, 0, 0));
}

int main(void)
{
	check_calls();
	if (SANITIZED_THREADS)
		SKIP("the sanitizer puts signals off");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		run_child();
	wait_for(&shared->turns, 10);
	wait_for(&shared->calls, 10);
	wait_for(&shared->faults, 10);
	while (!shared->tids[0])
		;
	for (int i = 0; i < 3; i++)
		check_that_they_step_aside();
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	return 0;
}
