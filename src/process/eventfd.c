// SPDX-License-Identifier: MIT
/* Semaphores; see eventfd.h. */
#include "process/eventfd.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "process/process.h"

enum { FDINFO_BYTES_MAX = 1 << 20, PLENTY = 2 };

/* Takes what a read gives; 0: there is nothing. -errno. */
static int take(int fd, uint64_t *ret)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	*ret = 0;
	if (poll(&p, 1, 0) < 0)
		return -errno;
	return p.revents & POLLIN && read(fd, ret, sizeof(*ret)) != sizeof(*ret) ? -errno : 0;
}

static int give(int fd, uint64_t count)
{
	return count && write(fd, &count, sizeof(count)) != sizeof(count) ? -errno : 0;
}

/* A read that takes more than one took all: no semaphore. If it took one, there may have been no more, so some are
 * added for the test. */
int eventfd_try_semaphore(int fd)
{
	uint64_t first, second = 0, rest = 0;
	int r = take(fd, &first);

	if (r == 0 && first > 1) {
		r = give(fd, first);
		return r < 0 ? r : 0;
	}
	if (r == 0)
		r = give(fd, PLENTY);
	if (r == 0)
		r = take(fd, &second);
	if (r == 0 && second < PLENTY)
		r = take(fd, &rest);
	if (r == 0)
		r = give(fd, first);
	return r < 0 ? r : second < PLENTY;
}

static int try_in_process(pid_t pid, int fd)
{
	auto_close int copy = proc_descriptor(pid, fd);

	return copy < 0 ? copy : eventfd_try_semaphore(copy);
}

int eventfd_of_process_is_semaphore(pid_t pid, int fd)
{
	static const char says[] = "\neventfd-semaphore:";
	auto_free char *text = NULL;
	char name[32];

	snprintf(name, sizeof(name), "fdinfo/%d", fd);
	int r = proc_file_read(pid, name, FDINFO_BYTES_MAX, &text, NULL);
	if (r < 0)
		return r;
	const char *line = strstr(text, says);
	return line ? strtol(line + strlen(says), NULL, 10) != 0 : try_in_process(pid, fd);
}
