// SPDX-License-Identifier: MIT
/*
 * The page of `brumate inspect --restore`: tables of what a restore would become, run, open, bind, connect and map.
 * Nothing is cut off at the width of the terminal, as what is cut off could be what matters.
 */
#include "cli/pages.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "wire/wire.h"

/* A cell that grows, of any length. */
struct cell {
	char *text;
	size_t len;
	FILE *stream;
};

/* The stream keeps the addresses of what it fills. */
static void cell_begin(struct cell *c)
{
	*c = (struct cell){ 0 };
	c->stream = open_memstream(&c->text, &c->len);
}

static void cell_say(struct cell *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void cell_say(struct cell *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (c->stream)
		vfprintf(c->stream, fmt, ap);
	va_end(ap);
}

static void cell_end(struct table *t, struct cell *c)
{
	if (c->stream)
		fclose(c->stream);
	table_add(t, c->text);
	free(c->text);
}

/* ---- becomes ---- */

/* As capabilities(7) numbers them. */
static const char *const capability_names[] = {
	"chown",
	"dac_override",
	"dac_read_search",
	"fowner",
	"fsetid",
	"kill",
	"setgid",
	"setuid",
	"setpcap",
	"linux_immutable",
	"net_bind_service",
	"net_broadcast",
	"net_admin",
	"net_raw",
	"ipc_lock",
	"ipc_owner",
	"sys_module",
	"sys_rawio",
	"sys_chroot",
	"sys_ptrace",
	"sys_pacct",
	"sys_admin",
	"sys_boot",
	"sys_nice",
	"sys_resource",
	"sys_time",
	"sys_tty_config",
	"mknod",
	"lease",
	"audit_write",
	"audit_control",
	"setfcap",
	"mac_override",
	"mac_admin",
	"syslog",
	"wake_alarm",
	"block_suspend",
	"audit_read",
	"perfmon",
	"bpf",
	"checkpoint_restore",
};
enum { N_CAPABILITIES = sizeof(capability_names) / sizeof(capability_names[0]) };

static uint64_t capability_set(json_t *o, const char *set)
{
	return strtoull(text_of(json_object_get(o, "capabilities"), set), NULL, 16);
}

static void say_capabilities(struct cell *c, uint64_t set)
{
	const char *between = "";

	for (int i = 0; i < 64; i++) {
		if (!(set >> i & 1))
			continue;
		if (i < N_CAPABILITIES)
			cell_say(c, "%s%s", between, capability_names[i]);
		else
			cell_say(c, "%s%d", between, i);
		between = ",";
	}
}

/* All that it may have by itself; what it cannot but hand on to others does not count. */
static void add_capabilities(struct table *t, json_t *o)
{
	const uint64_t known = (1ull << N_CAPABILITIES) - 1;
	uint64_t set = capability_set(o, "permitted") | capability_set(o, "ambient");
	struct cell c;

	cell_begin(&c);
	if (__builtin_popcountll(set & known) > N_CAPABILITIES / 2) {
		cell_say(&c, known & ~set ? "all but " : "all");
		say_capabilities(&c, known & ~set);
	} else {
		say_capabilities(&c, set);
	}
	cell_end(t, &c);
}

/* One number, or all four where they differ. */
static void cell_ids(struct table *t, json_t *o, const char *key)
{
	json_t *ids = json_object_get(o, key);
	char text[WORD_BYTES];

	for (size_t i = 1; i < json_array_size(ids); i++)
		if (!json_equal(json_array_get(ids, i), json_array_get(ids, 0))) {
			cell_words(t, o, key);
			return;
		}
	snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT,
		 json_integer_value(json_array_get(ids, 0)));
	table_add(t, text);
}

static void add_bounds(struct table *t, json_t *o)
{
	const char *seccomp = text_of(o, "seccomp"), *label = text_of(o, "label");
	struct cell c;

	cell_begin(&c);
	if (json_is_true(json_object_get(o, "no_new_privs")))
		cell_say(&c, "no_new_privs ");
	if (*seccomp && strcmp(seccomp, "none"))
		cell_say(&c, "seccomp:%s ", seccomp);
	if (*label)
		cell_say(&c, "label:%s ", label);
	if (json_integer_value(json_object_get(o, "securebits")))
		cell_say(&c, "securebits:0x%llx ",
			 (unsigned long long)json_integer_value(json_object_get(o, "securebits")));
	if (json_is_true(json_object_get(o, "ended")))
		cell_say(&c, "has ended ");
	cell_end(t, &c);
}

static void add_rights(struct table *t, json_t *o, const char *number, const char *name)
{
	cell_number(t, o, number);
	table_add(t, name);
	cell_ids(t, o, "uids");
	cell_ids(t, o, "gids");
	cell_words(t, o, "groups");
	add_bounds(t, o);
	add_capabilities(t, o);
}

static void print_becomes(json_t *processes)
{
	static const struct column columns[] = { { "PID", true },      { "NAME", false },
						 { "UID", true },      { "GID", true },
						 { "GROUPS", false },  { "CAPABILITIES", false },
						 { "BOUND BY", false } };
	struct table t = TABLE_OF(columns);
	json_t *p, *thread;
	size_t i, k;

	json_array_foreach (processes, i, p) {
		add_rights(&t, p, "pid", text_of(p, "comm"));
		json_array_foreach (json_object_get(p, "threads_with_other_rights"), k, thread)
			add_rights(&t, thread, "tid", "(thread)");
	}
	table_section(&t, "Becomes");
}

static const struct column run_columns[] = {
	{ "PID", true, 0, cell_number, "pid" },
	{ "UMASK", false, 0, cell_text, "umask" },
	{ "NAMESPACES", false, 0, cell_words, "namespaces" },
	{ "ROOT", false, 0, cell_text, "root" },
	{ "DIRECTORY", false, 0, cell_text, "directory" },
	{ "PROGRAM", false, 0, cell_text, "executable" },
};

/* ---- opens, binds, connects, maps ---- */

/* "12:0,1 13:4": the descriptors of each process. */
static void cell_holders(struct table *t, json_t *o, const char *key)
{
	struct cell c;
	json_int_t last = 0;
	json_t *item;
	size_t i;

	cell_begin(&c);
	json_array_foreach (json_object_get(o, key), i, item) {
		json_int_t pid = json_integer_value(json_object_get(item, "pid"));
		json_int_t fd = json_integer_value(json_object_get(item, "fd"));

		if (pid != last)
			cell_say(&c, "%s%" JSON_INTEGER_FORMAT ":%" JSON_INTEGER_FORMAT,
				 i ? " " : "", pid, fd);
		else
			cell_say(&c, ",%" JSON_INTEGER_FORMAT, fd);
		last = pid;
	}
	cell_end(t, &c);
}

static void print_opens(json_t *files)
{
	static const struct column columns[] = {
		{ "KIND", false, 0, cell_text, "kind" },
		{ "FLAGS", false, 0, cell_text, "flags" },
		{ "MODE", false, 0, cell_text, "mode" },
		{ "BY PID:FD", false, 0, cell_holders, "open" },
		{ "DELETED", false, 0, cell_text, "deleted" },
		{ "PATH", false, 0, cell_text, "path" },
	};
	struct table t = TABLE_OF(columns);
	json_t *o;
	size_t i;

	json_array_foreach (files, i, o)
		if (json_object_get(o, "open"))
			table_add_row(&t, o);
	table_section(&t, "Opens");
}

static const struct column socket_columns[] = {
	{ "KIND", false, 0, cell_text, "kind" },
	{ "PROTOCOL", false, 0, cell_text, "protocol" },
	{ "STATE", false, 0, cell_text, "state" },
	{ "MODE", false, 0, cell_text, "mode" },
	{ "OWNER", false, 0, cell_text, "owner" },
	{ "BY PID:FD", false, 0, cell_holders, "open" },
	{ "ADDRESS", false, 0, cell_text, "address" },
	{ "PEER", false, 0, cell_text, "peer" },
};

/* "r--, r-x private": all ways that the same processes have, from the @first on. */
static void add_ways(struct table *t, json_t *mapped, const char *first, json_t *pids)
{
	json_t *others;
	const char *how, *between = "";
	struct cell c;

	cell_begin(&c);
	json_object_foreach (mapped, how, others)
		if (!strcmp(how, first) || json_equal(others, pids)) {
			cell_say(&c, "%s%s", between, how);
			between = ", ";
		}
	cell_end(t, &c);
}

/* Whether an earlier row has it. */
static bool is_told(json_t *mapped, const char *how, json_t *pids)
{
	json_t *others;
	const char *other;

	json_object_foreach (mapped, other, others) {
		if (!strcmp(other, how))
			return false;
		if (json_equal(others, pids))
			return true;
	}
	return false;
}

static void add_mappings(struct table *t, json_t *o)
{
	json_t *mapped = json_object_get(o, "mapped"), *pids;
	const char *how;

	json_object_foreach (mapped, how, pids) {
		if (is_told(mapped, how, pids))
			continue;
		add_ways(t, mapped, how, pids);
		cell_words(t, mapped, how);
		table_add(t, text_of(o, "deleted"));
		table_add(t, text_of(o, "path"));
	}
}

static void print_maps(json_t *files)
{
	static const struct column columns[] = {
		{ "HOW", false }, { "BY PID", false }, { "DELETED", false }, { "PATH", false }
	};
	struct table t = TABLE_OF(columns);
	json_t *o;
	size_t i;

	json_array_foreach (files, i, o)
		add_mappings(&t, o);
	table_section(&t, "Maps");
}

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
	print_opens(json_object_get(o, "files"));
	table_section_of(TABLE_OF(socket_columns), json_object_get(o, "sockets"),
			 "Binds and connects");
	print_maps(json_object_get(o, "files"));
	print_pairs("GPUs", json_object_get(o, "gpus"), "uuid", "name");
	print_pairs("Replaced", json_object_get(o, "replaced"), "was", "becomes");
}
