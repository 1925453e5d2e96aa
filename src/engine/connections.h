// SPDX-License-Identifier: MIT
/* TCP connections within a job whose CRIU may not save them (process/connections.h): a file among CRIU's images, which
 * other checkpoints lack. */
#pragma once

#include "engine/op.h"

/** At CRIU_EVENT_FROZEN: looks at them, and refuses by name what cannot be carried. */
int op_connections_read(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_DUMPED, before the images are hashed: puts them into the images. */
int op_connections_write(struct op *op, struct brumate_error *err);

/** Releases them. @has_ended: the job has, of which nobody else has them, and its addresses are to be free at once. */
void op_connections_leave(struct op *op, bool has_ended);

/** Makes them again for a restore, and adds them to @inherits (owned, grown; @n of them). @is_apart: what is restored never runs.
 * Those that are there, as CRIU has to be tried again, are given again: other members of a set have their ends by then, and make
 * none twice. They are there until op_connections_keep() or op_connections_drop(). */
int op_connections_give(struct op *op, bool is_apart, struct criu_inherit **inherits, size_t *n,
			struct brumate_error *err);

/** Before what is restored runs: they are its own from here on. */
void op_connections_keep(struct op *op);

/** Where the restore has come to nothing, or was one apart: no address stays taken. */
void op_connections_drop(struct op *op);
