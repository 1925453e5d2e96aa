// SPDX-License-Identifier: MIT
/* Inside of the memory writer: writer.c has the threads, finish.c what is told at the end. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "chunks/chunk-index.h"
#include "chunks/codec.h"
#include "chunks/ledger.h"
#include "chunks/chunks.h"
#include "chunks/pack.h"
#include "chunks/team.h"
#include "chunks/tuner.h"

/* Beyond that many the disk is the limit everywhere. A thread holds two buffers at most: what it was
 * given to save, and what it compressed. */
enum { WRITERS_MAX = 16, WRITER_BUFFERS = 2 * WRITERS_MAX };

/* A region and where its bytes are: in a mapping, elsewhere in memory, or to be asked for. */
struct chunks_region {
	struct manifest_region region;
	void *map;
	size_t map_bytes;
	const uint8_t *data;
	chunks_source_fn read;
	void *read_arg;
	struct digest *digests; /* owned; NULL: to be computed */
	size_t first_part;
};

/* What a thread works with. */
struct chunks_lane {
	struct pack pack;
	struct codec *codec;
	struct tuner tuner;
};

struct chunks_writer {
	struct chunks_target target;
	struct chunks_options options;
	struct io *io;
	struct digest zero;	   /* of a chunk of zeros */
	unsigned n_threads;
	struct team team;
	struct chunks_lane lanes[WRITERS_MAX];

	pthread_mutex_t lock;
	pthread_cond_t news;	       /* more sources, or no more ever */
	struct chunks_region *sources; /* under lock, as is what follows */
	size_t n_sources;
	size_t at_source; /* the next part */
	uint64_t at_part;
	bool ended;
	bool again; /* the second round: only chunks that are wanted after all */
	struct ledger ledger;
};

/** Lets go of what it has. */
void chunks_region_fini(struct chunks_region *s);

/** Starts @err for a failure to write. Returns @r. */
int chunks_fail_write(const struct chunks_writer *m, int r, struct brumate_error *err);

/** Writes the table and fills the memory part of @manifest, when all chunks are in packs. */
int chunks_finish(struct chunks_writer *m, struct manifest *manifest, struct chunks_sums *ret,
		  struct brumate_error *err);
