// SPDX-License-Identifier: MIT
/* SHA-256 of buffers and files, by libcrypto (which uses the CPU's SHA extensions). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

#define DIGEST_BYTES	  32
#define DIGEST_TEXT_BYTES (2 * DIGEST_BYTES + 1)

struct digest {
	uint8_t bytes[DIGEST_BYTES];
};

/**
 * Whether libcrypto has set itself up, which it tries once in the life of a process. Where there was no memory for that,
 * its calls are not to be made: they would end the process (OpenSSL 3.0). What is in base looks by itself.
 */
bool digest_has_libcrypto(void);

/**
 * Has libcrypto do now what it tries only once, for a program that lives on. 0. -ENOMEM: nothing that needs libcrypto may ever
 * succeed in this process, so another one had better take its place.
 */
int digest_set_up(void);

/** Digest of a buffer. Returns 0 or -ENOMEM. */
int digest_buffer(struct digest *ret, const void *buf, size_t len_bytes);

/**
 * Digest of everything from the start of @fd to its end, by pread(2): the offset does not matter
 * and does not move. @ret_len_bytes (may be NULL) gets the bytes read. Returns 0 or -errno.
 */
int digest_file(struct digest *ret, int fd, uint64_t *ret_len_bytes);

/** Called while a file is digested, with the bytes since the last call. <0 ends the digest with it. */
typedef int (*digest_step_fn)(void *arg, size_t n_bytes);

/** digest_file() that says how far it is. @step may be NULL. */
int digest_file_steps(struct digest *ret, int fd, uint64_t *ret_len_bytes, digest_step_fn step,
		      void *arg);

/** A digest of bytes that come one after the other. */
struct digest_run;

/** Starts one (owned). 0 or -ENOMEM. */
int digest_begin(struct digest_run **ret);

/** Adds bytes. 0 or -ENOMEM. */
int digest_add(struct digest_run *run, const void *buf, size_t len_bytes);

/** The digest of all that was added; what is added then starts anew. 0 or -ENOMEM. */
int digest_take(struct digest_run *run, struct digest *ret);

/** Accepts NULL. */
void digest_run_free(struct digest_run *run);
DEFINE_AUTO(struct digest_run *, digest_run_free)

/** Lower-case hexadecimal, NUL-terminated. */
void digest_format(char ret[static DIGEST_TEXT_BYTES], const struct digest *d);

/** Reads what digest_format() wrote. Returns 0 or -EBADMSG. Pure. */
int digest_parse(struct digest *ret, const char *text);
