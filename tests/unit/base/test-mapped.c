// SPDX-License-Identifier: MIT
/* Copies from a file that is cut short meanwhile: they say so, in every thread, and any other SIGBUS ends the program. */
#include "check.h"

#include "base/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, THREADS = 8, ROUNDS = 2000 };

static char *map;
static int fd;

static void make_file(void)
{
	char page[PAGE];

	fd = memfd_create("mapped", MFD_CLOEXEC);
	CHECK(fd >= 0);
	for (int i = 0; i < PAGES; i++) {
		memset(page, i + 1, sizeof(page));
		CHECK(pwrite(fd, page, sizeof(page), i * PAGE) == PAGE);
	}
	map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
}

static void *copy_often(void *arg)
{
	_Alignas(64) char page[PAGE];
	int cut = PAGES / 2, first = (int)(long)arg;

	for (int i = 0; i < ROUNDS; i++) {
		int k = (first + i) % PAGES, r = mapped_copy(page, map + k * PAGE, PAGE, i % 3);

		CHECK(r == (k < cut ? 0 : -EFAULT));
		CHECK(r < 0 || page[PAGE - 1] == k + 1);
	}
	return NULL;
}

/* From and to anywhere, and no byte more than was asked for. */
static void test_lengths(char *to)
{
	for (size_t len = 0; len < 9 * PAGE; len = len * 5 / 3 + 1)
		for (size_t at = 0; at < 130; at += 32) {
			memset(to, 0, 10 * PAGE);
			CHECK(mapped_copy(to + at, map + 2 * at, len, true) == 0);
			CHECK(!memcmp(to + at, map + 2 * at, len) && !to[at + len]);
		}
}

static void test_cut_short(void)
{
	pthread_t threads[THREADS];
	_Alignas(64) char all[PAGES * PAGE];

	CHECK(mapped_copy(all, map, sizeof(all), false) == 0 && all[sizeof(all) - 1] == PAGES);
	test_lengths(all);
	CHECK(ftruncate(fd, PAGES / 2 * PAGE) == 0);
	CHECK(mapped_copy(all, map, sizeof(all), false) == -EFAULT);
	CHECK(mapped_copy(all, map, sizeof(all), true) == -EFAULT);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, copy_often, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void touch(void)
{
	*(volatile char *)(map + (PAGES - 1) * PAGE);
}

static void send(void)
{
	kill(getpid(), SIGBUS);
}

static void test_others(void (*get_it)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		get_it();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main(void)
{
	make_file();
	test_cut_short();
	test_others(touch);
	test_others(send);
	return 0;
}
