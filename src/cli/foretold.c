// SPDX-License-Identifier: MIT
/*
 * The page of `brumate inspect --restore`: tables of what a restore would become, run, open, bind and connect.
 * Nothing is cut off at the width of the terminal, as what is cut off could be what matters.
 */
#include "cli/pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"

#include "base/cleanup.h"
#include "wire/wire.h"

/* ---- becomes ---- */

/* All that it may have by itself, in the digits of /proc/PID/status; what it cannot but hand on to others does not count. */
static void cell_capabilities(struct table *t, json_t *o, const char *key)
{
	json_t *sets = json_object_get(o, key);
	char text[WORD_BYTES];

	snprintf(text, sizeof(text), "%016" PRIx64,
		 (uint64_t)(strtoull(text_of(sets, "permitted"), NULL, 16) |
			    strtoull(text_of(sets, "ambient"), NULL, 16)));
	table_add(t, sets ? text : "");
}

static void cell_bounds(struct table *t, json_t *o, const char *key)
{
	const char *seccomp = text_of(o, "seccomp"), *label = text_of(o, "label");
	json_int_t securebits = json_integer_value(json_object_get(o, "securebits"));
	auto_free char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (f && json_is_true(json_object_get(o, key)))
		fputs("no_new_privs ", f);
	if (f && *seccomp && strcmp(seccomp, "none"))
		fprintf(f, "seccomp:%s ", seccomp);
	if (f && *label)
		fprintf(f, "label:%s ", label);
	if (f && securebits)
		fprintf(f, "securebits:0x%llx ", (unsigned long long)securebits);
	if (f && json_is_true(json_object_get(o, "ended")))
		fputs("has ended ", f);
	if (f)
		fclose(f);
	table_add(t, text);
}

/* A thread with rights of its own has a row, with its id in place of that of its process. */
static void print_becomes(json_t *processes)
{
	static const struct column columns[] = {
		{ "PID", true, 0, cell_number, "pid" },
		{ "TID", true, 0, cell_number, "tid" },
		{ "NAME", false, 0, cell_text, "comm" },
		{ "UIDS", false, 0, cell_words, "uids" },
		{ "GIDS", false, 0, cell_words, "gids" },
		{ "GROUPS", false, 0, cell_words, "groups" },
		{ "CAPABILITIES", false, 0, cell_capabilities, "capabilities" },
		{ "BOUND BY", false, 0, cell_bounds, "no_new_privs" },
	};
	struct table t = TABLE_OF(columns);
	json_t *p, *thread;
	size_t i, k;

	json_array_foreach (processes, i, p) {
		table_add_row(&t, p);
		json_array_foreach (json_object_get(p, "threads_with_other_rights"), k, thread)
			table_add_row(&t, thread);
	}
	table_section(&t, "Becomes");
}

static const struct column run_columns[] = {
	{ "PID", true, 0, cell_number, "pid" },
	{ "UMASK", false, 0, cell_text, "umask" },
	{ "ROOT", false, 0, cell_text, "root" },
	{ "DIRECTORY", false, 0, cell_text, "directory" },
	{ "PROGRAM", false, 0, cell_text, "executable" },
};

/* ---- opens, binds, connects ---- */

static const struct column file_columns[] = {
	{ "KIND", false, 0, cell_text, "kind" }, { "FLAGS", false, 0, cell_text, "flags" },
	{ "MODE", false, 0, cell_text, "mode" }, { "DELETED", false, 0, cell_text, "deleted" },
	{ "PATH", false, 0, cell_text, "path" },
};

static const struct column socket_columns[] = {
	{ "KIND", false, 0, cell_text, "kind" },   { "PROTOCOL", false, 0, cell_text, "protocol" },
	{ "STATE", false, 0, cell_text, "state" }, { "MODE", false, 0, cell_text, "mode" },
	{ "OWNER", false, 0, cell_text, "owner" }, { "ADDRESS", false, 0, cell_text, "address" },
	{ "PEER", false, 0, cell_text, "peer" },
};

/* ---- what we do ourselves ---- */

static void print_pairs(const char *title, json_t *array, const char *left, const char *right)
{
	const struct column columns[] = { { left, false, 0, cell_text, left },
					  { right, false, 0, cell_text, right } };

	table_section_of(TABLE_OF(columns), array, title);
}

static void print_line(const char *what, const char *text)
{
	static const struct column columns[] = { { "", false }, { "", false } };
	struct table t = TABLE_OF(columns);

	table_add(&t, what);
	table_add(&t, text);
	table_print(&t, stdout, false, 0);
	table_fini(&t);
}

void foretold_print(json_t *o, const char *path)
{
	json_t *processes = json_object_get(o, "processes");

	print_line("checkpoint ", path);
	if (*text_of(o, "doubt"))
		print_line("not believed ", text_of(o, "doubt"));
	print_line("cgroup ", "the caller's");
	if (*text_of(o, "log"))
		print_line("log ", text_of(o, "log"));
	print_becomes(processes);
	table_section_of(TABLE_OF(run_columns), processes, "Runs");
	table_section_of(TABLE_OF(file_columns), json_object_get(o, "files"), "Opens");
	table_section_of(TABLE_OF(socket_columns), json_object_get(o, "sockets"),
			 "Binds and connects");
	print_pairs("GPUs", json_object_get(o, "gpus"), "uuid", "name");
	print_pairs("Replaced", json_object_get(o, "replaced"), "was", "becomes");
}
