// SPDX-License-Identifier: MIT
/* Operations as people see them: a line while they run, a summary afterwards. All on stderr. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/** The progress line; nothing is shown where stderr is no terminal. */
struct progress {
	const char *verb; /* "suspend" */
	bool shown;	  /* a line stands there now */
	char phase[64];	  /* for the rate: bytes and time count from the start of the phase */
	uint64_t phase_start_ns;
	uint64_t phase_start_bytes;
};

/** A wire_reply_fn: @arg is a struct progress. */
void progress_show(void *arg, json_t *reply);

/** Takes the line away. */
void progress_clear(struct progress *p);

/** Writes the line for @o (a Progress) to @ret; pure. @gbps 0: unknown. */
void progress_format(char *ret, size_t room, const char *verb, json_t *o, double gbps);

/** Prints the Summary @o as a table with a closing line, and its notes. */
void summary_print(json_t *o);
