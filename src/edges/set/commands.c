// SPDX-License-Identifier: MIT
/* The row of `brumate set`: linked by `brumate` too, for help and completion. */
#include <stddef.h>

#include "cli/options.h"
#include "edges/set/options.h"

static const struct option_spec set_options[] = {
	NAME("checkpoint: of the set (default: of the first job, and the time)"),
	VALUE(OPT_VIA, "via", 0, "COMMAND", COMPLETES_NOTHING,
	      "runs a command on a node, %n (default: \"ssh %n\")"),
	FLAG(OPT_LEAVE_RUNNING, "leave-running", 'R', "checkpoint: the jobs go on"),
	VALUE(OPT_GPU_MAP, "gpu-map", 0, "OLD=NEW,...", COMPLETES_GPU_MAP,
	      "restore: move each member to other GPUs of its node; UUIDs, or numbers as there"),
	FLAG(OPT_TCP_CLOSE, "tcp-close", 0,
	     "checkpoint: a restore finds connections to others than the members closed"),
	TIMEOUT("give up after TIME, and have all members run on (default: 10m; 0: never)"),
	DIR("the store, which all nodes share (default: the usual one)"),
	FORCE("continue even if doctor suspects that a job may be lost"),
	FORMAT,
	END,
};

const struct command set_command = {
	"set",
	NULL,
	NULL,
	"checkpoint [NODE:]JOB...|restore SET [NODE=NODE...]|ls|rm SET",
	"checkpoint jobs of several nodes as one, and restore them",
	1,
	-1,
	false,
	COMPLETES_WORDS,
	"checkpoint restore ls rm",
	set_options,
	NULL,
	"brumate-set"
};
