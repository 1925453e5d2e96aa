// SPDX-License-Identifier: MIT
/*
 * The processes of a job that have GPU state, and what the driver does to them through the broker. What the
 * driver says of a process counts, not what a call returned: after every action the states are asked for.
 */
#pragma once

#include "base/progress.h"
#include "client/broker.h"
#include "datapath/vault.h"
#include "gpu/vendor.h"
#include "job/request.h"
#include "job/target.h"
#include "process/driver-job.h"
#include "process/process.h"

struct op;
struct room_turn;

/** A process of the job that has GPU state. */
struct gpu_process {
	struct proc_id id;
	struct dev_process dev; /* as the driver last reported it */
	uint64_t rss_bytes;	/* when it was found */
	struct driver_job driver_job;
	int in_driver_job; /* the result of driver_job_find() */
	bool is_asleep;	   /* stands still according to the record, so the driver was not asked */
};

struct gpu_set {
	const struct target *target;	 /* borrowed; whose processes they are */
	const struct gpu_vendor *vendor; /* borrowed; whose GPUs they use */
	struct gpu_process *items;
	size_t n;
	struct dev_gpu_pair *pairs; /* owned: where a restore takes which GPU; none: all stay */
	size_t n_pairs;
	bool one_by_one; /* some are in a job of the driver, whose members are not acted on at once */
	uint32_t features;   /* of the driver; known where that is set */
	bool driver_refused; /* a restore by the driver failed, which is permanent */
	struct broker_client broker;
	bool broker_is_open;
};

void gpu_set_fini(struct gpu_set *s);

/** Takes the vendor with that id, as a record or an image has it; empty: the default. -EOPNOTSUPP: it is not known here. */
int gpu_set_take_vendor(struct gpu_set *s, const char *id, struct brumate_error *err);

/** Opens the broker if it is not yet. */
int gpu_set_open(struct gpu_set *s, struct brumate_error *err);

/** Asks the driver which processes of @tree have GPU state. -EBUSY: one of them is stopped. */
int gpu_set_find(struct gpu_set *s, const struct proc_tree *tree, struct brumate_error *err);

/** Fails where GPUs cannot be emptied into host memory: -EOPNOTSUPP. */
int gpu_set_check_suspend(const struct gpu_set *s, struct brumate_error *err);

/** 0; -EOPNOTSUPP: the state of so many processes cannot be restored without the GPUs. */
int gpu_set_check_rehearse(const struct gpu_set *s, size_t n_processes, struct brumate_error *err);

/** Whether some of them stand still, so that neither the driver nor an agent could answer for them. */
bool gpu_set_is_asleep(const struct gpu_set *s);

/** Whether the driver lets all of them work. */
bool gpu_set_is_running(const struct gpu_set *s);

/** Whether all of them are in one job of the driver, and it restores what such processes share by legacy IPC. */
bool gpu_set_shares_by_driver(const struct gpu_set *s);

/** Bytes of device memory they hold, as the driver tells. */
uint64_t gpu_set_bytes(const struct gpu_set *s);

/** Their ids (owned); NULL without memory. */
struct proc_id *gpu_set_ids(const struct gpu_set *s);

/** A progress_measure_fn for a struct gpu_set: memory that the saved device data takes in its processes. */
uint64_t gpu_set_measure_host(void *set);

/** Does one action to all that are not yet in state @want, in parallel, but one after the other to members of a job
 * of the driver, which demands that; afterwards the driver must say that
 * every one is. A broker that dies on the way is replaced. Returns 1 where there is nothing to do, as CRIU
 * saves and restores these processes by itself. */
int gpu_set_act(struct gpu_set *s, enum dev_action action, enum dev_state want, uint32_t timeout_ms,
		struct brumate_error *err);

/** Restores those that are checkpointed. One that runs needs it no more: a suspend that could be neither
 * ended nor undone may leave what was taken from a process away, and the process as it was. */
int gpu_set_restore_suspended(struct gpu_set *s, struct brumate_error *err);

/** Brings all of them back to running, from any state. 0, or -errno if some are not. Never cancelled. */
int gpu_set_bring_back(struct gpu_set *s, struct brumate_error *err);

/** Puts all of them into host memory, from any state: for undoing a resume, and before they are killed. The lock waits
 * for their work for @lock_timeout_ms: that of one may wait for another, which is locked. */
int gpu_set_put_away(struct gpu_set *s, uint32_t lock_timeout_ms, struct brumate_error *err);

enum { GPU_SET_DRIVER_TIMEOUT_MS = 600000 };

/*
 * ---- which GPUs a job comes back on (placement.c) ----
 *
 * The driver needs a list of all GPUs that the job saw, used or not, as soon as one changes (driver 580: restore with
 * an incomplete list returns 1, state unchanged).
 */

/** Records in the job which GPUs it sees and how much it holds on each, for when it comes back. */
int placement_record(struct target *target, struct gpu_set *gpus, struct brumate_error *err);

/**
 * Completes the pairs of @gpus to a map of every GPU the job saw onto the GPUs that are here: same model, and
 * itself where it is here. No pairs where all stay what they were. Errors to act on: -EOPNOTSUPP.
 */
int placement_map(const struct target *target, struct gpu_set *gpus, struct progress *progress,
		  struct brumate_error *err);

/** Whether there is room on all GPUs for @pieces once more. */
bool placement_has_room_twice(struct gpu_set *gpus, const struct vault_piece *pieces,
			      size_t n_pieces);

/** The memory the job needs, in addition to what @vault (may be NULL) holds of it there, must be free on the GPUs it goes
 * to: a driver that runs out of it in the middle of a restore loses the process (driver 580: error 2, then 304 for
 * ever). -ENOSPC. */
int placement_check_room(const struct target *target, struct gpu_set *gpus,
			 const struct vault *vault, struct brumate_error *err);

/** The same for the job of @op; where there is no room, its neighbours leave, one after the other, as far as they may and as
 * long as @op may go on. @turn: of the job; while others wait before it, there is none: -ENOSPC. */
int placement_make_room(struct op *op, const struct room_turn *turn, struct brumate_error *err);

/** The same, but it is waited for as long as the request says; where that says nothing no neighbour leaves either. */
int placement_wait_room(struct op *op, struct brumate_error *err);
