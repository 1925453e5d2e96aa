// SPDX-License-Identifier: MIT
/*
 * Reads and writes of large files, many at a time, past the page cache where the file system lets us:
 * O_DIRECT through io_uring, or through a few threads where there is no io_uring, or by plain calls
 * where there is no O_DIRECT; the caller sees no difference. Memory is bounded: a write waits until
 * one of a fixed number of buffers is free. Several files, on several devices, share one struct io;
 * all functions may be called from any thread.
 *
 * Writing, from any number of threads:
 *	b = io_buffer_get(io);  fill b->data;  io_write(f, b, len_bytes, offset);
 * and at the end io_file_finish(f, exact length of the file).
 * Reading:
 *	b = io_buffer_get(io);  io_read(f, b, len_bytes, offset);  …  io_read_wait(b, &data);
 *	use data;  io_buffer_put(b);
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

#define IO_ALIGN_BYTES 4096

enum io_engine {
	IO_ENGINE_AUTO, /* io_uring where the kernel has it for us; BRUMATE_IO=uring|posix decides it */
	IO_ENGINE_URING,
	IO_ENGINE_POSIX,
};

/** Zeros are good defaults. */
struct io_options {
	enum io_engine engine;
	unsigned buffers;    /* how many; 0: 32 */
	size_t buffer_bytes; /* of each, a multiple of IO_ALIGN_BYTES; 0: 2 MiB */
	unsigned writes;     /* io_write_memory() at a time; 0: 32 */
	bool maps;	     /* reads of files in memory go by mappings (base/mapped.h) */
};

struct io;
struct io_file;

/** Whether @fd is on a file system in memory. There all is a copy, and nothing waits for a disk. */
bool io_is_in_memory(int fd);

/** The engine for files in the directory @fd: IO_ENGINE_AUTO, but in memory IO_ENGINE_POSIX, as none of them would use
 * io_uring. */
enum io_engine io_engine_for(int fd);

/** A buffer of the pool, aligned to IO_ALIGN_BYTES. Room for the buffer_bytes asked for. */
struct io_buffer {
	void *data;
};

/** @options may be NULL. -ENOMEM; with IO_ENGINE_URING also what io_uring_setup(2) says. */
int io_new(struct io **ret, const struct io_options *options, struct brumate_error *err);

/** All files must be closed and all buffers put back. Accepts NULL. */
void io_free(struct io *io);
DEFINE_AUTO(struct io *, io_free)

/** The engine in use: IO_ENGINE_URING or IO_ENGINE_POSIX. */
enum io_engine io_engine(const struct io *io);

/** Creates @name in @dir_fd, 0600, which must not exist, for writing. -errno: -EEXIST, -ENOSPC … */
int io_file_create(struct io_file **ret, struct io *io, int dir_fd, const char *name);

/** A regular file that is open as @fd already, for reading, writing or both. Takes @fd, on failure too;
 * nobody else may use its open file description (it is made O_DIRECT). */
int io_file_new(struct io_file **ret, struct io *io, int fd);

/** Waits for what is in flight and closes; errors are lost. Accepts NULL. */
void io_file_close(struct io_file *f);
DEFINE_AUTO(struct io_file *, io_file_close)

/** Waits for all writes to @f. 0, or the first of its errors since it was opened: -ENOSPC, -EIO … */
int io_file_drain(struct io_file *f);

/** io_file_drain(), then makes the file @len_bytes long (writes are padded to the alignment, and room
 * is taken ahead of them) and fdatasync(2)s it. The directory is the caller's (sync_dir()). */
int io_file_finish(struct io_file *f, uint64_t len_bytes);

/** Waits for a free buffer (never NULL). A thread that holds several must leave some to the others. */
struct io_buffer *io_buffer_get(struct io *io);

/** Gives back a buffer that io_write() did not take. Accepts NULL. Waits for its read, if any. */
void io_buffer_put(struct io_buffer *b);

/**
 * Writes @len_bytes of @b->data at @offset, a multiple of IO_ALIGN_BYTES. Takes @b, on failure too.
 * Where @len_bytes is not a multiple, zeros follow up to the next one: only for the end of a file. Returns
 * at once: 0, or an error that this file met before, and nothing is written. Errors of this write come
 * from the next calls.
 */
int io_write(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset);

/** As io_write() from memory of the caller, which must stay as it is until io_file_drain(). All three
 * are multiples of IO_ALIGN_BYTES. Waits while too many such writes are under way. */
int io_write_memory(struct io_file *f, const void *data, size_t len_bytes, uint64_t offset);

/** Starts to read @len_bytes (at most buffer_bytes) from any @offset into @b, which stays the caller's. */
void io_read(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset);

/** As io_read() to memory of the caller, which stays as it is until io_read_wait(): @b is only what it is waited
 * for by. All three are multiples of IO_ALIGN_BYTES. */
void io_read_memory(struct io_file *f, struct io_buffer *b, void *to, size_t len_bytes,
		    uint64_t offset);

/** Waits for it. Returns the bytes read, fewer than asked for only at the end of the file, and where they
 * are (inside @b, or where io_read_memory() was told) in @ret_data; or -errno. */
ssize_t io_read_wait(struct io_buffer *b, const void **ret_data);
