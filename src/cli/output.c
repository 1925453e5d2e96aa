// SPDX-License-Identifier: MIT
/* What people and scripts see of a command: colour, tables, sizes, the progress line, summaries, JSON. See output.h. */
#include "cli/output.h"
#include "cli/command.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/plain.h"
#include "base/size.h"
#include "wire/wire.h"

/* ---- text on a terminal ---- */

static bool has_color(FILE *f)
{
	const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

	/* What is put together in memory is for the terminal. */
	return isatty(fileno(f) < 0 ? STDOUT_FILENO : fileno(f)) && !(no_color && *no_color) &&
	       term && strcmp(term, "dumb");
}

void print_styled(FILE *f, enum style style, const char *text)
{
	static const char *const codes[] = {
		[STYLE_PLAIN] = "", [STYLE_BOLD] = "1",	  [STYLE_DIM] = "2",
		[STYLE_RED] = "31", [STYLE_GREEN] = "32", [STYLE_YELLOW] = "33",
	};

	if (style == STYLE_PLAIN || !has_color(f))
		fputs(text, f);
	else
		fprintf(f, "\033[%sm%s\033[0m", codes[style], text);
}

static bool json_errors;

void errors_are_json(void)
{
	json_errors = true;
}

static void print_error_as_json(const struct brumate_error *err)
{
	const int code = (int)brumate_exit_code(err);
	auto_json json_t *o =
		json_pack("{s:s,s:{s:o,s:o,s:i}}", "apiVersion", "brumate/v1", "error", "message",
			  wire_string(err->text), "hint",
			  err->hint[0] ? wire_string(err->hint) : json_null(), "exit_code", code);
	auto_free char *text = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

	fprintf(stderr, "%s\n", text ? text : "{}");
}

int print_error(const struct brumate_error *err)
{
	fflush(stdout);
	if (json_errors) {
		print_error_as_json(err);
		return (int)brumate_exit_code(err);
	}
	print_styled(stderr, STYLE_RED, "brumate:");
	fputc(' ', stderr);
	print_plain(stderr, err->text);
	fputs(err->hint[0] ? "\nhint: " : "", stderr);
	print_plain(stderr, err->hint);
	fputc('\n', stderr);
	return (int)brumate_exit_code(err);
}

void print_note(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fflush(stdout);
	print_styled(stderr, STYLE_YELLOW, "note: ");
	print_plain(stderr, text);
	fputc('\n', stderr);
}

void add_failure(struct brumate_error *err, const struct brumate_error *why)
{
	const int first = err->code ? print_error(err) : 0;

	*err = *why;
	if (first)
		err->exit_code = first;
}

size_t terminal_width(FILE *f)
{
	struct winsize size;

	if (!isatty(fileno(f)))
		return 0;
	return ioctl(fileno(f), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void print_plain(FILE *f, const char *text)
{
	while (*text) {
		bool safe;
		size_t n = plain_step(text, &safe);

		fprintf(f, "%.*s", safe ? (int)n : 1, safe ? text : "?");
		text += n;
	}
}

size_t text_width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

bool text_may_be_utf8(void)
{
	static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = getenv(names[i]);

		if (value && *value)
			return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
	}
	return false;
}

bool can_ask(void)
{
	return isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
}

bool is_special(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

bool confirm(const char *fmt, ...)
{
	char question[1024], answer[16];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(question, sizeof(question), fmt, ap);
	va_end(ap);
	plain_make(question, '?');
	fprintf(stderr, "%s [y/N] ", question);
	if (!fgets(answer, sizeof(answer), stdin))
		return false;
	answer[strcspn(answer, "\n")] = '\0';
	return !strcasecmp(answer, "y") || !strcasecmp(answer, "yes");
}

void table_fini(struct table *t)
{
	for (size_t i = 0; i < t->n_cells; i++)
		free(t->cells[i]);
	free(t->cells);
	t->cells = NULL;
	t->n_cells = 0;
}

int table_add(struct table *t, const char *text)
{
	char **more = array_room(t->cells, t->n_cells, sizeof(*more));
	char *cell = more ? strdup(text && *text ? text : "-") : NULL;

	t->cells = more ? more : t->cells;
	if (!cell) {
		t->lacks_cells = true;
		return -ENOMEM;
	}
	plain_make(cell, '?');
	t->cells[t->n_cells++] = cell;
	return 0;
}

void table_add_row(struct table *t, json_t *o)
{
	for (size_t c = 0; c < t->n_columns; c++)
		t->columns[c].cell(t, o, t->columns[c].key);
}

void table_add_rows(struct table *t, json_t *items)
{
	json_t *item;
	size_t i;

	json_array_foreach (items, i, item)
		table_add_row(t, item);
}

void cell_text(struct table *t, json_t *o, const char *key)
{
	table_add(t, json_string_value(json_object_get(o, key)));
}

void cell_number(struct table *t, json_t *o, const char *key)
{
	json_t *value = json_object_get(o, key);
	char text[WORD_BYTES] = "";

	if (json_is_integer(value))
		snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	table_add(t, text);
}

char *join_words(json_t *array, const char *between)
{
	char *text = NULL;
	size_t len, i;
	FILE *f = open_memstream(&text, &len);
	json_t *item;

	if (!f)
		return NULL;
	json_array_foreach (array, i, item) {
		fputs(i ? between : "", f);
		if (json_is_integer(item))
			fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(item));
		else
			fputs(json_is_string(item) ? json_string_value(item) : "?", f);
	}
	fclose(f);
	return text;
}

void cell_words(struct table *t, json_t *o, const char *key)
{
	auto_free char *text = join_words(json_object_get(o, key), ",");

	table_add(t, text);
}

void cell_bytes(struct table *t, json_t *o, const char *key)
{
	json_t *value = json_object_get(o, key);
	char text[WORD_BYTES] = "";

	if (json_is_integer(value))
		format_bytes(text, (uint64_t)json_integer_value(value));
	table_add(t, text);
}

void cell_yes(struct table *t, json_t *o, const char *key)
{
	table_add(t, json_is_true(json_object_get(o, key)) ? "yes" : "no");
}

void cell_age(struct table *t, json_t *o, const char *key)
{
	char age[WORD_BYTES];

	format_age(age, json_string_value(json_object_get(o, key)), time(NULL));
	table_add(t, age);
}

static size_t column_width(const struct table *t, size_t column, bool headings)
{
	size_t widest = headings ? text_width(t->columns[column].title) : 0;

	for (size_t i = column; i < t->n_cells; i += t->n_columns) {
		size_t width = text_width(t->cells[i]);

		if (width > widest)
			widest = width;
	}
	return widest;
}

/* At most @cells code points of @text. */
static void print_cut(FILE *f, const char *text, size_t cells)
{
	size_t n = 0;

	for (; *text; text++) {
		n += ((unsigned char)*text & 0xc0) != 0x80;
		if (n > cells)
			break;
		putc(*text, f);
	}
}

static void print_cell(const struct table *t, FILE *f, size_t column, const char *text,
		       const size_t *widths, size_t *room)
{
	bool last = column + 1 == t->n_columns;
	size_t width = text_width(text);
	size_t pad = width < widths[column] ? widths[column] - width : 0;

	if (widths[column] == SIZE_MAX)
		return;
	if (last && !t->columns[column].right) {
		print_cut(f, text, *room);
		putc('\n', f);
		return;
	}
	fprintf(f, "%*s", t->columns[column].right ? (int)pad : 0, "");
	print_styled(f, t->style ? t->style(&t->columns[column], text) : STYLE_PLAIN, text);
	fprintf(f, "%*s", t->columns[column].right ? 0 : (int)pad, "");
	fputs(last ? "\n" : "  ", f);
	*room = *room > widths[column] + 2 ? *room - widths[column] - 2 : 0;
}

enum { LAST_COLUMN_LEAST = 12 };

/* The column that is the next to go; n_columns where all that are left stay. */
static size_t next_dropped(const struct table *t, const size_t *widths)
{
	size_t found = t->n_columns;

	for (size_t c = 0; c < t->n_columns; c++)
		if (t->columns[c].dropped && widths[c] != SIZE_MAX &&
		    (found == t->n_columns || t->columns[c].dropped < t->columns[found].dropped))
			found = c;
	return found;
}

/* Gives those the width SIZE_MAX that are to be left out. */
static void drop_columns(const struct table *t, size_t *widths, size_t room)
{
	for (;;) {
		const size_t next = next_dropped(t, widths), last = t->n_columns - 1;
		size_t taken = 0;

		for (size_t c = 0; c < last; c++)
			taken += widths[c] == SIZE_MAX ? 0 : widths[c] + 2;
		taken += widths[last] < LAST_COLUMN_LEAST ? widths[last] : LAST_COLUMN_LEAST;
		if (taken <= room || next == t->n_columns)
			return;
		widths[next] = SIZE_MAX;
	}
}

void table_print(const struct table *t, FILE *f, bool headings, size_t width)
{
	size_t *widths = calloc(t->n_columns, sizeof(*widths));
	size_t room = width ? width : SIZE_MAX;

	if (!widths)
		return;
	for (size_t c = 0; c < t->n_columns; c++)
		widths[c] = column_width(t, c, headings);
	drop_columns(t, widths, room);
	for (size_t c = 0; headings && c < t->n_columns; c++)
		print_cell(t, f, c, t->columns[c].title, widths, &room);
	for (size_t i = 0; i < t->n_cells; i++) {
		if (i % t->n_columns == 0)
			room = width ? width : SIZE_MAX;
		print_cell(t, f, i % t->n_columns, t->cells[i], widths, &room);
	}
	free(widths);
}

void table_section(struct table *t, const char *title)
{
	if (t->n_cells) {
		putchar('\n');
		print_styled(stdout, STYLE_BOLD, title);
		putchar('\n');
		table_print(t, stdout, true, 0);
	}
	table_fini(t);
}

void table_section_of(struct table t, json_t *items, const char *title)
{
	table_add_rows(&t, items);
	table_section(&t, title);
}

/* ---- values ---- */

void format_bytes(char ret[static WORD_BYTES], uint64_t bytes)
{
	size_format(ret, bytes);
}

void format_seconds(char ret[static WORD_BYTES], double seconds)
{
	unsigned long long whole = (unsigned long long)(seconds + 0.5);

	if (seconds > 0 && seconds < 0.0005)
		snprintf(ret, WORD_BYTES, "<1 ms");
	else if (seconds < 0.9995)
		snprintf(ret, WORD_BYTES, "%.0f ms", seconds * 1e3);
	else if (seconds < 9.995)
		snprintf(ret, WORD_BYTES, "%.2f s", seconds);
	else if (seconds < 59.95)
		snprintf(ret, WORD_BYTES, "%.1f s", seconds);
	else if (whole < 3600)
		snprintf(ret, WORD_BYTES, "%llum%02llus", whole / 60, whole % 60);
	else
		snprintf(ret, WORD_BYTES, "%lluh%02llum", whole / 3600, whole / 60 % 60);
}

void format_age_s(char ret[static WORD_BYTES], long long age)
{
	if (age < 0)
		age = 0; /* the clock was set */
	if (age < 120)
		snprintf(ret, WORD_BYTES, "%llds", age);
	else if (age < 2 * 3600)
		snprintf(ret, WORD_BYTES, "%lldm", age / 60);
	else if (age < 2 * 86400)
		snprintf(ret, WORD_BYTES, "%lldh", age / 3600);
	else
		snprintf(ret, WORD_BYTES, "%lldd", age / 86400);
}

static bool read_stamp(long long *ret_s, const char *stamp)
{
	struct tm tm = { 0 };

	if (!stamp || !strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm))
		return false;
	*ret_s = timegm(&tm);
	return true;
}

void format_age(char ret[static WORD_BYTES], const char *stamp, time_t now)
{
	long long at;

	snprintf(ret, WORD_BYTES, "-");
	if (read_stamp(&at, stamp))
		format_age_s(ret, (long long)now - at);
}

void format_left(char ret[static WORD_BYTES], const char *stamp, time_t now)
{
	long long at;

	snprintf(ret, WORD_BYTES, "-");
	if (read_stamp(&at, stamp))
		format_age_s(ret, at - (long long)now);
}

/* ---- the progress line and the summary ---- */

uint64_t bytes_of(const json_t *o, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(o, key));

	return value > 0 ? (uint64_t)value : 0;
}

/* "  25%  477 MiB of 1.86 GiB  2.60 GB/s  577 ms left"; nothing where no bytes move. */
static void format_amount(char *ret, size_t room, json_t *o, double gbps)
{
	uint64_t bytes = bytes_of(o, "bytes"), total = bytes_of(o, "total_bytes");
	uint64_t left = total > bytes ? total - bytes : 0;
	char done[WORD_BYTES], all[WORD_BYTES], time[WORD_BYTES], rate[2 * WORD_BYTES] = "";

	*ret = '\0';
	if (!bytes && !total)
		return;
	format_bytes(done, bytes);
	format_bytes(all, total);
	format_seconds(time, gbps > 0 ? (double)left / gbps / 1e9 : 0);
	if (gbps > 0)
		snprintf(rate, sizeof(rate), "  %.2f GB/s%s%s%s", gbps, left ? "  " : "",
			 left ? time : "", left ? " left" : "");
	if (total)
		snprintf(ret, room, "  %u%%  %s of %s%s",
			 (unsigned)(100.0 * (double)(total - left) / (double)total), done, all,
			 rate);
	else
		snprintf(ret, room, "  %s%s", done, rate);
}

void progress_format(char *ret, size_t room, const char *verb, json_t *o, double gbps)
{
	char amount[256], waiting[256] = "", seconds[WORD_BYTES];

	format_amount(amount, sizeof(amount), o, gbps);
	format_seconds(seconds, json_number_value(json_object_get(o, "seconds")));
	if (text_of(o, "waiting_for")[0])
		snprintf(waiting, sizeof(waiting), "  waiting for %s", text_of(o, "waiting_for"));
	snprintf(ret, room, "%s [%d/%d] %s%s%s  %s", verb,
		 (int)json_integer_value(json_object_get(o, "step")),
		 (int)json_integer_value(json_object_get(o, "steps")), text_of(o, "phase"), amount,
		 waiting, seconds);
}

/* GB/s since the phase began. */
static double gbps_of(struct progress_line *p, json_t *o)
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
	struct progress_line *p = arg;
	json_t *o = json_object_get(reply, "progress");
	size_t width = terminal_width(stderr);
	char line[1024];

	if (!width || !json_is_object(o))
		return;
	progress_format(line, sizeof(line), p->verb, o, gbps_of(p, o));
	plain_make(line, '?'); /* what is waited for may quote a program's name */
	fprintf(stderr, "\r%-*.*s", (int)width - 1, (int)width - 1, line);
	fflush(stderr);
	p->shown = true;
}

void progress_clear(struct progress_line *p)
{
	size_t width = terminal_width(stderr);

	if (p->shown)
		fprintf(stderr, "\r%*s\r", width ? (int)width - 1 : 0, "");
	p->shown = false;
}

/* ---- phases ---- */

enum { PHASES_SHOWN_MAX = 256 };

/* A phase, or the longest row of phases one after the other that ends with it. */
struct shown_phase {
	json_t *phase;
	double start, end;
	double row_seconds;
	int before; /* the one before it in that row, -1: none */
	bool in_row;
};

static int compare_starts(const void *a, const void *b)
{
	const struct shown_phase *left = a, *right = b;

	return (left->start > right->start) - (left->start < right->start);
}

/* Notes which phases are of the row that covers the most time without two at once. */
static void choose_row(struct shown_phase *p, int n)
{
	static const double slack_s = 1e-4; /* clocks are read one after the other */
	int last = -1;

	for (int i = 0; i < n; i++) {
		p[i].before = -1;
		for (int k = 0; k < i; k++)
			if (p[k].end <= p[i].start + slack_s &&
			    (p[i].before < 0 || p[k].row_seconds >= p[p[i].before].row_seconds))
				p[i].before = k;
		p[i].row_seconds =
			p[i].end - p[i].start + (p[i].before < 0 ? 0 : p[p[i].before].row_seconds);
		if (last < 0 || p[i].row_seconds >= p[last].row_seconds)
			last = i;
	}
	for (; last >= 0; last = p[last].before)
		p[last].in_row = true;
}

static int add_phases(struct table *t, const struct shown_phase *p, int n, bool in_row,
		      const char *indent)
{
	int added = 0;

	for (int i = 0; i < n; i++) {
		char name[128], began[WORD_BYTES], took[WORD_BYTES];

		if (p[i].in_row != in_row)
			continue;
		snprintf(name, sizeof(name), "%s%s", indent, text_of(p[i].phase, "name"));
		format_seconds(began, p[i].start);
		format_seconds(took, p[i].end - p[i].start);
		table_add(t, name);
		table_add(t, began);
		table_add(t, took);
		added++;
	}
	return added;
}

void table_add_phases(struct table *t, json_t *phases, const char *indent)
{
	struct shown_phase p[PHASES_SHOWN_MAX] = { 0 };
	int n = 0;
	size_t i;
	json_t *phase;

	json_array_foreach (phases, i, phase) {
		const double start = json_number_value(json_object_get(phase, "start"));

		if (n == PHASES_SHOWN_MAX)
			break;
		p[n++] = (struct shown_phase){
			.phase = phase,
			.start = start,
			.end = start + json_number_value(json_object_get(phase, "seconds")),
		};
	}
	qsort(p, (size_t)n, sizeof(*p), compare_starts);
	choose_row(p, n);
	if (add_phases(t, p, n, true, indent) == n)
		return;
	char heading[64];
	snprintf(heading, sizeof(heading), "%sat the same time:", indent);
	table_add(t, heading);
	table_add(t, " ");
	table_add(t, " ");
	add_phases(t, p, n, false, indent);
}

static void print_phases(json_t *phases)
{
	static const struct column columns[] = { { "  PHASE", false },
						 { "BEGAN", true },
						 { "TOOK", true } };
	struct table t = TABLE_OF(columns);

	table_add_phases(&t, phases, "  ");
	if (t.n_cells)
		table_print(&t, stderr, true, 0);
	table_fini(&t);
}

/* What did not have to be copied, and what went to a disk. */
static void print_spared(json_t *o)
{
	static const struct {
		const char *key, *text;
	} amounts[] = {
		{ "gpu_bytes", "of device memory" },
		{ "zero_bytes", "of it zero" },
		{ "unchanged_bytes", "of it unchanged" },
		{ "driver_bytes", "of it moved by the driver" },
		{ "disk_bytes", "of it spilled to disk" },
		{ "image_bytes", "in the checkpoint" },
	};
	char bytes[WORD_BYTES];

	for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++) {
		if (!bytes_of(o, amounts[i].key))
			continue;
		format_bytes(bytes, bytes_of(o, amounts[i].key));
		fprintf(stderr, "  %s %s\n", bytes, amounts[i].text);
	}
}

static const struct outcome {
	const char *operation, *past, *bytes, *place;
} outcomes[] = {
	{ "suspend", "suspended", "gpu_bytes", "; now in host memory" },
	{ "resume", "resumed", "gpu_bytes", "; back on the GPU" },
	{ "checkpoint", "checkpointed", "image_bytes", "; now in " },
	{ "restore", "restored", "image_bytes", " from " },
};

static const struct outcome *outcome_of(const char *operation)
{
	for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++)
		if (!strcmp(outcomes[i].operation, operation))
			return &outcomes[i];
	return &outcomes[0];
}

/* "suspended job train in 352 ms: 1.00 GiB at 3.05 GB/s, stood still 352 ms; now in host memory" */
static void print_outcome_line(json_t *o, bool parked)
{
	const struct outcome *done = outcome_of(text_of(o, "operation"));
	if (json_is_true(json_object_get(o, "already"))) {
		const char *name = text_of(o, "job_name");
		print_note("job %s is %s already", *name ? name : text_of(o, "job"),
			   !strcmp(done->operation, "resume") ? "running" : done->past);
		return;
	}
	double downtime = json_number_value(json_object_get(o, "downtime_s"));
	double drain = json_number_value(json_object_get(o, "drain_s"));
	double gbps = json_number_value(json_object_get(o, "gbps"));
	char bytes[WORD_BYTES], took[WORD_BYTES], still[WORD_BYTES], behind[WORD_BYTES];

	format_bytes(bytes, bytes_of(o, done->bytes));
	format_seconds(took, json_number_value(json_object_get(o, "seconds")));
	format_seconds(still, downtime);
	format_seconds(behind, drain);
	const char *name = text_of(o, "job_name");
	fprintf(stderr, "%s job ", done->past);
	print_plain(stderr, *name ? name : text_of(o, "job"));
	fprintf(stderr, " in %s: %s", took, bytes);
	if (gbps > 0)
		fprintf(stderr, " at %.2f GB/s", gbps);
	if (downtime > 0)
		fprintf(stderr, ", stood still %s", still);
	if (drain > 0)
		fprintf(stderr, ", copied behind it in %s", behind);
	fprintf(stderr, "%s%s\n", parked ? "; left on the GPU" : done->place, text_of(o, "path"));
}

/* "about 350 ms (as 1.00 GiB 5m ago)" */
static void describe_time(char *ret, size_t room, json_t *o)
{
	const double still = json_number_value(json_object_get(o, "downtime_s"));
	char took[WORD_BYTES], stood[WORD_BYTES], like[WORD_BYTES], age[WORD_BYTES];

	if (!json_is_number(json_object_get(o, "seconds"))) {
		snprintf(ret, room, "how long is not known: there was no such %s here yet",
			 text_of(o, "operation"));
		return;
	}
	format_seconds(took, json_number_value(json_object_get(o, "seconds")));
	format_seconds(stood, still);
	format_bytes(like, bytes_of(o, "like_bytes"));
	format_age(age, text_of(o, "like_time"), time(NULL));
	snprintf(ret, room, "about %s%s%s (as %s %s ago)", took,
		 still > 0 ? ", standing still about " : "", still > 0 ? stood : "", like, age);
}

void format_foreseen(char ret[static FORESEEN_BYTES], json_t *o)
{
	char bytes[WORD_BYTES], free[WORD_BYTES], how_long[FORESEEN_BYTES / 2];

	format_bytes(bytes, bytes_of(o, "bytes"));
	format_bytes(free, bytes_of(o, "room_bytes"));
	describe_time(how_long, sizeof(how_long), o);
	snprintf(ret, FORESEEN_BYTES, "%s of %s, %s", bytes,
		 json_is_integer(json_object_get(o, "room_bytes")) ? free : "unknown room",
		 how_long);
}

void print_foreseen_line(json_t *o)
{
	const struct outcome *would = outcome_of(text_of(o, "operation"));
	const char *name = text_of(o, "job_name");
	char text[FORESEEN_BYTES];
	json_t *note;
	size_t i;

	format_foreseen(text, o);
	fprintf(stderr, "job ");
	print_plain(stderr, *name ? name : text_of(o, "job"));
	fprintf(stderr, " would be %s: at most %s\n", would->past, text);
	json_array_foreach (json_object_get(o, "notes"), i, note)
		print_note("%s", json_string_value(note) ? json_string_value(note) : "");
}

void summary_print(const struct invocation *in, json_t *o)
{
	json_t *note;
	size_t i;

	print_outcome_line(o, in->values[OPT_PARK]);
	if (in->values[OPT_STATS]) {
		print_phases(json_object_get(o, "phases"));
		print_spared(o);
	}
	json_array_foreach (json_object_get(o, "notes"), i, note)
		print_note("%s", json_string_value(note) ? json_string_value(note) : "");
}

/* ---- JSON ---- */

/* Times are measured to a microsecond at best, and nothing that is no whole number to more than six digits. */
#define JSON_FORM (JSON_INDENT(2) | JSON_REAL_PRECISION(6))

bool wants_json(const struct invocation *in)
{
	return in->values[OPT_FORMAT] && !strcmp(in->values[OPT_FORMAT], "json");
}

static bool is_safe_json(const char *text)
{
	while (*text) {
		bool safe, is_newline = *text == '\n';

		text += plain_step(text, &safe);
		if (!safe && !is_newline)
			return false;
	}
	return true;
}

int print_json(json_t *o, struct brumate_error *err)
{
	auto_json json_t *all = json_pack("{s:s}", "apiVersion", "brumate/v1");
	auto_free char *text =
		all && json_object_update(all, o) == 0 ? json_dumps(all, JSON_FORM) : NULL;

	if (text &&
	    !is_safe_json(text)) { /* JSON may hold what a terminal obeys: write it as \u0085 */
		free(text);
		text = json_dumps(all, JSON_FORM | JSON_ENSURE_ASCII);
	}
	if (!text || puts(text) < 0)
		return brumate_fail(err, EIO, "cannot print the JSON");
	return 0;
}
