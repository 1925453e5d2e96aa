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
	auto_free char *text = join_words(argv, " ");

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
	if (json_is_string(json_object_get(job, "frozen")))
		snprintf(text, sizeof(text), "%s, frozen by somebody with the cgroup %s",
			 text_of(job, "state"), text_of(job, "frozen"));
	add_fact(t, "state ", text);
}

/* Within a second it is in use. */
static void add_idle(struct table *t, json_t *idle_ms)
{
	char text[64];

	if (!json_is_integer(idle_ms))
		return;
	const json_int_t s = json_integer_value(idle_ms) / 1000;
	snprintf(text, sizeof(text), "%lld s ago", (long long)s);
	add_fact(t, "GPU used ", s > 1 ? text : "now");
}

static void add_turns(struct table *t, json_int_t turns)
{
	char text[128];

	snprintf(text, sizeof(text),
		 "it and another job have thrown each other out %lld times (brumate events)",
		 (long long)turns);
	if (turns)
		add_fact(t, "turns ", text);
}

static void print_facts(json_t *job)
{
	static const struct column columns[] = { { "", false, 0 }, { "", false, 0 } };
	struct table t = TABLE_OF(columns);
	char text[128];

	snprintf(text, sizeof(text), "%s (%s)", text_of(job, "id"), text_of(job, "name"));
	add_fact(&t, "job ", text);
	add_state(&t, job);
	add_idle(&t, json_object_get(job, "idle_ms"));
	add_turns(&t, json_integer_value(json_object_get(job, "turns")));
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

static const struct column gpu_columns[] = {
	{ "GPU", true, 0, cell_number, "index" },
	{ "UUID", false, 0, cell_text, "uuid" },
	{ "MEMORY", true, 0, cell_bytes, "bytes" },
};

static const struct column process_columns[] = {
	{ "PID", true, 0, cell_number, "pid" },
	{ "PARENT", true, 0, cell_number, "parent" },
	{ "STATE", false, 0, cell_text, "state" },
	{ "THREADS", true, 0, cell_number, "threads" },
	{ "HOST-MEM", true, 0, cell_bytes, "host_bytes" },
	{ "GPU", false, 0, cell_yes, "uses_gpu" },
	{ "PIECES", true, 0, cell_number, "pieces" },
	{ "IN PIECES", true, 0, cell_bytes, "data_bytes" },
	{ "BY DRIVER", true, 0, cell_bytes, "driver_bytes" },
	{ "COMMAND", false, 0, cell_text, "command" },
};

static const struct column file_columns[] = { { "BY PID", false, 0, cell_words, "pids" },
					      { "PATH", false, 0, cell_text, "path" } };

static const struct column checkpoint_columns[] = {
	{ "ID", false, 0, cell_text, "id" },	    { "AGE", true, 0, cell_age, "created" },
	{ "SIZE", true, 0, cell_bytes, "bytes" },   { "DISK", true, 0, cell_bytes, "disk_bytes" },
	{ "PINNED", false, 0, cell_yes, "pinned" },
};

static json_t *memory_of(json_t *memory, json_int_t pid)
{
	json_t *process;
	size_t i;

	json_array_foreach (memory, i, process)
		if (json_integer_value(json_object_get(process, "pid")) == pid)
			return process;
	return NULL;
}

/* A row shows what /proc says of a process, and what its agent says. */
static void print_processes(json_t *processes, json_t *memory)
{
	json_t *p;
	size_t i;

	json_array_foreach (processes, i, p)
		json_object_update_missing(
			p, memory_of(memory, json_integer_value(json_object_get(p, "pid"))));
	table_section_of(TABLE_OF(process_columns), processes, "Processes");
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
	format_seconds(every, (double)bytes_of(schedule, "every_ms") / 1e3);
	format_left(next, text_of(schedule, "next"), time(NULL));
	table_add(&t, every);
	table_add(&t, next);
	cell_number(&t, schedule, "keep_last");
	table_add(&t, text_of(schedule, "dir"));
	table_add(&t, *text_of(schedule, "failure") ? text_of(schedule, "failure") : "no");
	table_section(&t, "Schedule");
}

static void print_foreseen(json_t *list)
{
	static const struct column columns[] = { { "OPERATION", false, 0 },
						 { "AT MOST", false, 0 } };
	struct table t = TABLE_OF(columns);
	char text[FORESEEN_BYTES];
	json_t *o;
	size_t i;

	json_array_foreach (list, i, o) {
		format_foreseen(text, o);
		table_add(&t, text_of(o, "operation"));
		table_add(&t, *text_of(o, "error") ? text_of(o, "error") : text);
	}
	table_section(&t, "What it would come to");
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
	table_section_of(TABLE_OF(gpu_columns), json_object_get(job, "gpus"), "GPUs");
	table_section_of(TABLE_OF(gpu_columns), json_object_get(job, "needs"),
			 "Device memory that it needs again");
	print_processes(json_object_get(o, "processes"), json_object_get(o, "memory"));
	table_section_of(TABLE_OF(file_columns), json_object_get(o, "files"), "Files");
	print_schedule(json_object_get(job, "schedule"));
	table_section_of(TABLE_OF(checkpoint_columns), json_object_get(o, "checkpoints"),
			 "Checkpoints");
	print_last(json_object_get(o, "last"));
	print_foreseen(json_object_get(o, "foreseen"));
}
