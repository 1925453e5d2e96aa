// SPDX-License-Identifier: MIT
/*
 * `brumate bench`: what the machine can do, and what share of it suspend, resume, checkpoint and restore
 * of a synthetic job reach, through the broker's copies and through the driver alone, in one run.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/** What is asked for. Strings borrowed. */
struct bench_options {
	uint64_t size_bytes;
	const char *pieces_kib; /* "65536-1048576" */
	unsigned zero, change;	/* percent */
	unsigned rounds;
	bool keep_copy, live; /* as the operations' options */
	const char *gpu;	  /* "simulated", or NULL */
	const char *dir;	  /* checkpoints go there too; NULL: none are made */
	const char *const *paths; /* "broker", "driver"; ends with NULL */
};

/** Bytes per second that the machine does, measured in this run; 0: not measured. */
struct bench_limits {
	double d2h, h2d, memcpy_all, disk_write, disk_read;
};

/** Threads that memcpy_all is measured with: one a core, at most 8. */
unsigned bench_threads(void);

/** Copies host memory with bench_threads() threads. */
int bench_measure_memcpy(struct bench_limits *limits, struct brumate_error *err);

/** Writes and reads a large file of @dir past the page cache, 16 blocks of 2 MiB at a time, until it is on
 * the disk; of a file system without O_DIRECT, through the cache. A few seconds each way. */
int bench_measure_disk(struct bench_limits *limits, const char *dir, struct brumate_error *err);

/** The synthetic job. */
struct bench_job {
	char id[32];
	int log_fd, inotify_fd;
	off_t offset; /* of the log, up to which lines were taken */
};
#define BENCH_JOB_EMPTY ((struct bench_job){ .log_fd = -1, .inotify_fd = -1 })

/** Starts it and waits until it is ready; with @limits, it measures the link first. */
int bench_job_start(struct bench_job *ret, const struct bench_options *o, const char *path,
		    struct bench_limits *limits, struct brumate_error *err);

/** Waits for its next line that starts with @word: the rest of it, NUL-terminated. -ETIMEDOUT, or
 * -EIO where it said that something is wrong. */
int bench_job_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
		   struct brumate_error *err);

/** Sends it a signal and waits for the line that answers it. */
int bench_job_ask(struct bench_job *j, int signal, const char *word, char *ret, size_t ret_bytes,
		  struct brumate_error *err);

/** Ends it and removes its record. Accepts the empty value. */
void bench_job_fini(struct bench_job *j);
DEFINE_AUTO_FINI(struct bench_job, bench_job_fini)

/** One operation, measured from outside. */
struct bench_result {
	const char *operation, *path;	   /* borrowed */
	unsigned round;			   /* from 1; the first finds the pool cold */
	uint64_t bytes, start_ns, wall_ns; /* wall_ns: the same moment by CLOCK_REALTIME */
	double seconds;			   /* of the operation as its caller saw it */
	double standing;   /* from the job's last beat before to its first after; 0: none */
	double until_beat; /* from the start of the operation to the job's next beat; 0: none */
	json_t *summary;   /* owned */
};

struct bench {
	struct bench_options options;
	struct bench_limits limits;
	struct bench_result *results; /* owned, with their summaries */
	size_t n_results;
};
void bench_fini(struct bench *b);
DEFINE_AUTO_FINI(struct bench, bench_fini)

/** Takes one job through all rounds by @path, adding results; its data is checked after each. */
int bench_run_path(struct bench *b, const char *path, struct brumate_error *err);

/** What it comes to: bytes per second, and the limit it is compared with (0: none). */
double bench_rate(const struct bench_result *r);
double bench_limit(const struct bench *b, const struct bench_result *r);

/** Owned; and as a table on stdout. */
json_t *bench_to_json(const struct bench *b);
int bench_print(const struct bench *b, struct brumate_error *err);

/** The phases of all operations as a trace that Perfetto and chrome://tracing open. */
int bench_write_trace(const struct bench *b, const char *path, struct brumate_error *err);
