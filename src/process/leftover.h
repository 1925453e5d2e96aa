// SPDX-License-Identifier: MIT
/*
 * Mappings of GPU devices in a tree whose GPU state was saved: what a fork left in a child that can never
 * use it, or state that nobody has saved.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "gpu/vendor.h"
#include "process/process.h"

/** What the mappings of a process (@maps, the text of /proc/PID/maps) say. */
enum leftover {
	LEFTOVER_NONE,	  /* no such device is mapped */
	LEFTOVER_OF_FORK, /* unusable copies of its parent's */
	LEFTOVER_STATE,	  /* of its own, and in use */
};

/**
 * leftover_judge() - whether mapped devices are more than a fork's leftovers
 * @vendor: of the devices
 * @is_fork: made by fork, and has started no program since (proc_info)
 *
 * A context on a GPU does not survive a fork, and the library that made it refuses to be used in the child. What maps the
 * device without that library, or with a graphics driver, has state that the driver's checkpoint knows nothing of. Pure.
 * @ret_path (may be NULL): the first device, @room bytes.
 */
enum leftover leftover_judge(const char *maps, const struct gpu_vendor *vendor, bool is_fork,
			     char *ret_path, size_t room);

/**
 * leftover_check() - look for GPU state that nobody has saved
 * @tree: frozen
 * @gpus: the processes that the driver knows, already saved; where CRIU saves them, they are passed over
 *
 * Return: 0: none maps a device; 1: only forked children do; -EOPNOTSUPP: a process has state that is not
 * saved, and @err names it.
 */
int leftover_check(const struct proc_tree *tree, const struct gpu_vendor *vendor,
		   const struct proc_id *gpus, size_t n_gpus, struct brumate_error *err);
