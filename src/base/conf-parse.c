// SPDX-License-Identifier: MIT
/* Reads "[Section]" and "Key=Value" lines, and the values in them. Pure. */
#include "base/conf.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"

static const char space[] = " \t\r";

static char *trim(char *text)
{
	text += strspn(text, space);

	char *end = text + strlen(text);
	while (end > text && strchr(space, end[-1]))
		end--;
	*end = '\0';
	return text;
}

static int parse_section(const struct conf_item *at, char *line, const char **ret_section,
			 struct brumate_error *err)
{
	size_t len = strlen(line);

	if (len < 3 || line[len - 1] != ']' || strcspn(line + 1, "[]") != len - 2)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": want [Section]", at->name,
				    at->line, line);
	line[len - 1] = '\0';
	*ret_section = line + 1;
	return 0;
}

static int parse_assignment(struct conf_item *item, char *line, struct brumate_error *err)
{
	char *equals = strchr(line, '=');

	if (!equals || equals == line)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": want Key=Value or [Section]",
				    item->name, item->line, line);
	if (!item->section)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": want a [Section] before it",
				    item->name, item->line, line);
	*equals = '\0';
	item->key = trim(line);
	item->value = trim(equals + 1);
	return 0;
}

int conf_parse(const char *name, const char *text, size_t len_bytes,
	       int (*fn)(void *arg, const struct conf_item *item, struct brumate_error *err),
	       void *arg, struct brumate_error *err)
{
	struct conf_item item = { .name = name };
	auto_free char *copy = strndup(text, len_bytes);
	char *rest = copy;

	if (!copy)
		return brumate_fail(err, ENOMEM, "%s: %m", name);
	if (strlen(copy) != len_bytes)
		return brumate_fail(err, EINVAL, "%s: not a text file: it has a NUL byte", name);

	while (rest) {
		char *line = trim(strsep(&rest, "\n"));
		int r = 0;

		item.line++;
		if (!*line || *line == '#' || *line == ';')
			continue;
		if (*line == '[') {
			r = parse_section(&item, line, &item.section, err);
		} else {
			r = parse_assignment(&item, line, err);
			if (r == 0)
				r = fn(arg, &item, err);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

int conf_word(int *ret, const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++) {
		if (!strcmp(value, words[i])) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

int conf_bool(bool *ret, const char *value)
{
	static const char *const words[] = { "no", "yes", "false", "true", "off",
					     "on", "0",	  "1",	   NULL };
	int i;
	int r = conf_word(&i, value, words);

	if (r == 0)
		*ret = i % 2;
	return r;
}

struct unit {
	const char *suffix;
	uint64_t factor;
};

/* Digits and one of @units, which end with a NULL suffix. */
static int parse_quantity(uint64_t *ret, const char *value, const struct unit *units)
{
	uint64_t n = 0;
	size_t digits = strspn(value, "0123456789");

	if (digits == 0)
		return -EINVAL;
	for (size_t i = 0; i < digits; i++)
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(value[i] - '0'), &n))
			return -EINVAL;
	for (; units->suffix; units++) {
		if (strcmp(value + digits, units->suffix))
			continue;
		return __builtin_mul_overflow(n, units->factor, ret) ? -EINVAL : 0;
	}
	return -EINVAL;
}

int conf_duration_ms(uint64_t *ret, const char *value)
{
	static const struct unit units[] = {
		{ "", 1000 },	{ "ms", 1 },	  { "s", 1000 },
		{ "m", 60000 }, { "h", 3600000 }, { NULL, 0 },
	};
	uint64_t ms;

	/* Deadlines are nanoseconds since boot: a tenth of their range leaves room for that. */
	if (parse_quantity(&ms, value, units) < 0 || ms > UINT64_MAX / NS_PER_MS / 10)
		return -EINVAL;
	*ret = ms;
	return 0;
}

int conf_size_bytes(uint64_t *ret, const char *value)
{
	static const struct unit units[] = {
		{ "", 1 },	     { "K", 1ull << 10 }, { "M", 1ull << 20 },
		{ "G", 1ull << 30 }, { "T", 1ull << 40 }, { NULL, 0 },
	};
	uint64_t bytes;

	if (parse_quantity(&bytes, value, units) < 0)
		return -EINVAL;
	*ret = bytes;
	return 0;
}
