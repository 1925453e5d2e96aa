// SPDX-License-Identifier: MIT
/* The command line and the loop of steps that all test programs share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
	const char *word; /* first argument that is not an option; NULL if there is none */
	const char *path;
	uint64_t steps; /* 0: for ever */
	unsigned int interval_ms, busy_ms;
	size_t mib, chunk_mib;
	size_t leave_mib; /* 0: not given */
	int gpu, port;
};

/** Reads the options; fields not given keep what @ret holds. Bad ones end the program with 2. */
void options_parse(struct options *ret, int argc, char **argv, const char *usage);

/** Does step @n; false says the data is wrong. */
typedef bool (*step_fn)(void *state, uint64_t n);

/**
 * Prints "ready pid P", then a line a step, "@prefix() step N OK" or "… BAD", flushed, until the
 * steps asked for are done (returns) or one is bad (the program ends with 1). @prefix may be NULL.
 */
void steps_run(const struct options *options, step_fn step, void (*prefix)(void *state),
	       void *state);

/** Prints a line on stdout and flushes it. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Connects @n processes that are to be forked, each with each: links[i * max + k] is what the i-th has to the k-th. */
void links_make(int *links, unsigned int max, unsigned int n);
