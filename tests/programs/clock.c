// SPDX-License-Identifier: MIT
/*
 * A wall clock that a test sets: preloaded, it adds to CLOCK_REALTIME as many seconds as the file says that
 * BRUMATE_TEST_CLOCK names. It is read each time, so that the clock can be set while programs run. Other clocks, which
 * nobody can set, are as they are. The kernel's own time, which files get, stays what it is.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

int clock_gettime(clockid_t clock, struct timespec *ret);
int gettimeofday(struct timeval *restrict ret, void *restrict zone);
time_t time(time_t *ret);

static long offset_s(void)
{
	const char *path = getenv("BRUMATE_TEST_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	char text[32] = "";

	if (fd < 0)
		return 0;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	close(fd);
	return atol(text);
}

PUBLIC int clock_gettime(clockid_t clock, struct timespec *ret)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int r = real(clock, ret);
	if (r == 0 && clock == CLOCK_REALTIME)
		ret->tv_sec += offset_s();
	return r;
}

PUBLIC int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*ret = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
	return 0;
}

PUBLIC time_t time(time_t *ret)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (ret)
		*ret = now.tv_sec;
	return now.tv_sec;
}
