// SPDX-License-Identifier: MIT
/* Eventfds that are semaphores; see plugin.h. */
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"

static int (*real_fcntl)(int fd, int command, ...);
static const char *const fcntl_names[] = { "fcntl64", "fcntl" };

/* CRIU looks whether the flags that it has set are there. */
static int just_replaced = -1;

static bool is_eventfd(int fd)
{
	char link[48], target[64];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	return !strcmp(target, "anon_inode:[eventfd]");
}

int semaphore_replace(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t count = 0;
	const int flags = fcntl(fd, F_GETFD);
	auto_close int semaphore = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);

	if (flags < 0 || semaphore < 0 || poll(&p, 1, 0) < 0 ||
	    (p.revents & POLLIN && read(fd, &count, sizeof(count)) != sizeof(count)) ||
	    (count && write(semaphore, &count, sizeof(count)) != sizeof(count)) ||
	    dup3(semaphore, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
		return -errno;
	return 0;
}

static int our_fcntl(int fd, int command, ...)
{
	va_list list;

	va_start(list, command);
	intptr_t arg = va_arg(list, intptr_t);
	va_end(list);
	if (command == F_SETFL && arg & O_DIRECT && is_eventfd(fd)) {
		int r = semaphore_replace(fd);

		if (r < 0) {
			errno = -r;
			return -1;
		}
		just_replaced = fd;
		arg &= ~(intptr_t)O_DIRECT;
	}
	int r = real_fcntl(fd, command, arg);
	if (command == F_GETFL && r >= 0 && fd == just_replaced) {
		just_replaced = -1;
		r |= O_DIRECT;
	}
	return r;
}

bool semaphores_begin(void)
{
	for (size_t i = 0; i < 2 && !real_fcntl; i++)
		real_fcntl = import_replace(fcntl_names[i], (void *)our_fcntl);
	return real_fcntl;
}

void semaphores_end(void)
{
	for (size_t i = 0; i < 2 && real_fcntl; i++)
		import_replace(fcntl_names[i], (void *)real_fcntl);
	real_fcntl = NULL;
}
