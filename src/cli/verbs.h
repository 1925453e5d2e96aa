// SPDX-License-Identifier: MIT
/* What the files of verbs do for each other. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "cli/command.h"
#include "service/container.h"
#include "service/kubelet.h"

/* ---- where a place in an object store is given instead of a checkpoint (verb-move.c) ---- */

/** Where @url is and how to get there, as "url" and "remote": from the caller's environment and files. */
int add_remote(json_t *p, const char *url, struct brumate_error *err);

/** Pulls the checkpoint @url as the options of @in say. @ret: its path here, owned. */
int pull_path(char **ret, const struct invocation *in, const char *url, struct brumate_error *err);

/** The checkpoints below @url, as `Checkpoints` tells them. @ret owned. */
int list_remote(json_t **ret, const char *url, struct brumate_error *err);

/** Removes the checkpoint @url. */
int remove_remote(const char *url, struct brumate_error *err);

/* ---- what `checkpoint` and `restore` do with --container (verb-container.c) ---- */

int container_checkpoint(const struct invocation *in, struct brumate_error *err);
int container_restore(const struct invocation *in, struct brumate_error *err);

/* ---- what `brumate k8s` does with pods (verb-k8s.c), for `brumate k8s watch` (verb-k8s-watch.c) ---- */

/** Suspends or resumes all containers of a pod, as the command does, and prints their jobs. */
int k8s_set_suspended(const struct invocation *in, const struct service_pod_name *name,
		      bool suspended, struct brumate_error *err);

/** The kubelet that the options mean. */
int k8s_open_kubelet(struct kubelet *ret, const struct invocation *in, struct brumate_error *err);

/** Does what annotations of the pods of this node ask for, until it is interrupted. */
int k8s_watch(const struct invocation *in, struct brumate_error *err);
