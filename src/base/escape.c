// SPDX-License-Identifier: MIT
/* The escaped form of strings in a manifest; see escape.h. */
#include "base/escape.h"
#include "base/cleanup.h"
#include "base/hex.h"
#include "base/plain.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *put_hex(char *out, uint8_t byte)
{
	static const char hex[] = "0123456789abcdef";

	*out++ = '\\';
	*out++ = 'x';
	*out++ = hex[byte >> 4];
	*out++ = hex[byte & 15];
	return out;
}

char *text_escape(const char *raw, size_t max_bytes)
{
	size_t len = strnlen(raw, max_bytes);
	const uint8_t *p = (const uint8_t *)raw, *end = p + len;
	char *text = malloc(4 * len + 1), *out = text;

	if (!text)
		return NULL;
	while (p < end) {
		uint32_t code;
		size_t n = utf8_decode(&code, (const char *)p, (size_t)(end - p));

		if (n == 0 || *p < 0x20 || *p == 0x7f) {
			out = put_hex(out, *p++);
			continue;
		}
		if (*p == '\\')
			*out++ = '\\';
		memcpy(out, p, n);
		out += n;
		p += n;
	}
	*out = '\0';
	return text;
}

/* Reads what follows a backslash. Returns the number of characters used, 0 if it is not one of our escapes. */
static size_t unescape_one(char *ret, const char *p)
{
	if (p[0] == '\\') {
		*ret = '\\';
		return 1;
	}
	if (p[0] != 'x')
		return 0;

	int high = hex_value(p[1]);
	int low = high < 0 ? -1 : hex_value(p[2]);
	if (low < 0 || (high == 0 && low == 0))
		return 0;
	*ret = (char)(high << 4 | low);
	return 3;
}

int text_unescape(char **ret, const char *escaped)
{
	auto_free char *raw = malloc(strlen(escaped) + 1);
	char *out = raw;

	if (!raw)
		return -ENOMEM;
	for (const char *p = escaped; *p;) {
		if (*p != '\\') {
			*out++ = *p++;
			continue;
		}
		size_t n = unescape_one(out++, p + 1);
		if (n == 0)
			return -EBADMSG;
		p += 1 + n;
	}
	*out = '\0';

	/* Only one form is accepted: otherwise two texts would mean the same path. */
	auto_free char *again = text_escape(raw, SIZE_MAX);
	if (!again)
		return -ENOMEM;
	if (strcmp(again, escaped))
		return -EBADMSG;
	*ret = take_ptr(&raw);
	return 0;
}

void text_unescape_octal(char *text)
{
	char *to = text;

	for (const char *p = text; *p; to++) {
		unsigned byte;

		if (*p == '\\' && sscanf(p + 1, "%3o", &byte) == 1) {
			*to = (char)byte;
			p += 4;
		} else {
			*to = *p++;
		}
	}
	*to = '\0';
}
