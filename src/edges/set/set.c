// SPDX-License-Identifier: MIT
/*
 * `brumate set`: jobs of several nodes are checkpointed and restored as one. What is here reads the command line and the records; the
 * coordinator does it.
 */
#include "edges/set/set.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/paths.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "edges/set/options.h"
#include "store/store.h"
#include "wire/wire.h"

enum { TIMEOUT_MS = 600000, MEMBERS_MAX = 65536 };

/* Its members' checkpoints are called NAME.N. */
enum { NAME_BYTES_MAX = MANIFEST_ID_BYTES - 8 };

static const char *const save_meetings[] = { "ready", "idle", "frozen", "drained", "stored", NULL };
static const char *const save_running_meetings[] = { "ready", "idle",	"frozen", "drained",
						     "held",  "stored", NULL };
static const char *const restore_meetings[] = { "ready", "built", "filled", NULL };

/* ---- what both need ---- */

/* The store, absolute (owned): the members have to find the same. */
static int find_store(char **ret, const struct invocation *in, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const char *given = in->values[OPT_DIR];
	int r = given ? 0 : conf_load(&conf, err);

	if (r < 0)
		return r;
	*ret = given		? absolute_path(given)
	       : conf.store_dir ? strdup(conf.store_dir)
				: path_checkpoints_dir();
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* A launcher takes it for a word of its own command: one that begins with "-" is an option of ssh's, which may run anything. */
static int check_node(const char *node, size_t len, int code, struct brumate_error *err)
{
	static const char rest[] = "._-@/:+";

	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)node[i]) && (i == 0 || !strchr(rest, node[i])))
			return brumate_fail(
				err, code,
				"a node begins with a letter or a digit, and has no other "
				"characters than those and \"%s\"",
				rest);
	return 0;
}

static int prepare(struct set *s, const struct invocation *in, struct brumate_error *err)
{
	int r = parse_deadline(&s->deadline_ns, in->values[OPT_TIMEOUT], TIMEOUT_MS, err);

	s->via = in->values[OPT_VIA] ? in->values[OPT_VIA] : "ssh %n";
	s->cancel_fd = interrupt_watch(false);
	return r < 0 ? r : s->cancel_fd < 0 ? brumate_fail(err, -s->cancel_fd, "pipe: %m") : 0;
}

static int print_result(const struct invocation *in, const struct set *s, const char *name,
			struct brumate_error *err)
{
	if (!wants_json(in))
		return puts(name) == EOF ? brumate_fail(err, errno, "stdout: %m") : 0;
	auto_json json_t *members = json_array();
	for (size_t i = 0; i < s->n; i++)
		json_array_append_new(members, json_pack("{s:s,s:O?}", "node", s->members[i].node,
							 "summary", s->members[i].done));
	auto_json json_t *o = json_pack("{s:s,s:O}", "set", name, "members", members);
	return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
}

/* One that is late has its order withdrawn. */
static bool is_late(const struct member *m)
{
	return !m->why.code || m->why.code == ECANCELED;
}

/* What failed after the decision changes nothing of it. */
static bool tell_late_failures(const struct set *s, const char *what)
{
	bool any = false;

	for (size_t i = 0; i < s->n; i++) {
		const struct member *m = &s->members[i];

		if (m->done)
			continue;
		print_note("member %s%s%s: %s; %s", m->node, *m->node ? ":" : "", m->what,
			   is_late(m) ? "has not answered in time" : m->why.text, what);
		any = true;
	}
	return any;
}

/* Not only have not answered in time. */
static bool some_have_failed(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!s->members[i].done && !is_late(&s->members[i]))
			return true;
	return false;
}

/* ---- checkpoint ---- */

struct saving {
	const char *dir, *name;
	bool closes; /* connections to others than the members */
};

/* The checkpoint that a member says it has stored: what is there, and not what it says, is recorded. */
static json_t *describe_member(const struct saving *saving, const struct member *m,
			       struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	const char *id = text_of(m->parameters, "name");
	char digest[DIGEST_TEXT_BYTES];

	if (store_open(&image, saving->dir, id, err) < 0)
		return NULL;
	if (strcmp(image.manifest.set, saving->name) != 0 || strcmp(image.manifest.id, id) != 0) {
		brumate_fail(err, EBADMSG, "checkpoint %s is not of the set %s", id, saving->name);
		return NULL;
	}
	digest_format(digest, &image.manifest.body);
	json_t *closes = json_array_size(m->outside) && saving->closes ? m->outside : NULL;

	return json_pack("{s:s,s:s,s:s,s:s,s:s,s:O*}", "node", m->node, "checkpoint", id, "job",
			 image.manifest.job.id, "job_name", image.manifest.job.name, "digest",
			 digest, "closes", closes);
}

static int commit_saved(struct set *s, struct set_writer *w, void *arg, struct brumate_error *err)
{
	const struct saving *saving = arg;
	auto_json json_t *members = json_array();
	char stamp[CLOCK_STAMP_BYTES];

	for (size_t i = 0; i < s->n; i++) {
		json_t *one = describe_member(saving, &s->members[i], err);

		if (!one)
			return err->code ? -err->code : brumate_fail(err, ENOMEM, "%m");
		json_array_append_new(members, one);
	}
	clock_stamp(stamp);
	auto_json json_t *record =
		json_pack("{s:s,s:s,s:s,s:O}", "set", saving->name, "created", stamp,
			  "brumate_version", BRUMATE_VERSION, "members", members);
	return record ? set_commit(w, record, err) : brumate_fail(err, ENOMEM, "%m");
}

/* Whether a job of this node can be a member; those of others are for these to know. */
static int check_here(const char *job, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = client_ask_about("Status", "job", job, &reply, err);
	const char *state = text_of(json_object_get(reply, "job"), "state");

	return r == 0 && words_contain(STATES_WITHOUT_PROCESSES, state)
		       ? brumate_fail(err, EBUSY, "job %s is %s", job, state)
		       : r;
}

/* "NODE:JOB", or a job of this node. */
static int add_job(struct set *s, const struct invocation *in, const struct saving *saving,
		   const char *word, struct brumate_error *err)
{
	const char *colon = strchr(word, ':'), *job = colon ? colon + 1 : word;
	auto_free char *id = path_format("%s.%zu", saving->name, s->n);
	json_t *p;

	if (!*job || colon == word)
		return brumate_fail(err, EINVAL, "\"%s\": expected NODE:JOB, or JOB of this node",
				    word);
	if (check_node(word, colon ? (size_t)(colon - word) : 0, EINVAL, err) < 0)
		return brumate_wrap(err, -EINVAL, "\"%s\"", word);
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->members[i].what, job) &&
		    strlen(s->members[i].node) == (size_t)(job - word) - !!colon &&
		    !strncmp(s->members[i].node, word, strlen(s->members[i].node)))
			return brumate_fail(err, EINVAL, "%s is named twice", word);
	if (!id || !(p = json_pack("{s:s,s:s,s:s,s:b,s:b}", "job", job, "name", id, "dir",
				   saving->dir, "leave_running", !!in->values[OPT_LEAVE_RUNNING],
				   "force", !!in->values[OPT_FORCE])))
		return brumate_fail(err, ENOMEM, "%m");
	if (!set_add(s, word, colon ? (size_t)(colon - word) : 0, job, p))
		return brumate_fail(err, ENOMEM, "%m");
	return colon ? 0 : check_here(job, err);
}

static int set_checkpoint(const struct invocation *in, struct brumate_error *err)
{
	auto_(set_fini) struct set s = { 0 };
	auto_(set_end) struct set_writer w = SET_WRITER_EMPTY;
	auto_free char *dir = NULL;
	char made[MANIFEST_ID_BYTES];
	bool decided;
	int r = find_store(&dir, in, err);

	if (r < 0 || (r = prepare(&s, in, err)) < 0)
		return r;
	if (in->n_operands < 2)
		return brumate_fail(err, EINVAL, "set checkpoint: no jobs are named");
	store_new_id(made, dir, "set");
	struct saving saving = { dir, in->values[OPT_NAME] ? in->values[OPT_NAME] : made,
				 in->values[OPT_TCP_CLOSE] };
	s.outside = saving.closes	    ? OUTSIDE_CLOSED
		    : in->values[OPT_FORCE] ? OUTSIDE_KEPT
					    : OUTSIDE_REFUSED;
	if (!manifest_id_is_valid(saving.name) || *saving.name == '-' ||
	    strlen(saving.name) > NAME_BYTES_MAX) {
		brumate_fail(err, EINVAL, "set checkpoint: \"%s\" cannot be the name of a set",
			     saving.name);
		brumate_hint(err, "use up to %d letters, digits, '.', '_' and '-'", NAME_BYTES_MAX);
		return -EINVAL;
	}
	for (int i = 1; i < in->n_operands && r == 0; i++)
		r = add_job(&s, in, &saving, in->operands[i], err);
	if (r == 0)
		r = set_begin(&w, dir, saving.name, SET_SAVE, err);
	if (r < 0)
		return brumate_wrap(err, r, "set checkpoint");
	r = set_run(&s, "checkpoint",
		    in->values[OPT_LEAVE_RUNNING] ? save_running_meetings : save_meetings, &w,
		    commit_saved, &saving, &decided, err);
	if (r < 0) {
		/* What is refused before anything stands still says so, as without a set. */
		const enum exit_code code = brumate_exit_code(err);
		if (code != EXIT_TIMEOUT && (s.touched || code == EXIT_FAILED))
			brumate_error_exit(err, EXIT_STILL_RUNNING);
		return brumate_wrap(err, r, "set checkpoint: %s run on",
				    s.some_are_silent ? "the others" : "all members");
	}
	tell_late_failures(&s, "its checkpoint is complete, and of the set");
	return print_result(in, &s, saving.name, err);
}

/* ---- restore ---- */

/* Where what was on @node goes: as an operand "NODE=OTHER" says, else there. */
static const char *map_node(const struct invocation *in, const char *node)
{
	for (int i = 2; i < in->n_operands; i++) {
		const char *equals = strchr(in->operands[i], '=');

		if (equals && (size_t)(equals - in->operands[i]) == strlen(node) &&
		    !strncmp(in->operands[i], node, strlen(node)))
			return equals + 1;
	}
	return node;
}

static int check_map_words(const struct invocation *in, struct brumate_error *err)
{
	for (int i = 2; i < in->n_operands; i++) {
		const char *equals = strchr(in->operands[i], '=');

		if (!equals || equals == in->operands[i] || !equals[1])
			return brumate_fail(err, EINVAL, "set restore: \"%s\": expected NODE=NODE",
					    in->operands[i]);
	}
	return 0;
}

static int check_map(const struct invocation *in, json_t *members, struct brumate_error *err)
{
	for (int i = 2; i < in->n_operands; i++) {
		const char *equals = strchr(in->operands[i], '=');
		bool found = false;
		json_t *m;
		size_t k;

		json_array_foreach (members, k, m)
			found = found ||
				(strlen(text_of(m, "node")) == (size_t)(equals - in->operands[i]) &&
				 !strncmp(text_of(m, "node"), in->operands[i],
					  (size_t)(equals - in->operands[i])));
		if (!found)
			return brumate_fail(err, EINVAL, "\"%s\": the set has no member there",
					    in->operands[i]);
	}
	return 0;
}

static int add_saved(struct set *s, const struct invocation *in, const char *dir, json_t *gpu_map,
		     json_t *m, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	const char *id = text_of(m, "checkpoint"), *node = map_node(in, text_of(m, "node"));
	char digest[DIGEST_TEXT_BYTES];
	json_t *p;

	if (!manifest_id_is_valid(id))
		return brumate_fail(err, EBADMSG, "its record names no checkpoint");
	if (check_node(node, strlen(node), EBADMSG, err) < 0)
		return brumate_wrap(err, -EBADMSG, "member \"%s\"", node);
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->members[i].what, id))
			return brumate_fail(err, EBADMSG, "its record names checkpoint %s twice",
					    id);
	int r = store_open(&image, dir, id, err);
	if (r < 0)
		return r;
	digest_format(digest, &image.manifest.body);
	if (strcmp(digest, text_of(m, "digest")) != 0)
		return brumate_fail(err, EBADMSG,
				    "checkpoint %s is not the one that the set was made of", id);
	p = json_pack("{s:s,s:s,s:s,s:b,s:O*}", "checkpoint", id, "kind", "checkpoint", "dir", dir,
		      "force", !!in->values[OPT_FORCE], "gpu_map", gpu_map);
	return p && set_add(s, node, strlen(node), id, p) ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static int commit_restored(struct set *s, struct set_writer *w, void *arg,
			   struct brumate_error *err)
{
	auto_json json_t *record = json_pack("{s:s}", "set", arg);

	(void)s;
	return record ? set_commit(w, record, err) : brumate_fail(err, ENOMEM, "%m");
}

static int read_members(json_t **ret, json_t *record, struct brumate_error *err)
{
	*ret = json_object_get(record, "members");
	return json_array_size(*ret) && json_array_size(*ret) <= MEMBERS_MAX
		       ? 0
		       : brumate_fail(err, EBADMSG, "its record has no members");
}

static int set_restore(const struct invocation *in, struct brumate_error *err)
{
	auto_(set_fini) struct set s = { 0 };
	auto_(set_end) struct set_writer w = SET_WRITER_EMPTY;
	auto_json json_t *record = NULL, *gpu_map = NULL;
	auto_free char *dir = NULL;
	json_t *members = NULL, *m;
	bool decided;
	size_t i;
	int r = find_store(&dir, in, err);

	if (r < 0 || (r = prepare(&s, in, err)) < 0)
		return r;
	if (in->n_operands < 2)
		return brumate_fail(err, EINVAL, "set restore: no set is named");
	const char *name = in->operands[1];
	if ((r = check_map_words(in, err)) < 0)
		return r;
	if ((r = set_read(&record, dir, name, err)) < 0)
		return r;
	r = read_members(&members, record, err);
	if (r == 0)
		r = check_map(in, members, err);
	if (r == 0 && in->values[OPT_GPU_MAP])
		r = parse_gpu_map(&gpu_map, in->values[OPT_GPU_MAP], err);
	json_array_foreach (members, i, m)
		r = r < 0 ? r : add_saved(&s, in, dir, gpu_map, m, err);
	if (r == 0)
		r = set_begin(&w, dir, name, SET_RESTORE, err);
	if (r == 0)
		r = set_run(&s, "restore", restore_meetings, &w, commit_restored, (void *)name,
			    &decided, err);
	if (r < 0)
		return brumate_wrap(err, r, "set %s", name);
	/* The record stays where the shim of a member that is not back yet has to find it. */
	if (tell_late_failures(&s, "the others are back"))
		return brumate_fail(err, some_have_failed(&s) ? EIO : ETIMEDOUT,
				    "set %s: not all of its members are back", name);
	set_forget(&w);
	return print_result(in, &s, name, err);
}

/* ---- ls, rm ---- */

static void add_name(void *arg, const char *name)
{
	json_array_append_new(arg, json_string(name));
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int set_ls(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *names = json_array(), *all = json_array();
	auto_free char *dir = NULL;
	json_t *name;
	size_t i;
	int r = in->n_operands > 1 ? brumate_fail(err, EINVAL, "set ls: unexpected operand \"%s\"",
						  in->operands[1])
				   : find_store(&dir, in, err);

	if (r == 0)
		r = set_list(dir, add_name, names, err);
	auto_free const char **sorted = calloc(json_array_size(names) + 1, sizeof(*sorted));
	if (r < 0 || !sorted)
		return r < 0 ? r : brumate_fail(err, ENOMEM, "%m");
	json_array_foreach (names, i, name)
		sorted[i] = json_string_value(name);
	qsort(sorted, json_array_size(names), sizeof(*sorted), by_text);
	for (i = 0; i < json_array_size(names); i++) {
		auto_json json_t *record = NULL;

		if (set_read(&record, dir, sorted[i], err) < 0)
			record = json_pack("{s:s,s:n}", "set", sorted[i], "members");
		*err = BRUMATE_ERROR_NONE;
		if (!wants_json(in))
			printf("%s\t%zu members\t%s\n", sorted[i],
			       json_array_size(json_object_get(record, "members")),
			       text_of(record, "created"));
		json_array_append(all, record);
	}
	auto_json json_t *o = json_pack("{s:O}", "sets", all);
	return wants_json(in) ? print_json(o, err) : 0;
}

static int set_rm(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *record = NULL;
	auto_free char *dir = NULL;
	json_t *m;
	size_t i;
	int r = find_store(&dir, in, err);

	if (r < 0)
		return r;
	if (in->n_operands != 2)
		return brumate_fail(err, EINVAL, "set rm: expected the name of a set");
	if ((r = set_read(&record, dir, in->operands[1], err)) < 0)
		return r;
	json_array_foreach (json_object_get(record, "members"), i, m) {
		r = store_refuse_pinned(dir, text_of(m, "checkpoint"), err);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	*err = BRUMATE_ERROR_NONE;
	/* First the record: what is left of the others then is garbage. */
	if ((r = set_remove(dir, in->operands[1], err)) < 0)
		return r;
	json_array_foreach (json_object_get(record, "members"), i, m) {
		auto_json json_t *p =
			json_pack("{s:s,s:s}", "checkpoint", text_of(m, "checkpoint"), "dir", dir);
		struct brumate_error why = BRUMATE_ERROR_NONE;

		if (client_ask("Remove", p, NULL, &why) < 0 && why.code != ENOENT)
			add_failure(err, &why);
	}
	return err->code ? -err->code : 0;
}

/* Options that not all of them have. */
static const struct word_option words_of[] = {
	{ OPT_NAME, "--name", "checkpoint" },
	{ OPT_LEAVE_RUNNING, "--leave-running", "checkpoint" },
	{ OPT_TCP_CLOSE, "--tcp-close", "checkpoint" },
	{ OPT_VIA, "--via", "checkpoint restore" },
	{ OPT_TIMEOUT, "--timeout", "checkpoint restore" },
	{ OPT_FORCE, "--force", "checkpoint restore" },
};

int verb_set(const struct invocation *in, struct brumate_error *err)
{
	static const struct {
		const char *word;
		int (*run)(const struct invocation *in, struct brumate_error *err);
	} all[] = {
		{ "checkpoint", set_checkpoint },
		{ "restore", set_restore },
		{ "ls", set_ls },
		{ "rm", set_rm },
	};

	if (!strcmp(in->operands[0], "member"))
		return member_run(err);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(in->operands[0], all[i].word)) {
			int r = check_word_options(in, words_of,
						   sizeof(words_of) / sizeof(words_of[0]), err);

			return r < 0 ? r : all[i].run(in, err);
		}
	brumate_fail(err, EINVAL, "set: unknown command \"%s\"", in->operands[0]);
	brumate_hint(err, "it is one of: checkpoint restore ls rm");
	return -EINVAL;
}
