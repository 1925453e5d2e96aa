// SPDX-License-Identifier: MIT
/*
 * What a command puts out: text set for people (colour, width, tables, sizes, ages), a line while an operation
 * runs and a summary afterwards (both on stderr), and JSON for scripts.
 */
#pragma once

#include "cli/command.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "base/size.h"

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_RED, STYLE_GREEN, STYLE_YELLOW };

/** Prints @text in @style, plain where @f is not a terminal, NO_COLOR is set or TERM is "dumb". */
void print_styled(FILE *f, enum style style, const char *text);

/** From here on errors are printed as JSON, one object on a line. For the program, not for its parts: set once. */
void errors_are_json(void);

/** Prints an error with its hint on standard error. Returns the exit code that goes with it. */
int print_error(const struct brumate_error *err);

/** Prints "note: ..." on standard error. */
void print_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** One of several things that are done in order failed, with @why. Prints the failure before it, if any, so that all
 * are printed in order; @err is the one that is left to be printed, with the exit code of the first. */
void add_failure(struct brumate_error *err, const struct brumate_error *why);

/** Columns of the terminal behind @f; 0 if it is none. */
size_t terminal_width(FILE *f);

/** Cells that @text takes: code points, not bytes. Pure. */
size_t text_width(const char *text);

/** Whether the locale of the environment is one of UTF-8, so that more than ASCII may be drawn. */
bool text_may_be_utf8(void);

struct table;

/** Adds the cell of a row that is about @o, of which it shows @key. */
typedef void (*cell_fn)(struct table *t, json_t *o, const char *key);

struct column {
	const char *title;
	bool right;	  /* aligned to the right */
	unsigned dropped; /* 1 is the first to go where a terminal has no room for all; 0: never */
	cell_fn cell;	  /* for table_add_row() */
	const char *key;
};

/** Rows of text under headings. Owns its cells. */
struct table {
	const struct column *columns; /* borrowed */
	size_t n_columns;
	enum style (*style)(const struct column *column, const char *cell); /* NULL: all plain */
	char **cells;
	size_t n_cells;
	bool lacks_cells; /* there was no memory for one */
};

#define TABLE_OF(array) \
	((struct table){ .columns = (array), .n_columns = sizeof(array) / sizeof((array)[0]) })
void table_fini(struct table *t);

/** Adds a cell (copied); NULL is "-". Control characters become '?'. 0 or -ENOMEM. */
int table_add(struct table *t, const char *text);

/** Adds a row about @o, by the cells of the columns; and one about each of @items. */
void table_add_row(struct table *t, json_t *o);
void table_add_rows(struct table *t, json_t *items);

/** Cells: a text, a number, an array's words, a size, "yes" or "no", the time since a stamp. What is not there is "-". */
void cell_text(struct table *t, json_t *o, const char *key);
void cell_number(struct table *t, json_t *o, const char *key);
void cell_words(struct table *t, json_t *o, const char *key);
void cell_bytes(struct table *t, json_t *o, const char *key);
void cell_yes(struct table *t, json_t *o, const char *key);
void cell_age(struct table *t, json_t *o, const char *key);

/** The strings and numbers of @array with @between between them (owned); NULL without memory. */
char *join_words(json_t *array, const char *between);

/** Prints to @f. Unless @width is 0, columns that do not fit go in their order, and the last is cut. */
void table_print(const struct table *t, FILE *f, bool headings, size_t width);

/**
 * Adds rows of a phase, when it began and how long it took, with @indent before the name: those that follow each other, so
 * that their times add up, and below a heading those that worked at the same time as these. @phases: of a Summary.
 */
void table_add_phases(struct table *t, json_t *phases, const char *indent);

/** Prints it below @title on stdout, of any width, unless it has no rows; and empties it. */
void table_section(struct table *t, const char *title);

/** The same of the empty table @t, with rows about @items. */
void table_section_of(struct table t, json_t *items, const char *title);

/** Prints text from others, with '?' for each character that a terminal would obey (base/plain.h). */
void print_plain(FILE *f, const char *text);

/** The number @key of @o; 0 where it has none above 0. */
uint64_t bytes_of(const json_t *o, const char *key);

enum { WORD_BYTES = SIZE_TEXT_BYTES };

/** "512 B", "1.07 GiB": powers of 1024, as options take them. */
void format_bytes(char ret[static WORD_BYTES], uint64_t bytes);

/** "<1 ms", "352 ms", "1.25 s", "2m05s", "2h03m". */
void format_seconds(char ret[static WORD_BYTES], double seconds);

/** Seconds as "5s", "3m", "2h", "4d". */
void format_age_s(char ret[static WORD_BYTES], long long age);

/** The time from the RFC 3339 stamp @stamp to @now, likewise; "-" if unreadable. */
void format_age(char ret[static WORD_BYTES], const char *stamp, time_t now);

/** The same of the time from @now to @stamp. */
void format_left(char ret[static WORD_BYTES], const char *stamp, time_t now);

/** Whether a user can be asked: stdin and stderr are terminals. */
bool can_ask(void);

/** Asks on stderr, and reads the answer from stdin. Only "y" and "yes" are true. */
bool confirm(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Whether something other than a file is at @path, such as a device or a pipe: it is written to, and nothing takes its place. */
bool is_special(const char *path);

/* ---- operations ---- */

/** The progress line; nothing is shown where stderr is not a terminal. */
struct progress_line {
	const char *verb; /* "suspend" */
	bool shown;	  /* a line stands there now */
	char phase[64];	  /* for the rate: bytes and time count from the start of the phase */
	uint64_t phase_start_ns;
	uint64_t phase_start_bytes;
};

/** A wire_reply_fn: @arg is a struct progress_line. */
void progress_show(void *arg, json_t *reply);

/** Takes the line away. */
void progress_clear(struct progress_line *p);

/** Writes the line for @o (a Progress) to @ret; pure. @gbps 0: unknown. */
void progress_format(char *ret, size_t room, const char *verb, json_t *o, double gbps);

/** Tells on stderr what an operation would come to (a Foreseen): "train would be suspended: ...". */
void print_foreseen_line(json_t *o);

enum { FORESEEN_BYTES = 256 };

/** The same without the job: how much, into what room, about how long. */
void format_foreseen(char ret[static FORESEEN_BYTES], json_t *o);

/** Prints the Summary @o as one line, and its notes; with --stats its phases and amounts, too. */
void summary_print(const struct invocation *in, json_t *o);

/* ---- JSON ---- */

/** Whether --format json was given. */
bool wants_json(const struct invocation *in);

/** Prints @o (borrowed) with "apiVersion" first, indented, on stdout. 0 or -EIO. */
int print_json(json_t *o, struct brumate_error *err);
