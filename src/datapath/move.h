// SPDX-License-Identifier: MIT
/*
 * A transfer of the vault's device memory, in a thread beside the driver's and CRIU's work: out of parked
 * memory into a host copy and on to a checkpoint, in from a host copy, or in from a checkpoint. There is one
 * at a time; the thread that has the data path starts and joins it, and alone touches the vault.
 */
#pragma once

#include "datapath/datapath.h"

/** Starts copying what is parked, and on to the sink where there is one. Where move_start_ahead() has begun that, the
 * sink gets from now on what is copied. */
int move_start_out(struct datapath *d, struct brumate_error *err);

/** Begins the same before anything is parked, with the pieces that the agents have listed: each is copied once it is given
 * by move_give(), and goes no further than to the host until move_start_out() is called. Nothing is begun where a baseline
 * is to be brought up to date. */
void move_start_ahead(struct datapath *d);

/** From any thread: pieces @at, counted through all agents, are parked, and @fds hold them until the transfer ends. Does
 * nothing where none was begun ahead. */
void move_give(struct datapath *d, const size_t *at, const int *fds, size_t n);

/** As move_start_out(), of memory that stays parked: the copy is for the sink alone. Where the vault has
 * one already, it goes to the sink here and now. */
int move_start_saving(struct datapath *d, struct brumate_error *err);

/** Starts filling fresh device memory for the vault's pieces, on the GPUs that the caller says: from @source,
 * or where that is NULL from the vault's host copy. */
int move_start_in(struct datapath *d, const struct datapath_source *source,
		  struct brumate_error *err);

/** Waits for the transfer under way, if there is one: then the vault has its host copy, or its device memory.
 * Phases "data-out", "load" and "data-in". */
int move_wait(struct datapath *d, struct brumate_error *err);

/** Ends the transfer under way and forgets what it made. */
void move_stop(struct datapath *d);

bool move_is_on(const struct datapath *d);

/** Bytes that it moves. */
uint64_t move_total_bytes(const struct datapath *d);

/** Shows how far it is, where one is under way: else returns false. */
bool move_measure(struct datapath *d);

/** Waits until device memory for all pieces is made, at most @timeout_ms. Not an end: who comes next goes on
 * whatever became of the transfer. */
void move_wait_made(struct datapath *d, uint32_t timeout_ms);

/* For undoing: both run in the calling thread, and nobody cancels them. */

/** Fills device memory from the host copy. */
int move_back(struct datapath *d, struct brumate_error *err);
/** Copies what is parked, and lets go of the device memory. */
int move_away(struct datapath *d, struct brumate_error *err);

/* ---- early map: device memory on its way in, used before all of it is filled ---- */

/** Returns false where there is none to be used. Else nothing that was told stays true beyond
 * move_end_early(), and a transfer that has to be begun anew waits for that. */
bool move_begin_early(struct datapath *d);
/** Waits until more than the first @n pieces are filled. Returns how many are, and the fds of all (borrowed
 * until move_end_early()); 0: the transfer has ended, or is void. Any thread. */
size_t move_wait_filled(struct datapath *d, size_t n, const int **ret_fds);
/** Whether what was told has become void: that device memory will not be the program's. */
bool move_is_void(struct datapath *d);
void move_end_early(struct datapath *d);

/* ---- snapshot: the program runs on before its memory is copied ---- */

/** Waits until more than the first @n pieces are copied, or the time is up. Returns how many are, which the vault
 * may let go of: a transfer that fails after that is not begun anew. All pieces: it has ended, whatever became of
 * it. */
size_t move_wait_copied(struct datapath *d, size_t n, uint32_t timeout_ms);
/** From now on what is whole goes on to the sink beside the rest of the copy. */
void move_drain(struct datapath *d);

/*
 * ---- live copy (live.c) ----
 *
 * A host copy of device memory whose program goes on writing it, as the baseline of the copy that is made
 * when it stands still. What is in it is known by digests of what was copied, whatever the program did
 * meanwhile, so the second copy is right by itself.
 */

/** Copies, again where much changed meanwhile. What stands in its way is noted: the operation goes on
 * without. Returns 1 if nothing was copied. */
int live_copy(struct datapath *d, struct brumate_error *err);

/** Lets go of a baseline that live_copy() made. */
void live_undo(struct datapath *d);
