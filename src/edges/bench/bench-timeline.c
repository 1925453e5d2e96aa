// SPDX-License-Identifier: MIT
/*
 * The timeline of a benchmark as SVG: a panel for the fastest round of each operation, with a row for each phase. Every
 * text has a column or a line of its own, so that none covers another however short a phase is.
 */
#include "edges/bench/bench.h"
#include "cli/output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "wire/wire.h"

enum {
	WIDTH = 1180,
	MARGIN = 24,
	NAMES_END = 170, /* phase names end here … */
	PLOT = 182,	 /* … and bars begin here */
	PLOT_WIDTH = 640,
	TIMES_END = 920, /* columns of figures, each aligned to its right edge */
	BYTES_END = 1030,
	RATES_END = 1156,
	HEADER = 96, /* title and legend */
	TITLE = 30,  /* of a panel */
	AXIS = 22,   /* of a panel */
	ROW = 20,
	BAR = 13,
	GAP = 28, /* between panels */
	TICKS_MAX = 8,
	SWATCH = 12,
};

static const struct {
	const char *color, *legend;
} looks[BENCH_TRACK__MAX] = {
	[BENCH_OPERATIONS] = { "#475569", NULL },
	[BENCH_STILL] = { "#dc2626", "job stands still" },
	[BENCH_STEPS] = { "#94a3b8", "step of brumate" },
	[BENCH_DATA] = { "#2563eb", "device memory" },
	[BENCH_DRIVER] = { "#ea580c", "driver" },
	[BENCH_MEMORY] = { "#0d9488", "CPU memory" },
	[BENCH_CRIU] = { "#16a34a", "CRIU" },
	[BENCH_DISK] = { "#9333ea", "disk" },
};

/* Where the next thing goes, and the seconds that the width of a panel is. */
struct drawing {
	FILE *f;
	double y, seconds;
};

static void print_escaped(FILE *f, const char *text)
{
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", f);
		else if (*text == '&')
			fputs("&amp;", f);
		else
			putc((unsigned char)*text < 0x20 ? '?' : *text, f);
	}
}

/* @class: of the style sheet; "end" aligns to the right. */
static void draw_text(const struct drawing *d, const char *class, double x, double y,
		      const char *text)
{
	fprintf(d->f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
	print_escaped(d->f, text);
	fputs("</text>\n", d->f);
}

static void draw_rect(const struct drawing *d, double x, double y, double width, double height,
		      const char *color)
{
	fprintf(d->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
		x, y, width, height, color);
}

static double x_of(const struct drawing *d, double seconds)
{
	double share = d->seconds > 0 ? seconds / d->seconds : 0;

	return PLOT + PLOT_WIDTH * (share < 0 ? 0 : share > 1 ? 1 : share);
}

/* 1, 2 or 5 times a power of ten, so that there are TICKS_MAX ticks at most. */
static double tick_of(double seconds)
{
	static const double steps[] = { 1, 2, 5 };
	double power = pow(10, floor(log10(seconds / TICKS_MAX)));

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		if (seconds / (power * steps[i]) <= TICKS_MAX)
			return power * steps[i];
	return power * 10;
}

/* Lines through all @rows of a panel, and the time of each above them. */
static void draw_axis(struct drawing *d, size_t rows)
{
	double step = tick_of(d->seconds);

	for (unsigned i = 0; i * step <= d->seconds; i++) {
		double x = x_of(d, i * step);
		char time[WORD_BYTES];

		fprintf(d->f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
			"stroke=\"#e2e8f0\"/>\n",
			x, d->y + AXIS - 5, x, d->y + AXIS + (double)rows * ROW);
		format_seconds(time, i * step);
		draw_text(d, "tick", x, d->y + 12, i ? time : "0");
	}
	d->y += AXIS;
}

struct bar {
	const char *name;
	enum bench_track track;
	double start, seconds;
	uint64_t bytes; /* 0: it moves none */
};

static void draw_figures(const struct drawing *d, const struct bar *bar, double y)
{
	char time[WORD_BYTES], bytes[WORD_BYTES], rate[WORD_BYTES];

	format_seconds(time, bar->seconds);
	draw_text(d, "figure", TIMES_END, y, time);
	if (!bar->bytes)
		return;
	format_bytes(bytes, bar->bytes);
	draw_text(d, "figure", BYTES_END, y, bytes);
	if (bar->seconds <= 0)
		return;
	snprintf(rate, sizeof(rate), "%.2f GB/s", (double)bar->bytes / bar->seconds / 1e9);
	draw_text(d, "figure", RATES_END, y, rate);
}

static void draw_bar(struct drawing *d, const struct bar *bar)
{
	double from = x_of(d, bar->start), to = x_of(d, bar->start + bar->seconds);
	double y = d->y + ROW - 6;

	draw_text(d, "name", NAMES_END, y, bar->name);
	draw_rect(d, from, d->y + (ROW - BAR) / 2.0, to - from < 1 ? 1 : to - from, BAR,
		  looks[bar->track].color);
	draw_figures(d, bar, y);
	d->y += ROW;
}

/* Whether it is known how long the job stood still: all of it, or from the start of what brings it back. */
static bool shows_still(const struct bench_result *r)
{
	return r->until_beat > 0 || r->standing > 0;
}

static double panel_seconds(const struct bench_result *r)
{
	double longest = r->until_beat > r->seconds ? r->until_beat : r->seconds;
	json_t *phase;
	size_t i;

	json_array_foreach (json_object_get(r->summary, "phases"), i, phase) {
		double end = json_number_value(json_object_get(phase, "start")) +
			     json_number_value(json_object_get(phase, "seconds"));

		if (end > longest)
			longest = end;
	}
	return longest > 0 ? longest : 1e-6;
}

static size_t panel_rows(const struct bench_result *r)
{
	return 1 + shows_still(r) + json_array_size(json_object_get(r->summary, "phases"));
}

static double panel_height(const struct bench_result *r)
{
	return TITLE + AXIS + (double)panel_rows(r) * ROW + GAP;
}

static void draw_phases(struct drawing *d, const struct bench_result *r)
{
	json_t *phase;
	size_t i;

	json_array_foreach (json_object_get(r->summary, "phases"), i, phase) {
		const char *name = text_of(phase, "name");

		draw_bar(d, &(struct bar){
				    .name = name,
				    .track = bench_track_of(name),
				    .start = json_number_value(json_object_get(phase, "start")),
				    .seconds = json_number_value(json_object_get(phase, "seconds")),
				    .bytes = bench_phase_bytes(r, name),
			    });
	}
}

static void draw_panel(struct drawing *d, const struct bench_result *r)
{
	char title[128];

	d->seconds = panel_seconds(r);
	snprintf(title, sizeof(title), "%s by %s, round %u", r->operation, r->path, r->round);
	draw_text(d, "title", MARGIN, d->y + TITLE - 12, title);
	d->y += TITLE;
	draw_axis(d, panel_rows(r));
	draw_bar(d, &(struct bar){ .name = "whole operation",
				   .track = BENCH_OPERATIONS,
				   .seconds = r->seconds,
				   .bytes = r->bytes });
	if (r->until_beat > 0)
		draw_bar(d, &(struct bar){ .name = "until 1st kernel",
					   .track = BENCH_STILL,
					   .seconds = r->until_beat,
					   .bytes = r->bytes });
	else if (shows_still(r))
		draw_bar(d, &(struct bar){ .name = "job stands still",
					   .track = BENCH_STILL,
					   .start = r->stands_at,
					   .seconds = r->standing });
	draw_phases(d, r);
	d->y += GAP;
}

/* ---- the page ---- */

static void draw_legend(const struct drawing *d)
{
	double x = MARGIN;

	for (size_t i = 0; i < BENCH_TRACK__MAX; i++) {
		if (!looks[i].legend)
			continue;
		draw_rect(d, x, 58, SWATCH, SWATCH, looks[i].color);
		draw_text(d, "legend", x + SWATCH + 6, 69, looks[i].legend);
		x += 150;
	}
}

static void draw_header(const struct drawing *d, const struct bench *b)
{
	char size[WORD_BYTES], text[160];

	format_bytes(size, b->options.size_bytes);
	snprintf(text, sizeof(text), "brumate bench: %s of device memory of a %sGPU", size,
		 b->options.gpu ? "simulated " : "");
	draw_text(d, "head", MARGIN, 36, text);
	draw_legend(d);
}

static void draw_style(FILE *f)
{
	fputs("<style>\n"
	      "text { font-family: 'DejaVu Sans', Verdana, Arial, sans-serif; font-size: 12px; "
	      "fill: #1e293b; }\n"
	      ".head { font-size: 18px; font-weight: bold; }\n"
	      ".title { font-size: 14px; font-weight: bold; }\n"
	      ".name, .figure { text-anchor: end; }\n"
	      ".tick { text-anchor: middle; font-size: 10px; fill: #64748b; }\n"
	      "</style>\n",
	      f);
}

/* Calls @fn for the fastest round of each operation by each path, in order; the height of all their panels. */
static double each_panel(const struct bench *b, struct drawing *d)
{
	double height = 0;

	for (const char *const *o = bench_operations; *o; o++)
		for (const char *const *p = bench_paths; *p; p++) {
			const struct bench_result *r = bench_fastest(b, *o, *p);

			if (!r)
				continue;
			height += panel_height(r);
			if (d)
				draw_panel(d, r);
		}
	return height;
}

void bench_draw_timeline(const struct bench *b, FILE *f)
{
	double height = HEADER + each_panel(b, NULL);
	struct drawing d = { .f = f, .y = HEADER };

	fprintf(f,
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
		"viewBox=\"0 0 %d %.0f\">\n",
		WIDTH, height, WIDTH, height);
	draw_style(f);
	fputs("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", f);
	draw_header(&d, b);
	each_panel(b, &d);
	fputs("</svg>\n", f);
}

int bench_write_timeline(const struct bench *b, const char *path, struct brumate_error *err)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return brumate_fail(err, errno, "%s: %m", path);
	bench_draw_timeline(b, f);
	int failed = ferror(f);
	if (fclose(f) == EOF || failed)
		return brumate_fail(err, EIO, "%s: the timeline could not be written", path);
	return 0;
}
