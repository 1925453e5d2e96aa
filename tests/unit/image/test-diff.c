// SPDX-License-Identifier: MIT
/* What differs between two manifests. */
#include "sample.h"

#include "image/manifest.h"

DEFINE_AUTO(json_t *, json_decref)
#define auto_json auto_(json_decref)

static json_t *list(json_t *diff, const char *name, const char *kind)
{
	json_t *items = json_object_get(json_object_get(diff, name), kind);

	CHECK(json_is_array(items));
	return items;
}

static void check_empty(json_t *diff, const char *name)
{
	CHECK(json_array_size(list(diff, name, "added")) == 0);
	CHECK(json_array_size(list(diff, name, "removed")) == 0);
	CHECK(json_array_size(list(diff, name, "changed")) == 0);
}

static void test_same(void)
{
	static const char *const lists[] = { "gpus", "processes", "externals", "files", "phases" };
	auto_(manifest_fini) struct manifest a = sample_manifest();
	auto_(manifest_fini) struct manifest b = sample_manifest();

	strcpy(b.id, "another");
	strcpy(b.created, "2026-01-03T03:04:05.678Z");
	auto_json json_t *diff = manifest_diff(&a, &b);
	CHECK(diff && json_array_size(json_object_get(diff, "fields")) == 0);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		check_empty(diff, lists[i]);
	CHECK(json_integer_value(json_object_get(diff, "same_files")) == 3);
	CHECK(json_integer_value(json_object_get(diff, "same_bytes")) == 5);
}

static json_t *field(json_t *diff, const char *name)
{
	json_t *fields = json_object_get(diff, "fields"), *item;
	size_t i;

	json_array_foreach (fields, i, item)
		if (!strcmp(json_string_value(json_object_get(item, "name")), name))
			return item;
	return NULL;
}

static void test_fields(void)
{
	auto_(manifest_fini) struct manifest a = sample_manifest();
	auto_(manifest_fini) struct manifest b = sample_manifest();

	strcpy(b.driver_version, "590.1");
	strcpy(b.host.hostname, "node2");
	free(b.job.argv[1]);
	b.job.argv[1] = copy_string("--more");
	free(b.job.log);
	b.job.log = NULL;
	auto_json json_t *diff = manifest_diff(&a, &b);
	CHECK(json_array_size(json_object_get(diff, "fields")) == 4);
	CHECK_STR(json_string_value(json_object_get(field(diff, "driver_version"), "from")),
		  "580.95.05");
	CHECK_STR(json_string_value(json_object_get(field(diff, "driver_version"), "to")), "590.1");
	CHECK_STR(json_string_value(json_object_get(field(diff, "host.hostname"), "to")), "node2");
	CHECK(json_is_array(json_object_get(field(diff, "job.argv"), "to")));
	CHECK(json_is_null(json_object_get(field(diff, "job.log"), "to")));
}

static void test_lists(void)
{
	auto_(manifest_fini) struct manifest a = sample_manifest();
	auto_(manifest_fini) struct manifest b = sample_manifest();

	b.processes[1].pid = 103;
	b.processes[0].rss_bytes = 5000;
	b.n_gpus = 1;
	b.files[1].len_bytes = 4096;
	auto_json json_t *diff = manifest_diff(&a, &b);

	json_t *ended = json_array_get(list(diff, "processes", "removed"), 0);
	json_t *added = json_array_get(list(diff, "processes", "added"), 0);
	json_t *changed = json_array_get(list(diff, "processes", "changed"), 0);
	CHECK(json_integer_value(json_object_get(ended, "pid")) == 102);
	CHECK(json_integer_value(json_object_get(added, "pid")) == 103);
	CHECK_STR(json_string_value(json_object_get(changed, "name")), "101");
	CHECK(json_object_size(json_object_get(changed, "from")) == 1);
	CHECK(json_integer_value(json_object_get(json_object_get(changed, "to"), "rss_bytes")) ==
	      5000);
	CHECK(json_array_size(list(diff, "gpus", "removed")) == 1);

	json_t *file = json_array_get(list(diff, "files", "changed"), 0);
	CHECK_STR(json_string_value(json_object_get(file, "name")), "criu/pages-1.img");
	CHECK(json_integer_value(json_object_get(json_object_get(file, "to"), "len_bytes")) ==
	      4096);
	CHECK(json_integer_value(json_object_get(diff, "same_files")) == 2);
	check_empty(diff, "externals");
	check_empty(diff, "phases");
}

int main(void)
{
	test_same();
	test_fields();
	test_lists();
	return 0;
}
