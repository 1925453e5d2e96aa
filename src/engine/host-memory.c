// SPDX-License-Identifier: MIT
/*
 * A job that goes on waits for a copy in memory alone, made by all cores beside CRIU's own work: digests,
 * compression and the disk come after. A job that is to end is read by the store itself. The job's memory
 * is only read, so nothing is undone when something fails.
 */
#include "engine/host-memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/room.h"
#include "engine/host-fill.h"
#include "cpumem/cpu-memory.h"
#include "process/leftover.h"
#include "chunks/chunks.h"

/* Devices whose descriptors forked children of a GPU program hold without using them. */
static const char reopened_devices[] = "/dev/nvidia";

/* What is left to the machine beside a copy. */
#define SPARE_BYTES (256ull << 20)

struct host_memory {
	struct op *op; /* borrowed */
	char *plugin_dir;
	struct criu_plugin plugin;
	struct cpu_memory taken;
	struct cpu_memory_copy copy; /* of a job that goes on */
	pthread_t copier;
	bool is_copying;
	int result; /* of the copy */
	struct brumate_error error;
	uint64_t start_ns;
};

int host_memory_open(struct host_memory **ret, struct op *op, struct criu_options *options,
		     struct brumate_error *err)
{
	auto_(host_memory_close) struct host_memory *h = calloc(1, sizeof(*h));

	if (!h)
		return brumate_fail(err, ENOMEM, "%m");
	h->op = op;
	h->plugin = (struct criu_plugin){ .table_fd = -1, .devices = reopened_devices };
	h->plugin_dir = criu_plugin_dir();
	if (h->plugin_dir) {
		h->plugin.table_fd = cpu_memory_table_new();
		if (h->plugin.table_fd < 0)
			return brumate_fail(err, -h->plugin.table_fd, "a table for CRIU: %m");
		options->libdir = h->plugin_dir;
		options->plugin = &h->plugin;
	}
	*ret = take_ptr(&h);
	return 0;
}

/* ---- out ---- */

static void *copy_thread(void *arg)
{
	struct host_memory *h = arg;

	h->result = cpu_memory_copy_out(&h->taken, &h->copy, 0, NULL, NULL, &h->error);
	return NULL;
}

static int start_copy(struct host_memory *h, struct brumate_error *err)
{
	int r = pthread_create(&h->copier, NULL, copy_thread, h);

	if (r)
		return brumate_fail(err, r, "a thread that copies the job's memory: %m");
	h->is_copying = true;
	return 0;
}

static int begin_memory(struct op *op, struct brumate_error *err)
{
	const struct chunks_options options = { .job = op->job->id,
						.uid = op->job->uid,
						.compress = request_compress(op->request) };

	return op->memory ? 0 : store_chunks_begin(&op->memory, &op->writer, &options, err);
}

static struct manifest_region describe(const struct cpu_memory_region *r)
{
	return (struct manifest_region){
		.kind = MANIFEST_REGION_HOST,
		.pid = r->inner_pid,
		.va = r->va,
		.len_bytes = r->len_bytes,
	};
}

/* A job that is to end stands still until its image is committed: no copy is needed. */
static int save_in_place(struct host_memory *h, struct brumate_error *err)
{
	int r = 0;

	for (size_t i = 0; i < h->taken.n && r == 0; i++) {
		struct cpu_memory_region *taken = &h->taken.items[i];
		const struct manifest_region region = describe(taken);

		r = chunks_add_from(h->op->memory, &region, cpu_memory_read, taken, err);
	}
	return r;
}

/* True if a copy fits into what is free, where one is needed: then it has its place. */
static bool has_room(struct host_memory *h)
{
	if (!h->op->request->leave_running)
		return true;
	if (h->taken.present_bytes + SPARE_BYTES <= room_memory_bytes() &&
	    cpu_memory_copy_reserve(&h->copy, &h->taken) == 0)
		return true;
	progress_note(
		&h->op->progress,
		"%.1f GB of the job's memory were saved by CRIU, slower, for want of free memory "
		"for a copy",
		(double)h->taken.present_bytes / 1e9);
	return false;
}

/* Only now is it sure what the driver left: those it knows are saved, and nobody runs. */
static int check_device_maps(struct host_memory *h, const struct proc_tree *tree,
			     struct brumate_error *err)
{
	auto_free struct proc_id *gpus = calloc(h->op->gpus.n + 1, sizeof(*gpus));

	if (!gpus)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < h->op->gpus.n; i++)
		gpus[i] = h->op->gpus.items[i].id;
	int r = leftover_check(tree, reopened_devices, gpus, h->op->gpus.n, err);
	if (r <= 0)
		return r;
	r = cpu_memory_allow_device_maps(h->plugin.table_fd);
	return r < 0 ? brumate_fail(err, -r, "telling CRIU of mapped devices: %m") : 0;
}

int host_memory_frozen(struct host_memory *h, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r;

	if (!h->plugin_dir)
		return 0;
	h->start_ns = clock_now_ns();
	if ((r = proc_tree_read(&tree, h->op->job->root, err)) < 0 ||
	    (r = check_device_maps(h, &tree, err)) < 0)
		return r;
	if (!cpu_memory_table_is_heeded(h->plugin.table_fd))
		return 0;
	if ((r = cpu_memory_choose(&h->taken, &tree, 0, err)) < 0)
		return r;
	if (!h->taken.n || !has_room(h)) {
		cpu_memory_fini(&h->taken);
		return 0;
	}
	if ((r = begin_memory(h->op, err)) < 0)
		return r;
	r = h->op->request->leave_running ? start_copy(h, err) : save_in_place(h, err);
	if (r < 0)
		return r;
	r = cpu_memory_hide(h->plugin.table_fd, &h->taken);
	return r < 0 ? brumate_fail(err, -r, "telling CRIU what it need not save: %m") : 0;
}

static void join_copy(struct host_memory *h)
{
	if (h->is_copying)
		pthread_join(h->copier, NULL);
	h->is_copying = false;
}

int host_memory_dumped(struct host_memory *h, struct brumate_error *err)
{
	int r = fault_point("checkpoint.host-memory");

	if (!h->taken.n)
		return 0;
	join_copy(h);
	if (r < 0)
		return brumate_fail(err, -r, "injected while memory is copied: %m");
	if (h->result < 0) {
		if (err)
			*err = h->error;
		return h->result;
	}
	if (h->copy.bytes)
		progress_phase(&h->op->progress, "host-memory", h->start_ns);
	return 0;
}

int host_memory_save(struct host_memory *h, struct brumate_error *err)
{
	const char *data = h->copy.bytes;
	int r = 0;

	for (size_t i = 0; data && i < h->taken.n && r == 0; i++) {
		const struct manifest_region region = describe(&h->taken.items[i]);

		r = chunks_add_bytes(h->op->memory, &region, data, err);
		data += region.len_bytes;
	}
	return r;
}

void host_memory_saved(struct host_memory *h)
{
	cpu_memory_copy_fini(&h->copy);
}

/* ---- in ---- */

static bool has_host_regions(const struct manifest *m)
{
	for (size_t i = 0; i < m->memory.n_regions; i++)
		if (m->memory.regions[i].kind == MANIFEST_REGION_HOST)
			return true;
	return false;
}

int host_memory_fill(struct host_memory *h, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	const struct manifest *m = &h->op->image.manifest;
	uint64_t start_ns = clock_now_ns();
	int r = fault_point("restore.host-memory");

	if (!has_host_regions(m))
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "injected while memory is filled: %m");
	if ((r = proc_tree_read(&tree, h->op->job->root, err)) < 0 ||
	    (r = store_chunks_open(&reader, &h->op->image, err)) < 0)
		return r;
	r = host_fill(reader, m, &tree, progress_is_over, &h->op->progress, err);
	if (r == -ECANCELED)
		progress_check(&h->op->progress, err);
	if (r == 0)
		progress_phase(&h->op->progress, "host-memory", start_ns);
	return r;
}

void host_memory_close(struct host_memory *h)
{
	if (!h)
		return;
	join_copy(h);
	cpu_memory_copy_fini(&h->copy);
	cleanup_close(&h->plugin.table_fd);
	cpu_memory_fini(&h->taken);
	free(h->plugin_dir);
	free(h);
}
