// SPDX-License-Identifier: MIT
/* What a benchmark found: a table, JSON, a trace. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "cli/terminal.h"
#include "wire/wire.h"

double bench_rate(const struct bench_result *r)
{
	double seconds = r->until_beat ? r->until_beat : r->seconds;

	return seconds > 0 ? (double)r->bytes / seconds : 0;
}

double bench_limit(const struct bench *b, const struct bench_result *r)
{
	if (!strcmp(r->operation, "suspend"))
		return b->limits.d2h;
	if (!strcmp(r->operation, "resume"))
		return b->limits.h2d;
	return !strcmp(r->operation, "checkpoint") ? b->limits.disk_write : b->limits.disk_read;
}

static json_t *result_to_json(const struct bench *b, const struct bench_result *r)
{
	double limit = bench_limit(b, r);

	return json_pack("{s:s,s:s,s:i,s:I,s:f,s:f,s:f,s:f,s:o,s:O*}", "operation", r->operation,
			 "path", r->path, "round", (int)r->round, "bytes", (json_int_t)r->bytes,
			 "seconds", r->seconds, "standing_s", r->standing, "until_beat_s",
			 r->until_beat, "gbps", bench_rate(r) / 1e9, "share_of_limit",
			 limit ? json_real(bench_rate(r) / limit) : json_null(), "summary",
			 r->summary);
}

json_t *bench_to_json(const struct bench *b)
{
	json_t *results = json_array();

	for (size_t i = 0; results && i < b->n_results; i++)
		json_array_append_new(results, result_to_json(b, &b->results[i]));
	return json_pack("{s:{s:f,s:f,s:f,s:i,s:f,s:f},s:I,s:s,s:i,s:i,s:o}", "limits", "d2h_gbps",
			 b->limits.d2h / 1e9, "h2d_gbps", b->limits.h2d / 1e9, "memcpy_gbps",
			 b->limits.memcpy_all / 1e9, "memcpy_threads", (int)bench_threads(),
			 "disk_write_gbps", b->limits.disk_write / 1e9, "disk_read_gbps",
			 b->limits.disk_read / 1e9, "bytes", (json_int_t)b->options.size_bytes,
			 "pieces_kib", b->options.pieces_kib, "zero_percent", (int)b->options.zero,
			 "change_percent", (int)b->options.change, "results", results);
}

static void print_limits(const struct bench_limits *l)
{
	printf("link: %.1f GB/s out, %.1f GB/s in; memcpy by %u threads: %.1f GB/s", l->d2h / 1e9,
	       l->h2d / 1e9, bench_threads(), l->memcpy_all / 1e9);
	if (l->disk_write > 0)
		printf("; disk: %.2f GB/s write, %.2f GB/s read", l->disk_write / 1e9,
		       l->disk_read / 1e9);
	putchar('\n');
}

static int add_cell(struct table *t, const char *fmt, double value)
{
	char text[32];

	snprintf(text, sizeof(text), fmt, value);
	return table_add(t, value > 0 ? text : NULL);
}

static int add_row(struct table *t, const struct bench *b, const struct bench_result *r)
{
	double limit = bench_limit(b, r);
	int bad = table_add(t, r->operation) | table_add(t, r->path);

	bad |= add_cell(t, "%.0f", r->round);
	bad |= add_cell(t, "%.3f", r->seconds);
	bad |= add_cell(t, "%.3f", r->until_beat);
	bad |= add_cell(t, "%.2f", bench_rate(r) / 1e9);
	bad |= add_cell(t, "%.0f %%", limit ? bench_rate(r) / limit * 100 : 0);
	return bad;
}

int bench_print(const struct bench *b, struct brumate_error *err)
{
	static const struct column columns[] = {
		{ "OPERATION", false }, { "PATH", false },	   { "ROUND", true },
		{ "SECONDS", true },	{ "TO 1ST KERNEL", true }, { "GB/S", true },
		{ "OF LIMIT", true },
	};
	struct table t = TABLE_OF(columns);
	int bad = 0;

	print_limits(&b->limits);
	for (size_t i = 0; i < b->n_results; i++)
		bad |= add_row(&t, b, &b->results[i]);
	if (!bad)
		table_print(&t, stdout, true, 0);
	table_fini(&t);
	return bad ? brumate_fail(err, ENOMEM, "%m") : 0;
}

/* One line a phase: operations that overlap stand on lanes of their own. */
static json_t *trace_event(const struct bench_result *r, json_t *phase, int lane)
{
	double start = json_number_value(json_object_get(phase, "start"));
	const char *name = json_string_value(json_object_get(phase, "name"));

	return json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i}", "name", name ? name : "", "cat",
			 r->operation, "ph", "X", "ts", (double)r->start_ns / 1e3 + start * 1e6,
			 "dur", json_number_value(json_object_get(phase, "seconds")) * 1e6, "pid",
			 1, "tid", lane);
}

int bench_write_trace(const struct bench *b, const char *path, struct brumate_error *err)
{
	auto_json json_t *events = json_array();

	for (size_t i = 0; events && i < b->n_results; i++) {
		const struct bench_result *r = &b->results[i];
		json_t *phase;
		size_t k;

		json_array_append_new(events, json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i}", "name",
							r->operation, "cat", r->path, "ph", "X",
							"ts", (double)r->start_ns / 1e3, "dur",
							r->seconds * 1e6, "pid", 1, "tid", 0));
		json_array_foreach (json_object_get(r->summary, "phases"), k, phase)
			json_array_append_new(events, trace_event(r, phase, (int)k + 1));
	}
	auto_json json_t *trace = json_pack("{s:O}", "traceEvents", events);
	if (!trace || json_dump_file(trace, path, JSON_COMPACT) < 0)
		return brumate_fail(err, EIO, "%s: the trace could not be written", path);
	return 0;
}
