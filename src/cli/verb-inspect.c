// SPDX-License-Identifier: MIT
/* `brumate inspect`: all that is known of a checkpoint or a job. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/words.h"

#include <stdio.h>
#include <string.h>

enum { KEY_WIDTH = 18 };

static void print_pair(int indent, const char *key, const char *value)
{
	printf("%*s%-*s ", indent, "", KEY_WIDTH - indent, key);
	for (const char *p = value; *p; p++)
		putchar((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p);
	putchar('\n');
}

static bool is_bytes(const char *key)
{
	size_t len = strlen(key);

	return !strcmp(key, "bytes") || !strcmp(key, "size") ||
	       (len > 6 && !strcmp(key + len - 6, "_bytes"));
}

static void print_scalar(int indent, const char *key, json_t *value)
{
	char text[64];

	switch (json_typeof(value)) {
	case JSON_STRING:
		print_pair(indent, key, json_string_value(value));
		return;
	case JSON_INTEGER:
		if (is_bytes(key))
			format_bytes(text, (uint64_t)json_integer_value(value));
		else
			snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
		break;
	case JSON_REAL:
		snprintf(text, sizeof(text), "%.3f", json_real_value(value));
		break;
	case JSON_NULL:
		snprintf(text, sizeof(text), "-");
		break;
	default:
		snprintf(text, sizeof(text), json_is_true(value) ? "yes" : "no");
	}
	print_pair(indent, key, text);
}

/* "python3 train.py": arrays of plain values on one line. */
static void print_plain_array(int indent, const char *key, json_t *array)
{
	char text[2048] = "";
	size_t len = 0, i;
	json_t *item;

	json_array_foreach (array, i, item) {
		const char *s = json_string_value(item);

		if (len < sizeof(text) - 1)
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
						i ? " " : "", s ? s : "?");
	}
	print_pair(indent, key, text[0] ? text : "-");
}

static bool is_long(const char *key)
{
	return !strcmp(key, "files") || !strcmp(key, "regions") || !strcmp(key, "packs");
}

static void print_object(int indent, json_t *o);

static void print_value(int indent, const char *key, json_t *value)
{
	size_t i;
	json_t *item;

	if (json_is_object(value)) {
		printf("%*s%s\n", indent, "", key);
		print_object(indent + 2, value);
	} else if (!json_is_array(value)) {
		print_scalar(indent, key, value);
	} else if (is_long(key)) { /* a line each would be hundreds */
		char text[64];

		snprintf(text, sizeof(text), "%zu", json_array_size(value));
		print_pair(indent, key, text);
	} else if (!json_is_object(json_array_get(value, 0))) {
		print_plain_array(indent, key, value);
	} else {
		json_array_foreach (value, i, item) {
			printf("%*s%s %zu\n", indent, "", key, i);
			print_object(indent + 2, item);
		}
	}
}

static void print_object(int indent, json_t *o)
{
	const char *key;
	json_t *value;

	json_object_foreach (o, key, value)
		print_value(indent, key, value);
}

int verb_inspect(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	const char *word = in->operands[0], *kind = NULL;
	int r = strchr(word, '/') ? add_path(parameters, "what", word, err)
				  : add_string(parameters, "what", word, err);

	if (r == 0)
		r = get_kind(&kind, in, err);
	if (r == 0)
		r = add_string(parameters, "kind", kind, err);
	if (r == 0)
		r = add_path(parameters, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = client_ask("Inspect", parameters, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_object(0, reply);
	return 0;
}
