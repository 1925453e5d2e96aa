// SPDX-License-Identifier: MIT
/*
 * The state of OCI runtimes. runc has a state.json for each container, crun a status file, in a directory named by
 * its id; containerd and docker have a directory of runc's for each of their namespaces. Names come from the engines:
 * podman and CRI-O store them next to the bundles, docker in its own directory, containerd in annotations.
 * Annotations also name a container's pod: runc has them in its state, crun in the config.json in the same directory.
 */
#include "edges/containers/find.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "job/job.h"
#include "wire/wire.h"

#define DEFAULT_DIRS "/run/runc:/run/crun:/run/containerd/runc:/run/docker/runtime-runc"
#define DOCKER_FILE  "/var/lib/docker/containers/%s/config.v2.json"

enum { STATE_BYTES_MAX = 16 << 20, LEVELS = 2, SHORT_ID = 12 };

/* Annotations that contain names. */
static const char *const name_labels[] = {
	"io.kubernetes.cri.container-name",
	"io.kubernetes.container.name",
	"nerdctl/name",
};

/* Annotations about a container's pod: containerd's, and CRI-O's. */
static const struct pod_labels {
	const char *namespace, *pod, *container, *kind;
} pod_labels[] = {
	{ "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name",
	  "io.kubernetes.cri.container-name", "io.kubernetes.cri.container-type" },
	{ "io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name",
	  "io.kubernetes.cri-o.ContainerType" },
};

/* The state of a container. All borrowed. */
struct state {
	const char *id;
	const char *path;
	bool is_crun;
	json_t *object;
};

/* A walk over the states of all containers. */
struct walk {
	void (*visit)(void *arg, const struct state *state);
	void *arg;
	int failed; /* -errno: a place could not be read, see @why */
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

/* ---- names ---- */

/* Names in the file of containers/storage for all containers of a directory: [{"id": …, "names": […]}]. */
static void name_of_storage(char name[static NAME_MAX + 1], const char *bundle, const char *id)
{
	auto_free char *path = path_format("%s/../../containers.json", bundle);
	auto_json json_t *list = path ? load(path, NULL) : NULL;
	size_t i;
	json_t *entry;

	json_array_foreach (list, i, entry) {
		const char *text =
			json_string_value(json_array_get(json_object_get(entry, "names"), 0));

		if (!strcmp(text_of(entry, "id"), id) && text)
			snprintf(name, NAME_MAX + 1, "%s", text);
	}
}

static void name_of_docker(char name[static NAME_MAX + 1], const char *id)
{
	auto_free char *path = path_format(DOCKER_FILE, id);
	auto_json json_t *object = path ? load(path, NULL) : NULL;
	const char *text = text_of(object, "Name");

	if (*text)
		snprintf(name, NAME_MAX + 1, "%s", text + (*text == '/'));
}

/* The annotation @key: of runc, as a list of "KEY=VALUE", or of crun; NULL if there is none. */
static const char *label(json_t *state, const char *key)
{
	json_t *labels = json_object_get(json_object_get(state, "config"), "labels");
	size_t i, len = strlen(key);
	json_t *entry;

	json_array_foreach (labels, i, entry) {
		const char *text = json_string_value(entry);

		if (text && !strncmp(text, key, len) && text[len] == '=')
			return text + len + 1;
	}
	return json_string_value(json_object_get(json_object_get(state, "annotations"), key));
}

static const char *bundle_of(json_t *state)
{
	const char *bundle = label(state, "bundle");

	return bundle ? bundle : text_of(state, "bundle"); /* crun's */
}

static void find_name(char name[static NAME_MAX + 1], json_t *state, const char *id)
{
	const char *bundle = bundle_of(state);

	*name = '\0';
	name_of_docker(name, id);
	for (size_t i = 0; i < sizeof(name_labels) / sizeof(*name_labels) && !*name; i++) {
		const char *text = label(state, name_labels[i]);

		snprintf(name, NAME_MAX + 1, "%s", text ? text : "");
	}
	if (!*name && *bundle)
		name_of_storage(name, bundle, id);
}

/* ---- all states ---- */

static void note_failure(struct walk *w, const char *path, int r)
{
	w->failed = r;
	snprintf(w->why, sizeof(w->why), "%.200s: %s", path, strerror(-r));
}

/* crun's status has no annotations: they are in the configuration in the same directory. */
static void add_annotations(struct walk *w, json_t *state, const char *config)
{
	int r = 0;
	auto_json json_t *object = load(config, &r);
	json_t *annotations = json_object_get(object, "annotations");

	if (!object && r != -ENOENT)
		note_failure(w, config, r);
	if (annotations && json_object_set(state, "annotations", annotations) < 0)
		note_failure(w, config, -ENOMEM);
}

/* @config: crun's; NULL for runc, whose state has everything. */
static void visit_state(struct walk *w, const char *path, const char *id, const char *config)
{
	int r = 0;
	auto_json json_t *object = load(path, &r);
	const struct state state = {
		.id = id, .path = path, .is_crun = config != NULL, .object = object
	};

	/* A container that was just removed is skipped. */
	if (!object && r != -ENOENT)
		note_failure(w, path, r);
	if (!object)
		return;
	if (config)
		add_annotations(w, object, config);
	w->visit(w->arg, &state);
}

static bool is_there(struct walk *w, const char *path)
{
	if (access(path, F_OK) == 0)
		return true;
	if (errno != ENOENT && errno != ENOTDIR)
		note_failure(w, path, -errno);
	return false;
}

static void walk_dir(struct walk *w, const char *dir, int level)
{
	auto_closedir DIR *stream = opendir(dir);
	const struct dirent *entry;

	if (!stream && errno != ENOENT && errno != ENOTDIR)
		note_failure(w, dir, -errno);
	while (stream && (entry = readdir(stream))) {
		if (entry->d_name[0] == '.')
			continue;
		auto_free char *below = path_format("%s/%s", dir, entry->d_name);
		auto_free char *runc = path_format("%s/%s/state.json", dir, entry->d_name);
		auto_free char *crun = path_format("%s/%s/status", dir, entry->d_name);
		auto_free char *config = path_format("%s/%s/config.json", dir, entry->d_name);
		if (!below || !runc || !crun || !config)
			note_failure(w, dir, -ENOMEM);
		else if (is_there(w, runc))
			visit_state(w, runc, entry->d_name, NULL);
		else if (is_there(w, crun))
			visit_state(w, crun, entry->d_name, config);
		else if (level + 1 < LEVELS)
			walk_dir(w, below, level + 1);
	}
}

/* @dirs: NULL for the runtimes' default directories. */
static int walk_states(struct walk *w, const char *dirs, struct brumate_error *err)
{
	auto_free char *list = strdup(dirs ? dirs : DEFAULT_DIRS);
	char *rest = list;

	if (!list)
		return brumate_fail(err, ENOMEM, "%m");
	for (char *dir; (dir = strsep(&rest, ":"));)
		if (*dir)
			walk_dir(w, dir, 0);
	return 0;
}

/* The first process of a container. -ESRCH: the container does not run. */
static int get_init(struct proc_id *ret, const struct state *state, struct brumate_error *err)
{
	json_t *pid = json_object_get(state->object, "init_process_pid"),
	       *start = json_object_get(state->object, "init_process_start");

	if (!pid) { /* crun's */
		pid = json_object_get(state->object, "pid");
		start = json_object_get(state->object, "process-start-time");
	}
	json_int_t number = json_integer_value(pid);
	if (!json_is_integer(pid) || !json_is_integer(start) || number < 0 || number > INT_MAX)
		return brumate_fail(err, EBADMSG, "%s: it names no process", state->path);
	if (!number || proc_identify(ret, (pid_t)number, NULL) < 0 ||
	    ret->start_ticks != (uint64_t)json_integer_value(start))
		return brumate_fail(err, ESRCH, "container %s does not run", state->id);
	return 0;
}

/* ---- a container ---- */

struct container_search {
	const char *word;
	size_t n_begin;			/* containers whose ids begin with the word */
	bool is_exact;			/* found by its full id or name */
	struct service_container found; /* without its name */
	char name[NAME_MAX + 1];
	int r; /* the result of getting its first process */
	struct brumate_error why;
};

static enum service_engine engine_of(const struct state *state)
{
	const char *manager = label(state->object, "io.container.manager");
	char name[NAME_MAX + 1] = "";

	for (size_t i = 0; i < sizeof(pod_labels) / sizeof(*pod_labels); i++)
		if (label(state->object, pod_labels[i].pod))
			return ENGINE_KUBELET;
	if (manager && !strcmp(manager, "libpod"))
		return ENGINE_PODMAN;
	name_of_docker(name, state->id);
	if (*name)
		return ENGINE_DOCKER;
	return strstr(bundle_of(state->object), "/io.containerd.runtime.") ? ENGINE_CONTAINERD
									   : ENGINE_RUNTIME;
}

/* The state is in STATE/ID/FILE, of containerd in …/NAMESPACE/ID/FILE. */
static void describe(struct service_container *ret, const struct state *state)
{
	ret->engine = engine_of(state);
	ret->runtime = state->is_crun ? "crun" : "runc";
	snprintf(ret->id, sizeof(ret->id), "%s", state->id);
	snprintf(ret->bundle, sizeof(ret->bundle), "%s", bundle_of(state->object));
	snprintf(ret->state, sizeof(ret->state), "%s", state->path);
	for (int i = 0; i < 2; i++) {
		char *slash = strrchr(ret->state, '/');

		if (slash)
			*slash = '\0';
	}
	const char *last = strrchr(ret->state, '/');
	snprintf(ret->namespace, sizeof(ret->namespace), "%s", last ? last + 1 : "");
}

/* Considers one container. */
static void consider(void *arg, const struct state *state)
{
	struct container_search *s = arg;
	char name[NAME_MAX + 1];

	find_name(name, state->object, state->id);
	bool is_exact = !strcmp(state->id, s->word) || !strcmp(name, s->word);
	const size_t len = strlen(s->word);
	bool begins = len >= JOB_PREFIX_BYTES_MIN && !strncmp(state->id, s->word, len);
	if (!is_exact && (!begins || s->is_exact))
		return;
	s->n_begin = is_exact == s->is_exact ? s->n_begin + 1 : 1;
	s->is_exact = is_exact;
	snprintf(s->name, sizeof(s->name), "%s", name);
	describe(&s->found, state);
	s->r = get_init(&s->found.init, state, &s->why);
}

static int check_found(const struct container_search *s, const struct walk *w,
		       struct brumate_error *err)
{
	if (s->n_begin > 1) {
		brumate_fail(err, EINVAL, "%zu containers are meant by \"%s\"", s->n_begin,
			     s->word);
		brumate_hint(err, "give more of the id");
		return -EINVAL;
	}
	if (s->n_begin && s->r < 0 && err)
		*err = s->why;
	if (s->n_begin)
		return s->r;
	if (w->failed < 0)
		return brumate_fail(
			err, -w->failed,
			"container \"%s\" is not known, but not all could be looked at: %s",
			s->word, w->why);
	brumate_fail(err, ENOENT, "no container has the id or the name \"%s\"", s->word);
	brumate_hint(err, "[Container] State= in brumate.conf names the places of runtimes with "
			  "others than the usual");
	return -ENOENT;
}

static void pick_name(char ret[static 64], const struct container_search *s)
{
	const char *text = *s->name ? s->name : s->found.id;
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
	struct container_search s = { .word = word };
	struct walk w = { .visit = consider, .arg = &s };

	if (!*word || strchr(word, '/'))
		return brumate_fail(err, EINVAL, "container \"%s\": expected an id or a name",
				    word);
	int r = walk_states(&w, dirs, err);
	if (r == 0)
		r = check_found(&s, &w, err);
	if (r < 0)
		return r;
	*ret = s.found;
	pick_name(ret->name, &s);
	return 0;
}

/* ---- a pod ---- */

enum { LABEL_BYTES_MAX = 63, SUBDOMAIN_BYTES_MAX = 253 };

/* Lower-case letters and digits, with '-' inside: RFC 1123. With @dots, several such labels. */
static bool is_dns_name(const char *name, size_t bytes_max, bool dots)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	size_t len = strlen(name);

	if (!len || len > bytes_max)
		return false;
	for (const char *p = name; *p; p++) {
		bool at_edge = p == name || !p[1] || p[-1] == '.' || p[1] == '.';

		if (!strchr(letters, *p) && !(*p == '-' && !at_edge) &&
		    !(dots && *p == '.' && !at_edge))
			return false;
	}
	return true;
}

static int check_dns_name(const char *what, const char *name, size_t bytes_max, bool dots,
			  struct brumate_error *err)
{
	if (is_dns_name(name, bytes_max, dots))
		return 0;
	brumate_fail(err, EINVAL, "\"%.300s\" cannot be the name of a %s", name, what);
	brumate_hint(err, "use up to %zu characters of a-z, 0-9 and '-'%s", bytes_max,
		     dots ? ", with dots between them" : "");
	return -EINVAL;
}

int service_check_pod_name(const struct service_pod_name *name, struct brumate_error *err)
{
	int r = check_dns_name("namespace", name->namespace, LABEL_BYTES_MAX, false, err);

	if (r == 0)
		r = check_dns_name("pod", name->pod, SUBDOMAIN_BYTES_MAX, true, err);
	if (r == 0 && name->container)
		r = check_dns_name("container", name->container, LABEL_BYTES_MAX, false, err);
	return r;
}

void service_pod_fini(struct service_pod *p)
{
	free(p->items);
	*p = SERVICE_POD_EMPTY;
}

struct pod_search {
	const struct service_pod_name *name;
	struct service_pod found;
	int r; /* the first failure, or that a container does not run */
	struct brumate_error why;
};

/* The name of the container if it is one of those wanted, else NULL. */
static const char *name_in_pod(const struct service_pod_name *name, json_t *state)
{
	for (size_t i = 0; i < sizeof(pod_labels) / sizeof(*pod_labels); i++) {
		const struct pod_labels *l = &pod_labels[i];
		const char *namespace = label(state, l->namespace), *pod = label(state, l->pod),
			   *container = label(state, l->container), *kind = label(state, l->kind);

		if (namespace && pod && container && !strcmp(namespace, name->namespace) &&
		    !strcmp(pod, name->pod) && !(kind && !strcmp(kind, "sandbox")) &&
		    (!name->container || !strcmp(container, name->container)))
			return container;
	}
	return NULL;
}

static void consider_for_pod(void *arg, const struct state *state)
{
	struct pod_search *s = arg;
	const char *name = name_in_pod(s->name, state->object);
	struct service_pod_container c = { .init = PROC_ID_NONE };
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!name)
		return;
	snprintf(c.id, sizeof(c.id), "%s", state->id);
	snprintf(c.name, sizeof(c.name), "%s", name);
	int r = get_init(&c.init, state, &why);
	if (r == 0 && (r = array_add(s->found.items, s->found.n, c)) < 0)
		brumate_fail(&why, -r, "%m");
	/* An ended container of the pod is only reported if there is nothing else to report. */
	if (r < 0 && (s->r == 0 || s->r == -ESRCH)) {
		s->r = r;
		s->why = why;
	}
}

static int compare_names(const void *a, const void *b)
{
	const struct service_pod_container *one = a, *other = b;

	return strcmp(one->name, other->name);
}

static int fail_no_container(const struct service_pod_name *name, struct brumate_error *err)
{
	brumate_fail(err, ENOENT, "no container %s%sof pod %s/%s is on this node",
		     name->container ? name->container : "", name->container ? " " : "",
		     name->namespace, name->pod);
	brumate_hint(err, "-n says the namespace; [Container] State= in brumate.conf names the "
			  "places of runtimes with others than the usual");
	return -ENOENT;
}

static int check_pod(const struct pod_search *s, const struct walk *w, struct brumate_error *err)
{
	const struct service_pod_name *name = s->name;

	if (s->r < 0 && !(s->r == -ESRCH && s->found.n)) {
		if (err)
			*err = s->why;
		return brumate_wrap(err, s->r, "pod %s/%s", name->namespace, name->pod);
	}
	if (w->failed < 0 && !(name->container && s->found.n))
		return brumate_fail(err, -w->failed,
				    "pod %s/%s: not all containers could be looked at: %s",
				    name->namespace, name->pod, w->why);
	for (size_t i = 1; i < s->found.n; i++)
		if (!compare_names(&s->found.items[i - 1], &s->found.items[i])) {
			brumate_fail(err, EBUSY, "pod %s/%s: container %s runs twice",
				     name->namespace, name->pod, s->found.items[i].name);
			brumate_hint(err, "the pod may be about to be replaced: try it again");
			return -EBUSY;
		}
	return s->found.n ? 0 : fail_no_container(name, err);
}

int service_find_pod(struct service_pod *ret, const struct service_pod_name *name, const char *dirs,
		     struct brumate_error *err)
{
	struct pod_search s = { .name = name };
	struct walk w = { .visit = consider_for_pod, .arg = &s };
	int r = service_check_pod_name(name, err);

	if (r == 0)
		r = walk_states(&w, dirs, err);
	if (r < 0)
		return r;
	if (s.found.n)
		qsort(s.found.items, s.found.n, sizeof(*s.found.items), compare_names);
	r = check_pod(&s, &w, err);
	if (r == 0) {
		*ret = s.found;
		s.found = SERVICE_POD_EMPTY;
	}
	service_pod_fini(&s.found);
	return r;
}
