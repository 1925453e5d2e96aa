// SPDX-License-Identifier: MIT
/* What `brumate bench` makes of what it measured: bars, errors and the trace. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "edges/bench/bench.h"
#include "wire/wire.h"

static void check_bars(void)
{
	char bar[160];

	bench_bar(bar, sizeof(bar), 0, true);
	CHECK_STR(bar, "");
	bench_bar(bar, sizeof(bar), 0.0001, true);
	CHECK_STR(bar, "▏");
	bench_bar(bar, sizeof(bar), 3.5 / 28, true);
	CHECK_STR(bar, "███▌");
	bench_bar(bar, sizeof(bar), 3.5 / 28, false);
	CHECK_STR(bar, "####");
	bench_bar(bar, sizeof(bar), 7, true);
	CHECK(text_width(bar) == 28);
	bench_bar(bar, 4, 1, false);
	CHECK_STR(bar, "###");
}

static void check_error(const char *text, const char *shown)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(bench_job_error(text, &err) < 0);
	CHECK_STR(err.text, shown);
}

static void check_errors(void)
{
	check_error("../tests/programs/bench-job.c:99: cuMemAlloc_v2(&buffers[n].memory, (words) * "
		    "8): CUDA_ERROR_OUT_OF_MEMORY (2)",
		    "the synthetic job failed: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)");
	check_error("room 2147483648 1073741824 4294967296",
		    "not enough room on the GPU: 2.00 GiB needed, 1.00 GiB of 4.00 GiB free");
	check_error("load the driver: libcuda.so.1: not found",
		    "no GPU driver: libcuda.so.1: not found");
	check_error("no memory for 7 sums", "the synthetic job failed: no memory for 7 sums");
	check_error("", "the synthetic job failed: ");
}

/* A resume of 1 GB, half of it zero: data-in 0.5 s of 0.8, the first kernel after 0.7. */
static struct bench_result resume_result(unsigned round, double seconds)
{
	json_t *phases = json_pack("[{s:s,s:f,s:f},{s:s,s:f,s:f}]", "name", "data-in", "start", 0.1,
				   "seconds", 0.5, "name", "a<b&c", "start", 0.6, "seconds", 0.0);

	return (struct bench_result){
		.operation = "resume",
		.path = "broker",
		.round = round,
		.bytes = 1000000000,
		.start_ns = 5000000000,
		.seconds = seconds,
		.standing = 2,
		.stands_at = seconds - 2.1,
		.until_beat = seconds - 0.1,
		.summary = json_pack("{s:I,s:I,s:o}", "data_bytes", (json_int_t)1000000000,
				     "zero_bytes", (json_int_t)500000000, "phases", phases),
	};
}

static const json_t *find_event(json_t *trace, const char *name, const char *kind)
{
	json_t *event;
	size_t i;

	json_array_foreach (json_object_get(trace, "traceEvents"), i, event)
		if (!strcmp(text_of(event, "name"), name) && !strcmp(text_of(event, "ph"), kind))
			return event;
	return NULL;
}

static void check_trace(const struct bench *b)
{
	auto_json json_t *trace = bench_to_trace(b);
	const json_t *data = find_event(trace, "data-in", "X");
	const json_t *args = json_object_get(data, "args");

	CHECK(json_real_value(json_object_get(data, "ts")) == 5100000.0);
	CHECK(json_integer_value(json_object_get(args, "bytes")) == 500000000);
	CHECK(json_real_value(json_object_get(args, "GB/s")) == 1.0);
	CHECK(find_event(trace, "thread_name", "M") && find_event(trace, "process_name", "M"));
	const json_t *still = find_event(trace, "stands still", "X");
	CHECK(json_real_value(json_object_get(still, "dur")) == 2e6);
	CHECK(json_integer_value(json_object_get(still, "tid")) !=
	      json_integer_value(json_object_get(data, "tid")));
}

/* What costs time is told, what does not is not. */
static void check_advice(void)
{
	auto_json json_t *doctor =
		json_pack("{s:{s:I},s:[{s:s,s:s,s:s,s:s},{s:s,s:s,s:s,s:s},{s:s,s:s,s:s,s:s}]}",
			  "facts", "pool_bytes", (json_int_t)1 << 30, "findings", "key",
			  "huge-pages", "level", "note", "hint", "do it", "text", "not done", "key",
			  "persistence", "level", "ok", "hint", "", "text", "it runs", "key",
			  "memory", "level", "warn", "hint", "add", "text", "few");
	struct bench_result saved = { .operation = "checkpoint",
				      .path = "broker",
				      .round = 1,
				      .bytes = 1 << 30,
				      .seconds = 1 };
	struct bench b = { .options = { .size_bytes = 1 << 30, .dir = "/store" },
			   .limits = { .d2h = 50e9, .disk_write = 1.5e9 },
			   .results = &saved,
			   .n_results = 1 };
	auto_json json_t *little = bench_advise(&b, doctor);

	CHECK(json_array_size(little) == 2);
	CHECK_STR(json_string_value(json_array_get(little, 0)), "do it (not done)");
	CHECK(strstr(json_string_value(json_array_get(little, 1)), "/store writes 1.50 GB/s"));
	b.options.size_bytes = 2u << 30;
	saved.seconds = 2; /* the disk waits for others */
	auto_json json_t *large = bench_advise(&b, doctor), *none = bench_advise(&b, NULL);
	CHECK(json_array_size(large) == 2 && json_array_size(none) == 0);
	CHECK(strstr(json_string_value(json_array_get(large, 1)), "larger Pool="));
}

int main(void)
{
	struct bench_result results[] = { resume_result(1, 0.9), resume_result(2, 0.8) };
	const struct bench b = { .options = { .size_bytes = 1 << 30 },
				 .results = results,
				 .n_results = 2 };

	check_bars();
	check_errors();
	CHECK(bench_fastest(&b, "resume", "broker") == &results[1]);
	CHECK(!bench_fastest(&b, "resume", "driver"));
	check_trace(&b);
	check_advice();
	json_decref(results[0].summary);
	json_decref(results[1].summary);
	return 0;
}
