// SPDX-License-Identifier: MIT
/*
 * Timers that are set to a time of day: behind descriptors (timerfd_settime(2), TFD_TIMER_ABSTIME, CLOCK_REALTIME), and of
 * processes (timer_settime(2), TIMER_ABSTIME). CRIU restores what was left of them, so that they would come late by the time
 * that the job was on a disk. Read while the processes stand still, and set to the same time again once they are restored.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct alarm {
	int fd;
	bool ends_with_clock; /* TFD_TIMER_CANCEL_ON_SET */
	uint64_t due_ns;      /* when it expires next */
	uint64_t interval_ns; /* 0: once */
	uint64_t ticks;	      /* that were not read */
};

/** Reads those of process @pid that are to expire yet (@ret owned). One that cannot be reached is left out. 0, -ENOMEM. */
int alarms_read(struct alarm **ret, size_t *ret_n, pid_t pid);

/** Sets it again in process @pid, which stands still. What should have come meanwhile comes at once. False: it cannot be. */
bool alarm_set(const struct alarm *a, pid_t pid);

/*
 * ---- of processes ----
 *
 * The kernel does not say how such a timer was set. But one that was set to a time of day waits in the kernel's queue for that clock,
 * and one that was set to a span in that for CLOCK_MONOTONIC, and root may read both queues: when each entry is due, and not whose it is.
 */

#define ALARM_QUEUES "/proc/timer_list"

struct alarm_timer {
	int32_t id; /* as timer_create(2) numbers it */
	uint64_t due_ns, interval_ns;
};

enum alarm_kind {
	ALARM_UNKNOWN,
	ALARM_OF_DAY,
	ALARM_OF_SPAN,
};

/**
 * What kind of timer of CLOCK_REALTIME it is of which @left_ns were left, at most @age_ns before @queues, the text of ALARM_QUEUES, was
 * read; with ALARM_OF_DAY @ret_due_ns is when it comes. Unknown where it waits in no queue, as one whose signal is not delivered
 * yet, or where another one looks the same. Pure.
 */
enum alarm_kind alarm_judge(const char *queues, uint64_t left_ns, uint64_t age_ns,
			    uint64_t *ret_due_ns);

/** What timer_settime(2) takes for it, as the kernel reads it. */
void alarm_timer_words(uint64_t ret[static 4], const struct alarm_timer *t);
