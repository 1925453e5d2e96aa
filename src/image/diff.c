// SPDX-License-Identifier: MIT
/* Compares manifests in their JSON form, so that no member is forgotten. */
#include "image/manifest.h"

#include <string.h>

static const struct {
	const char *list, *key;
} lists[] = {
	{ "gpus", "uuid" },  { "processes", "pid" }, { "externals", "key" },
	{ "files", "path" }, { "phases", "name" },
};

/* Members that identify a checkpoint and say nothing about its content. */
static bool is_identity(const char *name)
{
	return !strcmp(name, "digest") || !strcmp(name, "id") || !strcmp(name, "created") ||
	       !strcmp(name, "sequence") || !strcmp(name, "mac") || !strcmp(name, "signature");
}

static int add_change(json_t *changes, const char *name, json_t *from, json_t *to)
{
	return json_array_append_new(
		changes, json_pack("{s:s,s:O?,s:O?}", "name", name, "from", from, "to", to));
}

/* Adds the members of two objects that differ, by the name "PREFIXmember". Skips lists. */
static int diff_fields(json_t *changes, const char *prefix, json_t *from, json_t *to)
{
	const char *key;
	json_t *value;
	int r = 0;

	json_object_foreach (from, key, value) {
		json_t *other = json_object_get(to, key);
		char name[128];

		if ((json_is_array(value) && strcmp(key, "argv") && strcmp(key, "labels")) ||
		    json_is_object(value) || json_equal(value, other) ||
		    (!*prefix && is_identity(key)))
			continue;
		snprintf(name, sizeof(name), "%s%s", prefix, key);
		r |= add_change(changes, name, value, other);
	}
	return r;
}

/* The name of an item in the result: a string, or a number as text. */
static const char *name_of(char *room, size_t size, json_t *item, const char *key)
{
	json_t *value = json_object_get(item, key);

	if (json_is_string(value))
		return json_string_value(value);
	snprintf(room, size, "%lld", (long long)json_integer_value(value));
	return room;
}

/* {name: item}. Of a name that occurs twice (a phase that was repeated) one item counts. Owned. */
static json_t *index_of(json_t *list, const char *key)
{
	json_t *index = json_object(), *item;
	size_t i;

	json_array_foreach (list, i, item) {
		char room[32];

		if (json_object_set(index, name_of(room, sizeof(room), item, key), item) < 0) {
			json_decref(index);
			return NULL;
		}
	}
	return index;
}

static int diff_item(json_t *changed, const char *name, json_t *from, json_t *to)
{
	json_auto_t *before = json_object();
	json_auto_t *after = json_object();
	const char *key;
	json_t *value;
	int r = 0;

	json_object_foreach (from, key, value) {
		json_t *other = json_object_get(to, key);

		if (json_equal(value, other))
			continue;
		r |= json_object_set(before, key, value);
		r |= json_object_set(after, key, other);
	}
	return r ? r : add_change(changed, name, before, after);
}

static json_t *diff_list(json_t *from, json_t *to, const char *key)
{
	json_auto_t *old = index_of(from, key);
	json_auto_t *new = index_of(to, key);
	json_auto_t *added = json_array();
	json_auto_t *removed = json_array();
	json_auto_t *changed = json_array();
	const char *name;
	json_t *item;
	int r = old && new ? 0 : -1;

	json_object_foreach (old, name, item) {
		json_t *other = json_object_get(new, name);

		if (!other)
			r |= json_array_append(removed, item);
		else if (!json_equal(item, other))
			r |= diff_item(changed, name, item, other);
	}
	json_object_foreach (new, name, item)
		if (!json_object_get(old, name))
			r |= json_array_append(added, item);
	return r ? NULL
		 : json_pack("{s:O,s:O,s:O}", "added", added, "removed", removed, "changed",
			     changed);
}

static int add_same_files(json_t *ret, json_t *from, json_t *to)
{
	json_auto_t *old = index_of(from, "path");
	json_int_t files = 0, bytes = 0;
	json_t *item;
	size_t i;

	json_array_foreach (to, i, item) {
		if (!json_equal(item, json_object_get(old, json_string_value(
								   json_object_get(item, "path")))))
			continue;
		files++;
		bytes += json_integer_value(json_object_get(item, "len_bytes"));
	}
	return json_object_set_new(ret, "same_files", json_integer(files)) |
	       json_object_set_new(ret, "same_bytes", json_integer(bytes));
}

json_t *manifest_diff(const struct manifest *from, const struct manifest *to)
{
	json_auto_t *old = manifest_to_json(from);
	json_auto_t *new = manifest_to_json(to);
	json_auto_t *fields = json_array();
	json_auto_t *ret = json_object();
	int r = old && new &&fields &&ret ? 0 : -1;

	if (r < 0)
		return NULL;
	r |= diff_fields(fields, "", old, new);
	r |= diff_fields(fields, "job.", json_object_get(old, "job"), json_object_get(new, "job"));
	r |= diff_fields(fields, "host.", json_object_get(old, "host"),
			 json_object_get(new, "host"));
	r |= json_object_set(ret, "fields", fields);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		r |= json_object_set_new(ret, lists[i].list,
					 diff_list(json_object_get(old, lists[i].list),
						   json_object_get(new, lists[i].list),
						   lists[i].key));
	r |= add_same_files(ret, json_object_get(old, "files"), json_object_get(new, "files"));
	return r ? NULL : json_incref(ret);
}
