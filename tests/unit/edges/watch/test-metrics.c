// SPDX-License-Identifier: MIT
/* The text format: names that somebody chose, counters, what could not be looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"
#include "edges/watch/metrics.h"
#include "wire/wire.h"

/* Owned. */
static char *print(const struct metrics *m)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	CHECK(f);
	metrics_print(m, f);
	fclose(f);
	return text;
}

static void check_line(const char *text, const char *line)
{
	const char *at = strstr(text, line);

	CHECK(at && at > text && at[-1] == '\n' && at[strlen(line)] == '\n');
}

static void check_job(void)
{
	auto_json json_t *jobs = json_pack(
		"[{s:s,s:s,s:s,s:s,s:n,s:{s:I,s:s},s:{s:{s:i,s:f},s:I}}]", "id", "1a2b3c4d", "name",
		"a\"b\\c\nf", "state", "suspended", "created", "2026-01-01T00:00:01.500Z",
		"message", "schedule", "every_ms", (json_int_t)90500, "next",
		"2026-01-01T00:01:00.000Z", "counts", "resume", "failed", 3, "standstill_s", 1.5,
		"still_since_ns", (json_int_t)(2 * NS_PER_S));
	struct metrics m = { .jobs = jobs, .names = true, .boot_ns = 10 * NS_PER_S };
	auto_free char *named = print(&m);

#define LABELS "job=\"1a2b3c4d\",name=\"a\\\"b\\\\c\\nf\""
	check_line(named, "brumate_jobs{state=\"suspended\"} 1");
	check_line(named, "brumate_jobs{state=\"lost\"} 0");
	check_line(named, "brumate_job_state{" LABELS ",state=\"suspended\"} 1");
	check_line(named, "brumate_job_created_timestamp_seconds{" LABELS "} 1767225601.5");
	check_line(named, "brumate_job_last_operation_failed{" LABELS "} 0");
	check_line(named, "brumate_job_schedule_interval_seconds{" LABELS "} 90.5");
	check_line(named, "brumate_job_operations_total{" LABELS
			  ",operation=\"resume\",result=\"failed\"} 3");
	check_line(named,
		   "brumate_job_standstill_seconds_total{" LABELS ",operation=\"resume\"} 9.5");
	CHECK(!strstr(named, "brumate_job_processes{"));
	m.names = false;
	auto_free char *nameless = print(&m);
	check_line(nameless, "brumate_job_state{job=\"1a2b3c4d\",state=\"suspended\"} 1");
	CHECK(!strstr(nameless, "name="));
}

static void check_nothing_known(void)
{
	auto_free char *text = print(&(struct metrics){ 0 });

	check_line(text, "brumate_collector_success{collector=\"jobs\"} 0");
	check_line(text, "brumate_collector_success{collector=\"checkpoints\"} 0");
	CHECK(!strstr(text, "brumate_jobs") && !strstr(text, "brumate_checkpoints"));
}

/* All results are there from the start. */
static void check_pods(void)
{
	auto_json json_t *none = json_object();
	auto_json json_t *pods =
		json_pack("{s:{s:i,s:i,s:f,s:I}}", "checkpoint", "done", 2, "failed", 1, "seconds",
			  3.5, "image_bytes", (json_int_t)1 << 33);
	auto_free char *before = print(&(struct metrics){ .pods = none });
	auto_free char *after = print(&(struct metrics){ .pods = pods });

	check_line(before, "brumate_pod_checkpoint_operations_total{result=\"failed\"} 0");
	check_line(after, "brumate_pod_checkpoint_operations_total{result=\"done\"} 2");
	check_line(after, "brumate_pod_checkpoint_operations_total{result=\"failed\"} 1");
	check_line(after, "brumate_pod_checkpoint_operations_total{result=\"cancelled\"} 0");
	check_line(after, "brumate_pod_checkpoint_duration_seconds_sum 3.5");
	check_line(after, "brumate_pod_checkpoint_duration_seconds_count 2");
	check_line(after, "brumate_pod_checkpoint_size_bytes_sum 8589934592");
}

int main(void)
{
	check_job();
	check_nothing_known();
	check_pods();
	return 0;
}
