// SPDX-License-Identifier: MIT
/*
 * Host memory in the shapes that programs have, every byte of it accounted for: full, sparse, touched
 * but zero, the heap, huge pages, an odd size, and what a child shares with its parent after a fork.
 * Each step checks all of it and writes it anew. With a word as its argument: "alone" (no child) or
 * "threads" (no child, and threads that sleep).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

#define PAGE_WORDS 512

/* Pages of which every @every-th is written to. */
struct shape {
	uint64_t *p;
	uint64_t n_pages, every;
	bool zero;
};

enum { FULL, SPARSE, ZERO, HEAP, HUGE, ODD, SHAPES };

static struct shape shapes[SHAPES];
static int to_child = -1, from_child = -1;

static uint64_t word(size_t shape, uint64_t i, uint64_t n)
{
	uint64_t x = i * 0x9e3779b97f4a7c15ull + n + (shape << 56);

	return x ^ x >> 29;
}

static uint64_t *map(uint64_t n_pages)
{
	void *p = mmap(NULL, n_pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

static void make_shapes(size_t mib)
{
	uint64_t n = (mib << 20) / 4096;

	shapes[FULL] = (struct shape){ map(n), n, 1, false };
	shapes[SPARSE] = (struct shape){ map(n * 4), n * 4, 5, false };
	shapes[ZERO] = (struct shape){ map(n / 2), n / 2, 1, true };
	shapes[HEAP] = (struct shape){ sbrk((intptr_t)(n / 2 * 4096)), n / 2, 1, false };
	shapes[HUGE] = (struct shape){ map(n), n, 1, false };
	shapes[ODD] = (struct shape){ map(n / 2 + 1), n / 2 + 1, 1, false };
	madvise(shapes[HUGE].p, n * 4096, MADV_HUGEPAGE);
}

static void write_shape(size_t k, uint64_t n)
{
	struct shape *s = &shapes[k];

	for (uint64_t page = 0; page < s->n_pages; page += s->every)
		for (uint64_t i = page * PAGE_WORDS; i < (page + 1) * PAGE_WORDS; i++)
			((volatile uint64_t *)s->p)[i] = s->zero ? 0 : word(k, i, n);
}

/* Of the pages in between a few are looked at, as that makes pages of them. */
static bool check_shape(size_t k, uint64_t n)
{
	const struct shape *s = &shapes[k];

	for (uint64_t page = 0; page < s->n_pages; page += s->every) {
		for (uint64_t i = page * PAGE_WORDS; i < (page + 1) * PAGE_WORDS; i++)
			if (s->p[i] != (s->zero ? 0 : word(k, i, n)))
				return false;
		if (s->every > 1 && page % 1000 == 0 && s->p[(page + 1) * PAGE_WORDS])
			return false;
	}
	return true;
}

/* Shares with its parent what neither writes to; one shape it has written for itself. */
static void child(int in, int out)
{
	uint64_t n;

	write_shape(FULL, 99);
	while (read(in, &n, sizeof(n)) == sizeof(n)) {
		bool right = check_shape(FULL, 99) && check_shape(ODD, 0);

		if (write(out, &right, sizeof(right)) < 0)
			break;
	}
	_exit(0);
}

static bool ask_child(uint64_t n)
{
	bool right = false;

	if (to_child < 0)
		return true;
	return write(to_child, &n, sizeof(n)) == sizeof(n) &&
	       read(from_child, &right, sizeof(right)) == sizeof(right) && right;
}

static bool step(void *state, uint64_t n)
{
	(void)state;
	for (size_t k = 0; k < SHAPES; k++) {
		/* What the child shares is never written to. */
		bool is_shared = k == ODD && to_child >= 0;

		if (!check_shape(k, is_shared ? 0 : n - 1))
			return false;
		if (!is_shared)
			write_shape(k, n);
	}
	return ask_child(n);
}

static void *idle(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void start_child(void)
{
	int to[2], from[2];

	if (pipe(to) < 0 || pipe(from) < 0)
		exit(2);
	if (!fork()) {
		close(to[1]);
		close(from[0]);
		child(to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	to_child = to[1];
	from_child = from[0];
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 16, .chunk_mib = 1, .interval_ms = 1 };
	pthread_t threads[8];

	options_parse(&options, argc, argv, "memory [alone | threads] [--mib 16]");
	make_shapes(options.mib);
	for (size_t k = 0; k < SHAPES; k++)
		write_shape(k, 0);
	if (!options.word)
		start_child();
	else if (!strcmp(options.word, "threads"))
		for (size_t i = 0; i < 8; i++)
			pthread_create(&threads[i], NULL, idle, NULL);
	steps_run(&options, step, NULL, NULL);
	return 0;
}
