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

#include "client/transfer.h"
#include "job/job.h"
#include "client/keeper.h"

enum { VAULT_PIECES_MAX = 1 << 20, VAULT_SEGMENTS_MAX = 1 << 16 };

struct vault_piece {
	struct proc_id process;
	uint64_t id, va, len_bytes; /* as wire/agent.h has them */
	char gpu[DEV_UUID_TEXT_BYTES];
	int fd; /* of its device memory; -1: not held */
};

/** A host copy of what a running job's memory was. Only its chunks' digests make it of use. */
struct vault_baseline {
	struct vault_piece *pieces; /* without fds */
	size_t n_pieces;
	struct host_copy copy;
};

struct vault {
	struct vault_piece *pieces; /* those of one process stand together */
	size_t n_pieces;
	struct host_copy copy;	    /* of all of them, in this order; no segments: none */
	bool copied;		    /* the table on disk says that the copy is whole */
	bool of_running;	    /* as decoded: the table is of what is kept */
	struct vault_baseline kept; /* by --keep-copy; while @copy is there, it is not */
	struct keeper keeper;
};
#define VAULT_EMPTY ((struct vault){ .keeper = KEEPER_EMPTY })

/** Forgets what is held, here only. */
void vault_fini(struct vault *h);

/** What a predecessor left: the table, and the fds from the keeper. 0 also where there is nothing.
 * Errors to act on: -EBADMSG. */
int vault_load(struct vault *h, const struct job *j, struct brumate_error *err);

/** Writes the table. */
int vault_save(const struct vault *h, const struct job *j, struct brumate_error *err);

/** The keeper gets all fds that are held here; started where there is none. */
int vault_guard(struct vault *h, const struct job *j, struct brumate_error *err);

/** True once the keeper has died while something is held. */
bool vault_is_alone(const struct vault *h);

/** Lets go of device memory, here and at the keeper: of all pieces, or of those @fn picks. */
void vault_drop_device(struct vault *h);
void vault_drop_pieces(struct vault *h, bool (*fn)(void *arg, const struct vault_piece *p),
		       void *arg);
/** Lets go of the host copy, here and at the keeper. */
void vault_drop_copy(struct vault *h);
/** As vault_drop_copy(), but @ret (if not NULL) gets the fds that are held here. */
void vault_release_copy(struct vault *h, struct host_copy *ret);
/** Lets go of everything and removes the table. */
void vault_clear(struct vault *h, const struct job *j);
/** As vault_clear(), but what is kept stays. */
void vault_release(struct vault *h, const struct job *j);

/* ---- a host copy kept while the job runs, vault-baseline.c ---- */

/** The host copy, whole, in memory, with digests, becomes what is kept; @ret (if not NULL) gets fds of it too.
 * Returns whether it is. */
bool vault_make_baseline(struct vault *h, struct host_copy *ret);
/** Where what is kept is of the pieces that are held now, gives it to be brought up to date: 1. Else it is
 * let go: 0. */
int vault_take_baseline(struct vault *h, struct host_copy *ret);
/** Whether what is kept can be brought up to date to be a copy of these pieces. */
bool vault_baseline_fits(const struct vault *h, const struct vault_piece *pieces, size_t n);
/** What vault_take_baseline() gave is of no use any more. */
void vault_give_up_baseline(struct vault *h, struct host_copy *base);
/** Lets go of what is kept. */
void vault_drop_baseline(struct vault *h);
uint64_t vault_baseline_bytes(const struct vault *h);

/** Every piece's device memory is held. */
bool vault_has_device(const struct vault *h);
uint64_t vault_bytes(const struct vault *h);

/** Pieces of process @id: the first, and how many. */
size_t vault_find(const struct vault *h, struct proc_id id, size_t *ret_first);

/** What the broker is to copy; NULL without memory. Owned. */
struct device_piece *vault_device_pieces(const struct vault *h);

/* ---- the table, vault-table.c ---- */

/** Encodes the table (owned). NULL without memory. */
char *vault_encode(const struct vault *h);

/**
 * vault_decode() - read a table
 * @text: borrowed, untrusted
 *
 * Pure. No fds are in it. @ret_segments: how many segments the host copy has; 0: none.
 * Return: 0 and @ret owned; -EBADMSG.
 */
int vault_decode(struct vault *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		 struct brumate_error *err);
