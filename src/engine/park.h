// SPDX-License-Identifier: MIT
/*
 * Device memory of a job taken out of its processes by their agents and put back: gate, park, map, own,
 * open. A process without an agent, or whose agent does not answer, is left to the driver and noted.
 * Between operations nobody is connected to an agent.
 */
#pragma once

#include "engine/op.h"

/** Which processes of the job have agents, and how much memory goes which way (op->agents). Nobody is
 * connected afterwards. Never fails: who has none goes by the driver. */
void park_find(struct op *op);

/** Refuses where a process whose memory is held has no agent that could take it. -EIO. */
int park_check(const struct op *op, struct brumate_error *err);

/** Closes the gates of all of them at once. -ETIMEDOUT: all are open again. */
int step_gate(struct op *op, struct brumate_error *err);
/** Holds all pieces: listed, exported to us and the keeper, the table on disk. */
int step_park(struct op *op, struct brumate_error *err);
/** Takes them out of the processes; they may be read by others meanwhile, as nobody writes any more. */
int step_unmap(struct op *op, struct brumate_error *err);
/** Undo of all three: everything back and running. The driver must be. */
void step_undo_park(struct op *op);

/** Hangs up at all agents and leaves them as they are; before a dump, and at the end. */
void park_detach(struct op *op);

/** Connects to all and lists what they have, as it is now. */
int park_look(struct op *op, struct brumate_error *err);

/** Does the work of step_map() for pieces that are filled while others are not yet. Never fails. */
int step_map_ahead(struct op *op, struct brumate_error *err);
/** Maps every piece from the fds held, at its old address, and makes it the process's own. */
int step_map(struct op *op, struct brumate_error *err);
/** Takes pieces out again that step_map() put in, the gates still being closed. */
void step_undo_map(struct op *op);
/** Opens all gates; only then what is held is let go. */
int step_open(struct op *op, struct brumate_error *err);

/**
 * Whatever state the agents are in: memory back from the fds or, where those are gone, from the host
 * copy, and gates open. For undoing and for taking over; the driver's part must be running. Never
 * cancelled.
 */
int park_return(struct op *op, struct brumate_error *err);

/** Of a running job: all its memory into the host copy, its gates closed. The driver's part comes after.
 * For undoing a resume. */
int park_put_away(struct op *op, struct brumate_error *err);

/** Of a job that is to be killed: its pieces are given up, so that the driver need not save them. */
void park_discard(struct op *op);

/** Bytes that agents manage; that are left to the driver in processes with agents. */
uint64_t park_managed_bytes(const struct op *op);
