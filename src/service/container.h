// SPDX-License-Identifier: MIT
/* Containers of the engines of this node, as the state says that their OCI runtimes keep. Nothing is asked of an engine. */
#pragma once

#include "base/error.h"
#include "process/process.h"

struct service_container {
	struct proc_id init; /* its first process, which lives */
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
