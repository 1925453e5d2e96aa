// SPDX-License-Identifier: MIT
/*
 * Writing the memory of a job: threads take parts of regions, each a chunk, and append what is new to
 * packs of their own. What the packs hold is noted in the ledger, under the lock of the writer.
 */
#include "chunks/writer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/huge-pages.h"
#include "chunks/files.h"
#include "chunks/share.h"

/* A part that a thread took. */
struct part {
	size_t index; /* in the ledger */
	const uint8_t *data;
	struct io_buffer *buffer; /* that holds them, where they were asked for */
	uint32_t len_bytes;
	uint64_t offset; /* in the region */
	chunks_source_fn read;
	void *read_arg;
	const struct digest *digest; /* NULL: to be computed */
	bool again;
};

int chunks_fail_write(const struct chunks_writer *m, int r, struct brumate_error *err)
{
	return files_fail(err, -r, m->target.path, "write memory");
}

/* ---- one part ---- */

static int begin_pack(struct chunks_writer *m, struct chunks_lane *lane)
{
	struct ledger_pack entry = { 0 };
	int r = pack_prepare(&lane->pack, entry.path);

	if (r <= 0)
		return r;
	pthread_mutex_lock(&m->lock);
	int64_t number = ledger_add_pack(&m->ledger, &entry);
	pthread_mutex_unlock(&m->lock);
	if (number < 0)
		return (int)number;
	lane->pack.number = (uint32_t)number;
	return 0;
}

static int end_pack(struct chunks_writer *m, struct chunks_lane *lane)
{
	uint64_t len = 0;
	bool there = lane->pack.file;
	int r = pack_finish(&lane->pack, &len);

	if (r < 0 || !there)
		return r;
	pthread_mutex_lock(&m->lock);
	m->ledger.packs[lane->pack.number].len_bytes = len;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Compresses into a buffer where that is wanted and pays. NULL: to be stored raw. */
static struct io_buffer *compress(struct chunks_writer *m, struct chunks_lane *lane,
				  const struct part *p, struct chunk_record *ret)
{
	enum chunk_encoding encoding =
		tuner_choose(&lane->tuner, lane->codec, p->data, p->len_bytes);
	if (encoding == CHUNK_RAW)
		return NULL;

	uint64_t before_ns = clock_now_ns();
	struct io_buffer *b = io_buffer_get(m->io);
	uint64_t start_ns = clock_now_ns();
	size_t n = codec_compress(lane->codec, encoding, b->data, p->len_bytes - p->len_bytes / 10,
				  p->data, p->len_bytes);

	tuner_compressed(&lane->tuner, encoding, p->len_bytes, clock_now_ns() - start_ns);
	if (n == 0 || chunk_padded(n) >= p->len_bytes ||
	    chunk_digest(&ret->stored, b->data, n) < 0) {
		io_buffer_put(b);
		return NULL;
	}
	/* To wait for a buffer is to wait for the disk. */
	tuner_appended(&lane->tuner, n, start_ns - before_ns);
	ret->encoding = encoding;
	ret->stored_bytes = (uint32_t)n;
	return b;
}

/* Hands the bytes to the disk: those of @b, or of the part itself, whose buffer is taken. */
static int append(struct chunks_lane *lane, struct part *p, struct io_buffer *b,
		  struct chunk_record *c)
{
	uint64_t start_ns = clock_now_ns();
	int r;

	if (!b && p->buffer)
		b = take_ptr(&p->buffer);
	if (b)
		r = pack_append_buffer(&lane->pack, b, c->stored_bytes, &c->offset);
	else
		r = pack_append(&lane->pack, p->data, p->len_bytes, &c->offset);
	if (c->encoding == CHUNK_RAW)
		tuner_appended(&lane->tuner, c->stored_bytes, clock_now_ns() - start_ns);
	return r;
}

static bool is_zero(const struct chunks_writer *m, const struct part *p)
{
	return p->digest ? !memcmp(p->digest, &m->zero, sizeof(m->zero))
			 : chunk_is_zero(p->data, p->len_bytes);
}

static int digest_part(const struct chunks_writer *m, struct digest *ret, const struct part *p)
{
	const struct store_key *key = m->target.key;

	if (p->digest && !key) {
		*ret = *p->digest;
		return 0;
	}
	return key ? chunk_digest_keyed(ret, &key->digests, p->data, p->len_bytes)
		   : chunk_digest(ret, p->data, p->len_bytes);
}

/* Encrypts what is to be stored, in a buffer: that of @p, or of its own. */
static int seal(struct chunks_writer *m, struct chunks_lane *lane, struct part *p,
		struct io_buffer **b, struct chunk_record *c)
{
	if (!m->target.key)
		return 0;
	if (!*b && p->buffer) {
		*b = take_ptr(&p->buffer);
	} else if (!*b) {
		*b = io_buffer_get(m->io);
		memcpy((*b)->data, p->data, p->len_bytes);
	}
	int r = store_key_chunk(m->target.key, &c->digest, lane->pack.path, lane->pack.end, (*b)->data,
				c->stored_bytes);
	if (r == 0)
		r = chunk_digest(&c->stored, (*b)->data, c->stored_bytes);
	if (r < 0)
		io_buffer_put(*b);
	return r;
}

/* Appends a chunk that is nowhere yet, and notes where. */
static int write_chunk(struct chunks_writer *m, struct chunks_lane *lane, struct part *p,
		       const struct digest *digest, size_t index)
{
	struct chunk_record c = {
		.digest = *digest,
		.stored = *digest,
		.len_bytes = p->len_bytes,
		.stored_bytes = p->len_bytes,
	};
	int r = pack_is_full(&lane->pack) ? end_pack(m, lane) : 0;

	if (r == 0)
		r = begin_pack(m, lane);
	if (r < 0)
		return r;
	struct io_buffer *b = compress(m, lane, p, &c);
	r = seal(m, lane, p, &b, &c);
	if (r == 0)
		r = append(lane, p, b, &c);
	if (r < 0)
		return r;
	c.pack = lane->pack.number;
	pthread_mutex_lock(&m->lock);
	m->ledger.chunks[index].record = c;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Finds or adds the chunk of a part. 1: it is new; 0: it is there, or somebody writes it; -errno. */
static int note_chunk(struct chunks_writer *m, const struct part *p, const struct digest *digest,
		      size_t *ret_index)
{
	struct ledger_chunk c = {
		.record = { .digest = *digest, .len_bytes = p->len_bytes },
		.state = LEDGER_WRITTEN,
	};
	struct chunk_place place;
	int r = 0;

	if (m->target.known && chunk_index_find(m->target.known, digest, p->len_bytes, &place)) {
		c.state = LEDGER_KNOWN;
		c.image = place.image;
		c.index = place.chunk;
	}

	pthread_mutex_lock(&m->lock);
	int64_t index = ledger_find(&m->ledger, digest, p->len_bytes);
	if (index < 0) {
		index = ledger_add_chunk(&m->ledger, &c);
		r = c.state == LEDGER_WRITTEN;
	}
	if (index >= 0)
		m->ledger.parts[p->index] = (uint32_t)index;
	pthread_mutex_unlock(&m->lock);
	*ret_index = (size_t)index;
	return index < 0 ? (int)index : r;
}

/* Writes a chunk that was thought to be had from an earlier checkpoint. */
static int save_again(struct chunks_writer *m, struct chunks_lane *lane, struct part *p)
{
	pthread_mutex_lock(&m->lock);
	size_t index = m->ledger.parts[p->index];
	struct digest digest = m->ledger.chunks[index].record.digest;
	pthread_mutex_unlock(&m->lock);

	return write_chunk(m, lane, p, &digest, index);
}

static int save_part(struct chunks_writer *m, struct chunks_lane *lane, struct part *p)
{
	struct digest digest;
	size_t index = 0;

	if (p->again)
		return save_again(m, lane, p);
	if (is_zero(m, p))
		return 0;
	int r = digest_part(m, &digest, p);
	if (r == 0)
		r = note_chunk(m, p, &digest, &index);
	return r <= 0 ? r : write_chunk(m, lane, p, &digest, index);
}

/* Gets the bytes of a part whose source is asked for them. */
static int read_part(struct chunks_writer *m, struct part *p, struct brumate_error *err)
{
	if (!p->read)
		return 0;
	p->buffer = io_buffer_get(m->io);
	p->data = p->buffer->data;
	int r = p->read(p->read_arg, p->offset, p->buffer->data, p->len_bytes);
	return r < 0 ? brumate_fail(err, -r, "memory cannot be read: %m") : 0;
}

static int take_in(struct chunks_writer *m, struct chunks_lane *lane, struct part *p,
		   struct brumate_error *err)
{
	int r = read_part(m, p, err);

	if (r == 0) {
		r = save_part(m, lane, p);
		if (r < 0)
			chunks_fail_write(m, r, err);
	}
	io_buffer_put(p->buffer);
	return r;
}

/* ---- the threads ---- */

static struct part part_of(const struct chunks_region *s, uint64_t i, bool again)
{
	uint64_t offset = i * CHUNK_BYTES_MAX;

	return (struct part){
		.index = s->first_part + i,
		.data = s->data ? s->data + offset : NULL,
		.len_bytes = chunk_part_bytes(s->region.len_bytes, i),
		.offset = offset,
		.read = s->read,
		.read_arg = s->read_arg,
		.digest = s->digests ? &s->digests[i] : NULL,
		.again = again,
	};
}

/* Whether there is something to do about a part in this round. Claims it. Under the lock. */
static bool claim(struct chunks_writer *m, size_t part)
{
	if (!m->again)
		return true;
	uint32_t index = m->ledger.parts[part];
	if (index == CHUNK_ZERO || m->ledger.chunks[index].state != LEDGER_WANTED)
		return false;
	m->ledger.chunks[index].state = LEDGER_WRITTEN;
	return true;
}

/* The next part there is. Under the lock. */
static bool find_part(struct chunks_writer *m, struct part *ret)
{
	for (; m->at_source < m->n_sources; m->at_source++, m->at_part = 0) {
		const struct chunks_region *s = &m->sources[m->at_source];
		uint64_t n = chunk_parts(s->region.len_bytes);

		while (m->at_part < n) {
			uint64_t i = m->at_part++;

			if (!claim(m, s->first_part + i))
				continue;
			*ret = part_of(s, i, m->again);
			return true;
		}
	}
	return false;
}

/* Waits for a part. False: there will be none. */
static bool take_part(struct chunks_writer *m, struct part *ret)
{
	bool found = false;

	pthread_mutex_lock(&m->lock);
	while (!team_stopped(&m->team) && !(found = find_part(m, ret)) && !m->ended)
		pthread_cond_wait(&m->news, &m->lock);
	pthread_mutex_unlock(&m->lock);
	return found;
}

static void no_more(struct chunks_writer *m)
{
	pthread_mutex_lock(&m->lock);
	m->ended = true;
	pthread_cond_broadcast(&m->news);
	pthread_mutex_unlock(&m->lock);
}

static int work(void *arg, unsigned index, struct brumate_error *err)
{
	struct chunks_writer *m = arg;
	struct chunks_lane *lane = &m->lanes[index];
	struct part p;
	int r = 0;

	while (r == 0 && take_part(m, &p))
		r = take_in(m, lane, &p, err);
	if (r == 0 && !team_stopped(&m->team) && (r = end_pack(m, lane)) < 0)
		chunks_fail_write(m, r, err);
	pack_abandon(&lane->pack);
	if (r == 0)
		return 0;
	atomic_store(&m->team.stop, true);
	no_more(m); /* wakes those who wait for more */
	return r;
}

static int start(struct chunks_writer *m)
{
	for (unsigned i = 0; i < m->n_threads; i++) {
		m->lanes[i].pack = (struct pack){ .io = m->io, .dir_fd = m->target.dir_fd };
		m->lanes[i].tuner = tuner_new(m->options.compress);
		if (!m->lanes[i].codec && codec_new(&m->lanes[i].codec) < 0)
			return -ENOMEM;
	}
	return team_start(&m->team, m->n_threads, work, m);
}

/* ---- for the owner ---- */

int chunks_begin(struct chunks_writer **ret, const struct chunks_target *target,
		 const struct chunks_options *options, struct brumate_error *err)
{
	auto_(chunks_writer_free) struct chunks_writer *m = calloc(1, sizeof(*m));
	if (!m) {
		close(target->dir_fd);
		chunk_index_free(target->known);
		return brumate_fail(err, ENOMEM, "%m");
	}
	m->target = *target;
	m->options = *options;
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->news, NULL);
	m->n_threads = options->threads && options->threads < WRITERS_MAX ? options->threads
									  : team_cores(WRITERS_MAX);
	struct io_options buffers = { .buffers = WRITER_BUFFERS };
	int r = chunk_digest_zeros(&m->zero);
	if (r < 0)
		return brumate_fail(err, -r, "memory: %m");
	r = io_new(&m->io, &buffers, err);
	if (r < 0)
		return r;
	if ((r = start(m)) < 0)
		return brumate_fail(err, -r, "threads that write memory: %m");
	*ret = take_ptr(&m);
	return 0;
}

/* ---- the end ---- */

struct wish {
	bool (*cancelled)(void *arg);
	void *arg;
};

static int ask(void *arg)
{
	const struct wish *wish = arg;

	return wish->cancelled && wish->cancelled(wish->arg) ? -ECANCELED : 0;
}

/* Takes over packs of earlier checkpoints, and writes what is not to be had after all. */
static int share(struct chunks_writer *m, struct wish *wish, struct brumate_error *err)
{
	size_t wanted = 0;
	int r = share_packs(&m->ledger, m->target.known, m->target.dir_fd, &wanted);

	if (r < 0)
		return brumate_fail(err, -r, "memory: chunks of earlier checkpoints: %m");
	if (wanted == 0)
		return 0;
	m->again = true;
	m->at_source = 0;
	m->at_part = 0;
	if ((r = start(m)) < 0)
		return brumate_fail(err, -r, "threads that write memory: %m");
	return team_wait(&m->team, ask, wish, err);
}

int chunks_end(struct chunks_writer *m, struct manifest *manifest, struct chunks_sums *ret,
	       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	struct wish wish = { cancelled, arg };

	no_more(m);
	int r = team_wait(&m->team, ask, &wish, err);
	if (r == 0 && m->target.known)
		r = share(m, &wish, err);
	if (r == 0)
		r = chunks_finish(m, manifest, ret, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->target.id) : 0;
}

void chunks_writer_free(struct chunks_writer *m)
{
	if (!m)
		return;
	if (m->team.n) {
		atomic_store(&m->team.stop, true);
		no_more(m);
		team_wait(&m->team, NULL, NULL, NULL);
	}
	for (unsigned i = 0; i < m->n_threads; i++)
		codec_free(m->lanes[i].codec);
	io_free(m->io);
	for (size_t i = 0; i < m->n_sources; i++)
		chunks_region_fini(&m->sources[i]);
	free(m->sources);
	chunk_index_free(m->target.known);
	ledger_fini(&m->ledger);
	cleanup_close(&m->target.dir_fd);
	pthread_cond_destroy(&m->news);
	pthread_mutex_destroy(&m->lock);
	free(m);
}
