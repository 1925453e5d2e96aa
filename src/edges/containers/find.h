// SPDX-License-Identifier: MIT
/* Containers and pods of the engines of this node, from the state files of their OCI runtimes. The engines themselves
 * are not asked. */
#pragma once

#include <limits.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

/** The engine of a container, which checkpoints it. */
enum service_engine {
	ENGINE_RUNTIME, /* no engine, only its OCI runtime */
	ENGINE_PODMAN,
	ENGINE_CONTAINERD,
	ENGINE_DOCKER,
	ENGINE_KUBELET, /* the kubelet's, by containerd or CRI-O */
};

struct service_container {
	char id[NAME_MAX + 1];
	enum service_engine engine;
	const char *runtime;	      /* "runc" or "crun" */
	char state[PATH_MAX];	      /* directory of the runtime's containers */
	char bundle[PATH_MAX];	      /* "": unknown */
	char namespace[NAME_MAX + 1]; /* of containerd */
	struct proc_id init;	      /* its first process, which is running */
	char name
		[64]; /* its usual name, else its truncated id; "": neither is valid as the name of a job */
};

/**
 * Finds a running container by its id, its name, or a unique prefix of its id. @dirs: directories with the state of
 * runtimes, separated by colons; NULL: the default ones. Errors to act on: -ENOENT, -EINVAL (several), -ESRCH (it
 * does not run), -EACCES, -EBADMSG.
 */
int service_find_container(struct service_container *ret, const char *word, const char *dirs,
			   struct brumate_error *err);

/** A container of Kubernetes, or all of a pod. All borrowed. */
struct service_pod_name {
	const char *namespace;
	const char *pod;
	const char *container; /* NULL: all of them */
};

/** Whether the names are valid for Kubernetes objects, so that they are safe in a URL. 0; -EINVAL. Pure. */
int service_check_pod_name(const struct service_pod_name *name, struct brumate_error *err);

enum { POD_CONTAINER_NAME_BYTES = 64 };

struct service_pod_container {
	char id[NAME_MAX + 1];
	char name[POD_CONTAINER_NAME_BYTES];
	struct proc_id init;
};

/** The running containers of a pod. Owns them. */
struct service_pod {
	struct service_pod_container *items;
	size_t n;
};
#define SERVICE_POD_EMPTY ((struct service_pod){ 0 })
void service_pod_fini(struct service_pod *p);
DEFINE_AUTO_FINI(struct service_pod, service_pod_fini)

/**
 * Finds the running containers of a pod by the annotations of containerd and CRI-O, sorted by name, without the
 * sandbox. @dirs: as above. Errors to act on: -ENOENT (no such pod), -ESRCH (none runs), -EBUSY (one exists twice),
 * -EACCES, -EBADMSG. An unreadable state on the node is an error, too, unless @name has a container.
 */
int service_find_pod(struct service_pod *ret, const struct service_pod_name *name, const char *dirs,
		     struct brumate_error *err);
