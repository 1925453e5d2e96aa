// SPDX-License-Identifier: MIT
/*
 * Where a container has what is outside its processes while it is checkpointed: a directory below the runtime directory,
 * named by its first process. Who works on the container holds its lock. Where they die, the keeper of the memory that they
 * had starts an heir, as long as it is noted for whom.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "process/process.h"

struct container_place {
	char *dir;   /* owned; NULL: none */
	int lock_fd; /* -1: not ours */
};
#define CONTAINER_PLACE_NONE ((struct container_place){ .lock_fd = -1 })

/** Makes the directory of the container whose first process is @root, and those of containers that have ended go. With
 * @wait whoever is at it may end that. Returns 0; -EBUSY: somebody else is at it. */
int container_place_take(struct container_place *ret, struct proc_id root, bool wait,
			 struct brumate_error *err);

/** From now on an heir is needed where we die: once @criu has ended, the container is to have its GPUs. */
int container_place_want_heir(const struct container_place *p, struct proc_id criu,
			      struct brumate_error *err);

/** What an heir is to know, from the directory @dir: 0, or -ENOENT: none is needed. */
int container_place_inherit(const char *dir, struct proc_id *ret_root, struct proc_id *ret_criu,
			    struct brumate_error *err);

/** No heir is needed any more. The directory goes, unless something in it is still @wanted. */
void container_place_leave(struct container_place *p, bool wanted);

/** Forgets it, and leaves it to the heir. */
void container_place_fini(struct container_place *p);
