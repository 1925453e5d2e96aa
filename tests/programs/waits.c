// SPDX-License-Identifier: MIT
/*
 * System calls that wait for a relative time, in the first thread of a process and in another one. Nobody sends these
 * processes a signal that they handle, so each wait lasts as long as it was told to, or longer, and none fails. A step is done
 * once each has been through another wait.
 */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { WAIT_MS = 700, ENDS_MS = 10000 };
#define NS_PER_MS 1000000LL

static const struct timespec wait_time = { .tv_nsec = WAIT_MS * NS_PER_MS };

static int by_poll(void)
{
	return poll(NULL, 0, WAIT_MS) < 0 ? errno : 0;
}

static int by_nanosleep(void)
{
	return syscall(SYS_nanosleep, &wait_time, NULL) < 0 ? errno : 0;
}

static int by_clock_nanosleep(void)
{
	return clock_nanosleep(CLOCK_MONOTONIC, 0, &wait_time, NULL);
}

static int by_futex(void)
{
	int word = 1;

	errno = 0;
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &wait_time, NULL, 0);
	return errno == ETIMEDOUT ? 0 : errno ? errno : -1;
}

static const struct {
	const char *name;
	int (*wait)(void);
} ways[] = { { "poll", by_poll },
	     { "nanosleep", by_nanosleep },
	     { "clock_nanosleep", by_clock_nanosleep },
	     { "futex", by_futex } };
enum { WAYS = sizeof(ways) / sizeof(ways[0]), WAITERS = 2 * WAYS };

/* Of all, in memory that they share. */
struct waiter {
	atomic_ullong n;
	atomic_int error; /* 0: none yet; -1: it ended early */
};
static struct waiter *waiters;

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 * NS_PER_MS + now.tv_nsec;
}

static void *wait_again_and_again(void *arg)
{
	struct waiter *w = arg;
	const size_t way = (size_t)(w - waiters) % WAYS;

	for (;;) {
		long long start = now_ns();
		int error = ways[way].wait();

		if (!error && now_ns() - start < WAIT_MS * NS_PER_MS)
			error = -1;
		if (error)
			atomic_store(&w->error, error);
		atomic_fetch_add(&w->n, 1);
	}
	return NULL;
}

static void start_process(size_t way)
{
	pthread_t other;
	pid_t pid = fork();

	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (pid > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (pthread_create(&other, NULL, wait_again_and_again, &waiters[way]))
		_exit(1);
	wait_again_and_again(&waiters[WAYS + way]);
}

static void say_wrong(void *state)
{
	for (size_t i = 0; i < WAITERS; i++) {
		int error = atomic_load(&waiters[i].error);

		if (error)
			printf("%s in %s: %s; ", ways[i % WAYS].name,
			       i < WAYS ? "another thread" : "the first thread",
			       error < 0 ? "ended early" : strerror(error));
	}
}

static bool step(void *state, uint64_t n)
{
	unsigned long long before[WAITERS];
	const long long ends_ns = now_ns() + ENDS_MS * NS_PER_MS;
	bool right = true;

	for (size_t i = 0; i < WAITERS; i++)
		before[i] = atomic_load(&waiters[i].n);
	for (size_t i = 0; i < WAITERS; i++)
		while (atomic_load(&waiters[i].n) == before[i] && now_ns() < ends_ns)
			usleep(5000);
	for (size_t i = 0; i < WAITERS; i++)
		right = right && !atomic_load(&waiters[i].error);
	return right && now_ns() < ends_ns;
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1 };

	options_parse(&options, argc, argv, "waits [--steps N]");
	waiters = mmap(NULL, WAITERS * sizeof(*waiters), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (waiters == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	for (size_t i = 0; i < WAYS; i++)
		start_process(i);
	steps_run(&options, step, say_wrong, NULL);
	return 0;
}
