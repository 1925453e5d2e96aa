// SPDX-License-Identifier: MIT
/* `brumate ps` and `brumate ls`. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/terminal.h"
#include "cli/words.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *text_of(json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static void add_number(struct table *t, json_t *o, const char *key)
{
	json_t *value = json_object_get(o, key);
	char text[WORD_BYTES] = "";

	if (json_is_integer(value))
		snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	table_add(t, text);
}

/* The command line with blanks between the arguments: to be looked at, not to be run again. */
static void add_command(struct table *t, json_t *argv)
{
	char text[1024] = "";
	size_t len = 0, i;
	json_t *arg;

	json_array_foreach (argv, i, arg) {
		const char *s = json_string_value(arg);

		if (!s || len >= sizeof(text) - 1)
			break;
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? " " : "", s);
	}
	table_add(t, text);
}

static void add_age(struct table *t, json_t *o)
{
	char age[WORD_BYTES];

	format_age(age, text_of(o, "created"), time(NULL));
	table_add(t, age);
}

/* "exited (3)": how it ended belongs to the state. */
static void add_state(struct table *t, json_t *o)
{
	json_t *code = json_object_get(o, "exit_code");
	char text[64];

	snprintf(text, sizeof(text), "%s", text_of(o, "state") ? text_of(o, "state") : "");
	if (!strcmp(text, "exited") && json_is_integer(code))
		snprintf(text, sizeof(text), "exited (%lld)", (long long)json_integer_value(code));
	if (json_is_true(json_object_get(o, "parked")))
		snprintf(text, sizeof(text), "suspended (parked)");
	if (json_integer_value(json_object_get(o, "kept_bytes")) > 0 && !strcmp(text, "running"))
		snprintf(text, sizeof(text), "running (copy kept)");
	table_add(t, text);
}

static const struct column job_columns[] = {
	{ "ID", false }, { "NAME", false }, { "STATE", false },
	{ "PID", true }, { "PROCS", true }, { "GPU", true },
	{ "UID", true }, { "AGE", true },   { "COMMAND", false },
};

static void add_job(struct table *t, json_t *o)
{
	table_add(t, text_of(o, "id"));
	table_add(t, text_of(o, "name"));
	add_state(t, o);
	add_number(t, o, "pid");
	add_number(t, o, "processes");
	add_number(t, o, "gpu_processes");
	add_number(t, o, "uid");
	add_age(t, o);
	add_command(t, json_object_get(o, "argv"));
}

static const struct column checkpoint_columns[] = {
	{ "ID", false },  { "JOB", false },   { "NAME", false },  { "AGE", true },
	{ "SIZE", true }, { "DISK", true },   { "SHARED", true }, { "PROCS", true },
	{ "GPUS", true }, { "STATE", false },
};

static void add_bytes(struct table *t, json_t *value)
{
	char size[WORD_BYTES] = "-";

	if (json_is_integer(value))
		format_bytes(size, (uint64_t)json_integer_value(value));
	table_add(t, size);
}

static void add_checkpoint(struct table *t, json_t *o)
{
	const char *error = text_of(o, "error");

	table_add(t, text_of(o, "id"));
	table_add(t, text_of(o, "job"));
	table_add(t, text_of(o, "job_name"));
	add_age(t, o);
	add_bytes(t, error ? NULL : json_object_get(o, "bytes"));
	add_bytes(t, json_object_get(o, "disk_bytes"));
	add_bytes(t, json_object_get(o, "shared_bytes"));
	add_number(t, o, "processes");
	add_number(t, o, "gpus");
	table_add(t, error					     ? error
		     : json_is_true(json_object_get(o, "simulated")) ? "ok (simulated)"
								     : "ok");
}

static int print_list(const struct invocation *in, json_t *reply, const char *key, struct table *t,
		      void (*add)(struct table *t, json_t *o), struct brumate_error *err)
{
	json_t *items = json_object_get(reply, key), *item;
	size_t i;

	if (wants_json(in))
		return print_json(reply, err);
	json_array_foreach (items, i, item) {
		if (in->values[OPT_QUIET])
			puts(text_of(item, "id") ? text_of(item, "id") : "");
		else
			add(t, item);
	}
	if (!in->values[OPT_QUIET])
		table_print(t, stdout, !in->values[OPT_NO_HEADERS], terminal_width(stdout));
	table_fini(t);
	return 0;
}

int verb_ps(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	struct table t = TABLE_OF(job_columns);
	int r = client_ask("List", NULL, &reply, err);

	return r < 0 ? r : print_list(in, reply, "jobs", &t, add_job, err);
}

int verb_ls(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	struct table t = TABLE_OF(checkpoint_columns);
	int r = add_path(parameters, "dir", in->values[OPT_DIR], err);

	if (r == 0 && in->n_operands)
		r = list_remote(&reply, in->operands[0], err);
	else if (r == 0)
		r = client_ask("Checkpoints", parameters, &reply, err);
	return r < 0 ? r : print_list(in, reply, "checkpoints", &t, add_checkpoint, err);
}
