// SPDX-License-Identifier: MIT
/* Whether an eventfd is a semaphore is found out without a trace: by what the kernel says, and by trial. */
#include "little.h"
#include "process/eventfd.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>

static const uint64_t counts[] = { 0, 1, 2, 3, 1000, UINT32_MAX };
enum { COUNTS = sizeof(counts) / sizeof(*counts) };

static uint64_t read_all(int fd, bool is_semaphore)
{
	uint64_t sum = 0, n;

	while (read(fd, &n, sizeof(n)) == sizeof(n)) {
		CHECK(!is_semaphore || n == 1);
		sum += n;
	}
	CHECK(errno == EAGAIN);
	return sum;
}

static int make(uint64_t count, int flags)
{
	int fd = eventfd(0, flags);

	CHECK(fd >= 0 && (!count || write(fd, &count, sizeof(count)) == sizeof(count)));
	return fd;
}

static void must_be_told(uint64_t count, bool is_semaphore)
{
	int fd = make(count, (is_semaphore ? EFD_SEMAPHORE : 0) | EFD_NONBLOCK);

	CHECK(eventfd_try_semaphore(fd) == is_semaphore);
	CHECK(eventfd_try_semaphore(fd) == is_semaphore);
	CHECK(eventfd_of_process_is_semaphore(getpid(), fd) == is_semaphore);
	if (count < UINT32_MAX || !is_semaphore) /* as long as that takes */
		CHECK(read_all(fd, is_semaphore) == count);
	close(fd);
	fd = make(count, is_semaphore ? EFD_SEMAPHORE : 0); /* one whose reads wait */
	CHECK(eventfd_try_semaphore(fd) == is_semaphore);
	close(fd);
}

static void has_two(void *arg)
{
	CHECK(dup2(eventfd(1, EFD_SEMAPHORE), 100) == 100 && dup2(eventfd(1, 0), 101) == 101);
	little_pause(arg);
}

int main(void)
{
	for (size_t i = 0; i < COUNTS; i++) {
		must_be_told(counts[i], false);
		must_be_told(counts[i], true);
	}
	struct little l = little_start(has_two, NULL);
	little_wait_ready(&l);
	CHECK(eventfd_of_process_is_semaphore(l.pid, 100) == 1);
	CHECK(eventfd_of_process_is_semaphore(l.pid, 101) == 0);
	CHECK(eventfd_of_process_is_semaphore(l.pid, 102) == -ENOENT);
	little_end(&l);
	return 0;
}
