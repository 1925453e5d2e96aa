// SPDX-License-Identifier: MIT
/*
 * `brumate k8s watch`: what annotations of the pods of this node ask for, as long as it runs. The kubelet has no way to tell of
 * changes, so it is asked every few seconds. A pod without the annotation is never touched, and neither is any while the kubelet
 * cannot be asked. What was done for a pod is not done again until it wants another thing, or a container of it has begun anew.
 */
#include "cli/verbs.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "wire/wire.h"

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
	int r = k8s_set_suspended(w->in, &name, json_is_true(json_object_get(pod, "suspended")),
				  &why);
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

int k8s_watch(const struct invocation *in, struct brumate_error *err)
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
		r = k8s_open_kubelet(&w.kubelet, in, err);
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
