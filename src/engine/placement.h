// SPDX-License-Identifier: MIT
/*
 * Which GPUs a job comes back on. The driver must be told of every GPU the job saw, used or not, as
 * soon as one changes (driver 580: restore with an incomplete list returns 1, state unchanged).
 */
#pragma once

#include "base/progress.h"
#include "datapath/vault.h"
#include "engine/gpu-set.h"
#include "job/job.h"

/** Records in the job which GPUs it sees and how much it holds on each, for when it comes back. */
int placement_record(struct job *job, struct gpu_set *gpus, struct brumate_error *err);

/**
 * Completes the pairs of @gpus to a map of every GPU the job saw onto the GPUs that are here: same model, and
 * itself where it is here. No pairs where all stay what they were. Errors to act on: -EOPNOTSUPP.
 */
int placement_map(const struct job *job, struct gpu_set *gpus, struct progress *progress,
		  struct brumate_error *err);

/** Whether there is room on all GPUs for what @vault holds there once more. */
bool placement_has_room_twice(struct gpu_set *gpus, const struct vault *vault);

/** The memory the job needs, beside what @vault (may be NULL) holds of it there, must be free on the GPUs it
 * goes to: a driver that runs out of it in the middle of a restore loses the process (driver 580: error 2, then
 * 304 for ever). -ENOSPC. */
int placement_check_room(const struct job *job, struct gpu_set *gpus, const struct vault *vault,
			 struct brumate_error *err);
