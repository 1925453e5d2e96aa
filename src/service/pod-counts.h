// SPDX-License-Identifier: MIT
/*
 * What the checkpoints of pods came to that were asked for here, for monitoring: counts.json in the directory "pods"
 * beside the jobs. It stays when the command has ended.
 */
#pragma once

#include "job/counts.h"

/** Adds one checkpoint of a pod, of the kind "checkpoint". What cannot be written is lost, and said in the log. */
void pod_count(const struct job_outcome *outcome);

/** All of them, as job_counts() has them (owned). */
json_t *pod_counts(void);
