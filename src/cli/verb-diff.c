// SPDX-License-Identifier: MIT
/* `brumate diff`: what differs between two checkpoints. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/terminal.h"
#include "cli/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

static const struct column columns[] = {
	{ "WHAT", false }, { "NAME", false }, { "FROM", true }, { "TO", true }
};

enum { CELL_BYTES = 256 };

static bool ends_in(const char *text, const char *end)
{
	size_t len = strlen(text), n = strlen(end);

	return len >= n && !strcmp(text + len - n, end);
}

/* One value as a word: sizes and times with their units. */
static void word_of(char ret[static CELL_BYTES], const char *key, json_t *value)
{
	char bytes[WORD_BYTES];

	if (json_is_string(value))
		snprintf(ret, CELL_BYTES, "%s", json_string_value(value));
	else if (json_is_boolean(value))
		snprintf(ret, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
	else if (json_is_integer(value) && ends_in(key, "_us"))
		snprintf(ret, CELL_BYTES, "%.3f s", (double)json_integer_value(value) / 1e6);
	else if (json_is_integer(value) && ends_in(key, "_bytes")) {
		format_bytes(bytes, (uint64_t)json_integer_value(value));
		snprintf(ret, CELL_BYTES, "%s", bytes);
	} else if (json_is_integer(value))
		snprintf(ret, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_array(value)) {
		size_t len = 0, i;
		json_t *item;

		*ret = '\0';
		json_array_foreach (value, i, item)
			if (len < CELL_BYTES - 1)
				len += (size_t)snprintf(ret + len, CELL_BYTES - len, "%s%s",
							i ? " " : "", json_string_value(item));
	} else {
		snprintf(ret, CELL_BYTES, "-");
	}
}

static void add_row(struct table *t, const char *what, const char *name, const char *from,
		    const char *to)
{
	table_add(t, what);
	table_add(t, name);
	table_add(t, from);
	table_add(t, to);
}

static void add_fields(struct table *t, json_t *fields)
{
	char from[CELL_BYTES], to[CELL_BYTES];
	json_t *field;
	size_t i;

	json_array_foreach (fields, i, field) {
		const char *name = json_string_value(json_object_get(field, "name"));

		word_of(from, name, json_object_get(field, "from"));
		word_of(to, name, json_object_get(field, "to"));
		add_row(t, "field", name, from, to);
	}
}

/* How the lists are shown: what an item is called, and the member that stands for it. */
static const struct shown {
	const char *list, *what, *key, *label, *value, *gone;
} shown[] = {
	{ "gpus", "gpu", "uuid", NULL, "used_bytes", "removed" },
	{ "processes", "process", "pid", "comm", "rss_bytes", "ended" },
	{ "externals", "external", "key", NULL, "become", "removed" },
	{ "files", "file", "path", NULL, "len_bytes", "removed" },
	{ "phases", "phase", "name", NULL, "duration_us", "removed" },
};

static void name_item(char ret[static CELL_BYTES], const struct shown *s, json_t *item)
{
	char key[CELL_BYTES];
	const char *label = s->label ? json_string_value(json_object_get(item, s->label)) : NULL;

	word_of(key, s->key, json_object_get(item, s->key));
	snprintf(ret, CELL_BYTES, "%s%s%.64s", key, label ? " " : "", label ? label : "");
}

static void add_whole(struct table *t, const struct shown *s, json_t *items, bool added)
{
	char what[64], name[CELL_BYTES], value[CELL_BYTES];
	json_t *item;
	size_t i;

	snprintf(what, sizeof(what), "%s %s", s->what, added ? "added" : s->gone);
	json_array_foreach (items, i, item) {
		name_item(name, s, item);
		word_of(value, s->value, json_object_get(item, s->value));
		add_row(t, what, name, added ? NULL : value, added ? value : NULL);
	}
}

/* A file whose bytes differ and whose size does not: that is the news, not the digests. */
static void add_member(struct table *t, const struct shown *s, const char *item, const char *key,
		       json_t *from, json_t *to)
{
	char name[2 * CELL_BYTES], old[CELL_BYTES], new[CELL_BYTES];

	if (!strcmp(key, "digest")) {
		add_row(t, s->what, item, "contents", "differ");
		return;
	}
	word_of(old, key, from);
	word_of(new, key, to);
	snprintf(name, sizeof(name), "%s%s%s", item, strcmp(key, s->value) ? " " : "",
		 strcmp(key, s->value) ? key : "");
	add_row(t, s->what, name, old, new);
}

static void add_changed(struct table *t, const struct shown *s, json_t *items)
{
	json_t *item, *value;
	const char *key;
	size_t i;

	json_array_foreach (items, i, item) {
		json_t *from = json_object_get(item, "from"), *to = json_object_get(item, "to");
		bool sized = json_object_get(from, "len_bytes");

		json_object_foreach (from, key, value)
			if (!sized || strcmp(key, "digest"))
				add_member(t, s, json_string_value(json_object_get(item, "name")),
					   key, value, json_object_get(to, key));
	}
}

static void print_side(const char *mark, json_t *o)
{
	char bytes[WORD_BYTES];

	format_bytes(bytes, (uint64_t)json_integer_value(json_object_get(o, "bytes")));
	printf("%s %s  %s  %s\n", mark, json_string_value(json_object_get(o, "id")),
	       json_string_value(json_object_get(o, "created")), bytes);
}

static void print_chunks(json_t *differences)
{
	json_int_t chunks = json_integer_value(json_object_get(differences, "chunks"));
	char bytes[WORD_BYTES];

	if (!chunks)
		return;
	format_bytes(bytes, (uint64_t)json_integer_value(
				    json_object_get(differences, "same_chunk_bytes")));
	printf("%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
	       " chunks of memory are the same, %s\n",
	       json_integer_value(json_object_get(differences, "same_chunks")), chunks, bytes);
}

static void print_differences(json_t *reply)
{
	json_t *differences = json_object_get(reply, "differences");
	struct table t = TABLE_OF(columns);
	char bytes[WORD_BYTES];

	print_side("---", json_object_get(reply, "from"));
	print_side("+++", json_object_get(reply, "to"));
	add_fields(&t, json_object_get(differences, "fields"));
	for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++) {
		json_t *list = json_object_get(differences, shown[i].list);

		add_whole(&t, &shown[i], json_object_get(list, "removed"), false);
		add_whole(&t, &shown[i], json_object_get(list, "added"), true);
		add_changed(&t, &shown[i], json_object_get(list, "changed"));
	}
	if (t.n_cells)
		table_print(&t, stdout, true, 0);
	table_fini(&t);
	format_bytes(bytes,
		     (uint64_t)json_integer_value(json_object_get(differences, "same_bytes")));
	printf("%" JSON_INTEGER_FORMAT " files are the same, %s\n",
	       json_integer_value(json_object_get(differences, "same_files")), bytes);
	print_chunks(differences);
}

static int add_side(json_t *p, const char *key, const char *word, struct brumate_error *err)
{
	return strchr(word, '/') ? add_path(p, key, word, err) : add_string(p, key, word, err);
}

int verb_diff(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_side(p, "from", in->operands[0], err);

	if (r == 0)
		r = add_side(p, "to", in->operands[1], err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = client_ask("Diff", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_differences(reply);
	return 0;
}
