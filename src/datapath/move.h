// SPDX-License-Identifier: MIT
/*
 * A transfer of the vault's device memory, in a thread of its own while the driver and CRIU work: out of parked
 * memory into a host copy and on to a checkpoint, in from a host copy, or in from a checkpoint. At most one is under
 * way. The thread that uses the data path starts and joins it, and is the only one that touches the vault.
 */
#pragma once

#include "datapath/datapath.h"

/** Starts to copy the parked memory, and to write it to the sink if there is one. If move_start_ahead() has started
 * the copy already, its data goes to the sink from now on. */
int move_start_out(struct datapath *d, struct brumate_error *err);

/** Starts the same before anything is parked, for the pieces that the agents have listed: each is copied once
 * move_give() provides it, and only to host memory until move_start_out() is called. Does nothing if there is a
 * baseline to bring up to date. */
void move_start_ahead(struct datapath *d);

/** From any thread: pieces @at, indexes among those of all agents, are parked, and @fds hold them until the transfer
 * ends. Does nothing unless move_start_ahead() started a transfer. */
void move_give(struct datapath *d, const size_t *at, const int *fds, size_t n);

/** Like move_start_out(), for memory that stays parked: the copy is for the sink alone. If the vault has a copy
 * already, writes that one to the sink during the call. */
int move_start_saving(struct datapath *d, struct brumate_error *err);

/** Starts to fill fresh device memory for the vault's pieces, on the GPUs that d->pairs says: from @source or, if
 * that is NULL, from the vault's host copy. */
int move_start_in(struct datapath *d, const struct datapath_source *source,
		  struct brumate_error *err);

/** Waits for the transfer under way, if any: then the vault has its host copy or its device memory. Phases
 * "data-out", "load" and "data-in". */
int move_wait(struct datapath *d, struct brumate_error *err);

/** Ends the transfer under way and discards its result. */
void move_stop(struct datapath *d);

bool move_is_on(const struct datapath *d);

/** How many bytes it moves. */
uint64_t move_total_bytes(const struct datapath *d);

/** Shows its progress. Returns false if none is under way. */
bool move_measure(struct datapath *d);

/** Waits at most @timeout_ms until device memory for all pieces is allocated. Says nothing about the transfer's
 * result, which comes from move_wait(). */
void move_wait_made(struct datapath *d, uint32_t timeout_ms);

/* For undoing: both run in the calling thread and cannot be cancelled. */

/** Fills device memory from the host copy. */
int move_back(struct datapath *d, struct brumate_error *err);
/** Copies the parked memory, and releases the device memory. */
int move_away(struct datapath *d, struct brumate_error *err);

/* ---- early map: device memory on its way in, used before all of it is filled ---- */

/** Returns false if early mapping is not possible. After true, what is reported stays valid until move_end_early(); a
 * transfer that has to start again waits for that. */
bool move_begin_early(struct datapath *d);
/** Waits until more than the first @n pieces are filled. Returns how many are, and the fds of all pieces (borrowed
 * until move_end_early()); 0: the transfer has ended, or is invalidated. Any thread. */
size_t move_wait_filled(struct datapath *d, size_t n, const int **ret_fds);
/** Whether what was reported has been invalidated: this device memory will not become the program's. */
bool move_is_void(struct datapath *d);
void move_end_early(struct datapath *d);

/* ---- snapshot: the program runs on before its memory is copied ---- */

/** Waits until more than the first @n pieces are copied, or the time is up. Returns how many are. The vault may
 * release these: a transfer that fails after that does not start again. Returns the number of all pieces when the
 * transfer has ended, with any result. */
size_t move_wait_copied(struct datapath *d, size_t n, uint32_t timeout_ms);
/** From now on complete segments go to the sink while the rest is still being copied. */
void move_drain(struct datapath *d);

/*
 * ---- live copy (live.c) ----
 *
 * A host copy of the device memory of a running program, as the baseline of the copy that is made once the program is
 * stopped. Digests of the copied bytes say what it contains, regardless of what the program wrote during the copy, so
 * that the second copy is exact.
 */

/** Whether @pieces want a live copy. */
typedef bool (*live_wanted_fn)(void *arg, const struct vault_piece *pieces, size_t n);

/** Copies if @wanted says so, and again if much changed during the copy. A failure is logged, and the operation goes on
 * without a live copy. Returns 1 if nothing was copied. */
int live_copy(struct datapath *d, live_wanted_fn wanted, void *arg, struct brumate_error *err);

/**
 * Finds out how much of the device memory is zero that running processes or else the vault have: a pass of digests on the GPU.
 * *ret_digests (owned): those
 * of all chunks; NULL: there are none. No error is to be acted on: without the number, all of the memory counts.
 */
int live_count_zeros(struct datapath *d, uint64_t *ret_bytes, struct digest_table **ret_digests,
		     struct brumate_error *err);

/** Releases a baseline that live_copy() made. */
void live_undo(struct datapath *d);
