// SPDX-License-Identifier: MIT
/*
 * Large host memory of a job in a checkpoint: beside CRIU's images, in the store's chunks
 * (cpumem/cpu-memory.h). While CRIU holds the job frozen it is chosen, hidden from CRIU and read; after
 * CRIU has put the processes together, before they run, it is filled. Where our plugin is not
 * installed, or there is no room for a copy, CRIU does it all.
 *
 * The order of calls in a checkpoint: open, criu_dump_run() {frozen, dumped}, save, op's chunks_end(), saved, close;
 * in a restore: open, criu_restore() {fill}, close.
 */
#pragma once

#include "base/cleanup.h"
#include "engine/op.h"

struct host_memory;

/** Prepares @options, which is for op's CRIU, and keeps what it points to in @ret until closed. */
int host_memory_open(struct host_memory **ret, struct op *op, struct criu_options *options,
		     struct brumate_error *err);

/** At CRIU_EVENT_FROZEN. Begins op->memory where there is something to save and it is not there. */
int host_memory_frozen(struct host_memory *h, struct brumate_error *err);

/** At CRIU_EVENT_DUMPED: waits until a job that goes on may do so. */
int host_memory_dumped(struct host_memory *h, struct brumate_error *err);

/** Hands all of it to op->memory, before chunks_end(). */
int host_memory_save(struct host_memory *h, struct brumate_error *err);

/** After chunks_writer_free() of op->memory: a copy is needed no more. */
void host_memory_saved(struct host_memory *h);

/** At CRIU_EVENT_RESTORED, op->job->root being the restored root: fills what the image has beside
 * CRIU's. Errors to act on: -EBADMSG (damaged), -ESRCH, -ECANCELED. */
int host_memory_fill(struct host_memory *h, struct brumate_error *err);

/** After chunks_writer_free() of op->memory. Accepts NULL. */
void host_memory_close(struct host_memory *h);
DEFINE_AUTO(struct host_memory *, host_memory_close)
