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
	IO_ENGINE_AUTO, /* io_uring if available; BRUMATE_IO=uring|posix overrides it */
	IO_ENGINE_URING,
	IO_ENGINE_POSIX,
};

/** Zeros are good defaults. */
struct io_options {
	enum io_engine engine;
	unsigned buffers;    /* how many; 0: 32 */
	size_t buffer_bytes; /* of each, a multiple of IO_ALIGN_BYTES; 0: 2 MiB */
	unsigned writes;     /* number of concurrent io_write_memory() calls; 0: 32 */
	bool maps;	     /* read files in memory through mappings (base/mapped.h) */
};

struct io;
struct io_file;

/** Whether @fd is on a file system in memory, where all I/O is copying, and nothing waits for a disk. */
bool io_is_in_memory(int fd);

/** The engine for files in the directory @fd: IO_ENGINE_AUTO; in memory IO_ENGINE_POSIX, as io_uring has no advantage
 * there. */
enum io_engine io_engine_for(int fd);

/** A buffer of the pool, aligned to IO_ALIGN_BYTES, of the requested buffer_bytes. */
struct io_buffer {
	void *data;
};

/** @options may be NULL. -ENOMEM; with IO_ENGINE_URING also the errors of io_uring_setup(2). */
int io_new(struct io **ret, const struct io_options *options, struct brumate_error *err);

/** All files must be closed and all buffers returned. Accepts NULL. */
void io_free(struct io *io);
DEFINE_AUTO(struct io *, io_free)

/** The engine in use: IO_ENGINE_URING or IO_ENGINE_POSIX. */
enum io_engine io_engine(const struct io *io);

/** Creates @name in @dir_fd, 0600, for writing. It must not exist. -errno: -EEXIST, -ENOSPC … */
int io_file_create(struct io_file **ret, struct io *io, int dir_fd, const char *name);

/** For a regular file that is already open as @fd, for reading, writing or both. Takes @fd, also on failure; its open
 * file description must not be used elsewhere (it is set to O_DIRECT). */
int io_file_new(struct io_file **ret, struct io *io, int fd);

/** Waits for requests in flight and closes; errors are lost. Accepts NULL. */
void io_file_close(struct io_file *f);
DEFINE_AUTO(struct io_file *, io_file_close)

/** Waits for all writes to @f. 0, or their first error since it was opened: -ENOSPC, -EIO … */
int io_file_drain(struct io_file *f);

/** io_file_drain(), then truncates the file to @len_bytes (writes are padded to the alignment, and space is allocated
 * ahead) and fdatasync(2)s it. Syncing the directory is left to the caller (sync_dir()). */
int io_file_finish(struct io_file *f, uint64_t len_bytes);

/** Waits for a free buffer (never NULL). A thread that holds several must leave some for others. */
struct io_buffer *io_buffer_get(struct io *io);

/** Returns a buffer that io_write() did not take. Waits for its read, if any. Accepts NULL. */
void io_buffer_put(struct io_buffer *b);

/**
 * Writes @len_bytes of @b->data at @offset, a multiple of IO_ALIGN_BYTES. Takes @b, also on failure. If @len_bytes is
 * not a multiple, zeros are added up to the next one: only for the end of a file. Returns at once: 0, or an earlier
 * error of this file, and nothing is written. Errors of this write are returned by later calls.
 */
int io_write(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset);

/** Like io_write(), from memory of the caller, which must not change until io_file_drain(). All three are multiples
 * of IO_ALIGN_BYTES. Waits while too many such writes are under way. */
int io_write_memory(struct io_file *f, const void *data, size_t len_bytes, uint64_t offset);

/** Starts to read @len_bytes (at most buffer_bytes) from any @offset into @b, which stays with the caller. */
void io_read(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset);

/** Like io_read(), to memory of the caller, which must exist until io_read_wait(); @b only identifies the read. All
 * three are multiples of IO_ALIGN_BYTES. */
void io_read_memory(struct io_file *f, struct io_buffer *b, void *to, size_t len_bytes,
		    uint64_t offset);

/** Waits for the read. Returns the bytes read, fewer than asked for only at the end of the file, and in @ret_data
 * their place (inside @b, or in the memory passed to io_read_memory()); or -errno. */
ssize_t io_read_wait(struct io_buffer *b, const void **ret_data);
