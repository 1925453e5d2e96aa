// SPDX-License-Identifier: MIT
/*
 * What happened to the jobs of this state directory, a JSON object a line. Each process that changes a job appends to
 * it, mostly shims: each event is one write to a file opened for appending, so that nothing is asked of any daemon. An
 * event that cannot be written is left out, and the next one says how many were; no operation fails by it.
 */
#pragma once

#include <jansson.h>

#include "base/clock.h"
#include "job/target.h"

/** The files in the state directory: the newest events, and those before. A new one is begun where one is full. */
#define EVENTS_FILE	"events.jsonl"
#define EVENTS_FILE_OLD "events.jsonl.1"

enum {
	EVENTS_BYTES_MAX = 4 << 20,	  /* of one file */
	EVENTS_SPARE_BYTES = 1 << 20,	  /* of the disk, that events leave to records */
	EVENTS_LINE_BYTES_MAX = 64 << 10, /* longer lines are left out */
};

/**
 * event_add() - append an event
 * @what: its kind, as brumate-events(1) lists them
 * @details: what belongs to the kind; taken; may be NULL
 */
void event_add(const struct target *t, const char *what, json_t *details);

/** The event of a job that has just gone from state @from to the one it is in: its kind says which. */
void event_add_state(const struct target *t, enum job_state from);

/** The failure of an operation, with its reason. */
void event_add_failure(const struct target *t, const char *operation, const char *reason);

/** An operation that was, as its event tells. */
struct event_figures {
	double seconds, downtime_s;
	double least_seconds; /* the least of all events of its kind */
	uint64_t bytes;
	char time[CLOCK_STAMP_BYTES];
};

/** The operation @what of any job of this state directory whose @key ("gpu_bytes") was nearest to @bytes, the last of those that are
 * alike. @goes_on: one after which the job ran on at once. -ENOENT: there was none. */
int events_find_like(struct event_figures *ret, const char *what, const char *key, uint64_t bytes,
		     bool goes_on);

/** The GPUs of the job that hold memory of it, as a JSON array of {uuid, name, bytes}; owned. */
json_t *event_gpus(const struct target *t);
