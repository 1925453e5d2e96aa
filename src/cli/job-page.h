// SPDX-License-Identifier: MIT
/* The page of `brumate inspect` about a job. */
#pragma once

#include <jansson.h>

/** Prints the reply @o (borrowed) of Inspect about a job for people to read. */
void job_page_print(json_t *o);
