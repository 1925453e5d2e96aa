// SPDX-License-Identifier: MIT
/* What `brumate k8s` does with pods, for `brumate k8s watch`. */
#pragma once

#include "cli/command.h"
#include "service/container.h"
#include "service/kubelet.h"

/** Suspends or resumes all containers of a pod, as the command does, and prints their jobs. */
int k8s_set_suspended(const struct invocation *in, const struct service_pod_name *name,
		      bool suspended, struct brumate_error *err);

/** The kubelet that the options mean. */
int k8s_open_kubelet(struct kubelet *ret, const struct invocation *in, struct brumate_error *err);

/** Does what annotations of the pods of this node ask for, until it is interrupted. */
int k8s_watch(const struct invocation *in, struct brumate_error *err);
