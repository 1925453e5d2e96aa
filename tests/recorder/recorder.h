// SPDX-License-Identifier: MIT
/*
 * Records what a program does to the files below one directory, and makes of it what a crash of the
 * machine may have left. Linked into a test with --wrap for each of the calls (meson.build): no
 * preloading, so that it also works under sanitizers. Not part of the product.
 *
 * The model is the promise of POSIX and no more: the bytes of a file are safe from its fsync(2) or
 * fdatasync(2) on, a name from the fsync(2) of its directory on. What was not synced may be lost or
 * there, each by itself; a file may have its length and not its bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum record_kind {
	RECORD_CREATE, /* file @node, or directory, as @name in @dir */
	RECORD_LINK,
	RECORD_UNLINK, /* @name of @dir; directories too */
	RECORD_RENAME, /* @name of @dir to @name2 of @dir2 */
	RECORD_WRITE,
	RECORD_LENGTH, /* @len_bytes long from now on */
	RECORD_SYNC,
	RECORD_MARK, /* @name: what the test says */
};

struct record {
	enum record_kind kind;
	bool is_dir;
	unsigned node, dir, dir2;
	char *name, *name2;
	uint64_t offset, len_bytes;
	uint8_t *data;
};

/** Starts with the empty directory @root, which is node 0. Calls that fail are not recorded. */
void record_start(const char *root);

/** Puts a note of the test among the records. */
void record_mark(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Ends; @ret_n records (borrowed, until record_free()). */
const struct record *record_stop(size_t *ret_n);
void record_free(void);

/** The files as they are for programs, and as they are safe. */
struct replay;
struct replay *replay_new(void);
void replay_free(struct replay *p);
void replay_apply(struct replay *p, const struct record *r);

/** Calls @fn for every different thing that a crash right now may leave and that was not tried since
 * the last mark, as a directory at @root, which is emptied before and after. @how says what was lost. */
void replay_crashes(struct replay *p, const char *root, void (*fn)(void *arg, const char *how),
		    void *arg);

/** Makes @root what programs see right now. */
void replay_write(struct replay *p, const char *root);
