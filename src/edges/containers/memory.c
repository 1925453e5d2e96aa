// SPDX-License-Identifier: MIT
/* Memory of a container, next to CRIU's images. See container-private.h. */
#include "edges/containers/container-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "base/size.h"
#include "datapath/move.h"
#include "engine/steps.h"

static char *path_of(int dir_fd)
{
	return path_format("/proc/self/fd/%d", dir_fd);
}

/* What the agents tell to be theirs. */
static uint64_t agents_bytes(const struct op *op)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < op->data.n_agents; i++)
		sum += op->data.agents[i].agent.managed_bytes;
	return sum;
}

static int check_space(struct op *op, const char *dir, struct brumate_error *err)
{
	uint64_t available, need = agents_bytes(op);
	int r = store_free_bytes(dir, &available, err);

	if (r < 0 || need <= available)
		return r;
	uint64_t zero = op_zero_bytes(op);
	need -= zero < need ? zero : need;
	if (need <= available)
		return 0;
	brumate_fail(err, ENOSPC,
		     "the directory of the images has %s free, device memory alone is %s",
		     SIZE_TEXT(available), SIZE_TEXT(need));
	return -ENOSPC;
}

/* Of an earlier checkpoint into the same directory, whose images are being written over. */
static int remove_old(const char *dir, struct brumate_error *err)
{
	int r = store_remove(dir, CONTAINER_MEMORY_NAME, err);

	return r == -ENOENT || r > 0 ? 0 : r;
}

static int begin(struct op *op, const char *dir, struct brumate_error *err)
{
	int r = store_begin(&op->checkpoint.writer, dir, CONTAINER_MEMORY_NAME, err);

	return r < 0 ? r : image_begin_device(op, err);
}

int container_memory_begin(struct op *op, struct brumate_error *err)
{
	auto_free char *dir = path_of(op->images.dir_fd);
	int r;

	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = remove_old(dir, err)) < 0)
		return r;
	if (!op->data.n_agents)
		return 1;
	r = check_space(op, dir, err);
	return r < 0 ? r : begin(op, dir, err);
}

/* A container in the container may have processes of the same numbers, by which memory is filled again. */
static bool numbers_are_unique(const struct proc_tree *tree)
{
	for (size_t i = 0; i < tree->n; i++)
		for (size_t k = 0; k < i; k++)
			if (tree->items[k].inner_pid == tree->items[i].inner_pid)
				return false;
	return true;
}

int container_memory_take(struct op *op, int table_fd, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_free char *dir = path_of(op->images.dir_fd);
	int r = dir ? proc_tree_read(&tree, op->target->root, err)
		    : brumate_fail(err, ENOMEM, "%m");

	if (r < 0 || !numbers_are_unique(&tree))
		return r < 0 ? r : 1;
	if ((r = cpu_memory_image_join(&op->images.cpu_memory, table_fd, err)) < 0)
		return r;
	r = cpu_memory_image_take(op->images.cpu_memory, &tree, err);
	if (r <= 0)
		return r < 0 ? r : 1;
	r = op->checkpoint.memory ? 0 : begin(op, dir, err);
	return r < 0 ? r
		     : cpu_memory_image_leave(op->images.cpu_memory, op->checkpoint.memory, err);
}

static uint64_t told_bytes(const struct vault *v, const char *gpu)
{
	auto_free struct device_piece *pieces = vault_device_pieces(v);
	uint64_t sum = 0;

	for (size_t i = 0; pieces && i < v->n_pieces; i++)
		if (!strcmp(pieces[i].gpu, gpu) &&
		    __builtin_add_overflow(sum, pieces[i].len_bytes, &sum))
			return UINT64_MAX;
	return pieces ? sum : UINT64_MAX;
}

int container_memory_check(struct op *op, struct brumate_error *err)
{
	auto_free struct dev_gpu *gpus = calloc(DEV_GPUS_MAX, sizeof(*gpus));
	size_t n = 0;
	int r = gpus ? broker_client_gpus(&op->gpus.broker, gpus, &n, err)
		     : brumate_fail(err, ENOMEM, "%m");

	for (size_t i = 0; r == 0 && i < n; i++) {
		uint64_t told = told_bytes(op->data.vault, gpus[i].uuid);

		if (told > gpus[i].total_bytes)
			r = brumate_fail(err, EBADMSG, "agents tell of %s on %s, which has %s",
					 SIZE_TEXT(told), gpus[i].uuid,
					 SIZE_TEXT(gpus[i].total_bytes));
	}
	return r;
}

void container_memory_abort(struct op *op)
{
	move_stop(&op->data);
	image_end_device(op);
	store_abort(&op->checkpoint.writer);
}

int container_memory_commit(struct op *op, char ret[static DIGEST_TEXT_BYTES],
			    struct brumate_error *err)
{
	struct digest body;

	*ret = '\0';
	if (!op->checkpoint.memory)
		return 0;
	int r = describe_tree(op, err);
	if (r < 0 || (r = image_commit(op, err)) < 0)
		return r;
	r = manifest_body(&body, &op->checkpoint.manifest);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	digest_format(ret, &body);
	return 0;
}

static int open_image(struct op *op, int dir_fd, const char *digest, struct brumate_error *err)
{
	auto_free char *path = path_format("/proc/self/fd/%d/" CONTAINER_MEMORY_NAME, dir_fd);
	char found[DIGEST_TEXT_BYTES];

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = store_open(&op->restore.image, NULL, path, err);
	if (r < 0)
		return r;
	digest_format(found, &op->restore.image.manifest.body);
	if (strcmp(found, digest))
		return brumate_fail(err, EBADMSG, "it is of another checkpoint");
	/* Chunks are compared as they are loaded. */
	return store_verify_files(&op->restore.image, NULL, NULL, err);
}

int container_memory_load(struct op *op, int dir_fd, const char *digest, struct brumate_error *err)
{
	const struct datapath_source source = device_image_source(&op->restore.device);
	struct vault *v = op->data.vault;
	int r = open_image(op, dir_fd, digest, err);

	if (r == 0)
		r = device_image_open(&op->restore.device, &op->restore.image, v, err);
	if (r < 0)
		return brumate_wrap(err, r, CONTAINER_MEMORY_NAME);
	op->data.pairs = op->gpus.pairs;
	op->data.n_pairs = op->gpus.n_pairs;
	return v->n_pieces ? move_start_in(&op->data, &source, err) : 0;
}
