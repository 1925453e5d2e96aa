// SPDX-License-Identifier: MIT
/* What processes have in addition to memory and files (process/attributes.h), and the options of their sockets
 * (process/socket-options.h) and their locks of files (process/locks.h), in a checkpoint: a file each among CRIU's images, which
 * older checkpoints lack. */
#pragma once

#include "engine/op.h"

/** While the job runs still: reads what would take long then. */
int op_attributes_read_ahead(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_FROZEN: reads the rest. */
int op_attributes_read(struct op *op, struct brumate_error *err);

/** A criu_timer_fn, whose argument is the op: adds the timer where it was set to a time of day. */
int op_attributes_timer(void *arg, const struct criu_timer *timer);

/** At CRIU_EVENT_DUMPED, before the images are hashed: writes them next to those. */
int op_attributes_write(struct op *op, struct brumate_error *err);

/** Reads those of the checkpoint which is restored, from op->images.dir_fd. */
int op_attributes_load(struct op *op, struct brumate_error *err);

/** Before anything starts: reads the locks of the checkpoint which is restored, and fails with EBUSY where another process has one. */
int op_locks_load(struct op *op, struct brumate_error *err);

/** After op_attributes_give(): fails with EBUSY where a restored process lacks a lock that it had. */
int op_locks_check(struct op *op, struct brumate_error *err);

/** Once op->images.cpu_memory is there: asks for what only restored threads can do. */
int op_attributes_ask(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_RESUMING: gives it to the restored processes, with the rights of the job's user. What cannot be given back
 * is noted. */
int op_attributes_give(struct op *op, struct brumate_error *err);
