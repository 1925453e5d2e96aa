// SPDX-License-Identifier: MIT
/* The row of `brumate bench`: linked by `brumate` too, for help and completion. */
#include <stddef.h>

#include "cli/options.h"
#include "edges/bench/options.h"

static const struct option_spec bench_options[] = {
	VALUE(OPT_SIZE, "size", 0, "SIZE", COMPLETES_NOTHING,
	      "device memory of the job (default: 1G)"),
	VALUE(OPT_PIECES, "pieces", 0, "MIN[-MAX]", COMPLETES_NOTHING,
	      "sizes of its buffers, doubling from MIN to MAX (default: 64M)"),
	VALUE(OPT_ZERO, "zero", 0, "PERCENT", COMPLETES_NOTHING, "percentage that is zeros"),
	VALUE(OPT_CHANGE, "change", 0, "PERCENT", COMPLETES_NOTHING,
	      "percentage that the job changes between rounds"),
	VALUE(OPT_ROUNDS, "rounds", 'r', "N", COMPLETES_NOTHING,
	      "how often to repeat each operation (default: 2; the pool is cold in the first)"),
	CHOICE(OPT_DATA_PATH, "data-path", "PATH", "broker driver both",
	       "broker, driver or both (default)"),
	DIR("checkpoint into DIR instead of the default place"),
	FLAG(OPT_NO_CHECKPOINT, "no-checkpoint", 0,
	     "only suspend and resume; write nothing to disk"),
	FLAG(OPT_SERVE, "serve", 0,
	     "measure how long clients of a server wait: for its start, for a wake, for a swap"),
	KEEP_COPY,
	VALUE(OPT_TRACE, "trace", 0, "FILE", COMPLETES_FILE, "write the phases for Perfetto"),
	SIMULATED,
	FORMAT,
	END,
};

const struct command bench_command = {
	"bench",
	NULL,
	NULL,
	"",
	"measure this machine, and the operations on a synthetic job",
	0,
	0,
	false,
	COMPLETES_NOTHING,
	NULL,
	bench_options,
	NULL,
	"brumate-bench"
};
