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
 * Whether libcrypto could initialise itself, which it tries once in a process. If there was no memory for that, it
 * must not be called: it would end the process (OpenSSL 3.0). The functions of this folder check this themselves.
 */
bool digest_has_libcrypto(void);

/**
 * Makes libcrypto do now what it tries only once, for a long-lived program. 0. -ENOMEM: calls that need libcrypto may
 * never succeed in this process, so a new process should replace it.
 */
int digest_set_up(void);

/** Digest of a buffer. Returns 0 or -ENOMEM. */
int digest_buffer(struct digest *ret, const void *buf, size_t len_bytes);

/**
 * Digest of the whole file @fd, by pread(2), which does not use the file's offset. @ret_len_bytes (may be NULL) gets
 * the bytes read. Returns 0 or -errno.
 */
int digest_file(struct digest *ret, int fd, uint64_t *ret_len_bytes);

/** Called while a file is digested, with the bytes since the last call. <0 ends the digest with that code. */
typedef int (*digest_step_fn)(void *arg, size_t n_bytes);

/** digest_file() with progress. @step may be NULL. */
int digest_file_steps(struct digest *ret, int fd, uint64_t *ret_len_bytes, digest_step_fn step,
		      void *arg);

/** A digest of bytes that are added one after the other. */
struct digest_run;

/** Starts one (owned). 0 or -ENOMEM. */
int digest_begin(struct digest_run **ret);

/** Adds bytes. 0 or -ENOMEM. */
int digest_add(struct digest_run *run, const void *buf, size_t len_bytes);

/** The digest of all that was added; the next bytes start a new digest. 0 or -ENOMEM. */
int digest_take(struct digest_run *run, struct digest *ret);

/** Accepts NULL. */
void digest_run_free(struct digest_run *run);
DEFINE_AUTO(struct digest_run *, digest_run_free)

/** Lower-case hexadecimal, NUL-terminated. */
void digest_format(char ret[static DIGEST_TEXT_BYTES], const struct digest *d);

/** Parses the output of digest_format(). Returns 0 or -EBADMSG. Pure. */
int digest_parse(struct digest *ret, const char *text);

/** A number for tables of digests, which are as good as random. */
size_t digest_hash(const struct digest *d);
