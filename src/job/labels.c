// SPDX-License-Identifier: MIT
/* Labels of jobs. See labels.h. */
#include "job/labels.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void labels_free(char **labels)
{
	for (char **l = labels; l && *l; l++)
		free(*l);
	free(labels);
}

static bool is_key(const char *key, size_t len)
{
	if (!len || len > LABEL_KEY_BYTES_MAX || !isalnum((unsigned char)key[0]))
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)key[i]) && !strchr("._-/", key[i]))
			return false;
	return true;
}

static bool is_value(const char *value)
{
	if (strlen(value) > LABEL_VALUE_BYTES_MAX)
		return false;
	for (; *value; value++)
		if ((unsigned char)*value < 0x20 || *value == 0x7f)
			return false;
	return true;
}

static int check_label(const char *key, size_t len, const char *value, struct brumate_error *err)
{
	errno = 0; /* of text that is not UTF-8 jansson makes no string either: malloc(3) tells */
	json_auto_t *text = json_string(value);

	if (!text && errno == ENOMEM)
		return brumate_fail(err, ENOMEM, "labels: %m");
	if (text && is_key(key, len) && is_value(value))
		return 0;
	brumate_fail(err, EINVAL, "label \"%.*s=%.64s\": expected KEY=VALUE",
		     (int)(len < 64 ? len : 64), key, value);
	brumate_hint(err,
		     "KEY is 1 to %d letters, digits, '.', '_', '-', '/', first a letter or digit; "
		     "VALUE at most %d bytes, none a control character",
		     LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX);
	return -EINVAL;
}

static size_t key_len(const char *label)
{
	return strcspn(label, "=");
}

static int compare_labels(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;
	const size_t n = key_len(x), m = key_len(y);
	int r = memcmp(x, y, n < m ? n : m);

	return r ? r : n < m ? -1 : n > m;
}

/* Adds @key and @value to the @n that @labels has. */
static int add_label(char **labels, size_t n, const char *key, size_t len, const char *value,
		     struct brumate_error *err)
{
	int r = n < LABELS_MAX ? check_label(key, len, value, err)
			       : brumate_fail(err, EINVAL, "labels: more than %d", LABELS_MAX);

	if (r < 0)
		return r;
	if (!(labels[n] = calloc(1, len + strlen(value) + 2)))
		return brumate_fail(err, ENOMEM, "labels: %m");
	memcpy(labels[n], key, len);
	labels[n][len] = '=';
	strcpy(labels[n] + len + 1, value);
	return 0;
}

/* Takes @labels, which hold @n. */
static int finish_labels(char ***ret, char **labels, size_t n, struct brumate_error *err)
{
	if (n)
		qsort(labels, n, sizeof(*labels), compare_labels);
	for (size_t i = 1; i < n; i++)
		if (!compare_labels(&labels[i - 1], &labels[i])) {
			int r = brumate_fail(err, EINVAL, "label %.*s is given twice",
					     (int)key_len(labels[i]), labels[i]);
			labels_free(labels);
			return r;
		}
	if (!n) {
		labels_free(labels);
		labels = NULL;
	}
	*ret = labels;
	return 0;
}

int labels_copy(char ***ret, char *const *labels, struct brumate_error *err)
{
	char **copy = calloc(LABELS_MAX + 1, sizeof(*copy));
	size_t n = 0;

	if (!copy)
		return brumate_fail(err, ENOMEM, "labels: %m");
	for (; labels && labels[n]; n++) {
		const size_t len = key_len(labels[n]);
		const bool is_pair = labels[n][len] == '=';
		/* What has no '=' is not a key either. */
		int r = add_label(copy, n, labels[n], is_pair ? len : 0,
				  labels[n] + (is_pair ? len + 1 : 0), err);

		if (r < 0) {
			labels_free(copy);
			return r;
		}
	}
	return finish_labels(ret, copy, n, err);
}

int labels_from_json(char ***ret, json_t *o, struct brumate_error *err)
{
	char **labels = calloc(LABELS_MAX + 1, sizeof(*labels));
	const char *key;
	json_t *value;
	size_t n = 0;
	int r = 0;

	if (!labels)
		return brumate_fail(err, ENOMEM, "labels: %m");
	if (o && !json_is_object(o) && !json_is_null(o))
		r = brumate_fail(err, EINVAL, "labels: expected an object");
	json_object_foreach (o, key, value) {
		if (r == 0 && !json_is_string(value))
			r = brumate_fail(err, EINVAL, "labels: %.64s: expected a string", key);
		if (r == 0)
			r = add_label(labels, n++, key, strlen(key), json_string_value(value), err);
	}
	if (r < 0) {
		labels_free(labels);
		return r;
	}
	return finish_labels(ret, labels, n, err);
}

const char *labels_find(char *const *labels, const char *key)
{
	for (; labels && *labels; labels++) {
		const size_t len = key_len(*labels);

		if (strlen(key) == len && !strncmp(*labels, key, len) && (*labels)[len])
			return *labels + len + 1;
	}
	return NULL;
}

json_t *labels_to_json(char *const *labels)
{
	json_t *o = json_object();

	for (; o && labels && *labels; labels++) {
		const size_t len = key_len(*labels);
		auto_free char *key = strndup(*labels, len);

		if (!key || json_object_set_new(o, key, json_string(*labels + len + 1)) < 0) {
			json_decref(o);
			return NULL;
		}
	}
	return o;
}
