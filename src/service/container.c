// SPDX-License-Identifier: MIT
/*
 * The state of OCI runtimes. runc has a state.json for each container, crun a status, in a directory that is named by its id;
 * containerd and docker have a directory of runc's for each of their namespaces. Names are the engines': podman and CRI-O keep
 * them beside the bundles, docker in its own directory, containerd in annotations.
 */
#include "service/container.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "job/job.h"
#include "wire/wire.h"

#define DEFAULT_DIRS "/run/runc:/run/crun:/run/containerd/runc:/run/docker/runtime-runc"
#define DOCKER_FILE  "/var/lib/docker/containers/%s/config.v2.json"

enum { STATE_BYTES_MAX = 16 << 20, LEVELS = 2, SHORT_ID = 12 };

/* Which annotations hold names. */
static const char *const name_labels[] = {
	"io.kubernetes.cri.container-name=",
	"io.kubernetes.container.name=",
	"nerdctl/name=",
};

struct search {
	const char *word;
	size_t n_begin; /* containers whose ids begin with it */
	bool is_exact;	/* found by its id or name */
	char id[NAME_MAX + 1];
	char *path; /* of its state; owned */
	char name[NAME_MAX + 1];
	int failed; /* -errno: a place could not be looked into, as @why says */
	char why[256];
};

static json_t *load(const char *path, int *ret_error)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = file_read(AT_FDCWD, path, STATE_BYTES_MAX, &text, &len);
	json_t *object = r < 0 ? NULL : json_loadb(text, len, 0, NULL);

	if (!object && ret_error)
		*ret_error = r < 0 ? r : -EBADMSG;
	return object;
}

static const char *text_at(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

/* ---- names ---- */

/* Names that containers/storage keeps for all containers of a directory: [{"id": …, "names": […]}]. */
static void name_of_storage(char name[static NAME_MAX + 1], const char *bundle, const char *id)
{
	auto_free char *path = path_format("%s/../../containers.json", bundle);
	auto_json json_t *list = path ? load(path, NULL) : NULL;
	size_t i;
	json_t *entry;

	json_array_foreach (list, i, entry) {
		const char *text =
			json_string_value(json_array_get(json_object_get(entry, "names"), 0));

		if (!strcmp(text_at(entry, "id"), id) && text)
			snprintf(name, NAME_MAX + 1, "%s", text);
	}
}

static void name_of_docker(char name[static NAME_MAX + 1], const char *id)
{
	auto_free char *path = path_format(DOCKER_FILE, id);
	auto_json json_t *object = path ? load(path, NULL) : NULL;
	const char *text = text_at(object, "Name");

	if (*text)
		snprintf(name, NAME_MAX + 1, "%s", text + (*text == '/'));
}

/* "KEY=VALUE" of runc's list that begins with @key, or NULL. */
static const char *label(json_t *labels, const char *key)
{
	size_t i;
	json_t *entry;

	json_array_foreach (labels, i, entry) {
		const char *text = json_string_value(entry);

		if (text && !strncmp(text, key, strlen(key)))
			return text + strlen(key);
	}
	return NULL;
}

static void find_name(char name[static NAME_MAX + 1], json_t *state, const char *id)
{
	json_t *labels = json_object_get(json_object_get(state, "config"), "labels");
	const char *bundle = label(labels, "bundle=");

	*name = '\0';
	name_of_docker(name, id);
	for (size_t i = 0; i < sizeof(name_labels) / sizeof(*name_labels) && !*name; i++) {
		const char *text = label(labels, name_labels[i]);

		snprintf(name, NAME_MAX + 1, "%s", text ? text : "");
	}
	if (!bundle)
		bundle = text_at(state, "bundle"); /* crun's */
	if (!*name && *bundle)
		name_of_storage(name, bundle, id);
}

/* ---- the search ---- */

static void note_failure(struct search *s, const char *path, int r)
{
	s->failed = r;
	snprintf(s->why, sizeof(s->why), "%.200s: %s", path, strerror(-r));
}

/* Takes a container into account whose state is in @path. */
static void consider(struct search *s, const char *path, const char *id)
{
	char name[NAME_MAX + 1];
	int r = 0;
	auto_json json_t *state = load(path, &r);

	/* One that has just been removed is none. */
	if (!state && r != -ENOENT)
		note_failure(s, path, r);
	if (!state)
		return;
	find_name(name, state, id);
	bool is_exact = !strcmp(id, s->word) || !strcmp(name, s->word);
	bool begins = !strncmp(id, s->word, strlen(s->word));
	if (!is_exact && (!begins || s->is_exact))
		return;
	s->n_begin = is_exact == s->is_exact ? s->n_begin + 1 : 1;
	s->is_exact = is_exact;
	snprintf(s->id, sizeof(s->id), "%s", id);
	snprintf(s->name, sizeof(s->name), "%s", name);
	cleanup_free(&s->path);
	s->path = strdup(path);
}

static void search_dir(struct search *s, const char *dir, int level)
{
	auto_closedir DIR *stream = opendir(dir);
	const struct dirent *entry;

	if (!stream && errno != ENOENT && errno != ENOTDIR)
		note_failure(s, dir, -errno);
	while (stream && (entry = readdir(stream))) {
		if (entry->d_name[0] == '.')
			continue;
		auto_free char *runc = path_format("%s/%s/state.json", dir, entry->d_name);
		auto_free char *crun = path_format("%s/%s/status", dir, entry->d_name);
		auto_free char *below = path_format("%s/%s", dir, entry->d_name);
		if (!runc || !crun || !below)
			note_failure(s, dir, -ENOMEM);
		else if (access(runc, F_OK) == 0)
			consider(s, runc, entry->d_name);
		else if (access(crun, F_OK) == 0)
			consider(s, crun, entry->d_name);
		else if (level + 1 < LEVELS)
			search_dir(s, below, level + 1);
	}
}

static int check_found(const struct search *s, struct brumate_error *err)
{
	if (s->n_begin > 1) {
		brumate_fail(err, EINVAL, "%zu containers are meant by \"%s\"", s->n_begin,
			     s->word);
		brumate_hint(err, "give more of the id");
		return -EINVAL;
	}
	if (s->n_begin && s->path)
		return 0;
	if (s->failed < 0)
		return brumate_fail(
			err, -s->failed,
			"container \"%s\" is not known, but not all could be looked at: %s",
			s->word, s->why);
	brumate_fail(err, ENOENT, "no container has the id or the name \"%s\"", s->word);
	brumate_hint(err, "[Container] State= in brumate.conf names the places of runtimes with "
			  "others than the usual");
	return -ENOENT;
}

/* ---- what was found ---- */

static int get_init(struct proc_id *ret, const struct search *s, struct brumate_error *err)
{
	int r = 0;
	auto_json json_t *state = load(s->path, &r);
	json_t *pid = json_object_get(state, "init_process_pid"),
	       *start = json_object_get(state, "init_process_start");

	if (!pid) { /* crun's */
		pid = json_object_get(state, "pid");
		start = json_object_get(state, "process-start-time");
	}
	json_int_t number = json_integer_value(pid);
	if (!json_is_integer(pid) || !json_is_integer(start) || number < 0 || number > INT_MAX)
		return brumate_fail(err, state ? EBADMSG : -r, "%s: %s", s->path,
				    state ? "says nothing of a process" : strerror(-r));
	if (!number || proc_identify(ret, (pid_t)number, NULL) < 0 ||
	    ret->start_ticks != (uint64_t)json_integer_value(start))
		return brumate_fail(err, ESRCH, "container %s does not run", s->id);
	return 0;
}

static void pick_name(char ret[static 64], const struct search *s)
{
	const char *text = *s->name ? s->name : s->id;
	int most = strlen(text) < JOB_NAME_BYTES ? JOB_NAME_BYTES - 1 : SHORT_ID;

	snprintf(ret, 64, "%.*s", most < 63 ? most : 63, text);
	bool suits = isalnum((unsigned char)ret[0]);
	for (const char *p = ret; *p; p++)
		suits = suits && (isalnum((unsigned char)*p) || strchr("._-", *p));
	if (!suits)
		ret[0] = '\0';
}

int service_find_container(struct service_container *ret, const char *word, const char *dirs,
			   struct brumate_error *err)
{
	struct search s = { .word = word };
	auto_free char *list = strdup(dirs ? dirs : DEFAULT_DIRS);
	char *rest = list;

	if (!list)
		return brumate_fail(err, ENOMEM, "%m");
	if (!*word || strchr(word, '/'))
		return brumate_fail(err, EINVAL, "container \"%s\": expected an id or a name",
				    word);
	for (char *dir; (dir = strsep(&rest, ":"));)
		if (*dir)
			search_dir(&s, dir, 0);
	int r = check_found(&s, err);
	if (r == 0)
		r = get_init(&ret->init, &s, err);
	if (r == 0)
		pick_name(ret->name, &s);
	free(s.path);
	return r;
}
