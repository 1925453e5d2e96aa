// SPDX-License-Identifier: MIT
/*
 * Timers behind descriptors that are set to a time of day (timerfd_settime(2), TFD_TIMER_ABSTIME, CLOCK_REALTIME). CRIU
 * restores what was left of them, so that they would come late by the time that the job was on a disk. Read while the
 * processes stand still, and set to the same time again once they are restored.
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
