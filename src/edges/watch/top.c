// SPDX-License-Identifier: MIT
/*
 * `brumate top`: GPUs with their memory and links, the disk of the store, operations under way, and jobs, on the whole
 * of a terminal, until the user types q. Rates are differences of what brokers, the kernel and shims count. No broker
 * is started for it: GPUs are those of brokers that run.
 */
#include "cli/client.h"
#include "cli/command.h"
#include "cli/pages.h"
#include "cli/output.h"
#include "cli/users.h"
#include "edges/watch/screen.h"
#include "edges/watch/options.h"
#include "edges/watch/seen.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "service/access.h"

enum {
	REFRESH_MS = 1000,
	LEAST_MS = 200,	 /* between two pictures */
	USERS_MS = 1500, /* for which one user can hold a picture up */
	DISKSTATS_BYTES_MAX = 1 << 20,
	SECTOR_BYTES = 512, /* of /proc/diskstats, regardless of the disk's own */
};

enum { REAL, SIMULATED, KINDS };

/* What was seen at one moment. */
struct seen {
	uint64_t at_ns;
	struct broker_info *brokers[KINDS]; /* owned; NULL: none runs */
	bool has_disk;
	uint64_t read_bytes, written_bytes; /* of the disk that holds the store */
	json_t *jobs;			    /* owned */
	json_t *notes;			    /* owned: of users whose jobs are not seen */
	uint64_t n_folded;		    /* that ended long ago, and are not among them */
};

/* Which job is the first, of those that live; @s goes on to the next. */
static const char *const orders[] = { "newest", "name", "state", "gpu-mem", "host-mem" };
enum { ORDERS = sizeof(orders) / sizeof(orders[0]) };

struct top {
	size_t order;
	bool all; /* those that ended long ago as well */
	bool all_users;
	char *store; /* owned; NULL: not known */
	struct seen now, before;
	struct brumate_error why; /* the jobs cannot be listed at present */
};

static void seen_fini(struct seen *s)
{
	for (int i = 0; i < KINDS; i++)
		free(s->brokers[i]);
	json_decref(s->jobs);
	json_decref(s->notes);
	*s = (struct seen){ 0 };
}

/* ---- looking ---- */

/* What the kernel counts of the block device with the file system of the store; others have none of their own. */
static void look_at_disk(struct seen *s, const char *store)
{
	auto_free char *text = NULL;
	struct stat st;

	if (!store || stat(store, &st) < 0 ||
	    file_read(AT_FDCWD, "/proc/diskstats", DISKSTATS_BYTES_MAX, &text, NULL) < 0)
		return;
	for (char *line = text; line && *line; line = strchr(line, '\n'), line += !!line) {
		unsigned major_number, minor_number;
		uint64_t in, out;

		if (sscanf(line, "%u %u %*s %*u %*u %" SCNu64 " %*u %*u %*u %" SCNu64,
			   &major_number, &minor_number, &in, &out) != 4 ||
		    makedev(major_number, minor_number) != st.st_dev)
			continue;
		s->has_disk = true;
		s->read_bytes = in * SECTOR_BYTES;
		s->written_bytes = out * SECTOR_BYTES;
		return;
	}
}

static void look(struct top *t)
{
	auto_json json_t *p = json_pack("{s:b}", "recent", !t->all), *reply = NULL;

	seen_fini(&t->before);
	t->before = t->now;
	t->now = (struct seen){ .at_ns = clock_now_ns() };
	t->why = BRUMATE_ERROR_NONE;
	t->now.notes = json_array();
	int r = t->all_users ? users_list(&reply, p, USERS_MS, t->now.notes, &t->why)
			     : client_ask("List", p, &reply, &t->why);
	if (r == 0)
		t->now.jobs = json_incref(json_object_get(reply, "jobs"));
	t->now.n_folded = bytes_of(reply, "folded");
	for (int i = 0; i < KINDS; i++)
		t->now.brokers[i] = broker_seen(i == SIMULATED);
	look_at_disk(&t->now, t->store);
}

/* ---- rates ---- */

static double seconds_between(const struct top *t)
{
	return t->before.at_ns ? (double)(t->now.at_ns - t->before.at_ns) / (double)NS_PER_S : 0;
}

/* "1.20 GB/s"; "-" where it is not known yet. A counter that is lower than before belongs to a program that was
 * restarted. */
static void format_rate(char ret[static WORD_BYTES], uint64_t now, uint64_t before, double seconds)
{
	snprintf(ret, WORD_BYTES, "-");
	if (seconds > 0 && now >= before)
		snprintf(ret, WORD_BYTES, "%.2f GB/s", (double)(now - before) / seconds / 1e9);
}

static void add_rate(struct table *table, const struct top *t, uint64_t now, const uint64_t *before)
{
	char text[WORD_BYTES];

	format_rate(text, now, before ? *before : 0, before ? seconds_between(t) : 0);
	table_add(table, text);
}

/* ---- what is shown ---- */

static void print_title(const struct top *t, FILE *f)
{
	const time_t now = time(NULL);
	char clock[16] = "", text[256];
	size_t i, n_running = 0, n_copies = 0;
	uint64_t copies = 0, ready = 0;
	struct tm tm;
	json_t *job;

	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	json_array_foreach (t->now.jobs, i, job) {
		n_running += !strcmp(text_of(job, "state"), "running");
		n_copies += bytes_of(job, "copy_bytes") > 0;
		copies += bytes_of(job, "copy_bytes");
	}
	for (i = 0; i < KINDS; i++)
		ready += t->now.brokers[i] ? t->now.brokers[i]->room.free_bytes : 0;
	snprintf(text, sizeof(text), "brumate top  %s  jobs: %zu, running: %zu", clock,
		 json_array_size(t->now.jobs), n_running);
	print_styled(f, STYLE_BOLD, text);
	fprintf(f,
		"  (q quits, s sorts, a %s)\nhost memory: %s in copies of %zu job%s, %s ready in "
		"the pool\n",
		t->all ? "folds jobs that ended long ago" : "shows all jobs", SIZE_TEXT(copies),
		n_copies, n_copies == 1 ? "" : "s", SIZE_TEXT(ready));
}

static const struct broker_moved *moved_before(const struct top *t, int kind, const char *uuid)
{
	const struct broker_info *b = t->before.brokers[kind];

	for (size_t i = 0; b && b->pid == t->now.brokers[kind]->pid && i < b->n_gpus; i++)
		if (!strcmp(b->gpus[i].gpu.uuid, uuid))
			return &b->gpus[i].moved;
	return NULL;
}

static void add_gpu_row(struct table *table, const struct top *t, int kind, size_t i)
{
	const struct broker_info *b = t->now.brokers[kind];
	const struct dev_gpu *gpu = &b->gpus[i].gpu;
	const struct broker_moved *moved = &b->gpus[i].moved;
	const struct broker_moved *before = moved_before(t, kind, gpu->uuid);
	const uint64_t spilled = before ? before->written_bytes + before->read_bytes : 0;
	char number[WORD_BYTES], used[WORD_BYTES], total[WORD_BYTES], memory[3 * WORD_BYTES];
	char percent[WORD_BYTES] = "";

	snprintf(number, sizeof(number), "%zu", i);
	format_bytes(used, gpu->used_bytes);
	format_bytes(total, gpu->total_bytes);
	snprintf(memory, sizeof(memory), "%s of %s", used, total);
	if (gpu->total_bytes)
		snprintf(percent, sizeof(percent), "%.0f%%",
			 100.0 * (double)gpu->used_bytes / (double)gpu->total_bytes);
	table_add(table, number);
	table_add(table, memory);
	table_add(table, percent);
	add_rate(table, t, moved->out_bytes, before ? &before->out_bytes : NULL);
	add_rate(table, t, moved->in_bytes, before ? &before->in_bytes : NULL);
	add_rate(table, t, moved->written_bytes + moved->read_bytes, before ? &spilled : NULL);
	table_add(table, gpu->name);
}

static void print_gpus(const struct top *t, FILE *f, size_t width)
{
	static const struct column columns[] = {
		{ "GPU", true, 0 },	{ "MEMORY", true, 0 }, { "USED", true, 1 },
		{ "TO HOST", true, 0 }, { "TO GPU", true, 0 }, { "SPILL", true, 2 },
		{ "NAME", false, 0 },
	};
	struct table table = TABLE_OF(columns);

	for (int kind = 0; kind < KINDS; kind++)
		for (size_t i = 0; t->now.brokers[kind] && i < t->now.brokers[kind]->n_gpus; i++)
			add_gpu_row(&table, t, kind, i);
	fputc('\n', f);
	if (table.n_cells)
		table_print(&table, f, true, width);
	else
		fputs("GPUs: no broker runs that knows of them; the first operation starts one\n",
		      f);
	table_fini(&table);
}

/* All that the disk of the store does, for any process. */
static void print_disk(const struct top *t, FILE *f)
{
	const bool known = t->now.has_disk && t->before.has_disk;
	char in[WORD_BYTES] = "-", out[WORD_BYTES] = "-";

	if (known) {
		format_rate(in, t->now.read_bytes, t->before.read_bytes, seconds_between(t));
		format_rate(out, t->now.written_bytes, t->before.written_bytes, seconds_between(t));
	}
	fprintf(f, "\nDISK  read %s, written %s  (%s)\n", in, out, t->store ? t->store : "-");
}

static json_t *progress_of(json_t *jobs, const char *id)
{
	json_t *job;
	size_t i;

	json_array_foreach (jobs, i, job)
		if (!strcmp(text_of(job, "id"), id))
			return json_object_get(json_object_get(job, "operation"), "progress");
	return NULL;
}

static void add_operation_row(struct table *table, const struct top *t, json_t *job)
{
	json_t *operation = json_object_get(job, "operation");
	json_t *now = json_object_get(operation, "progress");
	json_t *before = progress_of(t->before.jobs, text_of(job, "id"));
	const uint64_t bytes = bytes_of(now, "bytes"), total = bytes_of(now, "total_bytes");
	const bool same = before && !strcmp(text_of(now, "phase"), text_of(before, "phase"));
	const uint64_t from = bytes_of(before, "bytes");
	char percent[WORD_BYTES] = "", step[2 * WORD_BYTES] = "";

	if (total)
		snprintf(percent, sizeof(percent), "%.0f%%", 100.0 * (double)bytes / (double)total);
	if (now)
		snprintf(step, sizeof(step), "%" PRIu64 "/%" PRIu64 " %.24s", bytes_of(now, "step"),
			 bytes_of(now, "steps"), text_of(now, "phase"));
	table_add(table, text_of(job, "name"));
	table_add(table, text_of(operation, "kind"));
	table_add(table, step);
	table_add(table, percent);
	add_rate(table, t, bytes, same && total ? &from : NULL);
	table_add(table, text_of(now, "waiting_for"));
}

static void print_operations(const struct top *t, FILE *f, size_t width)
{
	static const struct column columns[] = { { "JOB", false, 0 },  { "OPERATION", false, 0 },
						 { "STEP", false, 1 }, { "DONE", true, 0 },
						 { "RATE", true, 0 },  { "WAITS FOR", false, 0 } };
	struct table table = TABLE_OF(columns);
	json_t *job;
	size_t i;

	json_array_foreach (t->now.jobs, i, job)
		if (json_is_object(json_object_get(job, "operation")))
			add_operation_row(&table, t, job);
	fputc('\n', f);
	if (table.n_cells)
		table_print(&table, f, true, width);
	else
		fputs("no operation in progress\n", f);
	table_fini(&table);
}

static void print_top_jobs(const struct top *t, FILE *f, size_t width)
{
	json_t *note;
	size_t i;

	json_array_foreach (t->now.notes, i, note) {
		fputs("note: ", f);
		print_plain(f, json_string_value(note));
		fputc('\n', f);
	}
	job_table_print(t->now.jobs, orders[t->order], t->all_users, f, true, width);
	fprintf(f, "sorted by: %s", orders[t->order]);
	if (t->now.n_folded)
		fprintf(f, "; %" PRIu64 " more ended long ago", t->now.n_folded);
	fputc('\n', f);
}

static void draw(const struct top *t)
{
	const size_t width = terminal_width(stdout);
	FILE *f = screen_begin();

	if (!f)
		return;
	print_title(t, f);
	print_gpus(t, f, width);
	print_disk(t, f);
	print_operations(t, f, width);
	fputc('\n', f);
	if (t->why.code)
		fprintf(f, "the jobs cannot be listed: %s\n", t->why.text);
	else
		print_top_jobs(t, f, width);
	screen_end(f);
}

static void obey(struct top *t)
{
	const char key = screen_key();

	if (key == 's')
		t->order = (t->order + 1) % ORDERS;
	if (key == 'a')
		t->all = !t->all;
}

static void watch(struct top *t, int watch_fd)
{
	enum screen_event event = SCREEN_TIME;

	while (event != SCREEN_QUIT) {
		char changes[4096];

		look(t);
		draw(t);
		event = screen_wait(-1, LEAST_MS);
		if (event == SCREEN_TIME)
			event = screen_wait(watch_fd, REFRESH_MS - LEAST_MS);
		while (read(watch_fd, changes, sizeof(changes)) > 0)
			; /* any event says the same: look again */
		obey(t);
	}
}

int verb_top(const struct invocation *in, struct brumate_error *err)
{
	struct top t = { .all_users = in->values[OPT_ALL_USERS] };
	int r = t.all_users ? users_refuse(err) : 0;

	if (r == 0)
		r = screen_open(in->command->name, err);
	if (r < 0)
		return r;

	auto_close int watch_fd = job_table_watch(err);
	access_store(&t.store, NULL, NULL);
	if (watch_fd >= 0)
		watch(&t, watch_fd);
	screen_close();
	seen_fini(&t.now);
	seen_fini(&t.before);
	free(t.store);
	return watch_fd < 0 ? watch_fd : EXIT_OK;
}
