// SPDX-License-Identifier: MIT
/* Monotonic time, deadlines and RFC 3339 wall-clock stamps. */
#pragma once

#include <stddef.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

/** A deadline that never comes. */
#define DEADLINE_NEVER UINT64_MAX

/** CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now_ns(void);

/** Seconds since @start_ns (a clock_now_ns() value). */
double clock_since_s(uint64_t start_ns);

/** The deadline @timeout_ms from now. */
uint64_t deadline_in_ms(uint64_t timeout_ms);

/** Milliseconds left until @deadline_ns as poll(2) takes them: -1 for never, 0 when passed. */
int deadline_left_ms(uint64_t deadline_ns);

/** @deadline_ns for calls that wait by CLOCK_MONOTONIC. */
struct timespec deadline_timespec(uint64_t deadline_ns);

/** Initialises a condition for waits until a deadline_timespec(). */
void condition_init(pthread_cond_t *c);

/** CLOCK_REALTIME in nanoseconds: comparable with other machines, but may be set back. */
uint64_t clock_wall_ns(void);

/** CLOCK_BOOTTIME in nanoseconds: never set, and continues while the machine sleeps. */
uint64_t clock_boot_ns(void);

#define CLOCK_STAMP_BYTES sizeof("2026-01-01T00:00:00.000Z")

/** Writes the wall-clock time as RFC 3339 in UTC with milliseconds. */
void clock_stamp(char ret[static CLOCK_STAMP_BYTES]);

/** The same of @ms milliseconds since 1970. */
void clock_stamp_of(char ret[static CLOCK_STAMP_BYTES], uint64_t ms);

/** Milliseconds since 1970 of a clock_stamp(). 0 or -EBADMSG. Pure. */
int clock_parse_stamp(uint64_t *ret_ms, const char *stamp);
