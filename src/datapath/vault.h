// SPDX-License-Identifier: MIT
/*
 * The vault: device memory that is outside its processes. It has the fds of pieces, their host copy, and a
 * table on disk ("parked.json" in the owner's directory) that says what is what. Everything is held here and
 * by the owner's keeper, so that either may die. One thread at a time uses it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/keeper.h"
#include "client/transfer-session.h"
#include "wire/agent.h"

enum { VAULT_PIECES_MAX = 1 << 20, VAULT_SEGMENTS_MAX = 1 << 16 };

/* When a process started that had ended before the checkpoint with its memory was complete. */
#define VAULT_ENDED_TICKS 1

struct vault_piece {
	struct proc_id process;
	uint64_t id, va, len_bytes; /* as wire/agent.h has them */
	uint64_t token;		    /* of the process, where it shares memory with others; else 0 */
	char gpu[DEV_UUID_TEXT_BYTES];
	int fd;		 /* keeps its device memory; -1: the vault has none of it */
	pid_t inner_pid; /* of the process in its own namespace; 0: not known here. Not in the table */
};

/** A host copy of what a running program's memory was. Only its chunks' digests make it of use. */
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
	bool of_running;	    /* as decoded: the table is of the baseline */
	struct vault_baseline baseline; /* while @copy is there, it is not */
	struct keeper keeper;
};
#define VAULT_EMPTY ((struct vault){ .keeper = KEEPER_EMPTY })

/** Forgets what is in the vault. The keeper goes on holding it. */
void vault_fini(struct vault *v);

/** Fills the vault with what a predecessor left: reads the table, and gets the fds from the keeper. Returns 0
 * also where there is nothing. Errors to act on: -EBADMSG; others: nobody can tell yet what is held. */
int vault_load(struct vault *v, const struct keeper_owner *owner, struct brumate_error *err);

/** Writes the table. */
int vault_save(const struct vault *v, const struct keeper_owner *owner, struct brumate_error *err);

/** Gives the keeper all fds that the vault has, and starts one where there is none. */
int vault_guard(struct vault *v, const struct keeper_owner *owner, struct brumate_error *err);

/** Whether device memory that is only in the vault is gone: neither its pieces nor a whole copy are there. */
bool vault_is_lost(const struct vault *v);

/** Whether there is no keeper, or it has died. */
bool vault_is_alone(const struct vault *v);

/* To let go of something is to close its fds here and at the keeper. */

/** Lets go of the device memory of all pieces. */
void vault_drop_device(struct vault *v);
/** Lets go of the device memory of those pieces that @fn picks. */
void vault_drop_pieces(struct vault *v, bool (*fn)(void *arg, const struct vault_piece *p),
		       void *arg);
/** Lets go of the host copy. */
void vault_drop_copy(struct vault *v);
/** As vault_drop_copy(), but @ret (if not NULL) takes over the fds that are here. */
void vault_release_copy(struct vault *v, struct host_copy *ret);
/** Lets go of everything and removes the table. */
void vault_clear(struct vault *v, const struct keeper_owner *owner);
/** As vault_clear(), but the baseline stays, and so does the keeper for now. */
void vault_release(struct vault *v, const struct keeper_owner *owner);

/* ---- the baseline ---- */

/** Makes the host copy the baseline, if it is whole, in memory and has digests; @ret (if not NULL) gets fds of
 * it too. Returns whether it is the baseline now. */
bool vault_make_baseline(struct vault *v, struct host_copy *ret);
/** If the baseline covers exactly the present pieces, hands it out to be brought up to date and returns true;
 * else drops it. */
bool vault_take_baseline(struct vault *v, struct host_copy *ret);
/** Whether the baseline can be brought up to date to be a copy of these pieces. */
bool vault_baseline_fits(const struct vault *v, const struct vault_piece *pieces, size_t n);
/** Lets go of @base, which vault_take_baseline() handed out. */
void vault_give_up_baseline(struct vault *v, struct host_copy *base);
/** Lets go of the baseline. */
void vault_drop_baseline(struct vault *v);
/** How long the baseline is; 0: there is none. */
uint64_t vault_baseline_bytes(const struct vault *v);

/** Whether the vault has the device memory of every piece. */
bool vault_has_device(const struct vault *v);
/** How long all pieces are together. */
uint64_t vault_bytes(const struct vault *v);
/** Bytes of device memory that the vault has on GPU @gpu. */
uint64_t vault_device_bytes(const struct vault *v, const char *gpu);

/** The piece of process @process as its agent lists it, without an fd. */
struct vault_piece vault_piece_of(struct proc_id process, const struct agent_piece *piece);

/** Finds the pieces of process @id: returns how many there are, and the first. */
size_t vault_find(const struct vault *v, struct proc_id id, size_t *ret_first);

/** The pieces as the broker is to copy them (owned); NULL without memory. */
struct device_piece *vault_device_pieces(const struct vault *v);

/* ---- the table ---- */

/** Encodes the table (owned). NULL without memory. */
char *vault_encode(const struct vault *v);

/**
 * vault_decode() - read a table
 * @text: borrowed, untrusted
 *
 * Pure. No fds are in it. @ret_segments: how many segments the host copy has; 0: none.
 * Return: 0 and @ret owned; -EBADMSG.
 */
int vault_decode(struct vault *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		 struct brumate_error *err);
