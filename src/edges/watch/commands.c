// SPDX-License-Identifier: MIT
/* The rows of `brumate top` and `metrics`: linked by `brumate` too, for help and completion. */
#include <stddef.h>

#include "cli/options.h"
#include "edges/watch/options.h"

static const struct option_spec top_options[] = { ALL_USERS("jobs"), END };

const struct command top_command = { "top",
				     NULL,
				     "stats monitor watch",
				     "",
				     "watch jobs, GPUs and operations",
				     0,
				     0,
				     false,
				     COMPLETES_NOTHING,
				     NULL,
				     top_options,
				     NULL,
				     "brumate-watch" };

static const struct option_spec metrics_options[] = {
	VALUE(OPT_TEXTFILE, "textfile", 0, "FILE", COMPLETES_FILE,
	      "write to FILE, for node_exporter"),
	VALUE(OPT_LISTEN, "listen", 0, "ADDRESS:PORT", COMPLETES_NOTHING,
	      "answer HTTP requests there, until a signal comes"),
	ALL_USERS("jobs"),
	FLAG(OPT_NAMES, "names", 0, "include the names of jobs, even if others can read them"),
	END,
};

const struct command metrics_command = { "metrics",
					 NULL,
					 NULL,
					 "",
					 "show jobs, operations and checkpoints for Prometheus",
					 0,
					 0,
					 false,
					 COMPLETES_NOTHING,
					 NULL,
					 metrics_options,
					 NULL,
					 "brumate-watch" };
