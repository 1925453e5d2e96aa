// SPDX-License-Identifier: MIT
/* What stdout and stderr are, and how text for people is set on them: colour, width, tables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_RED, STYLE_GREEN, STYLE_YELLOW };

/** Prints @text in @style, plain where @f is no terminal, NO_COLOR is set or TERM is "dumb". */
void print_styled(FILE *f, enum style style, const char *text);

/** Columns of the terminal behind @f; 0 if it is none. */
size_t terminal_width(FILE *f);

/** Cells that @text takes: code points, not bytes. Pure. */
size_t text_width(const char *text);

struct column {
	const char *title;
	bool right; /* aligned to the right */
};

/** Rows of text under headings. Owns its cells. */
struct table {
	const struct column *columns; /* borrowed */
	size_t n_columns;
	char **cells;
	size_t n_cells;
};

#define TABLE_OF(array) \
	((struct table){ .columns = (array), .n_columns = sizeof(array) / sizeof((array)[0]) })
void table_fini(struct table *t);

/** Adds a cell (copied); NULL is "-". Control characters become '?'. 0 or -ENOMEM. */
int table_add(struct table *t, const char *text);

/** Prints to @f; the last column is cut at @width unless that is 0. */
void table_print(const struct table *t, FILE *f, bool headings, size_t width);
