// SPDX-License-Identifier: MIT
/*
 * What `brumate bench` measured, and how it is shown: as JSON, as a page for people with a bar chart, and as a trace for
 * Perfetto.
 */
#pragma once

#include "cli/output.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/error.h"

/** What is asked for. Strings borrowed. */
struct bench_options {
	uint64_t size_bytes;
	const char *pieces_kib; /* "65536-1048576" */
	unsigned zero, change;	/* percent */
	unsigned rounds;
	bool keep_copy;		  /* as resume and checkpoint take it */
	unsigned port;		  /* at which the job is a server of `run --wake`; 0: it is none */
	const char *gpu;	  /* "simulated", or NULL */
	const char *dir;	  /* where checkpoints go; NULL: none are made */
	const char *const *paths; /* "broker", "driver"; ends with NULL */
};

/** Bytes per second that the machine does, measured in this run; 0: not measured. */
struct bench_limits {
	double d2h, h2d, memcpy_all, disk_write, disk_read;
	unsigned threads; /* that memory was copied with */
};

/** One operation, measured from outside. */
struct bench_result {
	const char *operation, *path;	   /* borrowed */
	unsigned round;			   /* from 1; the first finds the pool cold */
	uint64_t bytes, start_ns, wall_ns; /* wall_ns: the same moment by CLOCK_REALTIME */
	double seconds;			   /* of the operation as its caller saw it */
	double standing; /* from the job's last beat before to its first after; 0: none */
	double stands_at; /* from the start of the operation to that last beat; below 0: it was before */
	double until_beat; /* from the start of the operation to the job's next beat; 0: none */
	json_t *summary;   /* owned */
};

struct bench {
	struct bench_options options;
	struct bench_limits limits;
	struct bench_result *results; /* owned, with their summaries */
	size_t n_results;
	json_t *advice;		   /* owned: texts, what would make it faster; NULL: not asked */
	struct progress_line line; /* what a terminal shows meanwhile */
	unsigned step;		   /* from 1; 0: none yet */
	uint64_t start_ns;	   /* of the first step */
};

/** The synthetic job. */
struct bench_job {
	char id[32];
	const char *dir; /* of its checkpoints; borrowed, may be NULL */
	int log_fd, inotify_fd;
	int pid_fd;   /* readable once its processes have ended */
	off_t offset; /* of the log, up to which lines were taken */
};
#define BENCH_JOB_EMPTY ((struct bench_job){ .log_fd = -1, .inotify_fd = -1, .pid_fd = -1 })

/** Starts it and waits until it is ready; with @limits, it measures the link first. */
int bench_job_start(struct bench_job *ret, const struct bench_options *o, const char *path,
		    struct bench_limits *limits, struct brumate_error *err);
/** Ends it and removes what is left of it. Accepts the empty value. */
void bench_job_fini(struct bench_job *j);
DEFINE_AUTO_FINI(struct bench_job, bench_job_fini)

/** Calls the service until a signal comes: -ECANCELED. */
int bench_call(const char *method, json_t *parameters, json_t **ret, struct brumate_error *err);

/** `bench --serve`: how long clients of a server wait for its answers, by the state that it is in; as a table, or as JSON. */
int bench_serve(struct bench *b, bool as_json, struct brumate_error *err);

/** What the synthetic job says that is wrong, after "ERR ", as an error for people. Pure. */
int bench_job_error(const char *text, struct brumate_error *err);

/** The operation that saves a job and lets it run: what counts is how long the job stands still. */
#define BENCH_LEAVE_RUNNING "leave-running"

/** Whether it is of that operation. */
bool bench_left_running(const struct bench_result *r);

/** The round of the highest rate; NULL: there was none. */
const struct bench_result *bench_fastest(const struct bench *b, const char *operation,
					 const char *path);

/** Everything as one JSON object (owned), NULL without memory. */
json_t *bench_to_json(const struct bench *b);

/**
 * bench_advise() - what would make the operations faster here
 * @doctor: the reply of the method Doctor; NULL: it is not known
 *
 * Pure. Returns an array of texts (owned), NULL without memory.
 */
json_t *bench_advise(const struct bench *b, const json_t *doctor);

/** The page for people: the machine, a row for each operation, what a job of this size takes, a bar for the fastest round
 * of each, and the advice. */
int bench_print(const struct bench *b, FILE *f, struct brumate_error *err);

/** Prints a table and frees it. Whether it is whole. */
bool bench_print_table(struct table *t, FILE *f);

/** A bar for @share (0 to 1) of up to 28 cells; pure. Any share above 0 shows, but for eighths of a cell it takes
 * UTF-8. */
void bench_bar(char *ret, size_t room, double share, bool utf8);

/** The phases of all operations as a trace that Perfetto and chrome://tracing open (owned), NULL without memory. */
json_t *bench_to_trace(const struct bench *b);

/** The same as a file. */
int bench_write_trace(const struct bench *b, const char *path, struct brumate_error *err);
