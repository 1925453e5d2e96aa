// SPDX-License-Identifier: MIT
/*
 * The page of `brumate inspect JOB`: what the job is, then tables of its GPUs, memory, processes, files, schedule and
 * checkpoints, and of its last operation. What there is none of has no heading; what is not known is "-".
 */
#include "cli/pages.h"

#include <stdio.h>
#include <time.h>

#include "base/cleanup.h"
#include "cli/output.h"
#include "wire/wire.h"

static void add_number(struct table *t, json_t *value)
{
	char text[WORD_BYTES] = "";

	if (json_is_integer(value))
		snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	table_add(t, text);
}

static void add_bytes(struct table *t, json_t *value)
{
	char text[WORD_BYTES] = "";

	if (json_is_integer(value))
		format_bytes(text, (uint64_t)json_integer_value(value));
	table_add(t, text);
}

/* ---- what it is ---- */

static void add_fact(struct table *t, const char *what, const char *text)
{
	if (!text || !*text)
		return;
	table_add(t, what);
	table_add(t, text);
}

static void add_command(struct table *t, json_t *argv)
{
	auto_free char *text = NULL;
	size_t len = 0, i;
	FILE *f = open_memstream(&text, &len);
	json_t *arg;

	if (!f)
		return;
	json_array_foreach (argv, i, arg)
		fprintf(f, "%s%s", i ? " " : "", json_string_value(arg));
	fclose(f);
	add_fact(t, "command ", text);
}

/* A line each. */
static void add_labels(struct table *t, json_t *labels)
{
	const char *key;
	json_t *value;

	json_object_foreach (labels, key, value) {
		char text[512];

		snprintf(text, sizeof(text), "%s=%s", key, json_string_value(value));
		add_fact(t, "label ", text);
	}
}

/* "2026-11-24T03:00:00.123Z (5m ago)" */
static void add_moment(struct table *t, const char *what, const char *stamp)
{
	char age[WORD_BYTES], text[128];

	format_age(age, stamp, time(NULL));
	snprintf(text, sizeof(text), "%s (%s ago)", stamp, age);
	if (*stamp)
		add_fact(t, what, text);
}

/* "running, with a copy of its device memory in host memory": what its state means for its memory. */
static void add_state(struct table *t, json_t *job)
{
	json_t *code = json_object_get(job, "exit_code");
	const json_int_t kept = json_integer_value(json_object_get(job, "kept_bytes"));
	char text[256], bytes[WORD_BYTES];

	snprintf(text, sizeof(text), "%s", text_of(job, "state"));
	format_bytes(bytes, (uint64_t)(kept > 0 ? kept : 0));
	if (json_is_integer(code))
		snprintf(text, sizeof(text), "%s (%lld)", text_of(job, "state"),
			 (long long)json_integer_value(code));
	else if (json_is_true(json_object_get(job, "parked")))
		snprintf(text, sizeof(text), "suspended, its device memory parked on the GPU");
	else if (kept > 0)
		snprintf(text, sizeof(text), "%s, with a copy of %s in host memory (--keep-copy)",
			 text_of(job, "state"), bytes);
	add_fact(t, "state ", text);
}

static void print_facts(json_t *job)
{
	static const struct column columns[] = { { "", false, 0 }, { "", false, 0 } };
	struct table t = TABLE_OF(columns);
	char text[128];

	snprintf(text, sizeof(text), "%s (%s)", text_of(job, "id"), text_of(job, "name"));
	add_fact(&t, "job ", text);
	add_state(&t, job);
	add_fact(&t, "last failure ", text_of(job, "message"));
	add_command(&t, json_object_get(job, "argv"));
	add_labels(&t, json_object_get(job, "labels"));
	add_fact(&t, "directory ", text_of(job, "cwd"));
	add_fact(&t, "log ", text_of(job, "log"));
	snprintf(text, sizeof(text), "%lld:%lld",
		 (long long)json_integer_value(json_object_get(job, "uid")),
		 (long long)json_integer_value(json_object_get(job, "gid")));
	add_fact(&t, "user:group ", text);
	add_moment(&t, "created ", text_of(job, "created"));
	add_fact(&t, "checkpoint ", text_of(job, "checkpoint_path"));
	add_fact(&t, "data path ", text_of(job, "data_path"));
	add_fact(&t, "GPU ", json_is_true(json_object_get(job, "simulated")) ? "simulated" : "");
	table_print(&t, stdout, false, 0);
	table_fini(&t);
}

/* ---- its parts ---- */

static void print_gpus(json_t *gpus, const char *title)
{
	static const struct column columns[] = { { "GPU", true, 0 },
						 { "UUID", false, 0 },
						 { "MEMORY", true, 0 } };
	struct table t = TABLE_OF(columns);
	json_t *gpu;
	size_t i;

	json_array_foreach (gpus, i, gpu) {
		add_number(&t, json_object_get(gpu, "index"));
		table_add(&t, text_of(gpu, "uuid"));
		add_bytes(&t, json_object_get(gpu, "bytes"));
	}
	table_section(&t, title);
}

static json_t *memory_of(json_t *memory, json_int_t pid)
{
	json_t *process;
	size_t i;

	json_array_foreach (memory, i, process)
		if (json_integer_value(json_object_get(process, "pid")) == pid)
			return process;
	return NULL;
}

static void print_processes(json_t *processes, json_t *memory)
{
	static const struct column columns[] = {
		{ "PID", true, 0 },	 { "PARENT", true, 0 },	   { "STATE", false, 0 },
		{ "THREADS", true, 0 },	 { "HOST-MEM", true, 0 },  { "GPU", false, 0 },
		{ "PIECES", true, 0 },	 { "IN PIECES", true, 0 }, { "BY DRIVER", true, 0 },
		{ "COMMAND", false, 0 },
	};
	struct table t = TABLE_OF(columns);
	json_t *p;
	size_t i;

	json_array_foreach (processes, i, p) {
		json_t *pid = json_object_get(p, "pid");
		json_t *device = memory_of(memory, json_integer_value(pid));

		add_number(&t, pid);
		add_number(&t, json_object_get(p, "parent"));
		table_add(&t, text_of(p, "state"));
		add_number(&t, json_object_get(p, "threads"));
		add_bytes(&t, json_object_get(p, "host_bytes"));
		table_add(&t, json_is_true(json_object_get(p, "uses_gpu")) ? "yes" : "no");
		add_number(&t, json_object_get(device, "pieces"));
		add_bytes(&t, json_object_get(device, "data_bytes"));
		add_bytes(&t, json_object_get(device, "driver_bytes"));
		table_add(&t, text_of(p, "command"));
	}
	table_section(&t, "Processes");
}

static void print_files(json_t *files)
{
	static const struct column columns[] = { { "BY PID", false, 0 }, { "PATH", false, 0 } };
	struct table t = TABLE_OF(columns);
	json_t *file, *pid;
	size_t i, k;

	json_array_foreach (files, i, file) {
		char pids[256] = "";
		size_t len = 0;

		json_array_foreach (json_object_get(file, "pids"), k, pid)
			if (len < sizeof(pids) - 1)
				len += (size_t)snprintf(pids + len, sizeof(pids) - len, "%s%lld",
							k ? "," : "",
							(long long)json_integer_value(pid));
		table_add(&t, pids);
		table_add(&t, text_of(file, "path"));
	}
	table_section(&t, "Files");
}

static void print_schedule(json_t *schedule)
{
	static const struct column columns[] = { { "EVERY", true, 0 },
						 { "NEXT", true, 0 },
						 { "KEEP", true, 0 },
						 { "STORE", false, 0 },
						 { "FAILED", false, 0 } };
	struct table t = TABLE_OF(columns);
	char every[WORD_BYTES], next[WORD_BYTES];

	if (!json_is_object(schedule))
		return;
	format_seconds(every,
		       (double)json_integer_value(json_object_get(schedule, "every_ms")) / 1e3);
	format_left(next, text_of(schedule, "next"), time(NULL));
	table_add(&t, every);
	table_add(&t, next);
	add_number(&t, json_object_get(schedule, "keep_last"));
	table_add(&t, text_of(schedule, "dir"));
	table_add(&t, *text_of(schedule, "failure") ? text_of(schedule, "failure") : "no");
	table_section(&t, "Schedule");
}

static void print_checkpoints(json_t *checkpoints)
{
	static const struct column columns[] = { { "ID", false, 0 },
						 { "AGE", true, 0 },
						 { "SIZE", true, 0 },
						 { "DISK", true, 0 },
						 { "PINNED", false, 0 } };
	struct table t = TABLE_OF(columns);
	json_t *o;
	size_t i;

	json_array_foreach (checkpoints, i, o) {
		char age[WORD_BYTES];

		format_age(age, text_of(o, "created"), time(NULL));
		table_add(&t, text_of(o, "id"));
		table_add(&t, age);
		add_bytes(&t, json_object_get(o, "bytes"));
		add_bytes(&t, json_object_get(o, "disk_bytes"));
		table_add(&t, json_is_true(json_object_get(o, "pinned")) ? "yes" : "no");
	}
	table_section(&t, "Checkpoints");
}

static void print_last(json_t *last)
{
	static const struct column columns[] = { { "PHASE", false, 0 },
						 { "BEGAN", true, 0 },
						 { "TOOK", true, 0 } };
	struct table t = TABLE_OF(columns);
	char title[128], took[WORD_BYTES];

	format_seconds(took, json_number_value(json_object_get(last, "seconds")));
	snprintf(title, sizeof(title), "Last operation: %.32s in %s", text_of(last, "operation"),
		 took);
	table_add_phases(&t, json_object_get(last, "phases"), "");
	table_section(&t, title);
}

void job_page_print(json_t *o)
{
	json_t *job = json_object_get(o, "job");

	print_facts(job);
	print_gpus(json_object_get(job, "gpus"), "GPUs");
	print_gpus(json_object_get(job, "needs"), "Device memory that it needs again");
	print_processes(json_object_get(o, "processes"), json_object_get(o, "memory"));
	print_files(json_object_get(o, "files"));
	print_schedule(json_object_get(job, "schedule"));
	print_checkpoints(json_object_get(o, "checkpoints"));
	print_last(json_object_get(o, "last"));
}
