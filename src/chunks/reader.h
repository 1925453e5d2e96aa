// SPDX-License-Identifier: MIT
/* Reading chunks of a checkpoint by several threads, in the order of the disk, to load regions or to verify all
 * chunks. */
#pragma once

#include <pthread.h>

#include "image/chunk-table.h"
#include "chunks/io.h"
#include "chunks/chunks.h"

/** A pack that is read. It is open while it is in use. */
struct chunks_pack {
	struct io_file *file;
	unsigned users;
};

struct chunks_reader {
	int dir_fd; /* of the checkpoint; borrowed, as is the manifest */
	const struct manifest *manifest;
	const struct store_key *key; /* borrowed; NULL: chunks that are sealed cannot be loaded */
	const struct pack_source *source; /* borrowed; NULL: packs are files below dir_fd */
	bool maps;			  /* packs in memory are read by mappings */
	struct chunk_table table;
	struct chunks_pack *packs; /* under lock, as is what follows */
	struct io *spare;	   /* of the last reading, for the next; NULL: none */
	unsigned spare_buffers;
	pthread_mutex_t lock;
};

/** Bytes that were dealt with so far. <0 stops, with that code. Called in the caller's thread. */
typedef int (*chunks_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** A chunk whose stored bytes are not those that were saved. */
struct chunks_damage {
	const char *path; /* of its pack; borrowed */
	const struct chunk_record *record;
	const char *
		text; /* which chunk it is, what is wrong, and what of the job it holds; borrowed */
};
typedef void (*chunks_damage_fn)(void *arg, const struct chunks_damage *damage);

/**
 * Compares every chunk of every pack with its digests, also those of no use to this checkpoint. With
 * @tell it goes on to the end, tells each damaged chunk, and returns how many; packs that are missing
 * or of the wrong length are passed over. Without, the first is -EBADMSG. 0 where there is no memory.
 */
int chunks_verify(int dir_fd, const struct manifest *manifest, chunks_damage_fn tell,
		  void *tell_arg, chunks_progress_fn progress, void *arg,
		  struct brumate_error *err);

/** A stored chunk as it was read. */
struct stored_chunk {
	const struct chunks_reader *reader;
	const struct chunk_record *record;
	size_t item; /* of the list that is read */
	const void *
		stored; /* chunk_padded(record->stored_bytes); NULL: could not be read, r says why */
	int r;
	struct codec *codec; /* of this thread */
};

/** Gets a chunk, in one of the threads. <0 ends the reading with that code. */
typedef int (*stored_chunk_fn)(void *arg, const struct stored_chunk *c, struct brumate_error *err);

/** What is to be read, and by whom. */
struct chunks_task {
	const uint32_t *chunks; /* of the table, best ascending; NULL: all */
	size_t n;
	unsigned threads; /* 0: by the number of cores */
	stored_chunk_fn fn;
	/* Where a raw chunk may be read straight into, or NULL; may be NULL. */
	void *(*room)(void *arg, size_t item, size_t len_bytes);
	/* Whether the item may be begun; with @block it waits, and its thread has none under way. Items are begun in
	 * their order. Returns 1, 0: not yet, or <0: none is any more. NULL: all may. Not for packs from far. */
	int (*admit)(void *arg, size_t item, bool block);
	void (*stop)(
		void *arg); /* with admit(): a thread has failed, so that none may wait there any more */
	void *arg;
	int (*tick)(void *arg); /* in the caller's thread; <0 stops; may be NULL */
	void *tick_arg;
};

int chunks_read(struct chunks_reader *m, const struct chunks_task *task, struct brumate_error *err);

/** Whether all that is in the pack for the chunk is what was saved: its bytes, the stored bytes and the padding. Of what is
 * sealed only the last two are looked at: that takes no key. Else false, and the reason in @ret_why. */
bool chunks_check_stored(const struct stored_chunk *c, const char **ret_why);

/** Starts @err: "PACK: chunk N (bytes …): WHY: it holds … of process P". Returns -EBADMSG. */
int chunks_fail_chunk(const struct chunks_reader *m, const struct chunk_record *c, const char *why,
		      struct brumate_error *err);

/* ---- packs in a stream ---- */

/** Compares the chunks of packs with their digests while they pass in a stream. */
struct pack_check;

/** Reads the table of the checkpoint @dir_fd, borrowed as is @m. What chunks_open() returns. */
int pack_check_new(struct pack_check **ret, int dir_fd, const struct manifest *m,
		   struct brumate_error *err);
void pack_check_free(struct pack_check *c); /* accepts NULL */
DEFINE_AUTO(struct pack_check *, pack_check_free)

/** The bytes of the pack @index of the manifest come next. */
void pack_check_begin(struct pack_check *c, size_t index);

/** Takes bytes of it, at most all of them. -EBADMSG: a chunk is damaged. */
int pack_check_feed(struct pack_check *c, const void *buf, size_t len_bytes,
		    struct brumate_error *err);
