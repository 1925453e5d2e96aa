// SPDX-License-Identifier: MIT
/* The table of `brumate ps`, which `brumate top` shows too, and what changes it. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/error.h"

/** Prints the Jobs in @jobs (borrowed). @width: of the terminal; 0: there is none. */
void job_table_print(json_t *jobs, FILE *f, bool headings, size_t width);

/** A file descriptor (owned) that is readable once something happened to a job; read it to wait again. -errno. */
int job_table_watch(struct brumate_error *err);
