// SPDX-License-Identifier: MIT
/* Labels: what is one, their order, and there and back. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "job/labels.h"

static int copy(const char *const *labels, struct brumate_error *err)
{
	auto_(labels_free) char **copied = NULL;

	*err = BRUMATE_ERROR_NONE;
	return labels_copy(&copied, (char *const *)labels, err);
}

static void test_order_and_round_trip(void)
{
	const char *const given[] = { "b=2", "a.x/y=", "a=1=2", "\x61-b=\xc3\xa9", NULL };
	auto_(labels_free) char **labels = NULL, **again = NULL;

	CHECK(labels_copy(&labels, (char *const *)given, NULL) == 0);
	CHECK_STR(labels[0], "a=1=2");
	CHECK_STR(labels[1], "a-b=\xc3\xa9");
	CHECK_STR(labels[2], "a.x/y=");
	CHECK_STR(labels[3], "b=2");
	CHECK(!labels[4]);
	json_auto_t *o = labels_to_json(labels);
	CHECK(json_object_size(o) == 4);
	CHECK_STR(json_string_value(json_object_get(o, "a")), "1=2");
	CHECK(labels_from_json(&again, o, NULL) == 0);
	for (size_t i = 0; labels[i]; i++)
		CHECK_STR(again[i], labels[i]);
}

static void test_none(void)
{
	const char *const none[] = { NULL };
	char **labels = NULL;
	json_auto_t *o = json_object(), *null = json_null();

	CHECK(labels_copy(&labels, NULL, NULL) == 0 && !labels);
	CHECK(labels_copy(&labels, (char *const *)none, NULL) == 0 && !labels);
	CHECK(labels_from_json(&labels, NULL, NULL) == 0 && !labels);
	CHECK(labels_from_json(&labels, null, NULL) == 0 && !labels);
	CHECK(labels_from_json(&labels, o, NULL) == 0 && !labels);
}

static void test_refused(void)
{
	static const char *const bad[] = { "",	    "=",      "=x",	"x",
					   "-x=1",  ".x=1",   "a b=1",	"a\n=1",
					   "a=b\n", "a=\x7f", "a=\xff", "\xc3\xa9=1" };
	struct brumate_error err;
	char key[LABEL_KEY_BYTES_MAX + 4], value[LABEL_VALUE_BYTES_MAX + 4];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *const labels[] = { "good=1", bad[i], NULL };

		CHECK(copy(labels, &err) == -EINVAL && strstr(err.text, "expected KEY=VALUE"));
	}
	memset(key, 'k', sizeof(key));
	memcpy(key + LABEL_KEY_BYTES_MAX, "=1", 3);
	memset(value, 'v', sizeof(value));
	memcpy(value, "v=", 2);
	value[LABEL_VALUE_BYTES_MAX + 2] = '\0';
	const char *const longest[] = { key, value, NULL };
	CHECK(copy(longest, &err) == 0);
	memcpy(key + LABEL_KEY_BYTES_MAX, "k=", 3);
	CHECK(copy(longest, &err) == -EINVAL);
	memcpy(key + LABEL_KEY_BYTES_MAX, "=1", 3);
	value[LABEL_VALUE_BYTES_MAX + 2] = 'v';
	value[LABEL_VALUE_BYTES_MAX + 3] = '\0';
	CHECK(copy(longest, &err) == -EINVAL);
	const char *const twice[] = { "a=1", "b=2", "a=2", NULL };
	CHECK(copy(twice, &err) == -EINVAL && strstr(err.text, "label a is given twice"));
}

static void test_too_many(void)
{
	char text[LABELS_MAX + 1][16];
	const char *labels[LABELS_MAX + 2] = { NULL };
	struct brumate_error err;

	for (int i = 0; i <= LABELS_MAX; i++) {
		snprintf(text[i], sizeof(text[i]), "k%d=v", i);
		labels[i] = text[i];
	}
	CHECK(copy(labels, &err) == -EINVAL && strstr(err.text, "more than 64"));
	labels[LABELS_MAX] = NULL;
	CHECK(copy(labels, &err) == 0);
}

int main(void)
{
	test_order_and_round_trip();
	test_none();
	test_refused();
	test_too_many();
	return 0;
}
