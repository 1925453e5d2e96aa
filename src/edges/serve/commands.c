// SPDX-License-Identifier: MIT
/* The rows of `brumate serve`, `share` and `http`: linked by `brumate` too, for help and completion. */
#include <stddef.h>

#include "cli/options.h"
#include "edges/serve/options.h"

static const struct option_spec serve_options[] = {
	VALUE(OPT_IDLE_AFTER, "idle-after", 0, "TIME", COMPLETES_NOTHING,
	      "suspend those that have not used their GPU for TIME (default: IdleAfter=)"),
	VALUE(OPT_LABEL, "label", 0, "KEY=VALUE", COMPLETES_LABEL,
	      "only jobs with this label; may be repeated (default: all of run --wake)"),
	FLAG(OPT_DRY_RUN, "dry-run", 0, "show what would be suspended now, and end"),
	END,
};

const struct command serve_command = {
	"serve",
	NULL,
	"autosuspend idle scheduler",
	"",
	"suspend servers that nobody asks, until it is stopped",
	0,
	0,
	false,
	COMPLETES_NOTHING,
	NULL,
	serve_options,
	NULL,
	"brumate-serve",
};

static const struct option_spec share_options[] = {
	VALUE(OPT_SLICE, "slice", 0, "TIME", COMPLETES_NOTHING,
	      "how long each of them has its GPUs (default: Slice=)"),
	VALUE(OPT_LABEL, "label", 0, "KEY=VALUE", COMPLETES_LABEL,
	      "all jobs with this label, in the place of JOB...; may be repeated"),
	FLAG(OPT_DRY_RUN, "dry-run", 0, "show what would be done now, and end"),
	END,
};

const struct command share_command = {
	"share",
	NULL,
	"timeslice rotate turns",
	"[JOB...]",
	"have jobs take turns on the GPUs that they share",
	0,
	-1,
	false,
	COMPLETES_LIVING,
	NULL,
	share_options,
	NULL,
	"brumate-serve",
};

static const struct option_spec http_options[] = {
	VALUE(OPT_SOCKET, "socket", 0, "PATH", COMPLETES_FILE,
	      "where to listen (default: http.sock in the runtime directory)"),
	END,
};

const struct command http_command = {
	"http",
	NULL,
	"rest api",
	"",
	"answer programs that speak HTTP at a unix socket",
	0,
	0,
	false,
	COMPLETES_NOTHING,
	NULL,
	http_options,
	NULL,
	"brumate-serve",
};
