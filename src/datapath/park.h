// SPDX-License-Identifier: MIT
/*
 * Takes device memory out of processes through their agents and puts it back: gate, park, unmap, map, open. A process
 * without an agent, or whose agent does not answer, is left to the driver, and the progress notes it. Between
 * operations there is no connection to any agent.
 */
#pragma once

#include "datapath/datapath.h"

/** Finds the agents of the processes @ids, which are the members of @tree that the driver knows, and the agents of
 * other members, whose driver is being initialised. No connection is left open. Processes without an agent, or whose
 * agent does not answer, are left to the driver, which is noted in @notes (may be NULL). Fails only for lack of
 * resources on our side: -ENOMEM, -EMFILE, -ENFILE, -ENOBUFS, -EAGAIN. */
int park_find(struct datapath *d, const struct proc_tree *tree, const struct proc_id *ids, size_t n,
	      struct progress *notes, struct brumate_error *err);

/** Refuses if a process with memory in the vault has no agent to take it back. -EIO. */
int park_check(const struct datapath *d, struct brumate_error *err);

/** Makes agents that start from now on keep their gates closed until park_let_in(). An agent that started earlier has
 * a socket already, and is found by park_find(). -errno. */
int park_hold(struct datapath *d, struct brumate_error *err);

/** Ends park_hold(), and opens the gates that it kept closed. */
void park_let_in(struct datapath *d);
/** Opens the gates of those that stood still meanwhile. */
void park_let_in_late(struct datapath *d);

/** Whether a member of @tree has an agent that park_find() did not find. */
bool park_has_missed(const struct datapath *d, const struct proc_tree *tree);

/** Closes the gates of all agents at once. -ETIMEDOUT: all are open again. Agents of processes that are ending are
 * waited for and then dropped; -EBUSY: one did not end in time. -ENOMEM and the other errors of park_find(): it is
 * unknown whether all are closed. Returns 1 if no agent is left, so that the driver saves everything. */
int park_gate(struct datapath *d, struct brumate_error *err);

/** Puts all pieces into the vault: lists them, exports them to us and the keeper, and writes the table to disk. With
 * @copies each is copied out as soon as it is exported, if move_start_ahead() can start that. */
int park_take(struct datapath *d, bool copies, struct brumate_error *err);

/** Exports the pieces of running processes for reading. The caller calls datapath_agent_fini() for each agent after
 * that. */
int park_borrow(struct datapath *d, struct brumate_error *err);

/** Unmaps the pieces in the processes. They may be read elsewhere at the same time, as nothing writes to them any
 * more. */
int park_unmap(struct datapath *d, struct brumate_error *err);

/** Closes the connections to all agents and leaves the agents as they are; before a dump, and at the end. */
void park_detach(struct datapath *d);

/** Connects to all agents and lists what they have at present. */
int park_look(struct datapath *d, struct brumate_error *err);

/**
 * Maps pieces as soon as the transfer under way has filled them, and not earlier: copies by the GPU at the same time
 * as those of the broker slow both down. The last piece of every process waits for the end of the transfer, which
 * shows whether all bytes are right: until then a piece is missing, so neither a request nor the end of the shim
 * opens a gate. Never fails: if its result is invalidated, park_map() starts from nothing.
 */
void park_map_early(struct datapath *d);

/** Maps every piece of the vault at its old address, and makes it the process's own. */
int park_map(struct datapath *d, struct brumate_error *err);

/** Opens all gates, and only then releases what the vault holds. If a transfer of a snapshot is under way, the vault
 * holds the snapshot until park_drain(). */
int park_open(struct datapath *d, struct brumate_error *err);

/** Releases a snapshot piece by piece as it is copied, and then the rest of the vault; the program runs, or has
 * ended. Returns 1 if there is no snapshot. On failure the transfer has ended and the vault is unchanged. */
int park_drain(struct datapath *d, struct brumate_error *err);

/**
 * Brings memory back from the vault's pieces or, if those are gone, from its host copy, and opens the gates,
 * regardless of the agents' states. For undoing and for taking over from a predecessor; the driver's part must be
 * running. Never cancelled.
 */
int park_return(struct datapath *d, struct brumate_error *err);

/**
 * Begins to undo park_map(), while the driver's part of the processes still runs. Returns 1 if the memory is out of
 * the processes and in the vault. Returns 0 if a program may have run since: then its memory is complete in its
 * processes, and has to be gated and parked again.
 */
int park_take_back(struct datapath *d, struct brumate_error *err);

/** Makes processes that will be killed give up their pieces, so that the driver need not save them. */
void park_discard(struct datapath *d);

/*
 * ---- memory that members of a job share (share.c) ----
 *
 * Each such piece was allocated by one member, its owner, whose agent parks it with all of its pieces. The other
 * members have aliases of it, which are not copied: they are unmapped with everything else, and mapped again from the
 * owner's exports once the owner has its memory back.
 */

/** Whether the process has memory of others mapped, as its agent last reported. */
bool share_uses_others(const struct datapath_agent *a);
/** Whether any of them has. */
bool share_is_used(const struct datapath *d);

/** Whether a piece of the vault is memory of a process that has ended, and is mapped by others. */
bool share_is_orphan(const struct datapath *d, const struct vault_piece *p);

/** Refuses if the owner of memory that a member has mapped has freed it, or is not among the agents but has not
 * ended: -EOPNOTSUPP. The gates are closed. */
int share_check(struct datapath *d, struct brumate_error *err);

/** Copies memory whose owner has ended, each piece once, for the vault (owned). From here on the members that have it
 * mapped do not open their gates by themselves. -ENOMEM: no room. */
int share_copy_orphans(struct datapath *d, struct vault_piece **ret, size_t *ret_n,
		       struct brumate_error *err);

/** Refuses if the vault lacks memory that a member has mapped of another member, which has ended after share_check()
 * and before its memory was parked: once unmapped, it could not be mapped again. -EAGAIN. */
int share_check_parked(struct datapath *d, struct brumate_error *err);

/** Before memory is replaced by copies: unmaps the aliases of members whose gates are closed, except those that could
 * not be exported again. Sets d->maps.aliases_hidden if none is mapped any more. */
int share_hide(struct datapath *d, struct brumate_error *err);

/** Maps all aliases that are not mapped. Their owners have their memory. */
int share_bring(struct datapath *d, struct brumate_error *err);
