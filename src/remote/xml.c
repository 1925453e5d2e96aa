// SPDX-License-Identifier: MIT
/* A strict reader of simple XML; see xml.h. */
#include "remote/xml.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct reader {
	const char *at, *end;
	xml_fn fn;
	void *arg;
	char path[XML_PATH_BYTES];
	size_t path_len;
	int depth;
	char *text; /* of the innermost element */
	size_t text_len;
};

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-' || c == '.' || c == ':';
}

static void skip_space(struct reader *x)
{
	while (x->at < x->end && is_space(*x->at))
		x->at++;
}

/* Takes @word if it comes next. */
static bool take(struct reader *x, const char *word)
{
	size_t len = strlen(word);

	if ((size_t)(x->end - x->at) < len || memcmp(x->at, word, len))
		return false;
	x->at += len;
	return true;
}

static size_t name_len(const struct reader *x)
{
	const char *p = x->at;

	while (p < x->end && is_name(*p))
		p++;
	return (size_t)(p - x->at);
}

static int add_text(struct reader *x, const char *text, size_t len)
{
	if (x->text_len + len > XML_TEXT_BYTES_MAX)
		return -EBADMSG;
	memcpy(x->text + x->text_len, text, len);
	x->text_len += len;
	return 0;
}

/* A character by its number, as UTF-8. */
static int add_character(struct reader *x, uint32_t c)
{
	char out[4];

	if (c < 0x20 ? !(c == '\t' || c == '\n' || c == '\r')
		     : c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return -EBADMSG;
	if (c < 0x80) {
		out[0] = (char)c;
		return add_text(x, out, 1);
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 63));
		return add_text(x, out, 2);
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 63));
		out[2] = (char)(0x80 | (c & 63));
		return add_text(x, out, 3);
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 63));
	out[2] = (char)(0x80 | (c >> 6 & 63));
	out[3] = (char)(0x80 | (c & 63));
	return add_text(x, out, 4);
}

/* After "&#". */
static int read_number(struct reader *x)
{
	uint32_t base = take(x, "x") ? 16 : 10, c = 0;
	int n = 0;

	for (; x->at < x->end && *x->at != ';'; x->at++, n++) {
		char d = *x->at;
		uint32_t value = d >= '0' && d <= '9'	? (uint32_t)(d - '0')
				 : d >= 'a' && d <= 'f' ? (uint32_t)(d - 'a' + 10)
				 : d >= 'A' && d <= 'F' ? (uint32_t)(d - 'A' + 10)
							: 16;

		if (value >= base || n >= 7)
			return -EBADMSG;
		c = c * base + value;
	}
	return n && take(x, ";") ? add_character(x, c) : -EBADMSG;
}

static int read_entity(struct reader *x)
{
	static const struct {
		const char *name, *text;
	} entities[] = { { "&amp;", "&" },
			 { "&lt;", "<" },
			 { "&gt;", ">" },
			 { "&quot;", "\"" },
			 { "&apos;", "'" } };

	for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++)
		if (take(x, entities[i].name))
			return add_text(x, entities[i].text, 1);
	return take(x, "&#") ? read_number(x) : -EBADMSG;
}

/* Attributes up to the end of the tag: name="value", whose value does not matter. */
static int skip_attributes(struct reader *x)
{
	for (;;) {
		skip_space(x);
		if (x->at == x->end || *x->at == '>' || *x->at == '/' || *x->at == '?')
			return 0;
		size_t len = name_len(x);
		x->at += len;
		skip_space(x);
		if (!len || !take(x, "="))
			return -EBADMSG;
		skip_space(x);
		if (x->at == x->end || (*x->at != '"' && *x->at != '\''))
			return -EBADMSG;
		char quote = *x->at++;
		while (x->at < x->end && *x->at != quote && *x->at != '<')
			x->at++;
		if (x->at == x->end || *x->at++ != quote)
			return -EBADMSG;
	}
}

static int end_element(struct reader *x)
{
	char *slash = memrchr(x->path, '/', x->path_len);

	x->text[x->text_len] = '\0';
	int r = x->fn(x->arg, x->path, x->text);
	x->path_len = slash ? (size_t)(slash - x->path) : 0;
	x->path[x->path_len] = '\0';
	x->depth--;
	x->text_len = 0; /* what stands between elements is nobody's */
	return r;
}

/* After "<". */
static int begin_element(struct reader *x)
{
	size_t len = name_len(x), slash = x->path_len ? 1 : 0;

	if (!len || x->depth == XML_DEPTH_MAX || x->path_len + slash + len >= sizeof(x->path))
		return -EBADMSG;
	if (slash)
		x->path[x->path_len++] = '/';
	memcpy(x->path + x->path_len, x->at, len);
	x->path_len += len;
	x->path[x->path_len] = '\0';
	x->at += len;
	x->depth++;
	x->text_len = 0;

	int r = skip_attributes(x);
	if (r < 0)
		return r;
	if (take(x, "/>"))
		return end_element(x);
	return take(x, ">") ? 0 : -EBADMSG;
}

/* After "</": it must be the innermost element's. */
static int close_element(struct reader *x)
{
	const char *slash = memrchr(x->path, '/', x->path_len);
	const char *name = slash ? slash + 1 : x->path;
	size_t len = name_len(x);

	if (!x->depth || len != strlen(name) || memcmp(x->at, name, len))
		return -EBADMSG;
	x->at += len;
	skip_space(x);
	return take(x, ">") ? end_element(x) : -EBADMSG;
}

static int read_text(struct reader *x)
{
	const char *start = x->at;

	while (x->at < x->end && *x->at != '<' && *x->at != '&') {
		unsigned char c = (unsigned char)*x->at;

		if (c < 0x20 && !is_space((char)c))
			return -EBADMSG;
		x->at++;
	}
	return add_text(x, start, (size_t)(x->at - start));
}

static int read_elements(struct reader *x)
{
	int r = take(x, "<") ? begin_element(x) : -EBADMSG;

	while (r == 0 && x->depth) {
		if (x->at == x->end)
			return -EBADMSG;
		if (take(x, "</"))
			r = close_element(x);
		else if (take(x, "<"))
			r = begin_element(x);
		else
			r = *x->at == '&' ? read_entity(x) : read_text(x);
	}
	return r;
}

int xml_read(const char *text, size_t len_bytes, xml_fn fn, void *arg)
{
	auto_free char *room = malloc(XML_TEXT_BYTES_MAX + 1);
	struct reader x = {
		.at = text, .end = text + len_bytes, .fn = fn, .arg = arg, .text = room
	};

	if (!room)
		return -ENOMEM;
	take(&x, "\xef\xbb\xbf");
	skip_space(&x);
	if (take(&x, "<?xml") && (skip_attributes(&x) < 0 || !take(&x, "?>")))
		return -EBADMSG;
	skip_space(&x);
	int r = read_elements(&x);
	if (r < 0)
		return r;
	skip_space(&x);
	return x.at == x.end ? 0 : -EBADMSG;
}
