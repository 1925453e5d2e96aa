// SPDX-License-Identifier: MIT
/* The progress line and the summary; see progress.h. */
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/words.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static const char *text_of(json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text ? text : "";
}

static uint64_t bytes_of(json_t *o, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(o, key));

	return value > 0 ? (uint64_t)value : 0;
}

void progress_format(char *ret, size_t room, const char *verb, json_t *o, double gbps)
{
	char done[WORD_BYTES], total[WORD_BYTES], amount[128] = "", waiting[256] = "";
	uint64_t bytes = bytes_of(o, "bytes"), total_bytes = bytes_of(o, "total_bytes");

	format_bytes(done, bytes);
	format_bytes(total, total_bytes);
	if (total_bytes)
		snprintf(amount, sizeof(amount), "  %s of %s", done, total);
	else if (bytes)
		snprintf(amount, sizeof(amount), "  %s", done);
	if (amount[0] && gbps > 0)
		snprintf(amount + strlen(amount), sizeof(amount) - strlen(amount), "  %.2f GB/s",
			 gbps);
	if (text_of(o, "waiting_for")[0])
		snprintf(waiting, sizeof(waiting), "  waiting for %s", text_of(o, "waiting_for"));
	snprintf(ret, room, "%s [%d/%d] %s%s%s  %.1f s", verb,
		 (int)json_integer_value(json_object_get(o, "step")),
		 (int)json_integer_value(json_object_get(o, "steps")), text_of(o, "phase"), amount,
		 waiting, json_number_value(json_object_get(o, "seconds")));
}

/* GB/s since the phase began. */
static double rate(struct progress *p, json_t *o)
{
	uint64_t bytes = bytes_of(o, "bytes");

	if (strncmp(p->phase, text_of(o, "phase"), sizeof(p->phase) - 1)) {
		snprintf(p->phase, sizeof(p->phase), "%s", text_of(o, "phase"));
		p->phase_start_ns = clock_now_ns();
		p->phase_start_bytes = bytes;
	}
	double seconds = clock_since_s(p->phase_start_ns);
	if (seconds <= 0 || bytes <= p->phase_start_bytes)
		return 0;
	return (double)(bytes - p->phase_start_bytes) / seconds / 1e9;
}

void progress_show(void *arg, json_t *reply)
{
	struct progress *p = arg;
	json_t *o = json_object_get(reply, "progress");
	size_t width = terminal_width(stderr);
	char line[1024];

	if (!width || !json_is_object(o))
		return;
	progress_format(line, sizeof(line), p->verb, o, rate(p, o));
	for (char *c = line; *c; c++) /* what is waited for may quote a program's name */
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	fprintf(stderr, "\r%-*.*s", (int)width - 1, (int)width - 1, line);
	fflush(stderr);
	p->shown = true;
}

void progress_clear(struct progress *p)
{
	size_t width = terminal_width(stderr);

	if (p->shown)
		fprintf(stderr, "\r%*s\r", width ? (int)width - 1 : 0, "");
	p->shown = false;
}

static void print_phases(json_t *phases)
{
	static const struct column columns[] = { { "  PHASE", false }, { "SECONDS", true } };
	struct table t = TABLE_OF(columns);
	json_t *phase;
	size_t i;

	json_array_foreach (phases, i, phase) {
		char name[128], seconds[32];

		snprintf(name, sizeof(name), "  %s", text_of(phase, "name"));
		snprintf(seconds, sizeof(seconds), "%.3f",
			 json_number_value(json_object_get(phase, "seconds")));
		table_add(&t, name);
		table_add(&t, seconds);
	}
	if (t.n_cells)
		table_print(&t, stderr, true, 0);
	table_fini(&t);
}

/* "total 0.352 s, downtime 0.352 s, 1.07 GB of device memory, 3.05 GB/s" */
/* What of it did not have to be copied. */
static void print_spared(json_t *o)
{
	uint64_t zero = bytes_of(o, "zero_bytes"), same = bytes_of(o, "unchanged_bytes");
	char bytes[WORD_BYTES];

	if (zero) {
		format_bytes(bytes, zero);
		fprintf(stderr, ", %s of it zero", bytes);
	}
	if (same) {
		format_bytes(bytes, same);
		fprintf(stderr, ", %s unchanged", bytes);
	}
}

static void print_totals(json_t *o)
{
	uint64_t gpu = bytes_of(o, "gpu_bytes"), image = bytes_of(o, "image_bytes");
	uint64_t disk = bytes_of(o, "disk_bytes");
	double downtime = json_number_value(json_object_get(o, "downtime_s"));
	double gbps = json_number_value(json_object_get(o, "gbps"));
	char bytes[WORD_BYTES];

	fprintf(stderr, "  total %.3f s", json_number_value(json_object_get(o, "seconds")));
	if (downtime > 0)
		fprintf(stderr, ", downtime %.3f s", downtime);
	if (gpu) {
		format_bytes(bytes, gpu);
		fprintf(stderr, ", %s of device memory", bytes);
		print_spared(o);
	}
	if (disk) {
		format_bytes(bytes, disk);
		fprintf(stderr, ", %s spilled to disk", bytes);
	}
	if (image) {
		format_bytes(bytes, image);
		fprintf(stderr, ", image %s", bytes);
	}
	if (gbps > 0)
		fprintf(stderr, ", %.2f GB/s", gbps);
	putc('\n', stderr);
}

static const char *past_of(const char *operation)
{
	static const char *const pasts[][2] = {
		{ "suspend", "suspended" },
		{ "resume", "resumed" },
		{ "checkpoint", "checkpointed" },
		{ "restore", "restored" },
	};

	for (size_t i = 0; i < sizeof(pasts) / sizeof(pasts[0]); i++)
		if (!strcmp(pasts[i][0], operation))
			return pasts[i][1];
	return operation;
}

void summary_print(json_t *o)
{
	const char *path = text_of(o, "path");
	json_t *note;
	size_t i;

	fprintf(stderr, "%s job %s%s%s\n", past_of(text_of(o, "operation")), text_of(o, "job"),
		*path ? ": " : "", path);
	print_phases(json_object_get(o, "phases"));
	print_totals(o);
	json_array_foreach (json_object_get(o, "notes"), i, note) {
		print_styled(stderr, STYLE_YELLOW, "  note: ");
		fprintf(stderr, "%s\n", json_string_value(note) ? json_string_value(note) : "");
	}
}
