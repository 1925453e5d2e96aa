// SPDX-License-Identifier: MIT
/* Reads names out of PTX text. A scanner for tokens, not a compiler. */
#include "ptx.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES = PTX_NAME_BYTES };

static size_t skip_blank(const char *text, size_t pos)
{
	for (;;) {
		if (isspace((unsigned char)text[pos])) {
			pos++;
		} else if (text[pos] == '/' && text[pos + 1] == '/') {
			pos += strcspn(text + pos, "\n");
		} else if (text[pos] == '/' && text[pos + 1] == '*') {
			const char *end = strstr(text + pos + 2, "*/");

			pos = end ? (size_t)(end + 2 - text) : strlen(text);
		} else {
			return pos;
		}
	}
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* The next word or sign; false at the end. A longer word than fits is cut. */
static bool next_token(const char *text, size_t *pos, char token[static TOKEN_BYTES])
{
	size_t at = skip_blank(text, *pos), n = 1;

	if (!text[at])
		return false;
	if (is_word(text[at]))
		while (is_word(text[at + n]))
			n++;
	*pos = at + n;
	if (n >= TOKEN_BYTES)
		n = TOKEN_BYTES - 1;
	memcpy(token, text + at, n);
	token[n] = '\0';
	return true;
}

bool ptx_recognize(const char *text)
{
	return !strncmp(text + skip_blank(text, 0), ".version", 8);
}

static bool seek(const char *text, size_t *pos, const char *directive)
{
	char token[TOKEN_BYTES];

	while (next_token(text, pos, token))
		if (!strcmp(token, directive))
			return true;
	return false;
}

bool ptx_next_entry(const char *text, size_t *pos, char ret_name[static PTX_NAME_BYTES])
{
	return seek(text, pos, ".entry") && next_token(text, pos, ret_name);
}

/* ".u64" and the like. */
static size_t type_bytes(const char *token)
{
	char *end;
	unsigned long bits;

	if (token[0] != '.' || !strchr("busf", token[1]))
		return 0;
	bits = strtoul(token + 2, &end, 10);
	return *end || (bits != 8 && bits != 16 && bits != 32 && bits != 64) ? 0 : bits / 8;
}

static bool parse_number(const char *token, uint64_t *ret)
{
	char *end;

	*ret = strtoull(token, &end, 0);
	return end != token && (!*end || !strcmp(end, "U"));
}

/* Behind the name: "[COUNT]", "= VALUE" and ";". */
static int parse_rest(const char *text, size_t *pos, struct ptx_global *ret)
{
	char token[TOKEN_BYTES];
	uint64_t count;

	if (!next_token(text, pos, token))
		return -EINVAL;
	if (!strcmp(token, "[")) {
		if (!next_token(text, pos, token) || !parse_number(token, &count) || !count ||
		    !next_token(text, pos, token) || strcmp(token, "]") ||
		    !next_token(text, pos, token))
			return -EINVAL;
		ret->count = count;
	}
	if (!strcmp(token, "=")) {
		if (!next_token(text, pos, token) || !parse_number(token, &ret->value) ||
		    !next_token(text, pos, token))
			return -EINVAL;
	}
	return strcmp(token, ";") ? -EINVAL : 1;
}

int ptx_next_global(const char *text, size_t *pos, struct ptx_global *ret)
{
	struct ptx_global global = { .count = 1 };
	char token[TOKEN_BYTES];
	size_t behind;

	/* The same word is part of instructions only with something attached: "ld.global.u64". */
	if (!seek(text, pos, ".global"))
		return 0;
	behind = *pos;
	while (next_token(text, &behind, token) && *token == '.') {
		if (type_bytes(token))
			global.element_bytes = type_bytes(token);
		else if (!strcmp(token, ".align"))
			next_token(text, &behind, token);
	}
	if (!global.element_bytes)
		return -EINVAL;
	memcpy(global.name, token, sizeof(global.name));
	int r = parse_rest(text, &behind, &global);
	if (r > 0) {
		*pos = behind;
		*ret = global;
	}
	return r;
}
