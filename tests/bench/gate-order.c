// SPDX-License-Identifier: MIT
/*
 * gate-order [ROUNDS]: counts how often two threads that each store one word, and then load that of the other, see nothing of each
 * other, with no fence in between and with membarrier(2) in the second one, as the gate's closer makes it (interpose/core/gate.c).
 * The first count says whether this machine shows what the gate has to be safe from; the second has to be 0, else it exits with 1.
 * It needs two processors for itself.
 */
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TRIES = 1 << 14, SPINS = 3000 };

static struct {
	_Alignas(64) volatile int entered;
	_Alignas(64) volatile int closed;
} cells[TRIES];
static int seen[2][TRIES];
static struct {
	_Alignas(128) atomic_long round, step;
} pace[2];
static long rounds;
static bool has_fence;

static void meet(int me, long round)
{
	atomic_store(&pace[me].round, round);
	while (atomic_load(&pace[!me].round) < round)
		sched_yield();
}

/* Both at the same cell, unless the other one is not running. */
static void keep_step(int me, long step)
{
	atomic_store(&pace[me].step, step);
	for (int i = 0; i < SPINS && atomic_load(&pace[!me].step) < step; i++)
		;
}

static void enter(long at)
{
	cells[at].entered = 1;
	seen[0][at] = cells[at].closed;
}

static void close_gate(long at)
{
	cells[at].closed = 1;
	if (has_fence)
		syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	seen[1][at] = cells[at].entered;
}

static long count_passed(void)
{
	long passed = 0;

	for (long i = 0; i < TRIES; i++)
		passed += !seen[0][i] && !seen[1][i];
	memset((void *)cells, 0, sizeof(cells));
	return passed;
}

static void *run_side(void *arg)
{
	const int me = arg != NULL;
	static long passed; /* the entering thread's alone */

	for (long r = 0; r < rounds; r++) {
		meet(me, 2 * r + 1);
		for (long i = 0; i < TRIES; i++) {
			keep_step(me, r * TRIES + i);
			(me ? close_gate : enter)(i);
		}
		meet(me, 2 * r + 2);
		if (!me)
			passed += count_passed();
	}
	return &passed;
}

static long run(bool fence)
{
	pthread_t closer;

	has_fence = fence;
	memset(pace, 0, sizeof(pace));
	if (pthread_create(&closer, NULL, run_side, pace))
		exit(2);
	long *passed = run_side(NULL), n;
	pthread_join(closer, NULL);
	n = *passed;
	*passed = 0;
	printf("%s: %ld of %ld passed a closed gate\n", fence ? "membarrier" : "no fence", n,
	       rounds * TRIES);
	return n;
}

int main(int argc, char **argv)
{
	rounds = argc > 1 ? atol(argv[1]) : 600;
	if (rounds <= 0 || syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
		return 2;
	if (!run(false))
		printf("this machine did not show it: this proves nothing\n");
	return run(true) != 0;
}
