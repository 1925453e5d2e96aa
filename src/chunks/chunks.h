// SPDX-License-Identifier: MIT
/*
 * Memory of a job in a checkpoint: regions are cut into chunks of CHUNK_BYTES, each identified by its digest
 * (base/chunk.h). Chunks of zeros are not stored, the others are stored raw or compressed in pack files below
 * "memory/" of the checkpoint. A pack whose chunks an earlier checkpoint of the same store has already is linked
 * (link(2)) rather than written again, so that every checkpoint is complete by itself and removing one never affects
 * another. Format: docs/image-format.md.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "image/manifest.h"
#include "chunks/key.h"

enum chunks_compress {
	CHUNKS_COMPRESS_AUTO,
	CHUNKS_COMPRESS_NONE,
	CHUNKS_COMPRESS_LZ4,
	CHUNKS_COMPRESS_ZSTD,
	CHUNKS_COMPRESS__MAX
};

/** The length of a chunk. The last chunk of a region may be shorter. */
#define CHUNK_BYTES CHUNK_BYTES_MAX

/** Reads "auto", "none", "lz4" or "zstd". Returns 0, or -EINVAL for another word. Pure. */
int chunks_parse_compress(enum chunks_compress *ret, const char *word);

/** Returns the word for @compress. */
const char *chunks_compress_word(enum chunks_compress compress);

/** How memory is written. Zeros are good defaults. */
struct chunks_options {
	/* The id of the job, borrowed: its checkpoints are the first candidates for sharing. */
	const char *job;
	uid_t uid; /* of the job: nothing is shared with jobs of other users */
	enum chunks_compress compress;
	unsigned threads; /* 0: by the number of cores */
	bool no_sharing;  /* write every chunk, link nothing */
};

/** Sums over the memory, in bytes. */
struct chunks_sums {
	uint64_t total;
	uint64_t zero;	  /* of total: not stored */
	uint64_t shared;  /* of total: in an earlier checkpoint, or repeated */
	uint64_t written; /* in new packs, after compression */
};

/** The checkpoint that is being written. */
struct chunks_target {
	int dir_fd;		     /* its directory "memory", which is empty */
	const char *id, *path;	     /* of the checkpoint, for messages */
	const struct store_key *key; /* NULL: not encrypted */
	struct chunk_index
		*known; /* chunks that can be shared with earlier checkpoints; NULL: none */
};

struct chunks_writer;

/** Starts to write the memory of @target. Takes its dir_fd and known, also on failure; the rest is borrowed until the
 * end. */
int chunks_begin(struct chunks_writer **ret, const struct chunks_target *target,
		 const struct chunks_options *options, struct brumate_error *err);

/**
 * Adds a region (manifest.h) whose bytes are at @offset of @fd: a regular file, tmpfs file or memfd. It is mapped, so
 * @fd may be closed after the call, but its content must not change or shrink until chunks_writer_free(). Returns at
 * once; threads digest, compress and write. Errors of the background work are returned by chunks_end(). @offset:
 * fastest at a multiple of 4096.
 */
int chunks_add(struct chunks_writer *m, const struct manifest_region *region, int fd,
	       uint64_t offset, struct brumate_error *err);

/**
 * Like chunks_add(), for a region whose chunks' digests (chunk_digest(); copied) are known, so that no thread
 * computes them or looks for zeros. An encrypted checkpoint needs other digests, which are computed. The region's
 * length is a multiple of CHUNK_BYTES. With wrong digests the checkpoint cannot be restored.
 */
int chunks_add_known(struct chunks_writer *m, const struct manifest_region *region, int fd,
		     uint64_t offset, const struct digest *digests, struct brumate_error *err);

/** Like chunks_add(), for a region whose bytes are at @data in our memory (borrowed: they must not change until
 * chunks_writer_free()). Fastest at a multiple of 4096. */
int chunks_add_bytes(struct chunks_writer *m, const struct manifest_region *region,
		     const void *data, struct brumate_error *err);

/** Reads bytes of a region: called from several threads, chunk by chunk, until chunks_end(), more than once for some.
 * <0 ends the writing with that code. */
typedef int (*chunks_source_fn)(void *arg, uint64_t offset, void *buf, size_t len_bytes);

/** Like chunks_add(), for a region whose bytes @source reads, such as those of a stopped process. */
int chunks_add_from(struct chunks_writer *m, const struct manifest_region *region,
		    chunks_source_fn source, void *arg, struct brumate_error *err);

/** Waits for all regions, writes the chunk table, syncs, and fills in the memory of @manifest. Returns 0 or the first
 * failure (-ENOSPC, -EIO …). @cancelled (may be NULL) is called ten times a second. */
int chunks_end(struct chunks_writer *m, struct manifest *manifest, struct chunks_sums *ret,
	       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err);

/** Stops the threads and frees the writer. Accepts NULL. */
void chunks_writer_free(struct chunks_writer *m);
DEFINE_AUTO(struct chunks_writer *, chunks_writer_free)

struct chunks_reader;

/** Packs of a checkpoint that are not in its directory. */
struct pack_source {
	unsigned threads; /* how many threads may read at a time, at least 1 */

	/** Opens a reader for one thread, which is passed to the other functions. It is owned until close(). */
	int (*open)(void *arg, void **ret_reader, struct brumate_error *err);

	/** Fills @buf with @len_bytes from @offset of the manifest's pack number @pack. Returns 0, or -errno if any is
	 * missing. */
	int (*read)(void *reader, uint32_t pack, uint64_t offset, void *buf, size_t len_bytes,
		    struct brumate_error *err);

	/** Makes reads of this reader, under way and later, fail with -ECANCELED. From any thread. */
	void (*stop)(void *reader);

	void (*close)(void *reader);
	void *arg;
};

/** Opens the memory of the checkpoint in the directory @dir_fd, which need not be committed. @key decrypts it (NULL:
 * sealed chunks cannot be loaded); @source has its packs (NULL: they are files). All are borrowed. Errors to act on:
 * -ENOENT (it has no memory in chunks), -EBADMSG. */
int chunks_open(struct chunks_reader **ret, int dir_fd, const struct manifest *manifest,
		const struct store_key *key, const struct pack_source *source,
		struct brumate_error *err);
void chunks_reader_free(struct chunks_reader *m); /* accepts NULL */
DEFINE_AUTO(struct chunks_reader *, chunks_reader_free)

/** Reads packs that are in memory (tmpfs) through mappings, which is more than twice as fast with many threads. For
 * our own programs only: see base/mapped.h. */
void chunks_reader_map(struct chunks_reader *m);

/**
 * Receives bytes of a region. Called from several threads at once, chunk by chunk in no particular order. The bytes
 * were verified; @data NULL means @len_bytes zeros. <0 ends the load with that code.
 */
typedef int (*chunks_sink_fn)(void *arg, uint64_t offset, const void *data, size_t len_bytes);

/** The destination of region @index of the manifest. */
struct chunks_place {
	size_t index;
	chunks_sink_fn sink;
	void *arg; /* borrowed */
};

/** Loads @n regions at the same time, by @threads threads (0: as many as there are cores). The error of -EBADMSG
 * names file, chunk and range. @cancelled (may be NULL) is called ten times a second. */
int chunks_load_all(struct chunks_reader *m, const struct chunks_place *places, size_t n,
		    unsigned threads, bool (*cancelled)(void *arg), void *arg,
		    struct brumate_error *err);

/** CHUNK_BYTES of region @region from @part * CHUNK_BYTES on. They are stored (chunks_part_is_stored()). */
struct chunks_part {
	uint32_t region, part;
};

/** Parts that are read in a given order, a bounded number at a time. Functions are called from several threads. */
struct chunks_stream {
	const struct chunks_part *parts;
	size_t n;
	bool unverified; /* the caller compares the digests */
	/* Makes room for @item and all before it. With @block, waits for that. Returns 1; 0: not yet; -ECANCELED. */
	int (*admit)(void *arg, size_t item, bool block);
	void *(*room)(void *arg, size_t item); /* for CHUNK_BYTES: at a multiple of 4096 */
	int (*filled)(void *arg, size_t item); /* the part has been read. <0: stopped */
	void (*stop)(void *arg); /* the load failed or was cancelled: ends all waiting */
	void *arg;
};

/** Loads @s. A chunk that is wanted for several parts is read once, as far as a bounded amount of memory keeps it. -EINVAL: a part is
 * not stored, or shorter. Other errors as for chunks_load_all(). */
int chunks_load_stream(struct chunks_reader *m, const struct chunks_stream *s,
		       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err);

/** Whether part @part of region @index, the CHUNK_BYTES from @part * CHUNK_BYTES on, exists and is not all zeros. */
bool chunks_part_is_stored(const struct chunks_reader *m, size_t index, uint64_t part);

/**
 * Reads the digests (chunk_digest()) of the @n chunks of region @index, whose length is a multiple of
 * CHUNK_BYTES_MAX. Returns 1; 0 if the digests are keyed, so that those of the plain bytes are unknown; -EINVAL,
 * -ENOMEM.
 */
int chunks_digests(const struct chunks_reader *m, size_t index, struct digest *ret, size_t n);

/** Chunks of a checkpoint, and how many of them another one has. */
struct chunks_common {
	uint64_t chunks, same_chunks, same_bytes;
};

/** Counts the chunks of @to that @from has, too, by their tables. NULL: a checkpoint without memory. 0 or -ENOMEM. */
int chunks_compare(struct chunks_common *ret, const struct chunks_reader *from,
		   const struct chunks_reader *to);
