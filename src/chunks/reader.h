// SPDX-License-Identifier: MIT
/* Reads chunks of a checkpoint with several threads, in the order of the disk, to load regions or to verify all
 * chunks. */
#pragma once

#include <pthread.h>

#include "image/chunk-table.h"
#include "chunks/io.h"
#include "chunks/chunks.h"

/** A pack that is being read. It is open while in use. */
struct chunks_pack {
	struct io_file *file;
	unsigned users;
};

struct chunks_reader {
	int dir_fd; /* of the checkpoint; borrowed, as is the manifest */
	const struct manifest *manifest;
	const struct store_key *key;	  /* borrowed; NULL: sealed chunks cannot be loaded */
	const struct pack_source *source; /* borrowed; NULL: packs are files below dir_fd */
	bool maps;			  /* read packs in memory through mappings */
	struct chunk_table table;
	struct chunks_pack *packs; /* under lock, like all below */
	struct io *spare;	   /* kept from the last reading for the next; NULL: none */
	unsigned spare_buffers;
	pthread_mutex_t lock;
};

/** Bytes handled so far. <0 stops the operation with that code. Called in the caller's thread. */
typedef int (*chunks_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** A chunk whose stored bytes are not those that were saved. */
struct chunks_damage {
	const char *path; /* of its pack; borrowed */
	const struct chunk_record *record;
	const char *text; /* the chunk, what is wrong, and what of the job it holds; borrowed */
};
typedef void (*chunks_damage_fn)(void *arg, const struct chunks_damage *damage);

/**
 * Compares every chunk of every pack with its digests, including those that this checkpoint does not use.
 * With @tell it continues to the end, reports each damaged chunk, and returns their number; it skips packs that are
 * missing or of the wrong length. Without, the first damaged chunk is -EBADMSG. 0 if there is no memory.
 */
int chunks_verify(int dir_fd, const struct manifest *manifest, chunks_damage_fn tell,
		  void *tell_arg, chunks_progress_fn progress, void *arg,
		  struct brumate_error *err);

/** A stored chunk as it was read. */
struct stored_chunk {
	const struct chunks_reader *reader;
	const struct chunk_record *record;
	size_t item;	    /* in the list that is read */
	const void *stored; /* chunk_padded(record->stored_bytes); NULL: could not be read, see r */
	int r;
	const void *ready;   /* in place of what is stored: its bytes, from chunks_task.ready() */
	struct codec *codec; /* of this thread */
};

/** Receives a chunk, in one of the threads. <0 ends the reading with that code. */
typedef int (*stored_chunk_fn)(void *arg, const struct stored_chunk *c, struct brumate_error *err);

/** A reading: which chunks, and what is done with them. */
struct chunks_task {
	const uint32_t *chunks; /* of the table, fastest in ascending order; NULL: all */
	size_t n;
	unsigned threads; /* 0: by the number of cores */
	stored_chunk_fn fn;
	/* Returns memory into which a raw chunk may be read directly, or NULL. May be NULL. */
	void *(*room)(void *arg, size_t item, size_t len_bytes);
	/* Whether the item may be started, and all before it. With @block, waits; the thread then has no item under way. Returns 1; 0: not yet; <0: no more items. NULL: all may be started. */
	int (*admit)(void *arg, size_t item, bool block);
	/* Returns the bytes of the item's chunk, which then is not read, or NULL. May be NULL. */
	const void *(*ready)(void *arg, size_t item);
	void (*stop)(void *arg); /* with admit(): a thread has failed, so waiting must end */
	void *arg;
	int (*tick)(void *arg); /* in the caller's thread; <0 stops; may be NULL */
	void *tick_arg;
};

int chunks_read(struct chunks_reader *m, const struct chunks_task *task, struct brumate_error *err);

/** Whether everything in the pack for the chunk is what was saved: its bytes, the stored bytes and the padding. Of
 * sealed chunks only the last two are checked, which needs no key. If not, @ret_why is the reason. */
bool chunks_check_stored(const struct stored_chunk *c, const char **ret_why);

/** Starts @err: "PACK: chunk N (bytes …): WHY: it holds … of process P". Returns -EBADMSG. */
int chunks_fail_chunk(const struct chunks_reader *m, const struct chunk_record *c, const char *why,
		      struct brumate_error *err);

/* ---- packs in a stream ---- */

/** Compares the chunks of packs with their digests while the packs pass in a stream. */
struct pack_check;

/** Reads the table of the checkpoint @dir_fd; it and @m are borrowed. Errors as for chunks_open(). */
int pack_check_new(struct pack_check **ret, int dir_fd, const struct manifest *m,
		   struct brumate_error *err);
void pack_check_free(struct pack_check *c); /* accepts NULL */
DEFINE_AUTO(struct pack_check *, pack_check_free)

/** The bytes of the manifest's pack @index come next. */
void pack_check_begin(struct pack_check *c, size_t index);

/** Takes the next bytes of the pack, at most up to its end. -EBADMSG: a chunk is damaged. */
int pack_check_feed(struct pack_check *c, const void *buf, size_t len_bytes,
		    struct brumate_error *err);
