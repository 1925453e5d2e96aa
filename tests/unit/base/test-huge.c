// SPDX-License-Identifier: MIT
/* Shared memory that is made of large pages, or not: what it holds stays, and all of it is there. */
#include "check.h"
#include "base/cleanup.h"
#include "base/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 64 << 20, EVERY = 5 << 20 };

static int make_file(uint64_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

static uint64_t there_bytes(int fd)
{
	struct stat st;

	CHECK(fstat(fd, &st) == 0);
	return (uint64_t)st.st_blocks * 512;
}

static void test_map(void)
{
	static const uint64_t sizes[] = { 4096, HUGE_BYTES, 3 * HUGE_BYTES + 4096 };
	void *at, *again;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		auto_close int fd = make_file(sizes[i]);

		CHECK(huge_map(&at, fd, sizes[i]) == 0 && huge_map(&again, fd, sizes[i]) == 0);
		CHECK((uintptr_t)at % HUGE_BYTES == 0);
		((char *)at)[sizes[i] - 1] = 'x';
		CHECK(((char *)again)[sizes[i] - 1] == 'x' && ((char *)again)[0] == 0);
		/* Nothing is left mapped around it. */
		CHECK(msync((char *)at - 4096, 4096, MS_ASYNC) < 0 ||
		      (char *)again + sizes[i] == at);
		CHECK(munmap(at, sizes[i]) == 0 && munmap(again, sizes[i]) == 0);
	}
	CHECK(huge_map(&at, -1, HUGE_BYTES) == -EBADF);
}

static void test_populate(uint64_t bytes)
{
	auto_close int fd = make_file(bytes);
	char *at;
	void *map;

	CHECK(huge_map(&map, fd, bytes) == 0);
	at = map;
	for (uint64_t i = 0; i < bytes; i += EVERY)
		at[i + 77] = (char)(i / EVERY + 1);
	CHECK(huge_populate(at, bytes, false) >= 0);
	CHECK(there_bytes(fd) >= bytes);
	for (uint64_t i = 0; i < bytes; i++)
		CHECK(at[i] ==
		      (i >= 77 && (i - 77) % EVERY == 0 ? (char)((i - 77) / EVERY + 1) : 0));
	CHECK(huge_populate(at, bytes, true) == 1);
	CHECK(munmap(at, bytes) == 0);
}

/* Others write it meanwhile. */
static void *write_all(void *arg)
{
	char *at = arg;

	for (uint64_t i = 8; i < BYTES; i += 4096)
		at[i] = 'w';
	return NULL;
}

static void test_written_meanwhile(void)
{
	auto_close int fd = make_file(BYTES);
	pthread_t thread;
	void *at;

	CHECK(huge_map(&at, fd, BYTES) == 0);
	CHECK(pthread_create(&thread, NULL, write_all, at) == 0);
	CHECK(huge_populate(at, BYTES, false) >= 0);
	pthread_join(thread, NULL);
	for (uint64_t i = 8; i < BYTES; i += 4096)
		CHECK(((char *)at)[i] == 'w');
	CHECK(munmap(at, BYTES) == 0);
}

int main(void)
{
	test_map();
	test_populate(BYTES);
	test_populate(HUGE_BYTES);
	test_populate(HUGE_BYTES + 4096);
	test_written_meanwhile();
	return 0;
}
