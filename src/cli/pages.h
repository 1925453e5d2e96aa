// SPDX-License-Identifier: MIT
/* What commands show for people to read, made by a file each. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

/* ---- the table of `brumate ps`, which `brumate top` shows too, and what changes it (verb-list.c, events.c) ---- */

/** Sorts the Jobs in @jobs (borrowed) and prints them. @sort: as --sort, or "newest"; @with_user: whose they are, too; @width: of the
 * terminal; 0: there is none. */
void job_table_print(json_t *jobs, const char *sort, bool with_user, FILE *f, bool headings,
		     size_t width);

/** A file descriptor (owned) that is readable once something happened to a job; read it to wait again. -errno. */
int job_table_watch(struct brumate_error *err);

/* ---- the page of `brumate inspect` about a job (job-page.c) ---- */

/** Prints the reply @o (borrowed) of Inspect about a job for people to read. */
void job_page_print(json_t *o);

/* ---- the page of `brumate inspect --restore` (foretold.c) ---- */

/** Prints the Foretold @o (borrowed) of the checkpoint at @path for people to read. */
void foretold_print(json_t *o, const char *path);
