// SPDX-License-Identifier: MIT
/* Monotonic time, deadlines and wall-clock stamps. */
#include "base/clock.h"

#include <limits.h>
#include <stdio.h>

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

void clock_stamp(char ret[static CLOCK_STAMP_BYTES])
{
	struct timespec ts;
	struct tm tm;
	char date[32];

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(ret, CLOCK_STAMP_BYTES, "%.19s.%03uZ", date,
		 (unsigned)(ts.tv_nsec / 1000000) % 1000u);
}

void condition_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}
