// SPDX-License-Identifier: MIT
/*
 * Checkpoints of containers by whoever made them: their engine's own command is run, with brumate's plugin in its CRIU, and
 * what comes of it is put into one archive or OCI image (archive.h). Nothing of it is in a store. Takes root.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "service/container.h"

struct engine_checkpoint {
	const char *output; /* a file that is not there yet: the archive; or NULL */
	const char *oci;    /* a directory that is not there yet: the OCI image; or NULL */
	bool leave_running;
};

/**
 * Has the engine of @c checkpoint it. The container is gone afterwards, unless it was to be left running; on failure it goes
 * on. Errors to act on: -EPERM (not root), -EOPNOTSUPP (this engine cannot), -EEXIST, -EIO (the engine failed, with its
 * reason).
 */
int engine_checkpoint(const struct service_container *c, const struct engine_checkpoint *how,
		      struct brumate_error *err);

/**
 * Restores what engine_checkpoint() made as the container @name: @path is an archive or an OCI image. @bundle: another than
 * the one that the container had, for a runtime alone; may be NULL. @ret_engine: a literal. Errors to act on: as above,
 * -EBADMSG, -ENOENT.
 */
int engine_restore(const char *path, const char *name, const char *bundle, const char **ret_engine,
		   struct brumate_error *err);

/** "runc", "podman", …: what people call the engine of a container. */
const char *engine_name(const struct service_container *c);
