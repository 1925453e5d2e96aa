// SPDX-License-Identifier: MIT
/* What a benchmark found, for scripts, people and Perfetto. See bench.h. */
#include "edges/bench/bench.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

bool bench_left_running(const struct bench_result *r)
{
	return !strcmp(r->operation, BENCH_LEAVE_RUNNING);
}

/* Until the job's next kernel, where that is known. */
static double operation_seconds(const struct bench_result *r)
{
	return r->until_beat ? r->until_beat : r->seconds;
}

static bool is_of(const struct bench_result *r, const char *operation, const char *path)
{
	return !strcmp(r->operation, operation) && !strcmp(r->path, path);
}

static double bench_rate(const struct bench_result *r)
{
	double seconds = operation_seconds(r);

	return seconds > 0 ? (double)r->bytes / seconds : 0;
}

static double bench_limit(const struct bench *b, const struct bench_result *r)
{
	if (!strcmp(r->operation, "suspend"))
		return b->limits.d2h;
	if (!strcmp(r->operation, "resume"))
		return b->limits.h2d;
	return strcmp(r->operation, "restore") ? b->limits.disk_write : b->limits.disk_read;
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
	return json_pack("{s:{s:f,s:f,s:f,s:i,s:f,s:f},s:I,s:s,s:i,s:i,s:o,s:O*}", "limits",
			 "d2h_gbps", b->limits.d2h / 1e9, "h2d_gbps", b->limits.h2d / 1e9,
			 "memcpy_gbps", b->limits.memcpy_all / 1e9, "memcpy_threads",
			 (int)b->limits.threads, "disk_write_gbps", b->limits.disk_write / 1e9,
			 "disk_read_gbps", b->limits.disk_read / 1e9, "bytes",
			 (json_int_t)b->options.size_bytes, "pieces_kib", b->options.pieces_kib,
			 "zero_percent", (int)b->options.zero, "change_percent",
			 (int)b->options.change, "results", results, "advice", b->advice);
}

/* ---- for people ---- */

enum { BAR_CELLS = 28 };

void bench_bar(char *ret, size_t room, double share, bool utf8)
{
	static const char *const eighths[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	double cells = BAR_CELLS * (share < 0 ? 0 : share > 1 ? 1 : share);
	unsigned parts = (unsigned)(cells * 8 + 0.5);
	size_t len = 0;

	*ret = '\0';
	if (!parts && share > 0)
		parts = 1;
	if (!utf8)
		parts = (parts + 4) / 8 * 8;
	for (unsigned i = 0; i < parts / 8 && len < room; i++)
		len += (size_t)snprintf(ret + len, room - len, "%s", utf8 ? "█" : "#");
	if (len < room)
		snprintf(ret + len, room - len, "%s", eighths[parts % 8]);
}

/* "64.0 MiB", or "64.0 MiB to 1.00 GiB". */
static void format_pieces(char *ret, size_t room, const char *pieces_kib)
{
	unsigned long long from = strtoull(pieces_kib, NULL, 10), to = from;
	const char *dash = strchr(pieces_kib, '-');
	char least[WORD_BYTES], most[WORD_BYTES];

	if (dash)
		to = strtoull(dash + 1, NULL, 10);
	format_bytes(least, from << 10);
	format_bytes(most, to << 10);
	snprintf(ret, room, "%s%s%s", least, from == to ? "" : " to ", from == to ? "" : most);
}

static void print_subject(const struct bench *b, FILE *f)
{
	char size[WORD_BYTES], pieces[3 * WORD_BYTES];

	format_bytes(size, b->options.size_bytes);
	format_pieces(pieces, sizeof(pieces), b->options.pieces_kib);
	fprintf(f, "%s of device memory of a %sGPU, in pieces of %s\n\n", size,
		b->options.gpu ? "simulated " : "", pieces);
}

static void add_number_cell(struct table *t, const char *fmt, double value)
{
	char text[32];

	snprintf(text, sizeof(text), fmt, value);
	table_add(t, value > 0 ? text : NULL);
}

static void add_seconds_cell(struct table *t, double seconds)
{
	char text[WORD_BYTES];

	format_seconds(text, seconds);
	table_add(t, seconds > 0 ? text : NULL);
}

static void add_limit_row(struct table *t, const char *what, double limit)
{
	if (limit <= 0)
		return;
	table_add(t, what);
	add_number_cell(t, "%.2f", limit / 1e9);
}

/* All of it or nothing, and empties it. Whether it is whole. */
bool bench_print_table(struct table *t, FILE *f)
{
	const bool is_whole = !t->lacks_cells;

	if (is_whole)
		table_print(t, f, true, 0);
	table_fini(t);
	return is_whole;
}

/* What was measured of the machine. */
static bool print_limits(const struct bench_limits *l, FILE *f)
{
	static const struct column columns[] = { { "THIS MACHINE", false }, { "GB/S", true } };
	struct table t = TABLE_OF(columns);
	char memory[64];

	snprintf(memory, sizeof(memory), "host memory (%u thread%s)", l->threads,
		 l->threads == 1 ? "" : "s");
	add_limit_row(&t, "GPU to host", l->d2h);
	add_limit_row(&t, "host to GPU", l->h2d);
	add_limit_row(&t, memory, l->memcpy_all);
	add_limit_row(&t, "disk, write", l->disk_write);
	add_limit_row(&t, "disk, read", l->disk_read);
	return bench_print_table(&t, f);
}

static void add_result_row(struct table *t, const struct bench *b, const struct bench_result *r)
{
	double limit = bench_limit(b, r);

	table_add(t, r->operation);
	table_add(t, r->path);
	add_number_cell(t, "%.0f", r->round);
	add_seconds_cell(t, r->seconds);
	add_seconds_cell(t, r->until_beat);
	add_seconds_cell(t, bench_left_running(r) ? r->standing : 0);
	add_number_cell(t, "%.2f", bench_rate(r) / 1e9);
	add_number_cell(t, "%.0f %%", limit ? bench_rate(r) / limit * 100 : 0);
}

static bool print_results(const struct bench *b, FILE *f)
{
	static const struct column columns[] = {
		{ "OPERATION", false }, { "PATH", false },	   { "ROUND", true },
		{ "TIME", true },	{ "TO 1ST KERNEL", true }, { "STOOD STILL", true },
		{ "GB/S", true },	{ "OF LIMIT", true },
	};
	struct table t = TABLE_OF(columns);

	for (size_t i = 0; i < b->n_results; i++)
		add_result_row(&t, b, &b->results[i]);
	return bench_print_table(&t, f);
}

const struct bench_result *bench_fastest(const struct bench *b, const char *operation,
					 const char *path)
{
	const struct bench_result *best = NULL;

	for (size_t i = 0; i < b->n_results; i++) {
		const struct bench_result *r = &b->results[i];

		if (!is_of(r, operation, path))
			continue;
		if (!best || bench_rate(r) > bench_rate(best))
			best = r;
	}
	return best;
}

/* "suspend     broker  |███▌                |   11 %  0.90 of 8.20 GB/s" */
static void print_bar(const struct bench *b, const struct bench_result *r, bool first, FILE *f)
{
	bool utf8 = text_may_be_utf8();
	double limit = bench_limit(b, r), share = limit > 0 ? bench_rate(r) / limit : 0;
	const char *edge = utf8 ? "│" : "|";
	char bar[4 * BAR_CELLS + 1];

	bench_bar(bar, sizeof(bar), share, utf8);
	fprintf(f, "%-13s  %-6s  %s", first ? r->operation : "", r->path, edge);
	print_styled(f, STYLE_GREEN, bar);
	fprintf(f, "%*s%s %3.0f %%  %.2f of %.2f GB/s\n", BAR_CELLS - (int)text_width(bar), "",
		edge, share * 100, bench_rate(r) / 1e9, limit / 1e9);
}

/* In the order in which they are shown. */
static const char *const operations[] = { "suspend",	       "resume", "checkpoint", "restore",
					  BENCH_LEAVE_RUNNING, NULL };
static const char *const paths[] = { "broker", "driver", NULL };

static void print_chart(const struct bench *b, FILE *f)
{
	fputs("\nThe fastest round of each, as a share of what this machine can do:\n", f);
	for (const char *const *o = operations; *o; o++) {
		bool first = true;

		for (const char *const *p = paths; *p; p++) {
			const struct bench_result *r = bench_fastest(b, *o, *p);

			if (!r || bench_limit(b, r) <= 0)
				continue;
			print_bar(b, r, first, f);
			first = false;
		}
	}
}

/* ---- what a user sees, and what would make it faster ---- */

enum { ROUND_FIRST = 1, ROUND_LATER = 2, ROUND_ANY = 3 };

/* The seconds that a user notices: the job's standstill where it was left running, else the whole operation. 0: not
 * measured. */
static double waited_seconds(const struct bench_result *r)
{
	return bench_left_running(r) ? r->standing : operation_seconds(r);
}

static double shortest_wait(const struct bench *b, const char *operation, const char *path,
			    int rounds)
{
	double best = 0;

	for (size_t i = 0; i < b->n_results; i++) {
		const struct bench_result *r = &b->results[i];
		const double seconds = waited_seconds(r);

		if (!is_of(r, operation, path) || seconds <= 0 ||
		    !(rounds & (r->round == 1 ? ROUND_FIRST : ROUND_LATER)))
			continue;
		if (!best || seconds < best)
			best = seconds;
	}
	return best;
}

static void add_wait_row(struct table *t, const struct bench *b, const char *what,
			 const char *operation, int rounds)
{
	const double ours = shortest_wait(b, operation, "broker", rounds),
		     drivers = shortest_wait(b, operation, "driver", rounds);

	if (ours <= 0 && drivers <= 0)
		return;
	table_add(t, what);
	add_seconds_cell(t, ours);
	add_seconds_cell(t, drivers);
	add_number_cell(t, "%.1f x", ours > 0 && drivers > 0 ? drivers / ours : 0);
}

static bool print_waits(const struct bench *b, FILE *f)
{
	static const struct column columns[] = {
		{ "A JOB OF THIS SIZE", false },
		{ "BRUMATE", true },
		{ "DRIVER ALONE", true },
		{ "SPEED-UP", true },
	};
	struct table t = TABLE_OF(columns);

	add_wait_row(&t, b, "first suspend", "suspend", ROUND_FIRST);
	add_wait_row(&t, b, "later suspends", "suspend", ROUND_LATER);
	add_wait_row(&t, b, "resume, until it computes", "resume", ROUND_ANY);
	add_wait_row(&t, b, "checkpoint", "checkpoint", ROUND_ANY);
	add_wait_row(&t, b, "restore, until it computes", "restore", ROUND_ANY);
	add_wait_row(&t, b, "it stands still for --leave-running", BENCH_LEAVE_RUNNING, ROUND_ANY);
	return bench_print_table(&t, f);
}

/* Findings of doctor that cost time, not jobs. */
static void advise_findings(json_t *advice, const json_t *findings)
{
	static const char *const keys[] = { "huge-pages", "persistence" };
	json_t *finding;
	size_t i;

	json_array_foreach (findings, i, finding)
		for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++)
			if (!strcmp(text_of(finding, "key"), keys[k]) &&
			    strcmp(text_of(finding, "level"), "ok") != 0)
				json_array_append_new(
					advice, json_sprintf("%s (%s)", text_of(finding, "hint"),
							     text_of(finding, "text")));
}

static void advise_pool(json_t *advice, const struct bench *b, const json_t *facts)
{
	const json_int_t pool = json_integer_value(json_object_get(facts, "pool_bytes"));
	char size[WORD_BYTES], most[WORD_BYTES];

	if (pool <= 0 || (uint64_t)pool >= b->options.size_bytes)
		return;
	format_bytes(size, b->options.size_bytes);
	format_bytes(most, (uint64_t)pool);
	json_array_append_new(advice, json_sprintf("a larger Pool= in [Broker] of brumate.conf (of "
						   "%s of device memory, %s may be copied to "
						   "pinned memory)",
						   size, most));
}

/* A disk that is busy while a checkpoint is written decides how long that takes. */
static void advise_disk(json_t *advice, const struct bench *b)
{
	const struct bench_result *r = bench_fastest(b, "checkpoint", "broker");

	if (!r || b->limits.disk_write <= 0 || b->limits.disk_write >= b->limits.d2h ||
	    bench_rate(r) < b->limits.disk_write / 2)
		return;
	json_array_append_new(
		advice,
		json_sprintf("a faster place for checkpoints, by --dir or Directory= in [Store] of "
			     "brumate.conf (%s writes %.2f GB/s)",
			     b->options.dir, b->limits.disk_write / 1e9));
}

json_t *bench_advise(const struct bench *b, const json_t *doctor)
{
	json_t *advice = json_array();

	if (!advice)
		return NULL;
	advise_findings(advice, json_object_get(doctor, "findings"));
	advise_pool(advice, b, json_object_get(doctor, "facts"));
	advise_disk(advice, b);
	return advice;
}

static void print_advice(const struct bench *b, FILE *f)
{
	json_t *item;
	size_t i;

	if (!b->advice)
		return;
	if (!json_array_size(b->advice))
		fputs("\nNo setting is known that would make this faster.\n", f);
	else
		fputs("\nWhat would make this faster:\n", f);
	json_array_foreach (b->advice, i, item)
		fprintf(f, "- %s\n", json_string_value(item));
}

int bench_print(const struct bench *b, FILE *f, struct brumate_error *err)
{
	print_subject(b, f);
	if (b->options.gpu)
		fputs("The simulated GPU copies with the CPU: its times say nothing about a real "
		      "one.\n\n",
		      f);
	bool is_whole = print_limits(&b->limits, f);
	if (b->n_results) {
		putc('\n', f);
		is_whole &= print_results(b, f);
		putc('\n', f);
		is_whole &= print_waits(b, f);
		print_chart(b, f);
		print_advice(b, f);
	}
	return is_whole ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* ---- for Perfetto ---- */

/* What a phase is about: a track of its own. */
enum track {
	TRACK_OPERATIONS,
	TRACK_STILL,
	TRACK_STEPS,
	TRACK_DATA,
	TRACK_DRIVER,
	TRACK_MEMORY,
	TRACK_CRIU,
	TRACK_DISK,
	TRACK__MAX
};

static const struct {
	const char *phase;
	enum track track;
} tracks[] = {
	{ "data-out", TRACK_DATA },
	{ "data-in", TRACK_DATA },
	{ "live", TRACK_DATA },
	{ "gpu-lock", TRACK_DRIVER },
	{ "gpu-checkpoint", TRACK_DRIVER },
	{ "gpu-restore", TRACK_DRIVER },
	{ "gpu-unlock", TRACK_DRIVER },
	{ "criu-start", TRACK_CRIU },
	{ "criu", TRACK_CRIU },
	{ "host-memory", TRACK_MEMORY },
	{ "load", TRACK_DISK },
	{ "store", TRACK_DISK },
	{ "commit", TRACK_DISK },
};

static enum track track_of(const char *phase)
{
	for (size_t i = 0; i < sizeof(tracks) / sizeof(tracks[0]); i++)
		if (!strcmp(tracks[i].phase, phase))
			return tracks[i].track;
	return TRACK_STEPS;
}

static const char *const track_names[TRACK__MAX] = {
	[TRACK_OPERATIONS] = "operations",
	[TRACK_STILL] = "job stands still",
	[TRACK_STEPS] = "steps",
	[TRACK_DATA] = "device memory, copied",
	[TRACK_DRIVER] = "driver",
	[TRACK_MEMORY] = "CPU memory",
	[TRACK_CRIU] = "processes, by CRIU",
	[TRACK_DISK] = "checkpoint on disk",
};

/* Bytes of device memory that a phase moved; 0: none, or not known. */
static uint64_t phase_bytes(const struct bench_result *r, const char *phase)
{
	uint64_t all = bytes_of(r->summary, "data_bytes");
	uint64_t spared =
		bytes_of(r->summary, "zero_bytes") + bytes_of(r->summary, "unchanged_bytes");

	if (!strcmp(phase, "data-out") || !strcmp(phase, "data-in") || !strcmp(phase, "load"))
		return all > spared ? all - spared : 0;
	if (!strcmp(phase, "gpu-checkpoint") || !strcmp(phase, "gpu-restore"))
		return bytes_of(r->summary, "driver_bytes");
	return 0;
}

/* An event of @seconds; @bytes 0: it moves none. */
static json_t *pack_event(const char *name, const struct bench_result *r, enum track track,
			  double start_us, double seconds, uint64_t bytes)
{
	json_t *args = json_pack("{s:s,s:s,s:i}", "operation", r->operation, "path", r->path,
				 "round", (int)r->round);

	if (args && bytes) {
		json_object_set_new(args, "bytes", json_integer((json_int_t)bytes));
		if (seconds > 0)
			json_object_set_new(args, "GB/s", json_real((double)bytes / seconds / 1e9));
	}
	return json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i,s:o}", "name", name, "cat", r->operation,
			 "ph", "X", "ts", start_us, "dur", seconds * 1e6, "pid", 1, "tid",
			 (int)track + 1, "args", args);
}

static void add_phase_events(json_t *events, const struct bench_result *r)
{
	double start_us = (double)r->start_ns / 1e3;
	json_t *phase;
	size_t i;

	json_array_foreach (json_object_get(r->summary, "phases"), i, phase) {
		double at = json_number_value(json_object_get(phase, "start"));
		const char *name = text_of(phase, "name");

		json_array_append_new(
			events, pack_event(name, r, track_of(name), start_us + at * 1e6,
					   json_number_value(json_object_get(phase, "seconds")),
					   phase_bytes(r, name)));
	}
}

static void add_result_events(json_t *events, const struct bench_result *r)
{
	double start_us = (double)r->start_ns / 1e3;
	char name[64];

	snprintf(name, sizeof(name), "%s by %s", r->operation, r->path);
	json_array_append_new(
		events, pack_event(name, r, TRACK_OPERATIONS, start_us, r->seconds, r->bytes));
	if (r->standing > 0)
		json_array_append_new(events,
				      pack_event("stands still", r, TRACK_STILL,
						 start_us + r->stands_at * 1e6, r->standing, 0));
	add_phase_events(events, r);
}

/* The name of a track, and that it stands where it does in the list. */
static void add_track_name(json_t *events, int track)
{
	json_array_append_new(events, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", "thread_name",
						"ph", "M", "pid", 1, "tid", track + 1, "args",
						"name", track_names[track]));
	json_array_append_new(events, json_pack("{s:s,s:s,s:i,s:i,s:{s:i}}", "name",
						"thread_sort_index", "ph", "M", "pid", 1, "tid",
						track + 1, "args", "sort_index", track));
}

json_t *bench_to_trace(const struct bench *b)
{
	json_t *events = json_array();

	json_array_append_new(events,
			      json_pack("{s:s,s:s,s:i,s:{s:s}}", "name", "process_name", "ph", "M",
					"pid", 1, "args", "name", "brumate bench"));
	for (int track = 0; track < TRACK__MAX; track++)
		add_track_name(events, track);
	for (size_t i = 0; i < b->n_results; i++)
		add_result_events(events, &b->results[i]);
	return json_pack("{s:o,s:s}", "traceEvents", events, "displayTimeUnit", "ms");
}

int bench_write_trace(const struct bench *b, const char *path, struct brumate_error *err)
{
	auto_json json_t *trace = bench_to_trace(b);

	if (!trace || json_dump_file(trace, path, JSON_COMPACT) < 0)
		return brumate_fail(err, EIO, "%s: the trace could not be written", path);
	return 0;
}
