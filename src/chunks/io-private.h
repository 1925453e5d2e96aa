// SPDX-License-Identifier: MIT
/*
 * Inside of the I/O engine: io.c has buffers, files and what a result means; io-uring.c and io-posix.c
 * only carry requests out, and hand each result to io_step().
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "chunks/io.h"

/** A read or write under way, and the buffer it is about. */
struct io_request {
	struct io_buffer buffer; /* first: the caller has a pointer to it */
	struct io_request *next; /* in a free list, or in a queue of io-posix.c */
	struct io *io;
	struct io_file *file;
	void *memory;	/* of the pool; NULL: for memory of the caller */
	unsigned index; /* of @memory among the buffers of the pool */

	bool write, busy;
	bool direct; /* as the file was when this attempt began */
	char *data;
	size_t len_bytes, done_bytes; /* as asked of the kernel: padded where it must be */
	uint64_t offset;
	size_t want_skip, want_bytes; /* of a read, the part that the caller asked for */
	unsigned tries;		      /* in a row without gain */
	int error;
};

/** What to ask the kernel for next. */
struct io_attempt {
	void *data;
	size_t len_bytes;
	uint64_t offset;
	int fd;
};
struct io_attempt io_attempt(struct io_request *q);

/** Takes the result (bytes, or -errno) of an attempt. True: @q is done with and may be gone; false: it
 * wants another attempt, by io_dispatch(). */
bool io_step(struct io_request *q, ssize_t result);

/** Carries @q out by whatever its file allows now. */
void io_dispatch(struct io_request *q);

struct io_uring_engine;
/** For up to @depth requests at a time. @buffers (borrowed) are registered where that is allowed. */
int io_uring_engine_new(struct io_uring_engine **ret, unsigned depth, const struct iovec *buffers,
			unsigned n);
void io_uring_engine_free(struct io_uring_engine *e); /* accepts NULL; nothing is in flight */
void io_uring_engine_submit(struct io_uring_engine *e, struct io_request *q);

struct io_posix_engine;
int io_posix_engine_new(struct io_posix_engine **ret);
void io_posix_engine_free(struct io_posix_engine *e); /* accepts NULL; nothing is in flight */
void io_posix_engine_submit(struct io_posix_engine *e, struct io_request *q);

/** One attempt by a plain call. Returns bytes or -errno. */
ssize_t io_posix_attempt(struct io_request *q);
