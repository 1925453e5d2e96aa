// SPDX-License-Identifier: MIT
/*
 * Device memory of a job that is outside its processes: the fds that keep it, its host copy, and the
 * table on disk ("parked.json" in the job's directory) that says what is what. Everything is held here
 * and by the job's keeper, so that either may die. Belongs to the shim; an operation alone uses it while
 * it runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/data.h"
#include "engine/job.h"
#include "engine/keeper.h"

enum { HELD_PIECES_MAX = 1 << 20, HELD_SEGMENTS_MAX = 1 << 16 };

struct held_piece {
	struct proc_id process;
	uint64_t id, va, len_bytes; /* as wire/agent.h has them */
	char gpu[DEV_UUID_TEXT_BYTES];
	int fd; /* of its device memory; -1: not held */
};

/** A host copy of what a running job's memory was. Only its chunks' digests make it of use. */
struct held_kept {
	struct held_piece *pieces; /* without fds */
	size_t n_pieces;
	struct data_copy copy;
};

struct held {
	struct held_piece *pieces; /* those of one process stand together */
	size_t n_pieces;
	struct data_copy copy; /* of all of them, in this order; no segments: none */
	bool copied;	       /* the table on disk says that the copy is whole */
	bool of_running;       /* as decoded: the table is of what is kept */
	struct held_kept kept; /* by --keep-copy; while @copy is there, it is not */
	struct keeper keeper;
};
#define HELD_EMPTY ((struct held){ .keeper = KEEPER_EMPTY })

/** Forgets what is held, here only. */
void held_fini(struct held *h);

/** What a predecessor left: the table, and the fds from the keeper. 0 also where there is nothing.
 * Errors to act on: -EBADMSG. */
int held_load(struct held *h, const struct job *j, struct brumate_error *err);

/** Writes the table. */
int held_save(const struct held *h, const struct job *j, struct brumate_error *err);

/** The keeper gets all fds that are held here; started where there is none. */
int held_keep(struct held *h, const struct job *j, struct brumate_error *err);

/** True once the keeper has died while something is held. */
bool held_is_alone(const struct held *h);

/** Lets go of device memory, here and at the keeper: of all pieces, or of those @fn picks. */
void held_drop_device(struct held *h);
void held_drop_pieces(struct held *h, bool (*fn)(void *arg, const struct held_piece *p), void *arg);
/** Lets go of the host copy, here and at the keeper. */
void held_drop_copy(struct held *h);
/** As held_drop_copy(), but @ret (if not NULL) gets the fds that are held here. */
void held_let_copy(struct held *h, struct data_copy *ret);
/** Lets go of everything and removes the table. */
void held_clear(struct held *h, const struct job *j);
/** As held_clear(), but what is kept stays. */
void held_release(struct held *h, const struct job *j);

/* ---- a host copy kept while the job runs, held-kept.c ---- */

/** The host copy, whole, in memory, with digests, becomes what is kept; @ret (if not NULL) gets fds of it too.
 * Returns whether it is. */
bool held_keep_copy(struct held *h, struct data_copy *ret);
/** Where what is kept is of the pieces that are held now, gives it to be brought up to date: 1. Else it is
 * let go: 0. */
int held_take_kept(struct held *h, struct data_copy *ret);
/** Whether what is kept can be brought up to date to be a copy of these pieces. */
bool held_kept_fits(const struct held *h, const struct held_piece *pieces, size_t n);
/** What held_take_kept() gave is of no use any more. */
void held_drop_base(struct held *h, struct data_copy *base);
/** Lets go of what is kept. */
void held_drop_kept(struct held *h);
uint64_t held_kept_bytes(const struct held *h);

/** Every piece's device memory is held. */
bool held_has_device(const struct held *h);
uint64_t held_bytes(const struct held *h);

/** Pieces of process @id: the first, and how many. */
size_t held_find(const struct held *h, struct proc_id id, size_t *ret_first);

/** What the broker is to copy; NULL without memory. Owned. */
struct data_piece *held_data_pieces(const struct held *h);

/* ---- the table, held-table.c ---- */

/** Encodes the table (owned). NULL without memory. */
char *held_encode(const struct held *h);

/**
 * held_decode() - read a table
 * @text: borrowed, untrusted
 *
 * Pure. No fds are in it. @ret_segments: how many segments the host copy has; 0: none.
 * Return: 0 and @ret owned; -EBADMSG.
 */
int held_decode(struct held *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		struct brumate_error *err);
