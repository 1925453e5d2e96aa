// SPDX-License-Identifier: MIT
/*
 * The control block of a process that uses the simulated driver: a memfd that others find in
 * /proc/PID/fd and map. The process itself does what is asked for, on its restore thread, as on
 * hardware. A memfd survives CRIU, and two processes restored from one image do not share it.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "config.h"
#include "driver-abi.h"

#define CTL_MEMFD_NAME "brumate-sim-ctl"

enum { CTL_MAGIC = 0x42724374, CTL_VERSION = 1 };

enum ctl_op { CTL_LOCK, CTL_CHECKPOINT, CTL_RESTORE, CTL_UNLOCK, CTL_QUERY };

/** The restore's arguments, and the machine as the caller sees it: what the process wakes up on. */
struct restore_request {
	uint32_t n_pairs;
	CUcheckpointGpuPair pairs[CONFIG_GPUS_MAX];
	struct config_machine machine;
};

struct ctl {
	uint32_t magic, version;
	_Atomic uint32_t state; /* CUprocessState */
	uint32_t restore_tid;	/* as the process itself sees it */
	_Atomic uint32_t asked; /* futex of the restore thread: number of the last request */
	_Atomic uint32_t done;	/* futex of the caller: number of the last request answered */
	_Atomic uint32_t freed; /* futex of other callers: counts those that are through */
	/* Of the request, written while nothing is asked by the caller that holds the flock. */
	uint32_t op;
	uint32_t result; /* CUresult, written before done */
	uint64_t timeout_ms;
	struct restore_request restore;
};

void ctl_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns);
void ctl_futex_wake(_Atomic uint32_t *word);
