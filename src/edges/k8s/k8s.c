// SPDX-License-Identifier: MIT
/*
 * `brumate k8s`: the containers of a pod on this node. A pod is suspended as a whole: where one container cannot be, those
 * before it are resumed, and no more jobs than they were. Checkpoints are asked for at the kubelet.
 */
#include "cli/verbs.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "edges/k8s/options.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/paths.h"
#include "job/counts.h"
#include "job/job.h"
#include "job/request.h"
#include "edges/containers/archive.h"
#include "edges/containers/find.h"
#include "edges/k8s/kubelet.h"
#include "edges/containers/snapshot-control.h"

/* What is done with a pod, and the results so far. */
struct pod_task {
	const struct invocation *in;
	struct service_pod_name name;
	struct service_pod pod;
	json_t *done;	    /* [{container, ...}]; owned */
	json_t *left_alone; /* names; owned */
	bool is_quiet;	    /* what is left alone is not said */
};

static void pod_task_fini(struct pod_task *t)
{
	service_pod_fini(&t->pod);
	json_decref(t->done);
	json_decref(t->left_alone);
}
DEFINE_AUTO_FINI(struct pod_task, pod_task_fini)

static int find_pod(struct pod_task *t, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);

	return r < 0 ? r : service_find_pod(&t->pod, &t->name, conf.container_state, err);
}

static int leave_alone(struct pod_task *t, const char *container, const char *why)
{
	if (!t->is_quiet)
		fprintf(stderr, "container %s of pod %s/%s is left alone: %s\n", container,
			t->name.namespace, t->name.pod, why);
	return json_array_append_new(t->left_alone, json_string(container)) < 0 ? -ENOMEM : 0;
}

static int add_done(struct pod_task *t, json_t *one, struct brumate_error *err)
{
	return json_array_append_new(t->done, one) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

/* Prints what was done: @key of each, a line for it or for each of it. */
static int print_done(const struct pod_task *t, const char *key, struct brumate_error *err)
{
	size_t i, k;
	json_t *one, *line;

	if (wants_json(t->in)) {
		auto_json json_t *o =
			json_pack("{s:s,s:s,s:O,s:O}", "namespace", t->name.namespace, "pod",
				  t->name.pod, "containers", t->done, "left_alone", t->left_alone);

		return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
	}
	json_array_foreach (t->done, i, one) {
		if (json_is_string(json_object_get(one, key)))
			puts(text_of(one, key));
		json_array_foreach (json_object_get(one, key), k, line)
			puts(json_string_value(line));
	}
	return 0;
}

static int fail_of_container(const struct pod_task *t, const char *container, int r,
			     struct brumate_error *err)
{
	return brumate_wrap(err, r, "container %s of pod %s/%s", container, t->name.namespace,
			    t->name.pod);
}

/* ---- suspend and resume ---- */

/* The job that a container belongs to. 0; 1: to none. */
static int find_job(struct job *ret, const struct service_pod_container *c,
		    struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = job_find_by_pid(ret, c->init.pid, &why);

	if (r < 0 && r != -ENOENT && err)
		*err = why;
	return r == -ENOENT ? 1 : r;
}

/* Calls Suspend or Resume for a container, and keeps its Summary. */
static int operate(struct pod_task *t, const struct service_pod_container *c, const char *method,
		   unsigned where, bool is_new, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s}", "container", c->id), *reply = NULL;
	int r = p ? add_request(p, t->in, where, err) : brumate_fail(err, ENOMEM, "%m");

	if (r == 0 && where == REQUEST_SUSPEND)
		r = add_gpu(p, t->in, err);
	if (r == 0)
		r = client_call_shown(method, t->in->operands[0], p, NULL, &reply, err);
	if (r < 0)
		return r;
	json_t *summary = json_object_get(reply, "summary");
	if (!json_is_object(summary))
		return brumate_fail(err, EPROTO, "the reply has no summary");
	fprintf(stderr, "container %s of pod %s/%s: ", c->name, t->name.namespace, t->name.pod);
	summary_print(t->in, summary);
	return add_done(t,
			json_pack("{s:s,s:s,s:b,s:O}", "container", c->name, "job",
				  text_of(summary, "job"), "new_job", is_new, "summary", summary),
			err);
}

static int suspend_container(struct pod_task *t, const struct service_pod_container *c,
			     size_t *ret_n_before, struct brumate_error *err)
{
	auto_(job_fini) struct job job = JOB_EMPTY;
	int none = find_job(&job, c, err);

	if (none < 0)
		return none;
	if (!none && job.state == JOB_SUSPENDED) {
		++*ret_n_before;
		return leave_alone(t, c->name, "it is suspended already");
	}
	int r = operate(t, c, "Suspend", REQUEST_SUSPEND, none, err);
	if (r != -ENODATA)
		return r;
	*err = BRUMATE_ERROR_NONE;
	return leave_alone(t, c->name, "it has no GPU state");
}

/* Resumes a container, as not all of its pod could be suspended. */
static int take_back(const struct pod_task *t, json_t *one, struct brumate_error *err)
{
	const char *job = text_of(one, "job"), *name = text_of(one, "container");
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = client_ask_about("Resume", "job", job, NULL, &why);

	if (r < 0) {
		fprintf(stderr, "container %s of pod %s/%s is still suspended: %s\n", name,
			t->name.namespace, t->name.pod, why.text);
		brumate_hint(err, "brumate resume %s", job);
		brumate_error_exit(err, EXIT_FAILED);
		return r;
	}
	fprintf(stderr, "container %s of pod %s/%s is running again\n", name, t->name.namespace,
		t->name.pod);
	if (json_is_true(json_object_get(one, "new_job")))
		client_ask_about("Release", "job", job, NULL, NULL);
	return 0;
}

static int suspend_pod(struct pod_task *t, struct brumate_error *err)
{
	size_t n_before = 0;
	int r = find_pod(t, err);

	for (size_t i = 0; i < t->pod.n && r == 0; i++) {
		r = suspend_container(t, &t->pod.items[i], &n_before, err);
		if (r < 0)
			fail_of_container(t, t->pod.items[i].name, r, err);
	}
	for (size_t i = json_array_size(t->done); i-- > 0 && r < 0;)
		take_back(t, json_array_get(t->done, i), err);
	if (r < 0)
		return r;
	if (!json_array_size(t->done) && !n_before) {
		brumate_fail(err, ENODATA, "no container of pod %s/%s has GPU state to suspend",
			     t->name.namespace, t->name.pod);
		brumate_hint(err, "none of their processes has initialised the driver (yet)");
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		return -ENODATA;
	}
	return print_done(t, "job", err);
}

static int resume_container(struct pod_task *t, const struct service_pod_container *c,
			    struct brumate_error *err)
{
	auto_(job_fini) struct job job = JOB_EMPTY;
	int none = find_job(&job, c, err);

	if (none < 0)
		return none;
	if (none || job.state == JOB_RUNNING)
		return leave_alone(t, c->name, "it is not suspended");
	return operate(t, c, "Resume", REQUEST_RESUME, false, err);
}

/* Calls @fn for as many as can be, in order. Failures are printed in that order, and the first gives the exit code.
 * Ctrl-C ends it. */
static int for_each_container(struct pod_task *t,
			      int (*fn)(struct pod_task *t, const struct service_pod_container *c,
					struct brumate_error *err),
			      struct brumate_error *err)
{
	int result = 0, r = 0;

	for (size_t i = 0; i < t->pod.n && r != -ECANCELED; i++) {
		struct brumate_error why = BRUMATE_ERROR_NONE;

		r = fn(t, &t->pod.items[i], &why);
		if (r < 0) {
			fail_of_container(t, t->pod.items[i].name, r, &why);
			add_failure(err, &why);
		}
		result = result ? result : r;
	}
	return result;
}

static int resume_pod(struct pod_task *t, struct brumate_error *err)
{
	int result = find_pod(t, err);

	if (result == 0)
		result = for_each_container(t, resume_container, err);
	if (result == 0 && !json_array_size(t->done))
		return brumate_fail(err, ESRCH, "no container of pod %s/%s is suspended",
				    t->name.namespace, t->name.pod);
	int r = json_array_size(t->done) ? print_done(t, "job", err) : 0;
	return result < 0 ? result : r;
}

/* ---- checkpoint ---- */

enum { CHECKPOINT_S = 600, CHECKPOINT_S_MAX = 24 * 3600 };

static int get_timeout_s(uint64_t *ret, const struct invocation *in, struct brumate_error *err)
{
	uint64_t ms = CHECKPOINT_S * 1000;
	int r = in->values[OPT_TIMEOUT]
			? parse_duration(&ms, "--timeout", in->values[OPT_TIMEOUT], err)
			: 0;

	if (r == 0 && (!ms || ms > CHECKPOINT_S_MAX * 1000ull))
		r = brumate_fail(err, EINVAL, "--timeout: expected more than 0, and at most 24h");
	*ret = (ms + 999) / 1000;
	return r;
}

/* The container that was named, which the kubelet knows better unless it is to be looked into, or all of the pod. */
static int find_containers(struct pod_task *t, struct brumate_error *err)
{
	if (!t->name.container || t->in->values[OPT_WHEN_READY])
		return find_pod(t, err);
	t->pod.items = calloc(1, sizeof(*t->pod.items));
	if (!t->pod.items)
		return brumate_fail(err, ENOMEM, "%m");
	t->pod.n = 1;
	snprintf(t->pod.items->name, sizeof(t->pod.items->name), "%s", t->name.container);
	return 0;
}

static int open_control(struct snapshot_control *ret, const struct service_pod_container *c,
			struct brumate_error *err)
{
	int r = snapshot_control_open(ret, c->init, err);

	if (r == 0)
		return brumate_fail(err, ENOENT,
				    "its environment has no SNAPSHOT_CONTROL_DIR to be ready in");
	return r < 0 ? r : 0;
}

/* With --oci, the archive as an image, too. */
static int make_image(const struct pod_task *t, const struct service_pod_name *name,
		      json_t *archives, struct brumate_error *err)
{
	const char *dir = t->in->values[OPT_OCI];
	const struct oci_about about = { .container = name->container,
					 .pod = name->pod,
					 .namespace = name->namespace };

	if (!dir)
		return 0;
	if (json_array_size(archives) != 1)
		return brumate_fail(err, EPROTO, "the kubelet made %zu archives of one container",
				    json_array_size(archives));
	const char *archive = json_string_value(json_array_get(archives, 0));
	int r = oci_image_write(dir, archive, &about, err);
	if (r < 0)
		brumate_hint(err, "the archive is there: %s", archive);
	return r;
}

/* The archive is made: what stands in the way of this is no failure of that. */
static void tell_complete(const struct pod_task *t, const struct snapshot_control *control,
			  const char *container)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (snapshot_control_tell(control, SNAPSHOT_COMPLETE, &why) < 0)
		fprintf(stderr,
			"note: container %s of pod %s/%s was not told that it is saved: %s\n",
			container, t->name.namespace, t->name.pod, why.text);
}

static int checkpoint_container(struct pod_task *t, const struct kubelet *k,
				const struct service_pod_container *c, uint64_t timeout_s,
				struct brumate_error *err)
{
	auto_(snapshot_control_fini) struct snapshot_control control = SNAPSHOT_CONTROL_NONE;
	const bool when_ready = t->in->values[OPT_WHEN_READY] != NULL;
	const char *container = c->name;
	struct service_pod_name name = t->name;
	auto_json json_t *archives = NULL;
	char took[WORD_BYTES];

	name.container = container;
	int r = service_check_pod_name(&name, err);
	if (r == 0 && when_ready)
		r = open_control(&control, c, err);
	if (r == 0 && when_ready)
		r = snapshot_control_wait(&control, deadline_in_ms(timeout_s * 1000), err);
	uint64_t start_ns = clock_now_ns();
	if (r == 0)
		r = kubelet_checkpoint(k, &name, timeout_s, &archives, err);
	if (r == 0)
		r = make_image(t, &name, archives, err);
	if (r < 0)
		return r;
	if (when_ready)
		tell_complete(t, &control, container);
	double seconds = clock_since_s(start_ns);
	format_seconds(took, seconds);
	fprintf(stderr, "container %s of pod %s/%s: saved in %s\n", container, name.namespace,
		name.pod, took);
	return add_done(t,
			json_pack("{s:s,s:O,s:f}", "container", container, "archives", archives,
				  "seconds", seconds),
			err);
}

static int open_kubelet(struct kubelet *ret, const struct invocation *in, struct brumate_error *err)
{
	const struct kubelet_options o = {
		.server = in->values[OPT_SERVER],
		.server_name = in->values[OPT_SERVER_NAME],
		.ca_file = in->values[OPT_CA_FILE],
		.token_file = in->values[OPT_TOKEN_FILE],
		.cert = in->values[OPT_CERT],
		.key = in->values[OPT_KEY],
	};

	return kubelet_init(ret, &o, err);
}

/* Of the archives that are on this machine: a pod that asks need not see the node's. */
static uint64_t bytes_of_archives(const struct pod_task *t)
{
	uint64_t bytes = 0;
	json_t *one, *path;
	struct stat st;
	size_t i, k;

	json_array_foreach (t->done, i, one)
		json_array_foreach (json_object_get(one, "archives"), k, path)
			if (stat(json_string_value(path), &st) == 0 && S_ISREG(st.st_mode))
				bytes += (uint64_t)st.st_size;
	return bytes;
}

/* One after the other. What was saved before one that fails is printed nevertheless. */
static int checkpoint_pod(struct pod_task *t, struct brumate_error *err)
{
	auto_(kubelet_fini) struct kubelet k = KUBELET_EMPTY;
	const char *const *values = t->in->values;
	uint64_t timeout_s;
	int r = get_timeout_s(&timeout_s, t->in, err);

	if (r == 0 && values[OPT_OCI] && !t->name.container)
		r = brumate_fail(err, EINVAL, "k8s checkpoint: --oci takes one container: -c NAME");
	if (r == 0 && values[OPT_OCI])
		r = oci_image_check(values[OPT_OCI], err);
	if (r == 0)
		r = open_kubelet(&k, t->in, err);
	if (r == 0)
		r = find_containers(t, err);
	if (r < 0)
		return r;
	uint64_t start_ns = clock_now_ns();
	for (size_t i = 0; i < t->pod.n && r == 0; i++) {
		r = checkpoint_container(t, &k, &t->pod.items[i], timeout_s, err);
		if (r < 0)
			fail_of_container(t, t->pod.items[i].name, r, err);
	}
	pod_count(&(struct job_outcome){ .kind = "checkpoint",
					 .result = r,
					 .seconds = clock_since_s(start_ns),
					 .image_bytes = bytes_of_archives(t) });
	int printed = json_array_size(t->done) ? print_done(t, "archives", r < 0 ? NULL : err) : 0;
	return r < 0 ? r : printed;
}

/* ---- restored ---- */

/* Tells a container that waits for it. */
static int tell_restored(struct pod_task *t, const struct service_pod_container *c,
			 struct brumate_error *err)
{
	auto_(snapshot_control_fini) struct snapshot_control control = SNAPSHOT_CONTROL_NONE;
	int r = snapshot_control_open(&control, c->init, err);

	if (r == 0)
		return leave_alone(t, c->name, "its environment has no SNAPSHOT_CONTROL_DIR");
	if (r > 0)
		r = snapshot_control_tell(&control, RESTORE_COMPLETE, err);
	return r < 0 ? r : add_done(t, json_pack("{s:s}", "container", c->name), err);
}

static int restored_pod(struct pod_task *t, struct brumate_error *err)
{
	int result = find_pod(t, err);

	if (result == 0)
		result = for_each_container(t, tell_restored, err);
	if (result == 0 && !json_array_size(t->done))
		return brumate_fail(err, ENOENT, "no container of pod %s/%s waits for that",
				    t->name.namespace, t->name.pod);
	int r = json_array_size(t->done) ? print_done(t, "container", err) : 0;
	return result < 0 ? result : r;
}

/* As the command suspends or resumes a pod, and says nothing of what is left alone. */
static int set_suspended(const struct invocation *in, const struct service_pod_name *name,
			 bool suspended, struct brumate_error *err)
{
	auto_(pod_task_fini) struct pod_task t = {
		.in = in,
		.name = *name,
		.done = json_array(),
		.left_alone = json_array(),
		.is_quiet = true,
	};

	if (!t.done || !t.left_alone)
		return brumate_fail(err, ENOMEM, "%m");
	return suspended ? suspend_pod(&t, err) : resume_pod(&t, err);
}

/*
 * ---- watch ----
 *
 * What annotations of the pods of this node ask for, as long as it runs. The kubelet has no way to tell of changes, so
 * it is asked every few seconds. A pod without the annotation is never touched, and neither is any while the kubelet
 * cannot be asked. What was done for a pod is not done again until it wants another thing, or one of its containers was
 * restarted.
 */

enum { INTERVAL_MS = 5000, TEXT_BYTES = 600 };

struct watch {
	const struct invocation *in;
	struct kubelet kubelet;
	json_t *done;	       /* namespace/pod to the key that was seen to; owned */
	json_t *failed;	       /* the same to what was said of it; owned */
	char said[TEXT_BYTES]; /* of the kubelet */
};

static void watch_fini(struct watch *w)
{
	kubelet_fini(&w->kubelet);
	json_decref(w->done);
	json_decref(w->failed);
}
DEFINE_AUTO_FINI(struct watch, watch_fini)

/* A failure is tried again each time, and said once. */
static void note_failure(struct watch *w, const char *name, const struct brumate_error *why)
{
	if (strcmp(text_of(w->failed, name), why->text) != 0)
		fprintf(stderr, "brumate: pod %s: %s\n", name, why->text);
	json_object_set_new(w->failed, name, json_string(why->text));
}

/* Nothing to suspend, or to resume, is what was asked for, too: the annotation says how a pod is to be. */
static bool is_so_already(int r)
{
	return r == -ENODATA || r == -ESRCH;
}

static void see_to(struct watch *w, json_t *pod)
{
	const struct service_pod_name name = { .namespace = text_of(pod, "namespace"),
					       .pod = text_of(pod, "pod") };
	auto_free char *id = path_format("%s/%s", name.namespace, name.pod);
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!id || !strcmp(text_of(w->done, id), text_of(pod, "key")))
		return;
	if (*text_of(pod, "wrong")) {
		brumate_fail(&why, EINVAL,
			     KUBELET_ANNOTATION " is \"%s\": expected suspended or "
						"running",
			     text_of(pod, "wrong"));
		note_failure(w, id, &why);
		return;
	}
	int r = set_suspended(w->in, &name, json_is_true(json_object_get(pod, "suspended")), &why);
	if (r < 0 && !is_so_already(r)) {
		note_failure(w, id, &why);
		return;
	}
	json_object_del(w->failed, id);
	/* One that has nothing to suspend yet may have it soon. */
	if (r == 0 || json_is_false(json_object_get(pod, "suspended")))
		json_object_set(w->done, id, json_object_get(pod, "key"));
}

static void look_at_pods(struct watch *w)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	auto_json json_t *pods = NULL;
	json_t *pod;
	size_t i;
	int r = kubelet_pods(&w->kubelet, &pods, &why);

	if (r < 0 && strcmp(w->said, why.text) != 0)
		fprintf(stderr, "brumate: %s\n", why.text);
	snprintf(w->said, sizeof(w->said), "%s", r < 0 ? why.text : "");
	json_array_foreach (pods, i, pod)
		if (!interrupt_seen())
			see_to(w, pod);
}

static int k8s_watch(const struct invocation *in, struct brumate_error *err)
{
	auto_(watch_fini) struct watch w = { .in = in,
					     .done = json_object(),
					     .failed = json_object() };
	uint64_t every_ms = INTERVAL_MS;
	const char *interval = in->values[OPT_INTERVAL];
	int r = interval ? parse_duration(&every_ms, "--interval", interval, err) : 0;

	if (r == 0 && (every_ms < 100 || every_ms > 3600000))
		r = brumate_fail(err, EINVAL, "--interval: expected 100ms to 1h");
	if (r == 0 && (!w.done || !w.failed))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = open_kubelet(&w.kubelet, in, err);
	int signals = r < 0 ? r : interrupt_watch(true);
	if (r == 0 && signals < 0)
		r = brumate_fail(err, -signals, "%m");
	struct pollfd wait = { .fd = signals, .events = POLLIN };
	while (r == 0 && !interrupt_seen()) {
		look_at_pods(&w);
		poll(&wait, 1, (int)every_ms);
	}
	return r;
}

/* ---- the command ---- */

static const struct k8s_verb {
	const char *name;
	int (*run)(struct pod_task *t, struct brumate_error *err);
} k8s_verbs[] = {
	{ "checkpoint", checkpoint_pod },
	{ "suspend", suspend_pod },
	{ "resume", resume_pod },
	{ "restored", restored_pod },
};

/* Options that not all of them have. */
static const struct word_option verbs_of[] = {
	{ OPT_FORCE, "--force", "suspend" },
	{ OPT_SIMULATED, "--simulated", "suspend watch" },
	{ OPT_STATS, "--stats", "suspend resume" },
	{ OPT_SERVER, "--server", "checkpoint watch" },
	{ OPT_SERVER_NAME, "--server-name", "checkpoint watch" },
	{ OPT_TOKEN_FILE, "--token-file", "checkpoint watch" },
	{ OPT_CERT, "--cert", "checkpoint watch" },
	{ OPT_KEY, "--key", "checkpoint watch" },
	{ OPT_CA_FILE, "--ca-file", "checkpoint watch" },
	{ OPT_INTERVAL, "--interval", "watch" },
	{ OPT_CONTAINER, "--container", "checkpoint suspend resume restored" },
	{ OPT_NAMESPACE, "--namespace", "checkpoint suspend resume restored" },
	{ OPT_OCI, "--oci", "checkpoint" },
	{ OPT_WHEN_READY, "--when-ready", "checkpoint" },
};

/* A value is looked at before a pod is looked for. */
static int check_options(const struct invocation *in, struct brumate_error *err)
{
	const char *timeout = in->values[OPT_TIMEOUT];
	uint64_t ms;
	int r = check_word_options(in, verbs_of, sizeof(verbs_of) / sizeof(verbs_of[0]), err);

	return r == 0 && timeout ? parse_duration(&ms, "--timeout", timeout, err) : r;
}

static const struct k8s_verb *find_verb(const char *name, struct brumate_error *err)
{
	for (size_t i = 0; i < sizeof(k8s_verbs) / sizeof(k8s_verbs[0]); i++)
		if (!strcmp(k8s_verbs[i].name, name))
			return &k8s_verbs[i];
	brumate_fail(err, EINVAL, "k8s: unknown command \"%s\"", name);
	brumate_hint(err, "it is one of: %s", command_find("k8s")->words);
	return NULL;
}

int verb_k8s(const struct invocation *in, struct brumate_error *err)
{
	auto_(pod_task_fini) struct pod_task t = {
		.in = in,
		.name = { .namespace =
				  in->values[OPT_NAMESPACE] ? in->values[OPT_NAMESPACE] : "default",
			  .pod = in->operands[1],
			  .container = in->values[OPT_CONTAINER] },
		.done = json_array(),
		.left_alone = json_array(),
	};
	const bool watches = !strcmp(in->operands[0], "watch");
	const struct k8s_verb *verb = watches ? NULL : find_verb(in->operands[0], err);
	int r = verb || watches ? check_options(in, err) : -EINVAL;

	if (r == 0 && (in->n_operands == 1) != watches)
		r = brumate_fail(err, EINVAL, "k8s %s: expected %s", in->operands[0],
				 watches ? "no POD" : "a POD");
	if (r == 0 && watches)
		return k8s_watch(in, err);

	if (r == 0)
		r = service_check_pod_name(&t.name, err);
	if (r == 0 && (!t.done || !t.left_alone))
		r = brumate_fail(err, ENOMEM, "%m");
	return r < 0 ? r : verb->run(&t, err);
}
