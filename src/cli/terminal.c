// SPDX-License-Identifier: MIT
/* Colour, width and tables; see terminal.h. */
#include "cli/terminal.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/array.h"

static bool has_color(FILE *f)
{
	const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(fileno(f)) && !(no_color && *no_color) && term && strcmp(term, "dumb");
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

size_t terminal_width(FILE *f)
{
	struct winsize size;

	if (!isatty(fileno(f)))
		return 0;
	return ioctl(fileno(f), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

size_t text_width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
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

	if (!more)
		return -ENOMEM;
	t->cells = more;
	char *cell = strdup(text && *text ? text : "-");
	if (!cell)
		return -ENOMEM;
	for (char *p = cell; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	t->cells[t->n_cells++] = cell;
	return 0;
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

	if (last && !t->columns[column].right) {
		print_cut(f, text, *room);
		putc('\n', f);
		return;
	}
	if (t->columns[column].right)
		fprintf(f, "%*s%s", (int)pad, "", text);
	else
		fprintf(f, "%s%*s", text, (int)pad, "");
	fputs(last ? "\n" : "  ", f);
	*room = *room > widths[column] + 2 ? *room - widths[column] - 2 : 0;
}

void table_print(const struct table *t, FILE *f, bool headings, size_t width)
{
	size_t *widths = calloc(t->n_columns, sizeof(*widths));
	size_t room = width ? width : SIZE_MAX;

	if (!widths)
		return;
	for (size_t c = 0; c < t->n_columns; c++)
		widths[c] = column_width(t, c, headings);
	for (size_t c = 0; headings && c < t->n_columns; c++)
		print_cell(t, f, c, t->columns[c].title, widths, &room);
	for (size_t i = 0; i < t->n_cells; i++) {
		if (i % t->n_columns == 0)
			room = width ? width : SIZE_MAX;
		print_cell(t, f, i % t->n_columns, t->cells[i], widths, &room);
	}
	free(widths);
}
