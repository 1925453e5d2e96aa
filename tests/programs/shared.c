// SPDX-License-Identifier: MIT
/*
 * Memory that two processes share: a memfd that both have mapped and open, anonymous shared memory, a private
 * view of the memfd, and, with the word "huge", huge pages that are shared and that are not. In each step one
 * process writes what the other one checks, and the other way round: so it is right only while it is shared.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

#define PAGE_WORDS 512
#define HUGE_BYTES (4u << 20)

enum { BY_FD, ANONYMOUS, HUGE_SHARED, SHAPES };

static struct shape {
	volatile uint64_t *p;
	size_t n_pages;
} shapes[SHAPES];
static volatile uint64_t *view, *huge_own; /* private: of the parent alone */
static size_t n_view;
static int fd, to_child, from_child;

static uint64_t word(size_t shape, size_t i, uint64_t n)
{
	uint64_t x = i * 0x9e3779b97f4a7c15ull + n + ((uint64_t)shape << 56);

	return x ^ x >> 29;
}

static uint64_t *map(size_t len_bytes, int flags, int from_fd)
{
	void *p = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, flags, from_fd, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

/* Pages @first, @first + 2 … of all that is shared. */
static void write_half(size_t first, uint64_t n)
{
	for (size_t k = 0; k < SHAPES; k++)
		for (size_t page = first; page < shapes[k].n_pages; page += 2)
			for (size_t i = page * PAGE_WORDS; i < (page + 1) * PAGE_WORDS; i++)
				shapes[k].p[i] = word(k, i, n);
}

static bool check_half(size_t first, uint64_t n)
{
	for (size_t k = 0; k < SHAPES; k++)
		for (size_t page = first; page < shapes[k].n_pages; page += 2)
			for (size_t i = page * PAGE_WORDS; i < (page + 1) * PAGE_WORDS; i++)
				if (shapes[k].p[i] != word(k, i, n))
					return false;
	return true;
}

/* The open memfd is the memory that is mapped. */
static bool check_fd(void)
{
	uint64_t first;

	return pread(fd, &first, sizeof(first), 0) == sizeof(first) && first == shapes[BY_FD].p[0];
}

/* Of the view, every fourth page was written to and is no longer that of the memfd. */
static void write_own(uint64_t n)
{
	for (size_t i = 0; i < n_view * PAGE_WORDS; i += 4 * PAGE_WORDS)
		view[i] = word(SHAPES, i, n);
	for (size_t i = 0; huge_own && i < HUGE_BYTES / sizeof(uint64_t); i += PAGE_WORDS)
		huge_own[i] = word(SHAPES + 1, i, n);
}

static bool check_own(uint64_t n)
{
	for (size_t i = 0; i < n_view * PAGE_WORDS; i += PAGE_WORDS)
		if (view[i] != (i % (4 * PAGE_WORDS) ? shapes[BY_FD].p[i] : word(SHAPES, i, n)))
			return false;
	for (size_t i = 0; huge_own && i < HUGE_BYTES / sizeof(uint64_t); i += PAGE_WORDS)
		if (huge_own[i] != word(SHAPES + 1, i, n))
			return false;
	return true;
}

static void child(int in, int out)
{
	uint64_t n;

	while (read(in, &n, sizeof(n)) == sizeof(n)) {
		bool right = check_half(0, n) && check_half(1, n - 1) && check_fd();

		write_half(1, n);
		if (write(out, &right, sizeof(right)) < 0)
			break;
	}
	_exit(0);
}

/* What the child finds. That it was killed is none of what its memory holds. */
static bool ask_child(uint64_t n)
{
	bool right = false;

	if (write(to_child, &n, sizeof(n)) == sizeof(n) &&
	    read(from_child, &right, sizeof(right)) == sizeof(right))
		return right;
	fprintf(stderr, "shared: the child has ended\n");
	exit(3);
}

static bool step(void *state, uint64_t n)
{
	(void)state;
	if (!check_own(n - 1))
		return false;
	write_half(0, n);
	write_own(n);
	return ask_child(n) && check_half(1, n) && check_own(n);
}

static void make_memory(size_t mib, bool huge)
{
	size_t len = mib << 20;

	fd = memfd_create("shared", 0);
	if (fd < 0 || ftruncate(fd, (off_t)len) < 0) {
		perror("memfd");
		exit(2);
	}
	shapes[BY_FD] = (struct shape){ map(len, MAP_SHARED, fd), len / 4096 };
	shapes[ANONYMOUS] = (struct shape){ map(len, MAP_SHARED | MAP_ANONYMOUS, -1), len / 4096 };
	view = map(len, MAP_PRIVATE, fd);
	n_view = len / 4096;
	if (!huge)
		return;
	shapes[HUGE_SHARED] =
		(struct shape){ map(HUGE_BYTES, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1),
				HUGE_BYTES / 4096 };
	huge_own = map(HUGE_BYTES, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 64, .chunk_mib = 1, .interval_ms = 1 };
	int to[2], from[2];

	options_parse(&options, argc, argv, "shared [huge] [--mib 64]");
	make_memory(options.mib, options.word && !strcmp(options.word, "huge"));
	write_half(0, 0);
	write_half(1, 0);
	write_own(0);
	if (pipe(to) < 0 || pipe(from) < 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return 2;
	if (!fork()) {
		close(to[1]);
		close(from[0]);
		child(to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	to_child = to[1];
	from_child = from[0];
	steps_run(&options, step, NULL, NULL);
	return 0;
}
