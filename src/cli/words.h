// SPDX-License-Identifier: MIT
/* Reading and writing the small values of a command line: durations, signals, GPU maps, sizes. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"

/** Whether @word is one of the space-separated @words (may be NULL). */
bool words_contain(const char *words, const char *word);

/** "500ms", "30s", "2m", "1h", "7d", "1.5s"; a bare number is seconds. -EINVAL names @what. */
int parse_duration(uint64_t *ret_ms, const char *what, const char *text, struct brumate_error *err);

/** How many, from 1. -EINVAL names @what. */
int parse_count(int64_t *ret, const char *what, const char *text, struct brumate_error *err);

/** A positive process id. */
int parse_pid(int64_t *ret, const char *text, struct brumate_error *err);

/** "TERM", "SIGTERM" or "15". */
int parse_signal(int *ret, const char *text, struct brumate_error *err);

/** "OLD=NEW,OLD=NEW" as an array of {from, to}; each side a UUID or a number. Owned. */
int parse_gpu_map(json_t **ret, const char *text, struct brumate_error *err);

enum { WORD_BYTES = 32 };

/** "512 B", "1.07 GB": powers of 1000. */
void format_bytes(char ret[static WORD_BYTES], uint64_t bytes);

/** The time from the RFC 3339 stamp @stamp to @now as "5s", "3m", "2h", "4d"; "-" if unreadable. */
void format_age(char ret[static WORD_BYTES], const char *stamp, time_t now);
