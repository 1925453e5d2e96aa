// SPDX-License-Identifier: MIT
/*
 * Device memory taken out of processes by their agents and put back: gate, park, unmap, map, open. A process
 * without an agent, or whose agent does not answer, is left to the driver, and the progress notes it. Between
 * operations nobody is connected to an agent.
 */
#pragma once

#include "datapath/datapath.h"

/** Finds out which of the processes @ids, which are those of @tree that the driver knows, have agents, and which
 * others of it have: their driver is being initialised. Nobody is connected afterwards. What has no agent, or one that
 * does not answer, goes by the driver, which is said to @notes (NULL: to nobody). Fails only where we lack what it takes
 * to ask: -ENOMEM, -EMFILE, -ENFILE, -ENOBUFS, -EAGAIN. */
int park_find(struct datapath *d, const struct proc_tree *tree, const struct proc_id *ids, size_t n,
	      struct progress *notes, struct brumate_error *err);

/** Refuses where a process whose memory is in the vault has no agent that could take it. -EIO. */
int park_check(const struct datapath *d, struct brumate_error *err);

/** Has agents that start from now on keep their gates closed: what they begin waits for park_let_in(). Whoever is
 * not held listens already. -errno. */
int park_hold(struct datapath *d, struct brumate_error *err);

/** Ends park_hold(), and opens the gates of those that were held. */
void park_let_in(struct datapath *d);

/** Whether a member of @tree has an agent that is not among those that were found. */
bool park_has_missed(const struct datapath *d, const struct proc_tree *tree);

/** Closes the gates of all agents at once. -ETIMEDOUT: all are open again. Those whose processes are ending are
 * waited for, and are not among the agents any more; -EBUSY: one has not ended in time. -ENOMEM and the others of
 * park_find(): it is not known whether all are closed. Returns 1 where no agent is left: all goes by the driver. */
int park_gate(struct datapath *d, struct brumate_error *err);

/** Puts all pieces into the vault: listed, exported to us and the keeper, the table on disk. With @copies each is
 * copied out as soon as it is exported, as far as move_start_ahead() begins that. */
int park_take(struct datapath *d, bool copies, struct brumate_error *err);

/** Exports the pieces of running processes, for as long as they are read. The caller calls
 * datapath_agent_fini() for each agent when they are not needed any more. */
int park_borrow(struct datapath *d, struct brumate_error *err);

/** Takes the pieces out of the processes. Others may read them meanwhile, as nobody writes any more. */
int park_unmap(struct datapath *d, struct brumate_error *err);

/** Hangs up at all agents and leaves them as they are; before a dump, and at the end. */
void park_detach(struct datapath *d);

/** Connects to all agents and lists what they have, as it is now. */
int park_look(struct datapath *d, struct brumate_error *err);

/**
 * Maps pieces as soon as the transfer under way has filled them, and no sooner: copies on the GPU beside those
 * of the broker slow both down. The last piece of every process waits for the end of the transfer, which says
 * whether all bytes are right: until then a piece is missing, and neither a request nor the end of the shim
 * opens a gate. It never fails: what is done here may become void, and then park_map() does it all, from
 * nothing.
 */
void park_map_early(struct datapath *d);

/** Maps every piece of the vault at its old address, and makes it the process's own. */
int park_map(struct datapath *d, struct brumate_error *err);

/** Opens all gates; only then the vault lets go of what it holds. A snapshot, whose transfer is under way, it
 * holds until park_drain(). */
int park_open(struct datapath *d, struct brumate_error *err);

/** Lets go of a snapshot piece by piece as it is copied, and of the rest of the vault after that; the program
 * runs, or has ended. Returns 1 where there is none. What fails leaves the transfer ended and the vault as
 * it is. */
int park_drain(struct datapath *d, struct brumate_error *err);

/**
 * Brings memory back from the vault's pieces or, where those are gone, from its host copy, and opens the
 * gates, whatever state the agents are in. For undoing and for taking over; the driver's part must be
 * running. Never cancelled.
 */
int park_return(struct datapath *d, struct brumate_error *err);

/**
 * Begins to put away what park_map() may have put in, the driver's part of the processes still running.
 * Returns 1 where the memory is out of the processes and in the vault. Returns 0 where a program may have run
 * since: then its memory is whole in its processes, and is to be gated and parked again.
 */
int park_take_back(struct datapath *d, struct brumate_error *err);

/** Makes processes that are to be killed give up their pieces, so that the driver need not save them. */
void park_discard(struct datapath *d);

/*
 * ---- memory that members of a job share (share.c) ----
 *
 * One of them made it, its owner: that one's agent parks it as all of its pieces. The others have aliases of it, which nobody
 * copies: they are unmapped with all the rest, and mapped again from what the owner exports once it has its memory back.
 */

/** Whether the process, as its agent told last, has memory of others mapped. */
bool share_uses_others(const struct datapath_agent *a);
/** Whether any of them has. */
bool share_is_used(const struct datapath *d);

/** Whether a piece of the vault is memory of a process that has ended, which others have mapped. */
bool share_is_orphan(const struct datapath *d, const struct vault_piece *p);

/** Refuses where the owner of what a member has mapped is not among the agents, and may be there all the same, or has
 * freed it: -EOPNOTSUPP. Their gates are closed. */
int share_check(struct datapath *d, struct brumate_error *err);

/** Copies of memory whose owner has ended, each piece once, for the vault (owned). From here who has it mapped does not run on
 * by itself. -ENOMEM: no room. */
int share_copy_orphans(struct datapath *d, struct vault_piece **ret, size_t *ret_n,
		       struct brumate_error *err);

/** Refuses where the vault lacks what a member has mapped of another: that one has ended since share_check(), before its
 * memory was parked, and what is unmapped now nobody could map again. -EAGAIN. */
int share_check_parked(struct datapath *d, struct brumate_error *err);

/** Where memory is to be made anew: unmaps the aliases of members whose gates are closed, but not what nobody could
 * export again. d->aliases_hidden says whether none is mapped any more. */
int share_hide(struct datapath *d, struct brumate_error *err);

/** Maps all aliases that are not mapped. Their owners have their memory. */
int share_bring(struct datapath *d, struct brumate_error *err);
