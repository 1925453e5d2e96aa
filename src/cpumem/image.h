// SPDX-License-Identifier: MIT
/*
 * CPU memory in a checkpoint, in the store's chunks instead of CRIU's images. While CRIU holds the processes frozen,
 * it is chosen, hidden from CRIU and read; after CRIU has restored the processes and before they run, it is filled.
 * If our plugin is not installed, or there is no room for a copy, CRIU saves everything.
 *
 * The order of calls in a checkpoint: open, criu_dump_run() {frozen, dumped}, save, chunks_end(), saved, close; in a
 * restore: open, criu_restore() {fill}, close.
 */
#pragma once

#include "base/cleanup.h"
#include "base/progress.h"
#include "gpu/vendor.h"
#include "criu/criu.h"
#include "process/attributes.h"
#include "process/process.h"
#include "chunks/chunks.h"
#include "store/store.h"

struct cpu_memory_image;

/** Prepares @options for a CRIU, and keeps what it points to in @ret until closed. @pairs are for a vendor's own plugin: the GPUs
 * that it restores on. */
int cpu_memory_image_open(struct cpu_memory_image **ret, const struct gpu_vendor *vendor,
			  const struct dev_gpu_pair *pairs, size_t n_pairs,
			  struct criu_options *options, struct brumate_error *err);

/** Processes that CRIU holds frozen, to be saved. All borrowed. */
struct cpu_memory_frozen {
	struct proc_id root;
	const struct proc_id *gpus; /* those whose GPU state the driver has saved */
	size_t n_gpus;
	bool goes_on; /* they run on after CRIU: what is saved is a copy */
	/* Gives the writer (borrowed) of the checkpoint's memory; called where there is something to save. */
	int (*writer)(void *arg, struct chunks_writer **ret, struct brumate_error *err);
	void *arg;
};

/** At CRIU_EVENT_FROZEN: chooses memory and begins to save it. */
int cpu_memory_image_frozen(struct cpu_memory_image *i, const struct cpu_memory_frozen *frozen,
			    struct progress *progress, struct brumate_error *err);

/*
 * For a container engine's CRIU, in which our plugin has made the table and calls: join, take and, if that returns 1,
 * leave, chunks_end(), close. Processes that continue stay frozen until everything is saved: no copy is made.
 */

/** @table_fd: borrowed. */
int cpu_memory_image_join(struct cpu_memory_image **ret, int table_fd, struct brumate_error *err);

/** Chooses memory of the processes of @tree, which are frozen. 0: there is none worth it. */
int cpu_memory_image_take(struct cpu_memory_image *i, const struct proc_tree *tree,
			  struct brumate_error *err);

/** Begins to save it, and hides it from CRIU, which knows processes by our numbers. */
int cpu_memory_image_leave(struct cpu_memory_image *i, struct chunks_writer *w,
			   struct brumate_error *err);

/** Before a restore: has restored threads make @calls for themselves, as many as there is room for. -ENOENT: our plugin is
 * not installed; -errno. */
int cpu_memory_image_ask(struct cpu_memory_image *i, const struct attributes_call *calls, size_t n);

/** From CRIU_EVENT_FROZEN on: cpu_memory_table_filters(). -ENOENT: our plugin is not installed. */
int cpu_memory_image_filters(struct cpu_memory_image *i, struct manifest_filters **ret,
			     size_t *ret_n);

/** The same of what threads said of themselves. */
int cpu_memory_image_told(struct cpu_memory_image *i, struct attributes_told **ret, size_t *ret_n,
			  size_t *ret_keyrings);

/** The same of what threads have that does not come back as it was: tells it, or fails. At CRIU_EVENT_RESUMING: what of it could not be
 * brought back. */
int cpu_memory_image_threads(struct cpu_memory_image *i, struct progress *progress,
			     struct brumate_error *err);

/** At CRIU_EVENT_DUMPED: waits until processes that go on may do so. */
int cpu_memory_image_dumped(struct cpu_memory_image *i, struct progress *progress,
			    struct brumate_error *err);

/** Hands the copy to the checkpoint's memory @w, before chunks_end(). */
int cpu_memory_image_save(struct cpu_memory_image *i, struct chunks_writer *w,
			  struct brumate_error *err);

/** After chunks_writer_free(): the copy is not needed any more. */
void cpu_memory_image_saved(struct cpu_memory_image *i);

/** After chunks_writer_free(). Accepts NULL. */
void cpu_memory_image_close(struct cpu_memory_image *i);
DEFINE_AUTO(struct cpu_memory_image *, cpu_memory_image_close)

/** Whether a checkpoint has memory that we saved instead of CRIU. */
bool cpu_memory_image_is_in(const struct manifest *m);

/**
 * cpu_memory_image_fill() - fill the memory in @image that CRIU does not have, in the stopped processes below @root
 * @user: with this user's permissions; NULL: with ours
 *
 * At CRIU_EVENT_RESTORED if we have the permissions of the CRIU that made the processes, else at CRIU_EVENT_RESUMING,
 * when the processes have their final permissions. Errors to act on: -EBADMSG (damaged), -ESRCH, -ECANCELED, -EPERM
 * and -EACCES (one of them is not the user's).
 */
int cpu_memory_image_fill(const struct store_image *image, struct proc_id root,
			  const struct criu_user *user, struct progress *progress,
			  struct brumate_error *err);
