// SPDX-License-Identifier: MIT
/*
 * Copies of the sockets at which servers that are on disk are held, kept by the service manager (FDSTORE=1 of sd_notify(3)) for as long as
 * that is so: they outlive `brumate serve` and the servers' shims, and so do the connections that wait there. Without such a manager there
 * are none. What it gives back at the start is foreign: it is used only where it is at the addresses that the record of the job names.
 */
#pragma once

#include "job/job.h"

struct fdstore;

/** Takes what the manager gave to this process; NULL without a manager, or without memory. */
struct fdstore *fdstore_new(void);
/** The copies of this process are closed; the manager keeps its own. Accepts NULL. */
void fdstore_free(struct fdstore *s);

/* ---- at each look; all accept NULL ---- */

void fdstore_begin(struct fdstore *s);
/** @id is a job that is on disk, and whose ports are held. */
void fdstore_see(struct fdstore *s, const char *id);
/** Those of jobs that were not seen are given up. */
void fdstore_end(struct fdstore *s);
