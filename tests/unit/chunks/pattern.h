// SPDX-License-Identifier: MIT
/* Files of a known pattern, written and read through the I/O engine, for its tests. */
#pragma once

#include <stdint.h>

#include "scratch.h"
#include "chunks/io.h"

enum { BLOCK = IO_ALIGN_BYTES };

static const enum io_engine engines[] = { IO_ENGINE_POSIX, IO_ENGINE_URING };

static inline uint64_t word_at(uint64_t seed, uint64_t offset)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + offset;

	x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 29;
}

static inline void fill_pattern(void *buf, size_t len, uint64_t seed, uint64_t offset)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t w = word_at(seed, offset + i);

		memcpy((char *)buf + i, &w, len - i < 8 ? len - i : 8);
	}
}

/* @offset: a multiple of 8 */
static inline bool is_pattern(const void *buf, size_t len, uint64_t seed, uint64_t offset)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t w = word_at(seed, offset + i);

		if (memcmp((const char *)buf + i, &w, len - i < 8 ? len - i : 8))
			return false;
	}
	return true;
}

/* An engine, or NULL where this machine has no io_uring for us. */
static inline struct io *open_io(enum io_engine engine, unsigned buffers, size_t buffer_bytes)
{
	struct io_options o = { .engine = engine,
				.buffers = buffers,
				.buffer_bytes = buffer_bytes,
				.writes = buffers };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct io *io = NULL;
	int r = io_new(&io, &o, &err);

	if (r < 0 && engine == IO_ENGINE_URING) {
		printf("without io_uring: %s\n", err.text);
		return NULL;
	}
	CHECK(r == 0 && io_engine(io) == engine);
	return io;
}

/* Writes [0, len) of the pattern in pieces of @piece. Returns the first error. */
static inline int write_pattern(struct io *io, struct io_file *f, uint64_t seed, uint64_t len,
				size_t piece)
{
	for (uint64_t at = 0; at < len; at += piece) {
		struct io_buffer *b = io_buffer_get(io);
		size_t n = len - at < piece ? len - at : piece;

		fill_pattern(b->data, n, seed, at);
		int r = io_write(f, b, n, at);
		if (r < 0)
			return r;
	}
	return 0;
}

static inline void check_piece(struct io_buffer *b, uint64_t seed, uint64_t at, size_t want)
{
	const void *data = NULL;
	ssize_t n = io_read_wait(b, &data);

	CHECK(n == (ssize_t)want && is_pattern(data, want, seed, at));
	io_buffer_put(b);
}

/* Reads the file back, two pieces at a time. */
static inline void check_pattern(struct io *io, struct io_file *f, uint64_t seed, uint64_t len,
				 size_t piece)
{
	struct io_buffer *ahead = NULL;
	uint64_t ahead_at = 0;

	for (uint64_t at = 0; at < len; at += piece) {
		struct io_buffer *b = io_buffer_get(io);

		io_read(f, b, piece, at);
		if (ahead)
			check_piece(ahead, seed, ahead_at, piece);
		ahead = b;
		ahead_at = at;
	}
	if (ahead)
		check_piece(ahead, seed, ahead_at, len - ahead_at);
}

static inline struct io_file *open_file(struct io *io, const char *path)
{
	struct io_file *f = NULL;

	CHECK(io_file_new(&f, io, open(path, O_RDONLY | O_CLOEXEC)) == 0);
	return f;
}

static inline off_t size_of(const char *path)
{
	struct stat st;

	CHECK(stat(path, &st) == 0);
	return st.st_size;
}
