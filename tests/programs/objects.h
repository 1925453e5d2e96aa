// SPDX-License-Identifier: MIT
/*
 * A program made of kernel objects: kinds of them are chosen by name, their details by a seed. It looks at all that system
 * calls tell of it, in reports that are the same for as long as nothing has changed (tests/differential.py).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** A kind of object. */
struct kind {
	const char *name;
	/** Makes it, and registers what is to be looked at; false: not possible here. */
	bool (*make)(void);
	/** Uses it: it has to work as one just made, each time. Returns what is wrong; NULL: nothing. May be NULL. */
	const char *(*use)(void);
	int detail; /* for makers that several kinds share */
};

extern const struct kind kinds_of_files[], kinds_of_sockets[], kinds_of_memory[],
	kinds_of_tasks[];	/* end with a NULL name */
extern const struct kind *kind; /* the one that is being made or used */

/** A number below @n, from the seed. */
unsigned chance(unsigned n);

/** A path in the program's directory that no other object has. Valid for good. */
const char *new_path(const char *suffix);

/** Has the object looked at in each report, as @label of the kind that is being made. -1 as @fd: not possible here. */
bool look_at_fd(int fd, const char *label);
bool look_at_memory(void *p, size_t len, const char *label);
bool look_at_child(pid_t pid, const char *label);
bool look_at_path(const char *path, const char *label);

/** Runs @looks in the report, which says more of an object with fact(). */
bool look_by(void (*looks)(void *arg), void *arg);

/** A line of the report. */
void fact(const char *key, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** A thread that does nothing but look at itself in each report, once @set has changed it. Waits for it; false: @set failed. */
bool look_at_thread(bool (*set)(void), const char *label);

/** A child that does nothing, once @set (may be NULL) has changed it; its pid, or -1 if @set failed. */
pid_t idle_child(bool (*set)(void));

/** Bytes that only this object has. */
void pattern(void *p, size_t len);

/** Reads or writes all of it within a second. */
bool passes(int from, int to);

/** Whether @fd becomes readable within @ms. */
bool is_readable(int fd, int ms);
