// SPDX-License-Identifier: MIT
/* Tables and the progress line. */
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "cli/output.h"
#include "wire/wire.h"

static void check_table(void)
{
	static const struct column columns[] = { { "ID", false },
						 { "SIZE", true },
						 { "TEXT", false } };
	struct table t = TABLE_OF(columns);
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	CHECK(f);
	CHECK(table_add(&t, "a") == 0 && table_add(&t, "12 GB") == 0 &&
	      table_add(&t, "a long text") == 0);
	CHECK(table_add(&t, "\xc3\xa4\xc3\xb6") == 0 && table_add(&t, NULL) == 0);
	CHECK(table_add(&t, "x\ty\033[31m") == 0);
	table_print(&t, f, true, 16);
	table_print(&t, f, false, 0);
	fclose(f);
	CHECK_STR(text, "ID   SIZE  TEXT\n"
			"a   12 GB  a lon\n"
			"\xc3\xa4\xc3\xb6      -  x?y?[\n"
			"a   12 GB  a long text\n"
			"\xc3\xa4\xc3\xb6      -  x?y?[31m\n");
	free(text);
	table_fini(&t);
	CHECK(text_width("\xc3\xa4\xc3\xb6") == 2);
}

/* Columns go in their order until the others fit, those that stay in any case are cut, and a file has all. */
static void check_dropped_columns(void)
{
	static const struct column columns[] = {
		{ "ID", false, 0 }, { "A", true, 2 }, { "B", false, 1 }, { "TEXT", false, 0 }
	};
	static const struct {
		size_t width;
		const char *line;
	} shown[] = {
		{ 0, "job  aaaa  bbbb  a long text\n" },
		{ 28, "job  aaaa  bbbb  a long text\n" },
		{ 27, "job  aaaa  a long text\n" },
		{ 22, "job  aaaa  a long text\n" },
		{ 21, "job  a long text\n" },
		{ 10, "job  a lon\n" },
	};

	for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++) {
		struct table t = TABLE_OF(columns);
		char *text = NULL;
		size_t len = 0;
		FILE *f = open_memstream(&text, &len);

		CHECK(f && table_add(&t, "job") == 0 && table_add(&t, "aaaa") == 0);
		CHECK(table_add(&t, "bbbb") == 0 && table_add(&t, "a long text") == 0);
		table_print(&t, f, false, shown[i].width);
		fclose(f);
		CHECK_STR(text, shown[i].line);
		free(text);
		table_fini(&t);
	}
}

static void check_progress(void)
{
	auto_json json_t *full =
		json_pack("{s:i,s:i,s:s,s:s,s:I,s:I,s:f}", "step", 2, "steps", 5, "phase", "save",
			  "waiting_for", "the driver", "bytes", (json_int_t)500000000,
			  "total_bytes", (json_int_t)2000000000, "seconds", 1.25);
	auto_json json_t *bare = json_pack("{s:i,s:i,s:s}", "step", 1, "steps", 5, "phase", "lock");
	char line[256], cut[8];

	progress_format(line, sizeof(line), "suspend", full, 2.6);
	CHECK_STR(line, "suspend [2/5] save  25%  477 MiB of 1.86 GiB  2.60 GB/s  577 ms left  "
			"waiting for the driver  1.25 s");
	progress_format(line, sizeof(line), "suspend", bare, 0);
	CHECK_STR(line, "suspend [1/5] lock  0 ms");
	progress_format(cut, sizeof(cut), "suspend", bare, 0);
	CHECK_STR(cut, "suspend");
}

/* What takes most of the time is in the row of those that follow each other, and what works meanwhile is not. */
static void check_phases(void)
{
	static const struct column columns[] = { { "PHASE", false },
						 { "BEGAN", true },
						 { "TOOK", true } };
	static const char shown[] = "PHASE               BEGAN    TOOK\n"
				    "identify             0 ms  1.00 s\n"
				    "data-in            1.00 s  4.00 s\n"
				    "open               5.00 s  1.00 s\n"
				    "at the same time:                \n"
				    "gpu-unlock         1.00 s  1.00 s\n";
	static const struct {
		const char *name;
		double start, seconds;
	} given[] = { { "identify", 0, 1 },
		      { "data-in", 1, 4 },
		      { "gpu-unlock", 1, 1 },
		      { "open", 5, 1 } };
	struct table t = TABLE_OF(columns);
	json_t *phases = json_array();
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	CHECK(f && phases);
	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
		json_array_append_new(phases,
				      json_pack("{s:s,s:f,s:f}", "name", given[i].name, "start",
						given[i].start, "seconds", given[i].seconds));
	table_add_phases(&t, phases, "");
	table_print(&t, f, true, 0);
	fclose(f);
	CHECK_STR(text, shown);
	table_fini(&t);
	free(text);
	json_decref(phases);
}

int main(void)
{
	check_phases();
	check_table();
	check_dropped_columns();
	check_progress();
	return 0;
}
