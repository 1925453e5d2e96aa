// SPDX-License-Identifier: MIT
/* Monotonic time, deadlines and wall-clock stamps. */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t read_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_wall_ns(void)
{
	return read_ns(CLOCK_REALTIME);
}

uint64_t clock_boot_ns(void)
{
	return read_ns(CLOCK_BOOTTIME);
}

double clock_since_s(uint64_t start_ns)
{
	return (double)(clock_now_ns() - start_ns) / (double)NS_PER_S;
}

uint64_t deadline_in_ms(uint64_t timeout_ms)
{
	return clock_now_ns() + timeout_ms * NS_PER_MS;
}

int deadline_left_ms(uint64_t deadline_ns)
{
	if (deadline_ns == DEADLINE_NEVER)
		return -1;

	uint64_t now = clock_now_ns();
	if (now >= deadline_ns)
		return 0;

	uint64_t left_ms = (deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS;
	return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

struct timespec deadline_timespec(uint64_t deadline_ns)
{
	return (struct timespec){ (time_t)(deadline_ns / NS_PER_S),
				  (long)(deadline_ns % NS_PER_S) };
}

void clock_stamp_of(char ret[static CLOCK_STAMP_BYTES], uint64_t ms)
{
	time_t seconds = (time_t)(ms / 1000);
	struct tm tm;
	char date[32];

	gmtime_r(&seconds, &tm);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(ret, CLOCK_STAMP_BYTES, "%.19s.%03uZ", date, (unsigned)(ms % 1000));
}

void clock_stamp(char ret[static CLOCK_STAMP_BYTES])
{
	clock_stamp_of(ret, clock_wall_ns() / NS_PER_MS);
}

int clock_parse_stamp(uint64_t *ret_ms, const char *stamp)
{
	struct tm tm = { 0 };
	const char *rest = strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest || strlen(rest) != 5 || rest[0] != '.' || strspn(rest + 1, "0123456789") != 3 ||
	    rest[4] != 'Z')
		return -EBADMSG;
	time_t seconds = timegm(&tm);
	if (seconds < 0)
		return -EBADMSG;
	*ret_ms = (uint64_t)seconds * 1000 + strtoul(rest + 1, NULL, 10);
	return 0;
}

void condition_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}
