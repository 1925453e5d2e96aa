// SPDX-License-Identifier: MIT
/*
 * The order of jobs that wait for device memory, those of all shims of this runtime directory. A turn is a
 * file there that its holder has locked: it ends with the holder, and nobody keeps a list. By priority, which grows while a
 * job waits, so that none waits for ever; then by time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "job/job.h"

struct room_turn {
	char *path; /* owned; NULL: none is held */
	int fd;
};
#define TURN_NONE ((struct room_turn){ .path = NULL, .fd = -1 })

/** Takes a turn for @job on the GPUs of its record, unless one is held. @since_ns: when it began to wait, by clock_now_ns().
 * 0 or -errno. */
int turn_take(struct room_turn *turn, const struct job *job, uint64_t since_ns);
/** The same before all jobs that take theirs by priority: room is being made for this one alone. */
int turn_take_first(struct room_turn *turn, const struct job *job);
/** The priority that a turn has come to by waiting; @otherwise: none is held. */
long turn_priority(const struct room_turn *turn, long otherwise);
/** Whether no other holder is before us that wants one of these GPUs and has asked this within 30 s. Ask every second or so. */
bool turn_is_first(const struct room_turn *turn);
/** Since when @job_id holds a turn, by clock_now_ns(); 0: it holds none. */
uint64_t turn_since_ns(const char *job_id);
/** Accepts TURN_NONE. */
void turn_end(struct room_turn *turn);

/** How a turn that is named so compares with another @now_ns: below zero, it is before it. Pure. */
int turn_compare(const char *name, const char *other, uint64_t now_ns);
