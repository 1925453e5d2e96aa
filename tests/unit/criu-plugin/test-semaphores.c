// SPDX-License-Identifier: MIT
/* An eventfd becomes a semaphore with the same number and count, and is asked for by a flag that none has. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void must_be_semaphore(int fd, unsigned count)
{
	uint64_t n;

	for (unsigned i = 0; i < count; i++)
		CHECK(read(fd, &n, sizeof(n)) == sizeof(n) && n == 1);
	CHECK(read(fd, &n, sizeof(n)) < 0 && errno == EAGAIN);
}

/* As CRIU does it: the flags that it sets must be there. */
static int set_flags(int fd, int flags)
{
	int before = fcntl(fd, F_GETFL);

	if (before < 0 || fcntl(fd, F_SETFL, flags) < 0)
		return -errno;
	return fcntl(fd, F_GETFL) == (flags | (before & O_ACCMODE)) ? 0 : -EIO;
}

static void test_replaced(void)
{
	for (unsigned count = 0; count < 4; count++) {
		int fd = eventfd(count, count % 2 ? EFD_CLOEXEC : 0);

		CHECK(fd >= 0 && semaphore_replace(fd) == 0);
		CHECK(fcntl(fd, F_GETFD) == (count % 2 ? FD_CLOEXEC : 0));
		CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
		must_be_semaphore(fd, count);
		close(fd);
	}
	CHECK(semaphore_replace(-1) == -EBADF);
}

static void test_asked_for(void)
{
	int semaphore = eventfd(3, 0), plain = eventfd(3, 0), pipes[2];
	uint64_t n;

	CHECK(semaphore >= 0 && plain >= 0 && pipe(pipes) == 0);
	CHECK(set_flags(semaphore, O_DIRECT | O_NONBLOCK) == -EINVAL);
	if (!semaphores_begin())
		SKIP("a program without imports by name");
	CHECK(set_flags(semaphore, O_DIRECT | O_NONBLOCK) == 0);
	CHECK(set_flags(plain, O_NONBLOCK) == 0 && set_flags(pipes[1], O_DIRECT) == 0);
	CHECK(fcntl(semaphore, F_GETFL) == (O_RDWR | O_NONBLOCK));
	semaphores_end();
	must_be_semaphore(semaphore, 3);
	CHECK(read(plain, &n, sizeof(n)) == sizeof(n) && n == 3);
	CHECK(set_flags(plain, O_DIRECT) == -EINVAL);
}

int main(void)
{
	test_replaced();
	test_asked_for();
	return 0;
}
