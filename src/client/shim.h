// SPDX-License-Identifier: MIT
/* Reaching a job's shim, and starting one where none lives. */
#pragma once

#include "job/job.h"

/**
 * Connects to the job's shim; where none lives, starts one, which takes the job over (and first repairs what its
 * predecessor left half done).
 */
int shim_connect(struct wire *ret, const struct job *j, struct brumate_error *err);

/** Connects to the job's shim where one lives, and starts none. -ECONNREFUSED, -ENOENT: none does. */
int shim_find(struct wire *ret, const struct job *j, struct brumate_error *err);

/** Starts a shim for the job whose directory @dir is, and waits until it can be connected to. Where one lives, the new one
 * leaves. */
int shim_start(const char *dir, struct brumate_error *err);

/** The shim at the other end; PROC_ID_NONE if it has ended. */
struct proc_id shim_identify(const struct wire *w);
