// SPDX-License-Identifier: MIT
/* Containers and pods of the engines of this node, as the state says that their OCI runtimes keep. Nothing is asked of an
 * engine. */
#pragma once

#include <limits.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

/** Who made a container, and checkpoints it. */
enum service_engine {
	ENGINE_RUNTIME, /* nobody but its OCI runtime */
	ENGINE_PODMAN,
	ENGINE_CONTAINERD,
	ENGINE_DOCKER,
	ENGINE_KUBELET, /* by containerd or CRI-O */
};

struct service_container {
	char id[NAME_MAX + 1];
	enum service_engine engine;
	const char *runtime;	      /* "runc" or "crun" */
	char state[PATH_MAX];	      /* where the runtime keeps its containers */
	char bundle[PATH_MAX];	      /* "": not known */
	char namespace[NAME_MAX + 1]; /* of containerd */
	struct proc_id init;	      /* its first process, which lives */
	char name
		[64]; /* by which people know it, else its id, cut; "": neither suits as the name of a job */
};

/**
 * Finds a running container by its id, its name, or what its id alone begins with. @dirs: where runtimes keep their
 * state, parted by colons; NULL: where they do by default. Errors to act on: -ENOENT, -EINVAL (several), -ESRCH (it does not
 * run), -EACCES, -EBADMSG.
 */
int service_find_container(struct service_container *ret, const char *word, const char *dirs,
			   struct brumate_error *err);

/** A container of Kubernetes, or all of a pod. All borrowed. */
struct service_pod_name {
	const char *namespace;
	const char *pod;
	const char *container; /* NULL: all of them */
};

/** Whether the names can be those of Kubernetes' objects, so that nothing else goes into a URL by them. 0; -EINVAL. Pure. */
int service_check_pod_name(const struct service_pod_name *name, struct brumate_error *err);

enum { POD_CONTAINER_NAME_BYTES = 64 };

struct service_pod_container {
	char id[NAME_MAX + 1];
	char name[POD_CONTAINER_NAME_BYTES];
	struct proc_id init;
};

/** The containers of a pod that run. Owns them. */
struct service_pod {
	struct service_pod_container *items;
	size_t n;
};
#define SERVICE_POD_EMPTY ((struct service_pod){ 0 })
void service_pod_fini(struct service_pod *p);
DEFINE_AUTO_FINI(struct service_pod, service_pod_fini)

/**
 * Finds the running containers of a pod by the annotations of containerd and CRI-O, in the order of their names; the
 * sandbox is none. @dirs: as above. Errors to act on: -ENOENT (there is none), -ESRCH (none runs), -EBUSY (one is there
 * twice), -EACCES, -EBADMSG; where not every state on the node could be read, that is one too, unless @name has a
 * container.
 */
int service_find_pod(struct service_pod *ret, const struct service_pod_name *name, const char *dirs,
		     struct brumate_error *err);
