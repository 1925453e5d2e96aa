// SPDX-License-Identifier: MIT
/*
 * An operation that is one of several: members of a set, on this node and on others, are saved or restored as one. Their
 * coordinator listens at the socket that the request names (request.together, SOCK_SEQPACKET). At each meeting the
 * operation says how far it is and waits until the coordinator answers "go", when all are as far; the end of the connection
 * means that they are not to be. What the others are, and where, is not known here. Whether the last meeting was a success
 * is decided in the store (store/set.h), so an operation whose coordinator, connection or shim has died comes to the same
 * end as the others.
 *
 * Before "ready" and again once the job is frozen, a member that is saved sends its connections (sockets_list()), in packets
 * of SET_CONNECTIONS and whole lines; the first is SET_DRAINS where they are drained, as all members' are to be then. Where they do not fit those of the others the answer is "again", and it looks once more.
 *
 *	checkpoint  ready   all have looked, and nothing is touched; the answer is "go PATH", of the decision
 *	            idle    its gates are closed over idle GPUs. The answer is "again" where others are not as far: their kernels may wait
 *	                    for work of this one, so it lets some through, and comes again
 *	            frozen, drained   where CRIU may not repair connections (process/connections.h): all stand still; what anybody has sent is received
 *	            held    with --leave-running: the job is in the images, and stands still, its connections held (process/socket-hold.h)
 *	            stored  the checkpoint is complete. Decided: it counts, or the job runs on
 *	restore     ready   all is verified, nothing is built
 *	            built   all processes and connections are there, and stand still
 *	            filled  all is back, but for the gates and the connections. Decided: they open, or all is taken down again
 */
#pragma once

#include "engine/op.h"

/** Whether @op is one of several. */
bool together_is_wanted(const struct op *op);

/** The first meeting, "ready". Does nothing for an operation that is alone. Errors to act on: -ECANCELED. */
int together_begin(struct op *op, struct brumate_error *err);

/** A meeting. Does nothing for an operation that is alone. */
int together_meet(struct op *op, const char *at, struct brumate_error *err);

/** The meeting "idle", as datapath_elsewhere.all_idle: 0; 1: the others are not as far. */
int together_all_idle(void *op, struct brumate_error *err);

/** The last meeting. Waits for the store where it cannot tell how that was decided. -ECANCELED: it was given up. */
int together_decide(struct op *op, const char *at, struct brumate_error *err);

/** Holds the connections of the job, which is frozen, and sends what they are. Where they can be read without, returns once all stand still. */
int together_hold(struct op *op, struct brumate_error *err);

/** Those who look at the other ends of the job's connections, or make them, while this operation does that; NULL: there are none. */
const struct connection_others *together_others(struct op *op);

/** Releases them; those that were to others than the members, and that the set closes, are closed in what was restored. Also for what CRIU brought back of a member, whether or not it comes back with the others. */
void together_let_go(struct op *op);

/** After a restore was decided, for the shim that takes over: which connections are to be closed. Errors to act on: as set_closes(). */
int together_find_closes(struct op *op, struct brumate_error *err);

/** How it was decided, for the shim that takes over: as set_give_up(). 0 where it is alone. */
int together_given_up(const struct target *target);

/** Refuses to restore a member's checkpoint alone, whose connections would have no other end. */
int together_check(const struct op *op, struct brumate_error *err);
