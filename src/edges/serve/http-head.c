// SPDX-License-Identifier: MIT
/* Heads of requests; see http-head.h. */
#include "edges/serve/http-head.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char digits[] = "0123456789";
static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
			    "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/* A line without its end, in a copy that ends with NUL. */
struct line {
	char text[HTTP_HEAD_BYTES_MAX + 1];
};

/* Where the next line begins; NULL: it is not a line of text. */
static const char *take_line(struct line *ret, const char *at, const char *end)
{
	const char *stop = memmem(at, (size_t)(end - at), "\r\n", 2);
	const size_t len = (size_t)(stop - at);

	memcpy(ret->text, at, len);
	ret->text[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)ret->text[i] < ' ' ? ret->text[i] != '\t' : ret->text[i] == 127)
			return NULL;
	return stop + 2;
}

static int read_request_line(struct http_head *ret, const char *text)
{
	const size_t method = strspn(text, token);
	const char *target = text + method + 1;
	const size_t len = text[method] == ' ' ? strcspn(target, " ") : 0;

	if (!method || !len ||
	    (strcmp(target + len, " HTTP/1.1") && strcmp(target + len, " HTTP/1.0")))
		return -EBADMSG;
	if (method >= sizeof(ret->method) || len >= sizeof(ret->target))
		return -EMSGSIZE;
	snprintf(ret->method, sizeof(ret->method), "%.*s", (int)method, text);
	snprintf(ret->target, sizeof(ret->target), "%.*s", (int)len, target);
	return 0;
}

static int read_length(struct http_head *ret, const char *value, bool *has_length)
{
	const size_t len = strspn(value, digits);
	unsigned long long n = 0;

	if (!len || len > 18 || value[len] || sscanf(value, "%llu", &n) != 1 ||
	    (*has_length && n != ret->body_bytes))
		return -EBADMSG;
	ret->body_bytes = n;
	*has_length = true;
	return 0;
}

static int read_field(struct http_head *ret, char *text, bool *has_length)
{
	const size_t name = strspn(text, token);
	char *value = text + name + 1;

	if (!name || text[name] != ':')
		return -EBADMSG;
	text[name] = '\0';
	value += strspn(value, " \t");
	for (size_t len = strlen(value); len && strchr(" \t", value[len - 1]);)
		value[--len] = '\0';
	if (!strcasecmp(text, "Content-Length"))
		return read_length(ret, value, has_length);
	if (!strcasecmp(text, "Transfer-Encoding"))
		return -EOPNOTSUPP;
	if (!strcasecmp(text, "Expect"))
		ret->expects = !strcasecmp(value, "100-continue");
	return 0;
}

int http_head_parse(struct http_head *ret, const char *text, size_t len_bytes)
{
	const size_t most = len_bytes < HTTP_HEAD_BYTES_MAX ? len_bytes : HTTP_HEAD_BYTES_MAX;
	const char *stop = memmem(text, most, "\r\n\r\n", 4), *at = text;
	struct http_head found = { 0 };
	bool has_length = false;
	struct line line;
	int r = 0;

	if (!stop)
		return most == HTTP_HEAD_BYTES_MAX ? -EMSGSIZE : 0;
	for (size_t n = 0; r == 0 && at < stop + 2; n++) {
		at = take_line(&line, at, stop + 2);
		if (!at)
			return -EBADMSG;
		r = n ? read_field(&found, line.text, &has_length)
		      : read_request_line(&found, line.text);
	}
	found.head_bytes = (size_t)(stop - text) + 4;
	if (r == 0)
		*ret = found;
	return r < 0 ? r : 1;
}
