// SPDX-License-Identifier: MIT
/* `brumate ps`, `ls`, `inspect` and `diff`: what is known of jobs and checkpoints. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/pages.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "cli/users.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/nearest.h"
#include "job/record.h"
#include "job/request.h"

/* ---- ps and ls ---- */

/* The command line with blanks between the arguments: to be looked at, not to be run again. */
static void cell_argv(struct table *t, json_t *o, const char *key)
{
	auto_free char *all = join_words(json_object_get(o, key), " ");
	char text[1024];

	snprintf(text, sizeof(text), "%s", all ? all : "");
	table_add(t, text);
}

/* The user by name, or by number. */
static void cell_user(struct table *t, json_t *o, const char *key)
{
	const struct passwd *user = *text_of(o, key) ? NULL : getpwuid((uid_t)bytes_of(o, "uid"));

	if (*text_of(o, key))
		cell_text(t, o, key);
	else if (user)
		table_add(t, user->pw_name);
	else
		cell_number(t, o, "uid");
}

/* "exited (3)": how it ended belongs to the state. */
static void cell_state(struct table *t, json_t *o, const char *key)
{
	json_t *code = json_object_get(o, "exit_code");
	char text[64];

	snprintf(text, sizeof(text), "%s", text_of(o, key));
	if (!strcmp(text, "exited") && json_is_integer(code))
		snprintf(text, sizeof(text), "exited (%lld)", (long long)json_integer_value(code));
	if (json_is_true(json_object_get(o, "parked")))
		snprintf(text, sizeof(text), "suspended (parked)");
	if (json_integer_value(json_object_get(o, "kept_bytes")) > 0 && !strcmp(text, "running"))
		snprintf(text, sizeof(text), "running (copy kept)");
	const json_int_t turns = json_integer_value(json_object_get(o, "turns"));
	if (turns)
		snprintf(text, sizeof(text), "%s (%lld turns)", text_of(o, key), (long long)turns);
	if (json_is_string(json_object_get(o, "frozen")))
		snprintf(text, sizeof(text), "%s (frozen)", text_of(o, key));
	table_add(t, text);
}

/* "0,1": the GPUs that the job is on. "none" is known; what is not is "-", as for a job that has ended. */
static void cell_gpus(struct table *t, json_t *o, const char *key)
{
	json_t *gpus = json_object_get(o, key), *gpu;
	char text[512] = "";
	size_t len = 0, i;

	json_array_foreach (gpus, i, gpu) {
		json_t *index = json_object_get(gpu, "index");

		if (len >= sizeof(text) - 1)
			break;
		if (i)
			text[len++] = ',';
		if (json_is_integer(index))
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%lld",
						(long long)json_integer_value(index));
		else
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%.12s",
						text_of(gpu, "uuid"));
	}
	if (json_is_array(gpus) && !i && json_is_integer(json_object_get(o, "pid")))
		snprintf(text, sizeof(text), "none");
	table_add(t, text);
}

static void cell_device_memory(struct table *t, json_t *o, const char *key)
{
	json_t *gpu;
	json_int_t bytes = 0;
	char text[WORD_BYTES] = "";
	size_t i;

	json_array_foreach (json_object_get(o, key), i, gpu)
		bytes += json_integer_value(json_object_get(gpu, "bytes"));
	if (bytes > 0)
		format_bytes(text, (uint64_t)bytes);
	table_add(t, text);
}

/* "4m": when the next checkpoint by schedule is due, and whether the last of them failed. */
static void cell_next(struct table *t, json_t *o, const char *key)
{
	json_t *schedule = json_object_get(o, key);
	const bool failed = json_is_string(json_object_get(schedule, "failure"));
	char left[WORD_BYTES], text[64];

	format_left(left, text_of(schedule, "next"), time(NULL));
	snprintf(text, sizeof(text), "%s%s", left, failed ? " (failed)" : "");
	table_add(t, text);
}

/* "4m": since when it has not used its GPU. */
static void cell_idle(struct table *t, json_t *o, const char *key)
{
	json_t *idle = json_object_get(o, key);
	char text[WORD_BYTES] = "";

	if (json_is_integer(idle))
		format_age_s(text, json_integer_value(idle) / 1000);
	table_add(t, text);
}

static const struct column job_columns[] = {
	{ "ID", false, 0, cell_text, "id" },
	{ "NAME", false, 0, cell_text, "name" },
	{ "STATE", false, 0, cell_state, "state" },
	{ "PID", true, 3, cell_number, "pid" },
	{ "PROCS", true, 2, cell_number, "processes" },
	{ "GPU", false, 0, cell_gpus, "gpus" },
	{ "GPU-MEM", true, 8, cell_device_memory, "gpus" },
	{ "HOST-MEM", true, 4, cell_bytes, "host_bytes" },
	{ "IDLE", true, 9, cell_idle, "idle_ms" },
	{ "SAVED", true, 6, cell_age, "last_checkpoint" },
	{ "NEXT", false, 7, cell_next, "schedule" },
	{ "UID", true, 1, cell_number, "uid" },
	{ "AGE", true, 5, cell_age, "created" },
	{ "COMMAND", false, 0, cell_argv, "argv" },
};

enum { N_JOB_COLUMNS = sizeof(job_columns) / sizeof(job_columns[0]) };

/* Of lists of all users; others may ask for it. */
static const struct column user_column = { "USER", false, 0, cell_user, "user" };

static enum style style_of_job(const struct column *column, const char *cell)
{
	static const struct {
		const char *begins;
		enum style style;
	} states[] = {
		{ "running", STYLE_GREEN },	  { "suspended", STYLE_YELLOW },
		{ "checkpointed", STYLE_YELLOW }, { "exited (0)", STYLE_DIM },
		{ "exited", STYLE_RED },	  { "lost", STYLE_RED },
	};

	if (column->cell == cell_next && strstr(cell, "failed"))
		return STYLE_RED;
	for (size_t i = 0; column->cell == cell_state && i < sizeof(states) / sizeof(states[0]);
	     i++)
		if (!strncmp(states[i].begins, cell, strlen(states[i].begins)))
			return states[i].style;
	return STYLE_PLAIN;
}

/* ---- columns that are asked for ---- */

static bool is_called(const struct column *c, const char *word, size_t len)
{
	return strlen(c->title) == len && !strncasecmp(c->title, word, len);
}

static int fail_column(const char *word, size_t len, struct brumate_error *err)
{
	char names[256] = "";
	size_t used = 0;

	for (size_t i = 0; i < N_JOB_COLUMNS; i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
					 job_columns[i].title);
	for (char *c = names; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	brumate_fail(err, EINVAL, "ps: --columns: \"%.*s\" is no column", (int)len, word);
	brumate_hint(err, "columns are %s", names);
	return -EINVAL;
}

/* The columns that @text, "NAME,...", asks for, in its order; NULL: all. None of those that are chosen is dropped. */
static int choose_columns(struct column ret[static N_JOB_COLUMNS + 1], size_t *ret_n,
			  const char *text, bool with_user, struct brumate_error *err)
{
	size_t n = 0;

	for (const char *word = text; word && *word;) {
		const size_t len = strcspn(word, ",");
		const bool is_user = is_called(&user_column, word, len);
		size_t i = 0;

		while (!is_user && i < N_JOB_COLUMNS && !is_called(&job_columns[i], word, len))
			i++;
		if (i == N_JOB_COLUMNS)
			return fail_column(word, len, err);
		if (n == N_JOB_COLUMNS + 1)
			return brumate_fail(err, EINVAL, "ps: --columns: more than there are");
		ret[n] = is_user ? user_column : job_columns[i];
		ret[n++].dropped = 0;
		word += len + (word[len] == ',');
	}
	if (!text && with_user)
		ret[n++] = user_column;
	for (size_t i = 0; !text && i < N_JOB_COLUMNS; i++)
		ret[n++] = job_columns[i];
	*ret_n = n;
	return 0;
}

static bool is_gpu_called(json_t *gpu, const char *word)
{
	json_t *index = json_object_get(gpu, "index");
	char number[WORD_BYTES] = "";

	if (json_is_integer(index))
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(index));
	return !strcmp(number, word) || !strcasecmp(text_of(gpu, "uuid"), word);
}

/* Whether the job is on the GPU that @word names, or, for "none", lives and is on none. */
static bool is_on_gpu(json_t *job, const char *word)
{
	json_t *gpus = json_object_get(job, "gpus"), *gpu;
	size_t i;

	if (!strcmp(word, "none"))
		return json_is_array(gpus) && !json_array_size(gpus) &&
		       json_is_integer(json_object_get(job, "pid"));
	json_array_foreach (gpus, i, gpu)
		if (is_gpu_called(gpu, word))
			return true;
	return false;
}

/* That nobody knows of a job where it is does not mean that it is elsewhere. */
static void warn_of_unknown_gpus(json_t *jobs)
{
	json_t *job;
	size_t i, n = 0;

	json_array_foreach (jobs, i, job)
		n += json_is_null(json_object_get(job, "gpus"));
	if (!n)
		return;
	print_styled(stderr, STYLE_YELLOW, "warning: ");
	fprintf(stderr,
		"the GPUs of %zu job%s are not known; `brumate doctor` starts a broker, "
		"which may know them\n",
		n, n == 1 ? "" : "s");
}

static bool is_filter_key(const char *key)
{
	static const char *const keys[] = { "state", "name", "id", "gpu", "label" };

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(key, keys[i]))
			return true;
	return false;
}

/* "KEY=VALUE", or "KEY" with any value. */
static bool has_label(json_t *job, const char *label)
{
	json_t *labels = json_object_get(job, "labels"), *value;
	const char *key;

	json_object_foreach (labels, key, value) {
		const size_t len = strlen(key);

		if (!strncmp(label, key, len) &&
		    (!label[len] ||
		     (label[len] == '=' && !strcmp(label + len + 1, json_string_value(value)))))
			return true;
	}
	return false;
}

static bool matches_filter(json_t *job, const char *key, const char *value)
{
	if (!strcmp(key, "label"))
		return has_label(job, value);
	return strcmp(key, "gpu") ? !strcmp(text_of(job, key), value) : is_on_gpu(job, value);
}

static bool is_job_state(const char *word)
{
	for (enum job_state s = 0; s < JOB_STATE__MAX; s++)
		if (!strcmp(job_state_name(s), word))
			return true;
	return false;
}

static int fail_state(const char *word, struct brumate_error *err)
{
	struct nearest n = { .word = word };

	for (enum job_state s = 0; s < JOB_STATE__MAX; s++)
		nearest_consider(&n, job_state_name(s));
	brumate_fail(err, EINVAL, "ps: --filter: \"%s\" is not a state", word);
	if (n.found[0])
		brumate_hint(err, "did you mean %s?", n.found);
	else
		brumate_hint(err, "brumate-ps(1) lists the states");
	return -EINVAL;
}

/* Takes out the jobs that do not match "KEY=VALUE,...": all of them must. */
static int filter_jobs(json_t *jobs, const char *text, struct brumate_error *err)
{
	auto_free char *copy = strdup(text);
	char *rest = copy;

	while (rest) {
		char *key = strsep(&rest, ","), *value = strchr(key, '=');

		if (value)
			*value++ = '\0';
		if (!value || !is_filter_key(key)) {
			brumate_fail(err, EINVAL, "ps: --filter: \"%s\" is not KEY=VALUE", key);
			brumate_hint(err,
				     "KEY is state, name, id, gpu or label, as in state=running");
			return -EINVAL;
		}
		if (!*value)
			return brumate_fail(err, EINVAL, "ps: --filter: \"%s=\" has no value", key);
		if (!strcmp(key, "state") && !is_job_state(value))
			return fail_state(value, err);
		if (!strcmp(key, "gpu"))
			warn_of_unknown_gpus(jobs);
		for (size_t i = json_array_size(jobs); i-- > 0;)
			if (!matches_filter(json_array_get(jobs, i), key, value))
				json_array_remove(jobs, i);
	}
	return copy ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* ---- their order, and which of them ---- */

static bool has_job_ended(json_t *job)
{
	return words_contain(STATES_WITHOUT_PROCESSES, text_of(job, "state"));
}

static json_int_t gpu_bytes_of(json_t *job)
{
	json_int_t bytes = 0;
	json_t *gpu;
	size_t i;

	json_array_foreach (json_object_get(job, "gpus"), i, gpu)
		bytes += json_integer_value(json_object_get(gpu, "bytes"));
	return bytes;
}

/* What jobs and checkpoints are ordered by: strings from low to high, sizes from high to low. */
struct job_order {
	json_t *job;
	size_t at; /* those that are equal stay in their order */
	const char *text;
	json_int_t number;
	bool has_ended;
};

static int compare_jobs(const void *a, const void *b)
{
	const struct job_order *x = a, *y = b;

	if (x->has_ended != y->has_ended)
		return x->has_ended ? 1 : -1;
	if (x->number != y->number)
		return x->number > y->number ? -1 : 1;
	const int r = strcmp(x->text, y->text);
	return r ? r : x->at < y->at ? -1 : 1;
}

/* @sort: of --sort; NULL: what lives comes first, each by age; "newest": the same, the youngest first. */
static int sort_jobs(json_t *jobs, const char *sort, struct brumate_error *err)
{
	const size_t n = json_array_size(jobs);
	auto_free struct job_order *order = calloc(n + 1, sizeof(*order));
	const bool newest = sort && !strcmp(sort, "newest");
	const bool by_size = sort && (!strcmp(sort, "gpu-mem") || !strcmp(sort, "host-mem"));

	if (!order)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		json_t *job = json_incref(json_array_get(jobs, i));
		const char *key =
			sort && strcmp(sort, "age") && !by_size && !newest ? sort : "created";
		uint64_t created_ms = 0;

		order[i] =
			(struct job_order){ .job = job,
					    .at = i,
					    .text = by_size ? "" : text_of(job, key),
					    .has_ended = (!sort || newest) && has_job_ended(job) };
		if (newest && clock_parse_stamp(&created_ms, text_of(job, key)) == 0)
			order[i].number = (json_int_t)created_ms;
		if (by_size)
			order[i].number = !strcmp(sort, "gpu-mem")
						  ? gpu_bytes_of(job)
						  : (json_int_t)bytes_of(job, "host_bytes");
	}
	qsort(order, n, sizeof(*order), compare_jobs);
	for (size_t i = 0; i < n; i++)
		json_array_set_new(jobs, i, order[i].job);
	return 0;
}

/* What its state is marked with, or NULL. */
static const char *checkpoint_marks(json_t *o)
{
	bool pinned = json_is_true(json_object_get(o, "pinned"));

	if (json_is_true(json_object_get(o, "simulated")))
		return pinned ? "simulated, pinned" : "simulated";
	return pinned ? "pinned" : NULL;
}

static void cell_soundness(struct table *t, json_t *o, const char *key)
{
	const char *error = text_of(o, key), *marks = checkpoint_marks(o);
	char state[1024];

	snprintf(state, sizeof(state), "%s%s%s%s", *error ? error : "ok", marks ? " (" : "",
		 marks ? marks : "", marks ? ")" : "");
	table_add(t, state);
}

/* Of one that is damaged it is not known. */
static void cell_size(struct table *t, json_t *o, const char *key)
{
	cell_bytes(t, json_object_get(o, "error") ? NULL : o, key);
}

static const struct column checkpoint_columns[] = {
	{ "ID", false, 0, cell_text, "id" },
	{ "JOB", false, 5, cell_text, "job" },
	{ "NAME", false, 6, cell_text, "job_name" },
	{ "AGE", true, 8, cell_age, "created" },
	{ "SIZE", true, 7, cell_size, "bytes" },
	{ "DISK", true, 4, cell_bytes, "disk_bytes" },
	{ "SHARED", true, 3, cell_bytes, "shared_bytes" },
	{ "PROCS", true, 1, cell_number, "processes" },
	{ "GPUS", true, 2, cell_number, "gpus" },
	{ "STATE", false, 0, cell_soundness, "error" },
};

/* As the other commands take it. */
static void print_users_id(json_t *job)
{
	print_plain(stdout, text_of(job, "user"));
	putchar('/');
	print_plain(stdout, text_of(job, "id"));
	putchar('\n');
}

static int print_list(const struct invocation *in, json_t *reply, const char *key, struct table *t,
		      struct brumate_error *err)
{
	json_t *items = json_object_get(reply, key), *item;
	size_t i;

	if (wants_json(in))
		return print_json(reply, err);
	if (in->values[OPT_QUIET]) {
		json_array_foreach (items, i, item)
			if (in->values[OPT_ALL_USERS])
				print_users_id(item);
			else
				puts(text_of(item, "id"));
		return 0;
	}
	table_add_rows(t, items);
	table_print(t, stdout, !in->values[OPT_NO_HEADERS], terminal_width(stdout));
	table_fini(t);
	return 0;
}

/* The jobs that are asked for, in their order. @ret_folded: how many more have ended. */
static int ask_jobs(json_t **ret, size_t *ret_folded, const struct invocation *in,
		    struct brumate_error *err)
{
	/* A filter is a question of its own: what it says is not there is not there. */
	const bool recent = !in->values[OPT_ALL] && !in->values[OPT_FILTER];
	auto_json json_t *p = json_pack("{s:b}", "recent", recent), *reply = NULL;
	int r = in->values[OPT_ALL_USERS] ? users_list(&reply, p, USERS_LOOK_MS, NULL, err)
					  : client_ask("List", p, &reply, err);
	json_t *jobs = json_object_get(reply, "jobs");

	*ret_folded = bytes_of(reply, "folded");
	if (r == 0 && in->values[OPT_FILTER])
		r = filter_jobs(jobs, in->values[OPT_FILTER], err);
	if (r == 0)
		r = sort_jobs(jobs, in->values[OPT_SORT], err);
	if (r < 0)
		return r;
	*ret = take_ptr(&reply);
	return 0;
}

static int print_jobs(json_t *jobs, const char *names, bool with_user, FILE *f, bool headings,
		      size_t width, struct brumate_error *err)
{
	struct column chosen[N_JOB_COLUMNS + 1];
	struct table t = { .columns = chosen, .style = style_of_job };
	int r = choose_columns(chosen, &t.n_columns, names, with_user, err);

	if (r < 0)
		return r;
	table_add_rows(&t, jobs);
	table_print(&t, f, headings, width);
	table_fini(&t);
	return 0;
}

void job_table_print(json_t *jobs, const char *sort, bool with_user, FILE *f, bool headings,
		     size_t width)
{
	sort_jobs(jobs, sort, NULL);
	print_jobs(jobs, NULL, with_user, f, headings, width, NULL);
}

int verb_ps(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	size_t n_folded = 0;

	int r = ask_jobs(&reply, &n_folded, in, err);
	if (r < 0 || wants_json(in) || in->values[OPT_QUIET])
		return r < 0 ? r : print_list(in, reply, "jobs", NULL, err);
	r = print_jobs(json_object_get(reply, "jobs"), in->values[OPT_COLUMNS],
		       in->values[OPT_ALL_USERS], stdout, !in->values[OPT_NO_HEADERS],
		       terminal_width(stdout), err);
	if (r == 0 && n_folded && isatty(STDOUT_FILENO))
		print_note("%zu job%s that ended more than an hour ago: `brumate ps -a`", n_folded,
			   n_folded == 1 ? "" : "s");
	return r;
}

static bool is_of_job(json_t *checkpoint, const char *word)
{
	return !strcmp(text_of(checkpoint, "job"), word) ||
	       !strcmp(text_of(checkpoint, "job_name"), word);
}

/* Takes out the checkpoints of other jobs. */
static int choose_job(json_t *checkpoints, const char *word, struct brumate_error *err)
{
	for (size_t i = json_array_size(checkpoints); i-- > 0;)
		if (!is_of_job(json_array_get(checkpoints, i), word))
			json_array_remove(checkpoints, i);
	if (json_array_size(checkpoints))
		return 0;
	brumate_fail(err, ENOENT, "ls: there is no checkpoint of a job %s", word);
	brumate_hint(err, "`brumate ls` lists all of them");
	return -ENOENT;
}

static int sort_checkpoints(json_t *checkpoints, const char *sort, struct brumate_error *err)
{
	const size_t n = json_array_size(checkpoints);
	auto_free struct job_order *order = calloc(n + 1, sizeof(*order));

	if (!order)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		json_t *o = json_incref(json_array_get(checkpoints, i));

		order[i] = (struct job_order){ .job = o, .at = i, .text = "" };
		if (!strcmp(sort, "job"))
			order[i].text = text_of(o, "job_name");
		else
			order[i].number = (json_int_t)bytes_of(
				o, strcmp(sort, "size") ? "disk_bytes" : "bytes");
	}
	qsort(order, n, sizeof(*order), compare_jobs);
	for (size_t i = 0; i < n; i++)
		json_array_set_new(checkpoints, i, order[i].job);
	return 0;
}

/* "3 checkpoints, 12.5 GiB, 4.20 GiB on disk, in /var/lib/brumate/checkpoints": below the table, for people. */
static void print_totals(json_t *reply)
{
	json_t *checkpoints = json_object_get(reply, "checkpoints"), *checkpoint;
	const size_t n = json_array_size(checkpoints);
	uint64_t bytes = 0, disk_bytes = 0;
	size_t i;

	json_array_foreach (checkpoints, i, checkpoint) {
		bytes += bytes_of(checkpoint, "bytes");
		disk_bytes += bytes_of(checkpoint, "disk_bytes");
	}
	printf("%zu checkpoint%s, %s, %s on disk", n, n == 1 ? "" : "s", SIZE_TEXT(bytes),
	       SIZE_TEXT(disk_bytes));
	if (*text_of(reply, "dir")) {
		fputs(", in ", stdout);
		print_plain(stdout, text_of(reply, "dir"));
	}
	putchar('\n');
}

int verb_ls(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	struct table t = TABLE_OF(checkpoint_columns);
	const char *sort = in->values[OPT_SORT];
	int r = add_path(parameters, "dir", in->values[OPT_DIR], err);

	if (r == 0 && in->n_operands)
		r = list_remote(&reply, in->operands[0], err);
	else if (r == 0)
		r = client_ask("Checkpoints", parameters, &reply, err);
	if (r == 0 && in->values[OPT_JOB])
		r = choose_job(json_object_get(reply, "checkpoints"), in->values[OPT_JOB], err);
	if (r == 0 && sort && strcmp(sort, "age") != 0)
		r = sort_checkpoints(json_object_get(reply, "checkpoints"), sort, err);
	if (r == 0)
		r = print_list(in, reply, "checkpoints", &t, err);
	if (r == 0 && isatty(STDOUT_FILENO) && !wants_json(in) && !in->values[OPT_QUIET])
		print_totals(reply);
	return r;
}

/* ---- inspect ---- */

enum { KEY_WIDTH = 18 };

static void print_pair(int indent, const char *key, const char *value)
{
	printf("%*s%-*s ", indent, "", KEY_WIDTH - indent, key);
	print_plain(stdout, value);
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
	auto_free char *text = join_words(array, " ");

	print_pair(indent, key, text && *text ? text : "-");
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

/* Only a checkpoint can be restored: a job means its latest one. */
static int ask_for_restore(json_t *parameters, const char **kind, const struct invocation *in,
			   struct brumate_error *err)
{
	const bool needs = in->values[OPT_NEEDS];
	int r = add_request(parameters, in, REQUEST_READ, err);

	if (r == 0 && needs && in->values[OPT_RESTORE])
		r = brumate_fail(err, EINVAL, "inspect: expected either --restore or --needs");
	if (r == 0 && *kind && !strcmp(*kind, "job"))
		r = brumate_fail(err, EINVAL, "inspect: expected either --job or --%s",
				 needs ? "needs" : "restore");
	*kind = "checkpoint";
	if (r == 0)
		r = add_flag(parameters, "restore", in, OPT_RESTORE, err);
	return r < 0 ? r : add_flag(parameters, "needs", in, OPT_NEEDS, err);
}

/* ---- inspect --needs ---- */

static const struct column need_columns[] = {
	{ "PATH", false, 0, cell_text, "path" },
	{ "KIND", false, 0, cell_text, "kind" },
	{ "PROBLEM", false, 0, cell_text, "problem" },
};

static bool has_problem(json_t *needs)
{
	json_t *need;
	size_t i;

	json_array_foreach (needs, i, need)
		if (json_object_get(need, "problem"))
			return true;
	return false;
}

/* Nothing is cut off at the width of the terminal, as it is paths that are looked for. */
static int print_needs(const struct invocation *in, json_t *reply, struct brumate_error *err)
{
	json_t *needs = json_object_get(reply, "needs");
	int r = has_problem(needs) ? EXIT_UNSUPPORTED : 0;

	if (wants_json(in))
		return print_json(reply, err) < 0 ? -EIO : r;
	struct table t = TABLE_OF(need_columns);
	table_add_rows(&t, needs);
	table_print(&t, stdout, true, 0);
	table_fini(&t);
	return r;
}

int verb_inspect(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	const char *word = in->operands[0], *kind = NULL;
	int r = add_operand(parameters, "what", word, err);

	if (r == 0)
		r = get_kind(&kind, in, err);
	if (r == 0 && (in->values[OPT_RESTORE] || in->values[OPT_NEEDS]))
		r = ask_for_restore(parameters, &kind, in, err);
	if (r == 0)
		r = add_string(parameters, "kind", kind, err);
	if (r == 0)
		r = add_path(parameters, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = client_ask("Inspect", parameters, &reply, err);
	if (r < 0)
		return r;
	if (in->values[OPT_NEEDS])
		return print_needs(in, reply, err);
	if (wants_json(in))
		return print_json(reply, err);
	if (in->values[OPT_RESTORE])
		foretold_print(json_object_get(reply, "restore"), text_of(reply, "path"));
	else if (json_object_get(reply, "job"))
		job_page_print(reply);
	else
		print_object(0, reply);
	return 0;
}

/* ---- diff ---- */

static const struct column difference_columns[] = {
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
		auto_free char *words = join_words(value, " ");

		snprintf(ret, CELL_BYTES, "%s", words ? words : "");
	} else {
		snprintf(ret, CELL_BYTES, "-");
	}
}

static void add_difference(struct table *t, const char *what, const char *name, const char *from,
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
		add_difference(t, "field", name, from, to);
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
		add_difference(t, what, name, added ? NULL : value, added ? value : NULL);
	}
}

/* Says of a file of the same size that its bytes differ; its digests would say no more. */
static void add_member(struct table *t, const struct shown *s, const char *item, const char *key,
		       json_t *from, json_t *to)
{
	char name[2 * CELL_BYTES], old[CELL_BYTES], new[CELL_BYTES];

	if (!strcmp(key, "digest")) {
		add_difference(t, s->what, item, "contents", "differ");
		return;
	}
	word_of(old, key, from);
	word_of(new, key, to);
	snprintf(name, sizeof(name), "%s%s%s", item, strcmp(key, s->value) ? " " : "",
		 strcmp(key, s->value) ? key : "");
	add_difference(t, s->what, name, old, new);
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

	format_bytes(bytes, bytes_of(o, "bytes"));
	printf("%s %s  %s  %s\n", mark, json_string_value(json_object_get(o, "id")),
	       json_string_value(json_object_get(o, "created")), bytes);
}

static void print_chunks(json_t *differences)
{
	json_int_t chunks = json_integer_value(json_object_get(differences, "chunks"));
	char bytes[WORD_BYTES];

	if (!chunks)
		return;
	format_bytes(bytes, bytes_of(differences, "same_chunk_bytes"));
	printf("%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
	       " chunks of memory are the same, %s\n",
	       json_integer_value(json_object_get(differences, "same_chunks")), chunks, bytes);
}

static void print_differences(json_t *reply)
{
	json_t *differences = json_object_get(reply, "differences");
	struct table t = TABLE_OF(difference_columns);
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
	format_bytes(bytes, bytes_of(differences, "same_bytes"));
	printf("%" JSON_INTEGER_FORMAT " files are the same, %s\n",
	       json_integer_value(json_object_get(differences, "same_files")), bytes);
	print_chunks(differences);
}

int verb_diff(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_operand(p, "from", in->operands[0], err);

	if (r == 0)
		r = add_operand(p, "to", in->operands[1], err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	if (r == 0)
		r = client_ask("Diff", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_differences(reply);
	return 0;
}
