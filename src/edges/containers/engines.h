// SPDX-License-Identifier: MIT
/*
 * Checkpoints of containers by the engine that made them: runs the engine's own command, with brumate's plugin in its CRIU, and
 * packs the result into one archive or OCI image (archive.h), outside of any store. Needs root.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "edges/containers/find.h"

struct service_container_checkpoint {
	const char *output; /* the archive, a file that does not exist yet; or NULL */
	const char *oci;    /* the OCI image, a directory that does not exist yet; or NULL */
	bool leave_running;
};

/**
 * Makes the engine of @c checkpoint it. The container is gone afterwards unless how->leave_running is set; on failure it keeps
 * running. Errors to act on: -EPERM (not root), -EOPNOTSUPP (this engine cannot), -EEXIST, -EIO (the engine failed, with its
 * reason).
 */
int service_checkpoint_container(const struct service_container *c,
				 const struct service_container_checkpoint *how,
				 struct brumate_error *err);

/**
 * Restores what service_checkpoint_container() made, as a container with the name @name. @path: the archive or OCI image.
 * @bundle: a bundle in place of the one that the container had, for a container of an OCI runtime alone; may be NULL.
 * @ret_engine: a literal. Errors to act on: as above, -EBADMSG, -ENOENT.
 */
int service_restore_container(const char *path, const char *name, const char *bundle,
			      const char **ret_engine, struct brumate_error *err);

/** "runc", "podman", …: the usual name of a container's engine. */
const char *service_engine_name(const struct service_container *c);
