// SPDX-License-Identifier: MIT
/* What the files of verbs do for each other. */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"
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

/*
 * ---- jobs that a command is for beside those it names (verb-operation.c) ----
 *
 * All, or the latest, of those in a state in which it makes sense.
 */

/** What --all or --latest chose. Zeros are nothing. */
struct several {
	json_t *list; /* what List replied; owns the strings of @words */
	char **words; /* ids, NULL-terminated; owned */
};
void several_fini(struct several *s);
DEFINE_AUTO_FINI(struct several, several_fini)

/**
 * several_choose() - put the jobs that --all or --latest means in place of operands
 * @states: in which jobs are meant, separated by spaces
 * @choice: these in a sentence, as in "no job is running or suspended"
 * @ret: zeros before; the operands of @in are borrowed from it
 *
 * Without these options @in stays as it is. That --all finds none is said on standard error and is no failure.
 * Errors to act on: -EINVAL (operands beside them), -ENOENT (--latest finds none).
 */
int several_choose(struct several *ret, struct invocation *in, const char *states,
		   const char *choice, struct brumate_error *err);
