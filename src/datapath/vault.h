// SPDX-License-Identifier: MIT
/*
 * The vault: device memory that is outside its processes. It has the fds of pieces, their host copy, and a table on
 * disk ("parked.json" in the owner's directory) that says which is which. The owner's keeper holds all fds, too, so
 * that either process may die. For one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/keeper.h"
#include "client/transfer-session.h"
#include "wire/agent.h"

enum { VAULT_PIECES_MAX = 1 << 20, VAULT_SEGMENTS_MAX = 1 << 16 };

/* The start time of a process that had ended before the checkpoint with its memory was complete. */
#define VAULT_ENDED_TICKS 1

struct vault_piece {
	struct proc_id process;
	uint64_t id, va, len_bytes; /* as in wire/agent.h */
	uint64_t token;		    /* of the process, if it shares memory with others; else 0 */
	char gpu[DEV_UUID_TEXT_BYTES];
	int fd;		 /* keeps the device memory; -1: the vault does not have it */
	pid_t inner_pid; /* of the process in its own namespace; 0: not known here. Not in the table */
};

/** A host copy of earlier memory of a running program. Only useful with the digests of its chunks. */
struct vault_baseline {
	struct vault_piece *pieces; /* without fds */
	size_t n_pieces;
	struct host_copy copy;
	bool spare; /* it may be released at any time while the program runs */
};

struct vault {
	struct vault_piece *pieces; /* grouped by process */
	size_t n_pieces;
	struct host_copy copy;		/* of all pieces, in this order; no segments: none */
	bool copied;			/* the table on disk says that the copy is complete */
	bool of_running;		/* as decoded: the table is of the baseline */
	bool of_spare;			/* likewise: which may be released */
	struct vault_baseline baseline; /* empty while there is @copy */
	struct keeper keeper;
};
#define VAULT_EMPTY ((struct vault){ .keeper = KEEPER_EMPTY })

/** Frees the vault here. The keeper goes on holding its fds. */
void vault_fini(struct vault *v);

/** Fills the vault with what a predecessor left: reads the table, and gets the fds from the keeper. Returns 0 if
 * there is nothing, too. Errors to act on: -EBADMSG; after any other error it is unknown what is held. */
int vault_load(struct vault *v, const struct target *target, struct brumate_error *err);

/** Writes the table. */
int vault_save(const struct vault *v, const struct target *target, struct brumate_error *err);

/** Gives the keeper all fds of the vault; starts a keeper if there is none. */
int vault_guard(struct vault *v, const struct target *target, struct brumate_error *err);

/** Whether device memory that was only in the vault is lost: neither all of its pieces nor a complete copy are left. */
bool vault_is_lost(const struct vault *v);

/** Whether there is no keeper, or it has died. */
bool vault_is_alone(const struct vault *v);

/* To release something is to close its fds here and at the keeper. */

/** Releases the device memory of all pieces. */
void vault_drop_device(struct vault *v);
/** Releases the device memory of the pieces for which @fn returns true. */
void vault_drop_pieces(struct vault *v, bool (*fn)(void *arg, const struct vault_piece *p),
		       void *arg);
/** Releases the host copy. */
void vault_drop_copy(struct vault *v);
/** Like vault_drop_copy(), but @ret (if not NULL) takes over our fds. */
void vault_release_copy(struct vault *v, struct host_copy *ret);
/** Releases everything and removes the table. */
void vault_clear(struct vault *v, const struct target *target);
/** Like vault_clear(), but keeps the baseline, and the keeper for now. */
void vault_release(struct vault *v, const struct target *target);

/* ---- the baseline ---- */

/** Turns the host copy into the baseline, if it is complete, in memory and has digests; @ret (if not NULL) gets
 * duplicates of its fds. Returns whether it is the baseline now. */
bool vault_make_baseline(struct vault *v, struct host_copy *ret);
/** If the baseline is of exactly the present pieces, passes it to the caller to bring it up to date, and returns
 * true; else drops it. */
bool vault_take_baseline(struct vault *v, struct host_copy *ret);
/** Whether the baseline can be updated to be a copy of these pieces. */
bool vault_baseline_fits(const struct vault *v, const struct vault_piece *pieces, size_t n);
/** Releases @base, which vault_take_baseline() returned. */
void vault_give_up_baseline(struct vault *v, struct host_copy *base);
/** Releases a baseline that is spare, of a running program. Returns whether there was one. */
bool vault_drop_spare(struct vault *v, const struct target *target);
/** How much memory a spare baseline takes; 0: there is none. */
uint64_t vault_spare_bytes(const struct vault *v);
/** Releases the baseline. */
void vault_drop_baseline(struct vault *v);
/** The length of the baseline; 0: there is none. */
uint64_t vault_baseline_bytes(const struct vault *v);

/** Whether the vault has the device memory of every piece. */
bool vault_has_device(const struct vault *v);
/** The length of all pieces together. */
uint64_t vault_bytes(const struct vault *v);
/** Bytes of the host copy that are not zero, by its digests; all of it, if they are not known. */
uint64_t vault_copy_data_bytes(const struct vault *v);
/** Bytes of device memory that the vault has on GPU @gpu. */
uint64_t vault_device_bytes(const struct vault *v, const char *gpu);

/** The piece of process @process as its agent lists it, without an fd. */
struct vault_piece vault_piece_of(struct proc_id process, const struct agent_piece *piece);

/** Finds the pieces of process @id: returns their number, and the index of the first. */
size_t vault_find(const struct vault *v, struct proc_id id, size_t *ret_first);

/** The pieces as the broker copies them (owned); NULL if out of memory. */
struct device_piece *vault_device_pieces(const struct vault *v);

/* ---- the table ---- */

/** Encodes the table (owned). NULL if out of memory. */
char *vault_encode(const struct vault *v);

/**
 * vault_decode() - read a table
 * @text: borrowed, untrusted
 *
 * Pure. The table has no fds. @ret_segments: the number of segments of the host copy; 0: none.
 * Return: 0 and @ret owned; -EBADMSG.
 */
int vault_decode(struct vault *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		 struct brumate_error *err);
