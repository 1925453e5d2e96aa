// SPDX-License-Identifier: MIT
/*
 * Writes the memory of a job: workers take parts of regions, each a chunk, and append new chunks to packs of their
 * own. The ledger records the content of the packs, under the writer's lock.
 */
#include "chunks/chunks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/huge-pages.h"
#include "base/workers.h"
#include "chunks/codec.h"
#include "chunks/files.h"
#include "chunks/io.h"
#include "chunks/ledger.h"
#include "chunks/share.h"

/* ---- options ---- */

static const char *const words[CHUNKS_COMPRESS__MAX] = { "auto", "none", "lz4", "zstd" };

const char *chunks_compress_word(enum chunks_compress compress)
{
	return words[compress];
}

int chunks_parse_compress(enum chunks_compress *ret, const char *word)
{
	for (int i = 0; i < CHUNKS_COMPRESS__MAX; i++) {
		if (!strcmp(word, words[i])) {
			*ret = (enum chunks_compress)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- packs ---- */

/* New packs are files below the directory "memory" of a checkpoint, to which one thread appends chunks, each at a
 * multiple of CHUNK_ALIGN_BYTES. A full pack is ended and another begun. */

/* The length at which a pack is full: small, so that it can be freed when little of it is used. */
#define PACK_BYTES_MAX (1ull << 30)

/* The pack to which a thread appends. The path of a new pack goes to @begun. */
struct pack {
	struct io *io; /* borrowed */
	int dir_fd;    /* of "memory"; borrowed */
	struct io_file *file;
	uint64_t end;
	uint32_t number;
	char path[32]; /* below the checkpoint */
};

/* Makes a name that no other pack has, in any store: packs are linked under their own name. */
static int new_pack_name(char *ret, size_t room)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -errno;
	snprintf(ret, room, "%016" PRIx64 ".pack", random);
	return 0;
}

/* Makes sure that there is a pack to append to. Returns 1: it is a new one, whose path is in @ret_path, and the
 * caller numbers it; 0; -errno. */
static int pack_prepare(struct pack *p, char ret_path[static 32])
{
	char name[24];
	int r;

	if (p->file)
		return 0;
	do {
		r = fault_point("store.pack-create");
		if (r == 0)
			r = new_pack_name(name, sizeof(name));
		if (r == 0)
			r = io_file_create(&p->file, p->io, p->dir_fd, name);
	} while (r == -EEXIST);
	if (r < 0)
		return r;
	snprintf(ret_path, 32, MANIFEST_MEMORY_DIR "/%s", name);
	snprintf(p->path, sizeof(p->path), "%s", ret_path);
	p->end = 0;
	return 1;
}

/* Whether pack_finish() must be called before the next pack_prepare(). */
static bool pack_is_full(const struct pack *p)
{
	return p->file && p->end >= PACK_BYTES_MAX;
}

/* Appends @len_bytes of @b, which is taken. @ret_offset: the position. -errno. */
static int pack_append_buffer(struct pack *p, struct io_buffer *b, size_t len_bytes,
			      uint64_t *ret_offset)
{
	size_t padded = chunk_padded(len_bytes);
	int r = fault_point("store.pack-write");

	if (r < 0) {
		io_buffer_put(b);
		return r;
	}
	memset((char *)b->data + len_bytes, 0, padded - len_bytes);
	r = io_write(p->file, b, padded, p->end);
	if (r < 0)
		return r;
	*ret_offset = p->end;
	p->end += padded;
	return 0;
}

static bool is_aligned(const void *buf, size_t len)
{
	return ((uintptr_t)buf | len) % IO_ALIGN_BYTES == 0;
}

/* Appends @len_bytes of @buf. If they and @buf are multiples of IO_ALIGN_BYTES, they must not change until
 * pack_finish(); else they are copied. */
static int pack_append(struct pack *p, const void *buf, size_t len_bytes, uint64_t *ret_offset)
{
	if (!is_aligned(buf, len_bytes)) {
		struct io_buffer *b = io_buffer_get(p->io);

		memcpy(b->data, buf, len_bytes);
		return pack_append_buffer(p, b, len_bytes, ret_offset);
	}
	int r = fault_point("store.pack-write");
	if (r == 0)
		r = io_write_memory(p->file, buf, len_bytes, p->end);
	if (r < 0)
		return r;
	*ret_offset = p->end;
	p->end += len_bytes;
	return 0;
}

/* Closes the pack and drops what was not written yet. */
static void pack_abandon(struct pack *p)
{
	io_file_close(p->file);
	p->file = NULL;
}

/* Ends the pack: waits for the writes, syncs and closes it. Does nothing if there is none. */
static int pack_finish(struct pack *p, uint64_t *ret_len_bytes)
{
	if (!p->file)
		return 0;
	int r = fault_point("store.pack-sync");
	if (r == 0)
		r = io_file_finish(p->file, p->end);
	if (r == 0)
		*ret_len_bytes = p->end;
	pack_abandon(p);
	return r;
}

/* ---- the writer ---- */

/* More threads do not help: the disk or the memory is the limit. A thread holds at most two buffers: the part to be
 * saved, and its compressed form. */
enum { WRITERS_MAX = 28, WRITERS_DISK_MAX = 16, WRITER_BUFFERS = 2 };

/* A region and the source of its bytes: a mapping, other memory, or a function. */
struct chunks_region {
	struct manifest_region region;
	void *map;
	size_t map_bytes;
	const uint8_t *data;
	chunks_source_fn read;
	void *read_arg;
	struct digest *digests; /* owned; NULL: have to be computed */
	size_t first_part;
};

/* The resources of a thread. */
struct saver {
	struct pack pack;
	struct codec *codec;
	struct tuner tuner;
};

struct chunks_writer {
	struct chunks_target target;
	struct chunks_options options;
	struct io *io;
	struct digest zero; /* of a chunk of zeros */
	unsigned n_threads;
	struct workers workers;
	struct saver savers[WRITERS_MAX];

	pthread_mutex_t lock;
	pthread_cond_t news;	       /* signalled for more sources, or the end of them */
	struct chunks_region *sources; /* under lock, like all below */
	size_t n_sources;
	size_t at_source; /* the next part */
	uint64_t at_part;
	bool ended;
	bool again; /* the second round: only chunks that have to be written after all */
	struct ledger ledger;
};

static int fail_write(const struct chunks_writer *m, int r, struct brumate_error *err)
{
	return files_fail(err, -r, m->target.path, "write memory");
}

/* ---- regions ---- */

static void region_fini(struct chunks_region *s)
{
	if (s->map)
		munmap(s->map, s->map_bytes);
	free(s->digests);
}

/* Maps the file that holds the region. */
static int map_region(struct chunks_region *s, int fd, uint64_t offset, struct brumate_error *err)
{
	uint64_t len = s->region.len_bytes, pad = offset % (uint64_t)sysconf(_SC_PAGESIZE), end;
	struct stat st;

	if (len == 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "memory: its file: %m");
	if (__builtin_add_overflow(offset, len, &end) || end > (uint64_t)st.st_size)
		return brumate_fail(err, EINVAL, "memory: its file ends before the region");
	s->map_bytes = (size_t)(len + pad);
	s->map = huge_pages_map(fd, offset - pad, s->map_bytes, PROT_READ);
	if (!s->map)
		return brumate_fail(err, errno, "memory: map its file: %m");
	s->data = (const uint8_t *)s->map + pad;
	return 0;
}

/* Takes the region over, on success only. */
static int take_region(struct chunks_writer *m, struct chunks_region *s)
{
	if (m->n_sources == MANIFEST_REGIONS_MAX)
		return -E2BIG;

	struct chunks_region *sources = array_room(m->sources, m->n_sources, sizeof(*sources));
	if (!sources)
		return -ENOMEM;
	m->sources = sources;
	int64_t first = ledger_add_parts(&m->ledger, chunk_parts(s->region.len_bytes));
	if (first < 0)
		return (int)first;
	s->first_part = (size_t)first;
	m->sources[m->n_sources++] = *s;
	return 0;
}

static int add_region(struct chunks_writer *m, struct chunks_region *s, struct brumate_error *err)
{
	pthread_mutex_lock(&m->lock);
	int r = take_region(m, s);
	pthread_cond_broadcast(&m->news);
	pthread_mutex_unlock(&m->lock);
	return r < 0 ? brumate_fail(err, -r, "memory: one region more: %m") : 0;
}

int chunks_add(struct chunks_writer *m, const struct manifest_region *region, int fd,
	       uint64_t offset, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region };
	int r = map_region(&s, fd, offset, err);

	if (r == 0)
		r = add_region(m, &s, err);
	if (r < 0)
		region_fini(&s);
	return r;
}

/* Stores a copy of the digests in the region. */
static int copy_digests(struct chunks_region *s, const struct digest *digests,
			struct brumate_error *err)
{
	size_t n = (size_t)(s->region.len_bytes / CHUNK_BYTES_MAX);

	if (s->region.len_bytes % CHUNK_BYTES_MAX)
		return brumate_fail(err, EINVAL, "memory: digests of half a chunk");
	s->digests = calloc(n + 1, sizeof(*digests));
	if (!s->digests)
		return brumate_fail(err, ENOMEM, "%m");
	memcpy(s->digests, digests, n * sizeof(*digests));
	return 0;
}

int chunks_add_known(struct chunks_writer *m, const struct manifest_region *region, int fd,
		     uint64_t offset, const struct digest *digests, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region };
	int r = copy_digests(&s, digests, err);

	if (r == 0)
		r = map_region(&s, fd, offset, err);
	if (r == 0)
		r = add_region(m, &s, err);
	if (r < 0)
		region_fini(&s);
	return r;
}

int chunks_add_bytes(struct chunks_writer *m, const struct manifest_region *region,
		     const void *data, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region, .data = data };

	return add_region(m, &s, err);
}

int chunks_add_from(struct chunks_writer *m, const struct manifest_region *region,
		    chunks_source_fn source, void *arg, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region, .read = source, .read_arg = arg };

	return add_region(m, &s, err);
}

/* ---- parts ---- */

/* A part of a region that a thread saves. */
struct part {
	size_t index; /* in the ledger */
	const uint8_t *data;
	struct io_buffer *buffer; /* that holds the bytes, if a function read them */
	uint32_t len_bytes;
	uint64_t offset; /* in the region */
	chunks_source_fn read;
	void *read_arg;
	const struct digest *digest; /* NULL: has to be computed */
	bool again;
};

static int begin_pack(struct chunks_writer *m, struct saver *saver)
{
	struct ledger_pack entry = { 0 };
	int r = pack_prepare(&saver->pack, entry.path);

	if (r <= 0)
		return r;
	pthread_mutex_lock(&m->lock);
	int64_t number = ledger_add_pack(&m->ledger, &entry);
	pthread_mutex_unlock(&m->lock);
	if (number < 0)
		return (int)number;
	saver->pack.number = (uint32_t)number;
	return 0;
}

static int end_pack(struct chunks_writer *m, struct saver *saver)
{
	uint64_t len = 0;
	bool there = saver->pack.file;
	int r = pack_finish(&saver->pack, &len);

	if (r < 0 || !there)
		return r;
	pthread_mutex_lock(&m->lock);
	m->ledger.packs[saver->pack.number].len_bytes = len;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Compresses the part into a buffer if that is wanted and worth it. Returns NULL if it is to be stored raw. */
static struct io_buffer *compress_part(struct chunks_writer *m, struct saver *saver,
				       const struct part *p, struct chunk_record *ret)
{
	enum chunk_encoding encoding =
		tuner_choose(&saver->tuner, saver->codec, p->data, p->len_bytes);
	if (encoding == CHUNK_RAW)
		return NULL;

	uint64_t before_ns = clock_now_ns();
	struct io_buffer *b = io_buffer_get(m->io);
	uint64_t start_ns = clock_now_ns();
	size_t n = codec_compress(saver->codec, encoding, b->data, p->len_bytes - p->len_bytes / 10,
				  p->data, p->len_bytes);

	tuner_compressed(&saver->tuner, encoding, p->len_bytes, clock_now_ns() - start_ns);
	if (n == 0 || chunk_padded(n) >= p->len_bytes ||
	    chunk_digest(&ret->stored, b->data, n) < 0) {
		io_buffer_put(b);
		return NULL;
	}
	/* Waiting for a buffer means waiting for the disk. */
	tuner_appended(&saver->tuner, n, start_ns - before_ns);
	ret->encoding = encoding;
	ret->stored_bytes = (uint32_t)n;
	return b;
}

/* Hands bytes to the disk: those of @b, or of the part itself, whose buffer is taken. */
static int append_chunk(struct saver *saver, struct part *p, struct io_buffer *b,
			struct chunk_record *c)
{
	uint64_t start_ns = clock_now_ns();
	int r;

	if (!b && p->buffer)
		b = take_ptr(&p->buffer);
	if (b)
		r = pack_append_buffer(&saver->pack, b, c->stored_bytes, &c->offset);
	else
		r = pack_append(&saver->pack, p->data, p->len_bytes, &c->offset);
	if (c->encoding == CHUNK_RAW)
		tuner_appended(&saver->tuner, c->stored_bytes, clock_now_ns() - start_ns);
	return r;
}

static bool part_is_zero(const struct chunks_writer *m, const struct part *p)
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

/* Encrypts the bytes to be stored in a buffer: that of @p, or one of its own. */
static int seal_part(struct chunks_writer *m, struct saver *saver, struct part *p,
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
	int r = store_key_chunk(m->target.key, &c->digest, saver->pack.path, saver->pack.end,
				(*b)->data, c->stored_bytes);
	if (r == 0)
		r = chunk_digest(&c->stored, (*b)->data, c->stored_bytes);
	if (r < 0)
		io_buffer_put(*b);
	return r;
}

/* Appends a new chunk, and records its place in the ledger. */
static int write_chunk(struct chunks_writer *m, struct saver *saver, struct part *p,
		       const struct digest *digest, size_t index)
{
	struct chunk_record c = {
		.digest = *digest,
		.stored = *digest,
		.len_bytes = p->len_bytes,
		.stored_bytes = p->len_bytes,
	};
	int r = pack_is_full(&saver->pack) ? end_pack(m, saver) : 0;

	if (r == 0)
		r = begin_pack(m, saver);
	if (r < 0)
		return r;
	struct io_buffer *b = compress_part(m, saver, p, &c);
	r = seal_part(m, saver, p, &b, &c);
	if (r == 0)
		r = append_chunk(saver, p, b, &c);
	if (r < 0)
		return r;
	c.pack = saver->pack.number;
	pthread_mutex_lock(&m->lock);
	m->ledger.chunks[index].record = c;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Finds or adds the chunk of a part. Returns 1: it is new; 0: it exists, or another thread writes it; -errno. */
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

/* Writes a chunk that was expected from an earlier checkpoint. */
static int save_again(struct chunks_writer *m, struct saver *saver, struct part *p)
{
	pthread_mutex_lock(&m->lock);
	size_t index = m->ledger.parts[p->index];
	struct digest digest = m->ledger.chunks[index].record.digest;
	pthread_mutex_unlock(&m->lock);

	return write_chunk(m, saver, p, &digest, index);
}

static int save_part(struct chunks_writer *m, struct saver *saver, struct part *p)
{
	struct digest digest;
	size_t index = 0;

	if (p->again)
		return save_again(m, saver, p);
	if (part_is_zero(m, p))
		return 0;
	int r = digest_part(m, &digest, p);
	if (r == 0)
		r = note_chunk(m, p, &digest, &index);
	return r <= 0 ? r : write_chunk(m, saver, p, &digest, index);
}

/* Reads the bytes of a part from its source function. */
static int read_part(struct chunks_writer *m, struct part *p, struct brumate_error *err)
{
	if (!p->read)
		return 0;
	p->buffer = io_buffer_get(m->io);
	p->data = p->buffer->data;
	int r = p->read(p->read_arg, p->offset, p->buffer->data, p->len_bytes);
	return r < 0 ? brumate_fail(err, -r, "memory cannot be read: %m") : 0;
}

static int read_and_save(struct chunks_writer *m, struct saver *saver, struct part *p,
			 struct brumate_error *err)
{
	int r = read_part(m, p, err);

	if (r == 0) {
		r = save_part(m, saver, p);
		if (r < 0)
			fail_write(m, r, err);
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

/* Claims a part that has to be written in this round. Returns false if it need not be. The caller has the lock. */
static bool claim_part(struct chunks_writer *m, size_t part)
{
	if (!m->again)
		return true;
	uint32_t index = m->ledger.parts[part];
	if (index == CHUNK_ZERO || m->ledger.chunks[index].state != LEDGER_WANTED)
		return false;
	m->ledger.chunks[index].state = LEDGER_WRITTEN;
	return true;
}

/* Finds the next part to be written. The caller has the lock. */
static bool next_part(struct chunks_writer *m, struct part *ret)
{
	for (; m->at_source < m->n_sources; m->at_source++, m->at_part = 0) {
		const struct chunks_region *s = &m->sources[m->at_source];
		uint64_t n = chunk_parts(s->region.len_bytes);

		while (m->at_part < n) {
			uint64_t i = m->at_part++;

			if (!claim_part(m, s->first_part + i))
				continue;
			*ret = part_of(s, i, m->again);
			return true;
		}
	}
	return false;
}

/* Waits for a part to write. Returns false if no more will come. */
static bool take_part(struct chunks_writer *m, struct part *ret)
{
	bool found = false;

	pthread_mutex_lock(&m->lock);
	while (!workers_are_stopped(&m->workers) && !(found = next_part(m, ret)) && !m->ended)
		pthread_cond_wait(&m->news, &m->lock);
	pthread_mutex_unlock(&m->lock);
	return found;
}

static void end_parts(struct chunks_writer *m)
{
	pthread_mutex_lock(&m->lock);
	m->ended = true;
	pthread_cond_broadcast(&m->news);
	pthread_mutex_unlock(&m->lock);
}

static int save_for_worker(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct chunks_writer *m = arg;
	struct saver *saver = &m->savers[me->index];
	struct part p;
	int r = 0;

	while (r == 0 && take_part(m, &p))
		r = read_and_save(m, saver, &p, err);
	if (r == 0 && !workers_are_stopped(&m->workers) && (r = end_pack(m, saver)) < 0)
		fail_write(m, r, err);
	pack_abandon(&saver->pack);
	if (r == 0)
		return 0;
	workers_stop(&m->workers);
	end_parts(m); /* wakes the threads that wait for more */
	return r;
}

static int start_workers(struct chunks_writer *m)
{
	for (unsigned i = 0; i < m->n_threads; i++) {
		m->savers[i].pack = (struct pack){ .io = m->io, .dir_fd = m->target.dir_fd };
		m->savers[i].tuner = tuner_new(m->options.compress);
		if (!m->savers[i].codec && codec_new(&m->savers[i].codec) < 0)
			return -ENOMEM;
	}
	return workers_start(&m->workers, m->n_threads, save_for_worker, m);
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
	const unsigned most = io_is_in_memory(m->target.dir_fd) ? WRITERS_MAX : WRITERS_DISK_MAX;
	m->n_threads = options->threads && options->threads < most ? options->threads
								   : workers_cores(most);
	const struct io_options buffers = { .buffers = WRITER_BUFFERS * most,
					    .engine = io_engine_for(m->target.dir_fd) };
	int r = chunk_digest_zeros(&m->zero);
	if (r < 0)
		return brumate_fail(err, -r, "memory: %m");
	r = io_new(&m->io, &buffers, err);
	if (r < 0)
		return r;
	if ((r = start_workers(m)) < 0)
		return brumate_fail(err, -r, "threads that write memory: %m");
	*ret = take_ptr(&m);
	return 0;
}

/* ---- the end ---- */

static int fill_regions(struct chunks_writer *m, struct manifest *manifest)
{
	struct manifest_region *regions = calloc(m->n_sources + 1, sizeof(*regions));

	if (!regions)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_sources; i++)
		regions[i] = m->sources[i].region;
	manifest->memory.regions = regions;
	manifest->memory.n_regions = m->n_sources;
	return 0;
}

static struct chunks_sums sum_up(const struct chunks_writer *m, const struct chunk_table *t)
{
	struct chunks_sums s = { 0 };
	uint64_t own = 0;

	for (size_t k = 0; k < t->n_regions; k++) {
		uint64_t len = t->regions[k].len_bytes;
		size_t first = m->sources[k].first_part;

		s.total += len;
		for (uint64_t i = 0; i < chunk_parts(len); i++)
			if (t->parts[first + i] == CHUNK_ZERO)
				s.zero += chunk_part_bytes(len, i);
	}
	for (size_t i = 0; i < m->ledger.n_chunks; i++) {
		const struct ledger_chunk *c = &m->ledger.chunks[i];

		if (c->state == LEDGER_WRITTEN)
			own += c->record.len_bytes;
	}
	for (size_t i = 0; i < m->ledger.n_packs; i++)
		if (!m->ledger.packs[i].linked)
			s.written += m->ledger.packs[i].len_bytes;
	s.shared = s.total - s.zero - own;
	return s;
}

static int write_table(struct chunks_writer *m, const struct chunk_table *t,
		       struct brumate_error *err)
{
	auto_free void *buf = NULL;
	size_t len = 0;
	int r = chunk_table_encode(t, &buf, &len, err);
	if (r < 0)
		return r;

	r = fault_point("store.write-table");
	if (r < 0)
		return fail_write(m, r, err);
	auto_close int fd = openat(m->target.dir_fd, strrchr(MANIFEST_TABLE_PATH, '/') + 1,
				   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : fd_write_full(fd, buf, len);
	return r < 0 ? fail_write(m, r, err) : 0;
}

/* Writes the table and fills in the memory of @manifest, after all chunks are in packs. */
static int finish_memory(struct chunks_writer *m, struct manifest *manifest,
			 struct chunks_sums *ret, struct brumate_error *err)
{
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;
	int r = fill_regions(m, manifest);

	if (r == 0)
		r = ledger_finish(&m->ledger, &t, manifest);
	t.sealed = m->target.key;
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if ((r = write_table(m, &t, err)) < 0)
		return r;
	*ret = sum_up(m, &t);
	manifest->memory.zero_bytes = ret->zero;
	manifest->memory.shared_bytes = ret->shared;
	manifest->memory.written_bytes = ret->written;
	return 0;
}

struct wish {
	bool (*cancelled)(void *arg);
	void *arg;
};

static int ask_owner(void *arg)
{
	const struct wish *wish = arg;

	return wish->cancelled && wish->cancelled(wish->arg) ? -ECANCELED : 0;
}

/* Links packs of earlier checkpoints, and writes the chunks that could not be linked. */
static int share_packs_of_others(struct chunks_writer *m, struct wish *wish,
				 struct brumate_error *err)
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
	if ((r = start_workers(m)) < 0)
		return brumate_fail(err, -r, "threads that write memory: %m");
	return workers_wait(&m->workers, ask_owner, wish, err);
}

int chunks_end(struct chunks_writer *m, struct manifest *manifest, struct chunks_sums *ret,
	       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	struct wish wish = { cancelled, arg };

	end_parts(m);
	int r = workers_wait(&m->workers, ask_owner, &wish, err);
	if (r == 0 && m->target.known)
		r = share_packs_of_others(m, &wish, err);
	if (r == 0)
		r = finish_memory(m, manifest, ret, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->target.id) : 0;
}

void chunks_writer_free(struct chunks_writer *m)
{
	if (!m)
		return;
	if (m->workers.n) {
		workers_stop(&m->workers);
		end_parts(m);
		workers_wait(&m->workers, NULL, NULL, NULL);
	}
	for (unsigned i = 0; i < m->n_threads; i++)
		codec_free(m->savers[i].codec);
	io_free(m->io);
	for (size_t i = 0; i < m->n_sources; i++)
		region_fini(&m->sources[i]);
	free(m->sources);
	chunk_index_free(m->target.known);
	ledger_fini(&m->ledger);
	cleanup_close(&m->target.dir_fd);
	pthread_cond_destroy(&m->news);
	pthread_mutex_destroy(&m->lock);
	free(m);
}
