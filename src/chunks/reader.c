// SPDX-License-Identifier: MIT
/*
 * Opens the memory of a checkpoint, and reads its chunks ahead of their use: from files in the order of the disk, or
 * from sources where each request takes its time.
 */
#include "chunks/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/workers.h"
#include "chunks/codec.h"
#include "chunks/files.h"

/* AHEAD: reads under way for each thread. */
enum { SHARERS_NAMED_MAX = 4, AHEAD = 3, READERS_MAX = 16 };

/* Of chunks that an ordered load wants again: part of the free memory, and most of it. */
#define KEPT_PART      16
#define KEPT_BYTES_MAX (1ull << 30)

/* ---- opening ---- */

static const struct manifest_file *find_table(const struct manifest *m)
{
	for (size_t i = 0; i < m->n_files; i++)
		if (!strcmp(m->files[i].path, MANIFEST_TABLE_PATH))
			return &m->files[i];
	return NULL;
}

static int read_table(struct chunk_table *ret, int dir_fd, const struct manifest_file *f,
		      struct brumate_error *err)
{
	struct digest digest;
	struct stat st;
	auto_close int fd = files_open(dir_fd, f->path, &st);

	if (fd < 0)
		return brumate_fail(err, fd == -ENOENT ? EBADMSG : -fd, "%s",
				    fd == -ENOENT ? "missing" : strerror(-fd));
	if ((uint64_t)st.st_size != f->len_bytes || f->len_bytes > CHUNK_TABLE_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "%jd of %" PRIu64 " bytes", (intmax_t)st.st_size,
				    f->len_bytes);
	auto_free void *buf = malloc(f->len_bytes + 1);
	if (!buf)
		return brumate_fail(err, ENOMEM, "%m");
	ssize_t n = fd_read_full(fd, buf, f->len_bytes);
	int r = n < 0 ? (int)n : digest_buffer(&digest, buf, (size_t)n);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&digest, &f->digest, sizeof(digest)))
		return brumate_fail(err, EBADMSG, "damaged: its digest does not match");
	return chunk_table_decode(ret, buf, (size_t)n, err);
}

/* Refuses a table that does not match the manifest's memory. */
static int compare_manifest(const struct chunk_table *t, const struct manifest *m,
			    struct brumate_error *err)
{
	if (t->n_regions != m->memory.n_regions || t->n_packs != m->memory.n_packs ||
	    t->sealed != (*m->key_id != '\0'))
		return brumate_fail(err, EBADMSG, "not the table of this manifest");
	for (size_t i = 0; i < t->n_regions; i++)
		if (t->regions[i].len_bytes != m->memory.regions[i].len_bytes)
			return brumate_fail(err, EBADMSG, "region %zu: not that of the manifest",
					    i);
	for (size_t i = 0; i < t->n_packs; i++)
		if (chunk_table_pack_bytes(t, (uint32_t)i) != m->memory.packs[i].len_bytes)
			return brumate_fail(err, EBADMSG, "pack %zu: not that of the manifest", i);
	return 0;
}

int chunks_open(struct chunks_reader **ret, int dir_fd, const struct manifest *manifest,
		const struct store_key *key, const struct pack_source *source,
		struct brumate_error *err)
{
	const struct manifest_file *f = find_table(manifest);

	if (!f || manifest->version < 2)
		return brumate_fail(err, ENOENT, "no memory in chunks");
	auto_(chunks_reader_free) struct chunks_reader *m = calloc(1, sizeof(*m));
	if (!m)
		return brumate_fail(err, ENOMEM, "%m");
	m->dir_fd = dir_fd;
	m->manifest = manifest;
	m->key = key;
	m->source = source;
	pthread_mutex_init(&m->lock, NULL);
	int r = read_table(&m->table, dir_fd, f, err);
	if (r == 0)
		r = compare_manifest(&m->table, manifest, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", f->path);
	m->packs = calloc(m->table.n_packs + 1, sizeof(*m->packs));
	if (!m->packs)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&m);
	return 0;
}

void chunks_reader_free(struct chunks_reader *m)
{
	if (!m)
		return;
	chunk_table_fini(&m->table);
	free(m->packs);
	io_free(m->spare);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

void chunks_reader_map(struct chunks_reader *m)
{
	m->maps = true;
}

/* ---- packs ---- */

static int open_pack(struct chunks_reader *m, struct io *io, uint32_t number, struct io_file **ret)
{
	struct stat st;
	auto_close int fd = files_open(m->dir_fd, m->manifest->memory.packs[number].path, &st);

	if (fd < 0)
		return fd;
	int r = files_check_owner(&st, NULL);
	return r < 0 ? r : io_file_new(ret, io, take_fd(&fd));
}

static int get_pack(struct chunks_reader *m, struct io *io, uint32_t number, struct io_file **ret)
{
	struct chunks_pack *p = &m->packs[number];
	int r = 0;

	pthread_mutex_lock(&m->lock);
	if (!p->file)
		r = open_pack(m, io, number, &p->file);
	if (r == 0) {
		p->users++;
		*ret = p->file;
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}

static void put_pack(struct chunks_reader *m, uint32_t number)
{
	struct chunks_pack *p = &m->packs[number];
	struct io_file *last = NULL;

	pthread_mutex_lock(&m->lock);
	if (--p->users == 0)
		last = take_ptr(&p->file);
	pthread_mutex_unlock(&m->lock);
	io_file_close(last);
}

/* ---- reading ---- */

struct reading {
	struct chunks_reader *m;
	const struct chunks_task *task;
	struct io *io;
	unsigned buffers; /* of io */
	struct workers workers;
	atomic_size_t next;
};

/* A read under way. */
struct ahead_read {
	struct io_buffer *buffer; /* NULL: no read was started; r says why, unless it is ready */
	const struct chunk_record *record;
	const void *ready;
	size_t item;
	int r;
};

/* Memory into which the chunk may be read directly, without a buffer. */
static void *find_room(const struct reading *g, const struct ahead_read *a)
{
	const struct chunk_record *c = a->record;

	if (!g->task->room || g->m->table.sealed || c->encoding != CHUNK_RAW ||
	    c->len_bytes % IO_ALIGN_BYTES)
		return NULL;
	return g->task->room(g->task->arg, a->item, c->len_bytes);
}

/* Takes the next item, if one may be started. */
static bool take_item(struct reading *g, bool block, size_t *ret)
{
	const struct chunks_task *task = g->task;
	size_t i = atomic_load(&g->next);

	do {
		if (i >= task->n || workers_are_stopped(&g->workers) ||
		    (task->admit && task->admit(task->arg, i, block) <= 0))
			return false;
	} while (!atomic_compare_exchange_weak(&g->next, &i, i + 1));
	*ret = i;
	return true;
}

static bool begin_read(struct reading *g, struct ahead_read *ret, bool block)
{
	const struct chunk_table *t = &g->m->table;
	struct io_file *file = NULL;
	size_t i;

	if (!take_item(g, block, &i))
		return false;
	*ret = (struct ahead_read){ .item = i };
	ret->record = &t->chunks[g->task->chunks ? g->task->chunks[i] : i];
	ret->ready = g->task->ready ? g->task->ready(g->task->arg, i) : NULL;
	if (ret->ready)
		return true;
	ret->r = get_pack(g->m, g->io, ret->record->pack, &file);
	if (ret->r < 0)
		return true;
	ret->buffer = io_buffer_get(g->io);
	void *room = find_room(g, ret);
	if (room)
		io_read_memory(file, ret->buffer, room, ret->record->len_bytes,
			       ret->record->offset);
	else
		io_read(file, ret->buffer, chunk_padded(ret->record->stored_bytes),
			ret->record->offset);
	return true;
}

/* Waits for the end of a read; its pack may be closed after that. */
static struct stored_chunk wait_read(struct reading *g, struct ahead_read *a, struct codec *codec)
{
	struct stored_chunk c = {
		.reader = g->m,
		.record = a->record,
		.item = a->item,
		.r = a->r,
		.ready = a->ready,
		.codec = codec,
	};

	if (!a->buffer)
		return c;
	ssize_t n = io_read_wait(a->buffer, &c.stored);
	if (n != (ssize_t)chunk_padded(a->record->stored_bytes)) {
		c.stored = NULL;
		c.r = n < 0 ? (int)n : -ENODATA;
	}
	put_pack(g->m, a->record->pack);
	return c;
}

static void stop_task(struct reading *g)
{
	workers_stop(&g->workers);
	if (g->task->stop)
		g->task->stop(g->task->arg);
}

static int read_for_worker(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct reading *g = arg;
	struct ahead_read ahead[AHEAD];
	auto_(codec_free) struct codec *codec = NULL;
	unsigned first = 0, n = 0;
	int r = codec_new(&codec);

	if (r < 0) {
		stop_task(g);
		return brumate_fail(err, -r, "%m");
	}
	for (;;) {
		while (r == 0 && n < AHEAD && begin_read(g, &ahead[(first + n) % AHEAD], n == 0))
			n++;
		if (n == 0)
			return r;
		struct ahead_read *a = &ahead[first];
		struct stored_chunk c = wait_read(g, a, codec);
		if (r == 0 && !workers_are_stopped(&g->workers) &&
		    (r = g->task->fn(g->task->arg, &c, err)) < 0)
			stop_task(g);
		io_buffer_put(a->buffer);
		first = (first + 1) % AHEAD;
		n--;
	}
}

/* Creating, pinning and freeing buffers takes long, so they are kept for the next region. */
static int get_io(struct reading *g, unsigned buffers, struct brumate_error *err)
{
	struct chunks_reader *m = g->m;
	const struct io_options options = { .buffers = buffers,
					    .engine = io_engine_for(m->dir_fd),
					    .maps = m->maps };

	pthread_mutex_lock(&m->lock);
	auto_(io_free) struct io *spare = take_ptr(&m->spare);
	g->buffers = m->spare_buffers;
	pthread_mutex_unlock(&m->lock);
	if (spare && g->buffers >= buffers) {
		g->io = take_ptr(&spare);
		return 0;
	}
	g->buffers = buffers;
	return io_new(&g->io, &options, err);
}

static void put_io(struct reading *g)
{
	struct chunks_reader *m = g->m;

	pthread_mutex_lock(&m->lock);
	struct io *other = m->spare;
	m->spare = g->io;
	m->spare_buffers = g->buffers;
	pthread_mutex_unlock(&m->lock);
	io_free(other);
}

/* ---- reading from far ---- */

/* Packs that are not local (struct pack_source): adjacent chunks are fetched in one request, several requests at a
 * time, in a bounded amount of memory. Nothing is written to disk. */

/* All buffers of one reading. Two readings may run at a time: of device and of host memory. */
#define BUFFERS_BYTES  (96u << 20)
#define SPAN_BYTES_MAX (8u << 20)

enum { FETCHERS_MAX = 32 };

struct far {
	struct chunks_reader *m;
	const struct chunks_task *task;
	struct workers workers;
	size_t span_bytes;   /* of a request, at most */
	atomic_bool stopped; /* after the first failure, or by the owner */

	pthread_mutex_t lock;
	size_t next;		     /* item; under lock, as are */
	void *readers[FETCHERS_MAX]; /* of the threads that are in fetch_for_worker() */
};

/* Items of the task that are adjacent in one pack. */
struct span {
	size_t first, n;
	uint32_t pack;
	uint64_t offset;
	size_t len_bytes;
	const void *ready; /* the bytes of its one chunk; NULL: it is read */
};

static const struct chunk_record *record_of_item(const struct far *f, size_t item)
{
	return &f->m->table.chunks[f->task->chunks ? f->task->chunks[item] : item];
}

/* Returns false at the end. */
static bool take_span(struct far *f, struct span *ret)
{
	bool found = false;

	pthread_mutex_lock(&f->lock);
	*ret = (struct span){ .first = f->next };
	for (; f->next < f->task->n && !ret->ready; f->next++, ret->n++) {
		const struct chunk_record *c = record_of_item(f, f->next);
		size_t len = chunk_padded(c->stored_bytes);
		const void *ready = f->task->ready ? f->task->ready(f->task->arg, f->next) : NULL;

		if (ready && found)
			break;
		ret->ready = ready;
		if (!found) {
			ret->pack = c->pack;
			ret->offset = c->offset;
		} else if (c->pack != ret->pack || c->offset != ret->offset + ret->len_bytes ||
			   ret->len_bytes + len > f->span_bytes) {
			break;
		}
		found = true;
		ret->len_bytes += len;
	}
	pthread_mutex_unlock(&f->lock);
	return found;
}

/* Stops all threads, so that none waits for room, or for a network answer that is not needed any more. Returns true for
 * the first caller. */
static bool stop_all(struct far *f)
{
	if (atomic_exchange(&f->stopped, true))
		return false;
	if (f->task->stop)
		f->task->stop(f->task->arg);
	pthread_mutex_lock(&f->lock);
	for (size_t i = 0; i < FETCHERS_MAX; i++)
		if (f->readers[i])
			f->m->source->stop(f->readers[i]);
	pthread_mutex_unlock(&f->lock);
	return true;
}

/* A chunk may have been damaged in transit, so a damaged one is fetched once more. */
static int give_chunk(struct far *f, void *reader, const struct stored_chunk *c,
		      struct brumate_error *err)
{
	const struct chunk_record *record = c->record;
	int r = f->task->fn(f->task->arg, c, err);

	if (r != -EBADMSG || atomic_load(&f->stopped))
		return r;
	if (err)
		*err = BRUMATE_ERROR_NONE;
	r = f->m->source->read(reader, record->pack, record->offset, (void *)c->stored,
			       chunk_padded(record->stored_bytes), err);
	return r < 0 ? r : f->task->fn(f->task->arg, c, err);
}

/* What is in the way of no other thread waits here: all before it have been taken, and a chunk is written as soon as there is
 * room for it. */
static bool is_admitted(struct far *f, size_t item)
{
	if (atomic_load(&f->stopped))
		return false;
	if (!f->task->admit || f->task->admit(f->task->arg, item, true) > 0)
		return true;
	stop_all(f);
	return false;
}

static int give_span(struct far *f, void *reader, const struct span *s, char *buf,
		     struct codec *codec, struct brumate_error *err)
{
	int r = 0;

	for (size_t i = s->first; r == 0 && i < s->first + s->n && is_admitted(f, i); i++) {
		const struct chunk_record *record = record_of_item(f, i);
		struct stored_chunk c = { .reader = f->m,
					  .record = record,
					  .item = i,
					  .stored = buf + (record->offset - s->offset),
					  .ready = s->ready,
					  .codec = codec };

		r = give_chunk(f, reader, &c, err);
	}
	return r;
}

static int fetch_spans(struct far *f, void *reader, struct brumate_error *err)
{
	auto_(codec_free) struct codec *codec = NULL;
	auto_free char *buf = aligned_alloc(CHUNK_ALIGN_BYTES, f->span_bytes);
	int r = codec_new(&codec);
	struct span s;

	if (r < 0 || !buf)
		return brumate_fail(err, ENOMEM, "%m");
	while (r == 0 && !atomic_load(&f->stopped) && take_span(f, &s)) {
		r = s.ready ? 0
			    : f->m->source->read(reader, s.pack, s.offset, buf, s.len_bytes, err);
		if (r == 0)
			r = give_span(f, reader, &s, buf, codec, err);
	}
	return r;
}

/* Reports only the first failure: the others are its consequences. */
static int fetch_for_worker(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct far *f = arg;
	const struct pack_source *source = f->m->source;
	void *reader = NULL;
	int r = source->open(source->arg, &reader, err);

	if (r == 0) {
		pthread_mutex_lock(&f->lock);
		f->readers[me->index] = reader;
		pthread_mutex_unlock(&f->lock);
		r = fetch_spans(f, reader, err);
		pthread_mutex_lock(&f->lock);
		f->readers[me->index] = NULL;
		pthread_mutex_unlock(&f->lock);
		source->close(reader);
	}
	return r < 0 && stop_all(f) ? r : 0;
}

static int ask_owner(void *arg)
{
	struct far *f = arg;
	int r = f->task->tick ? f->task->tick(f->task->tick_arg) : 0;

	if (r < 0)
		stop_all(f);
	return r;
}

/* Makes a span as long as memory allows, but so that every thread has work. */
static size_t choose_span(const struct chunks_task *task, unsigned threads)
{
	size_t share = (task->n + threads - 1) / threads;
	size_t span = BUFFERS_BYTES / threads / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;

	if (span > SPAN_BYTES_MAX)
		span = SPAN_BYTES_MAX;
	if (span / CHUNK_BYTES_MAX > share)
		span = share * CHUNK_BYTES_MAX;
	return span;
}

static int read_far(struct chunks_reader *m, const struct chunks_task *task,
		    struct brumate_error *err)
{
	struct far f = { .m = m, .task = task, .lock = PTHREAD_MUTEX_INITIALIZER };
	unsigned threads = m->source->threads;

	if (task->n == 0)
		return 0;
	if (threads > FETCHERS_MAX)
		threads = FETCHERS_MAX;
	if (threads > task->n)
		threads = (unsigned)task->n;
	f.span_bytes = choose_span(task, threads);
	int r = workers_start(&f.workers, threads, fetch_for_worker, &f);
	if (r < 0)
		return brumate_fail(err, -r, "threads that fetch memory: %m");
	r = workers_wait(&f.workers, ask_owner, &f, err);
	pthread_mutex_destroy(&f.lock);
	return r;
}

int chunks_read(struct chunks_reader *m, const struct chunks_task *task, struct brumate_error *err)
{
	struct reading g = { .m = m, .task = task };
	unsigned threads = task->threads && task->threads < READERS_MAX
				   ? task->threads
				   : workers_cores(READERS_MAX);

	if (task->n == 0)
		return 0;
	if (m->source)
		return read_far(m, task, err);
	if (threads > task->n)
		threads = (unsigned)task->n;
	int r = get_io(&g, threads * AHEAD, err);
	if (r < 0)
		return r;
	r = workers_start(&g.workers, threads, read_for_worker, &g);
	r = r < 0 ? brumate_fail(err, -r, "threads that read memory: %m")
		  : workers_wait(&g.workers, task->tick, task->tick_arg, err);
	put_io(&g);
	return r;
}

/* ---- what is read ---- */

/* Decrypts a sealed chunk in place: its buffer is not used for anything else. */
static bool open_chunk(const struct stored_chunk *c)
{
	const struct chunks_reader *m = c->reader;
	const struct chunk_record *record = c->record;

	if (!m->table.sealed)
		return true;
	return m->key &&
	       store_key_chunk(m->key, &record->digest,
			       m->manifest->memory.packs[record->pack].path, record->offset,
			       (void *)c->stored, record->stored_bytes) == 0;
}

static bool digest_matches(const struct stored_chunk *c, const void *data)
{
	const struct chunk_record *record = c->record;
	struct digest digest;
	int r = c->reader->table.sealed ? chunk_digest_keyed(&digest, &c->reader->key->digests,
							     data, record->len_bytes)
					: chunk_digest(&digest, data, record->len_bytes);

	return r == 0 && !memcmp(&digest, &record->digest, sizeof(digest));
}

/* The bytes of the chunk (see codec_expand()), or NULL and the reason in @ret_why. Works only once for sealed chunks,
 * as they are decrypted in place. */
static const void *expand_chunk(const struct stored_chunk *c, const char **ret_why)
{
	const void *data = NULL;

	if (!c->stored)
		*ret_why = c->r == -ENODATA ? "truncated" : strerror(-c->r);
	else if (!open_chunk(c))
		*ret_why = "encrypted, and there is no key";
	else if (!(data = codec_expand(c->codec, c->record, c->stored)))
		*ret_why = "damaged: it cannot be decompressed";
	return data;
}

/* Like expand_chunk(), but also NULL if the bytes are not those that were saved. */
static const void *check_chunk(const struct stored_chunk *c, const char **ret_why)
{
	const void *data = expand_chunk(c, ret_why);

	if (!data || digest_matches(c, data))
		return data;
	*ret_why = "damaged: its digest does not match";
	return NULL;
}

static bool stored_bytes_match(const struct stored_chunk *c)
{
	struct digest digest;

	return chunk_digest(&digest, c->stored, c->record->stored_bytes) == 0 &&
	       !memcmp(&digest, &c->record->stored, sizeof(digest));
}

bool chunks_check_stored(const struct stored_chunk *c, const char **ret_why)
{
	const struct chunk_record *record = c->record;
	size_t padding = chunk_padded(record->stored_bytes) - record->stored_bytes;
	bool sealed = c->reader->table.sealed;

	if ((!sealed || !c->stored) && !check_chunk(c, ret_why))
		return false;
	/* Some bit flips in a compressed chunk do not change the expanded bytes. */
	if ((sealed || record->encoding != CHUNK_RAW) && !stored_bytes_match(c))
		*ret_why = "damaged: its stored bytes are not those that were written";
	else if (!chunk_is_zero((const char *)c->stored + record->stored_bytes, padding))
		*ret_why = "damaged: what follows it is not zero";
	else
		return true;
	return false;
}

/* The first part that uses the chunk. */
static bool find_part(const struct chunk_table *t, uint32_t chunk, size_t *ret_region,
		      uint64_t *ret_offset)
{
	for (size_t k = 0; k < t->n_regions; k++) {
		uint64_t n = chunk_parts(t->regions[k].len_bytes);

		for (uint64_t i = 0; i < n; i++) {
			if (t->parts[t->regions[k].first + i] != chunk)
				continue;
			*ret_region = k;
			*ret_offset = i * CHUNK_BYTES_MAX;
			return true;
		}
	}
	return false;
}

/* "it holds …": what of the job is in the chunk. */
static void describe_use(char *ret, size_t room, const struct chunks_reader *m,
			 const struct chunk_record *c)
{
	uint64_t offset;
	size_t k;

	if (!find_part(&m->table, (uint32_t)(c - m->table.chunks), &k, &offset)) {
		snprintf(ret, room, "nothing of this checkpoint is in it");
		return;
	}
	const struct manifest_region *region = &m->manifest->memory.regions[k];
	bool device = region->kind == MANIFEST_REGION_DEVICE;
	uint64_t va = region->va + offset;

	snprintf(ret, room, "it holds 0x%" PRIx64 "-0x%" PRIx64 " of process %d (region %zu, %s%s)",
		 va, va + c->len_bytes, region->pid, k, device ? "GPU " : "CPU memory",
		 device ? region->gpu : "");
}

static bool has_file(int store_fd, const char *id, const char *path, const struct stat *want)
{
	auto_free char *full = path_format("%s/%s", id, path);
	struct stat st;

	return full && fstatat(store_fd, full, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_ino == want->st_ino && st.st_dev == want->st_dev;
}

/* Writes "; shared with A, B and 3 more" for the file @path of the checkpoint @id, which is open as @dir_fd; nothing
 * if no other checkpoint has it, or that cannot be determined. */
static void describe_sharers(char *ret, size_t room, int dir_fd, const char *id, const char *path)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int store_fd = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	size_t len = 0, n = 0;
	struct stat st;

	*ret = '\0';
	if (store_fd < 0 || fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    st.st_nlink < 2 || dir_names_list(&all, store_fd, manifest_id_is_valid) < 0)
		return;
	for (size_t i = 0; i < all.n; i++) {
		if (!strcmp(all.ids[i], id) || !has_file(store_fd, all.ids[i], path, &st))
			continue;
		if (n++ < SHARERS_NAMED_MAX && len < room)
			len += (size_t)snprintf(ret + len, room - len, "%s%s",
						n > 1 ? ", " : "; shared with ", all.ids[i]);
	}
	if (n > SHARERS_NAMED_MAX && len < room)
		snprintf(ret + len, room - len, " and %zu more", n - SHARERS_NAMED_MAX);
}

int chunks_fail_chunk(const struct chunks_reader *m, const struct chunk_record *c, const char *why,
		      struct brumate_error *err)
{
	const char *path = m->manifest->memory.packs[c->pack].path;
	char use[256], others[400];
	size_t n;

	describe_use(use, sizeof(use), m, c);
	describe_sharers(others, sizeof(others), m->dir_fd, m->manifest->id, path);
	return brumate_fail(err, EBADMSG, "%s: chunk %td (bytes %" PRIu64 "-%" PRIu64 "): %s; %s%s",
			    path, c - chunk_table_pack(&m->table, c->pack, &n), c->offset,
			    c->offset + chunk_padded(c->stored_bytes), why, use, others);
}

/* ---- loading regions: their chunks are read once each, in the order of the disk, and go to all their parts ---- */

/* A part of a region, and its chunk. */
struct load_part {
	uint32_t chunk;
	uint32_t place;
	uint64_t part;
};

struct load {
	struct chunks_reader *m;
	const struct chunks_place *places;
	size_t n_places;
	struct load_part *parts; /* the stored parts, by chunk */
	uint32_t *chunks;	 /* of the stored parts, each once */
	size_t *first;	   /* for each chunk, the index of its first part; one more at the end */
	size_t n_parts, n; /* number of parts, number of chunks */
	bool (*cancelled)(void *arg);
	void *arg;
};

static void load_fini(struct load *l)
{
	free(l->parts);
	free(l->chunks);
	free(l->first);
}
DEFINE_AUTO_FINI(struct load, load_fini)

static const struct chunk_region *region_of(const struct load *l, uint32_t place)
{
	return &l->m->table.regions[l->places[place].index];
}

static int compare_parts(const void *a, const void *b)
{
	const struct load_part *x = a, *y = b;

	if (x->chunk != y->chunk)
		return x->chunk < y->chunk ? -1 : 1;
	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return x->part < y->part ? -1 : x->part > y->part;
}

static void collect_parts(struct load *l, uint32_t place)
{
	const struct chunk_region *region = region_of(l, place);
	const uint32_t *chunks = l->m->table.parts + region->first;

	for (uint64_t i = 0; i < chunk_parts(region->len_bytes); i++)
		if (chunks[i] != CHUNK_ZERO)
			l->parts[l->n_parts++] = (struct load_part){ chunks[i], place, i };
}

static int plan_load(struct load *l)
{
	size_t most = 1;

	for (uint32_t k = 0; k < l->n_places; k++)
		most += (size_t)chunk_parts(region_of(l, k)->len_bytes);
	l->parts = calloc(most, sizeof(*l->parts));
	l->chunks = calloc(most, sizeof(*l->chunks));
	l->first = calloc(most, sizeof(*l->first));
	if (!l->parts || !l->chunks || !l->first)
		return -ENOMEM;
	for (uint32_t k = 0; k < l->n_places; k++)
		collect_parts(l, k);
	qsort(l->parts, l->n_parts, sizeof(*l->parts), compare_parts);
	for (size_t i = 0; i < l->n_parts; i++) {
		if (l->n && l->chunks[l->n - 1] == l->parts[i].chunk)
			continue;
		l->first[l->n] = i;
		l->chunks[l->n++] = l->parts[i].chunk;
	}
	l->first[l->n] = l->n_parts;
	return 0;
}

static int load_tick(void *arg)
{
	const struct load *l = arg;

	return l->cancelled && l->cancelled(l->arg) ? -ECANCELED : 0;
}

static int give_part(struct load *l, uint32_t place, uint64_t part, const void *data,
		     struct brumate_error *err)
{
	const struct chunks_place *p = &l->places[place];
	const struct manifest_region *region = &l->m->manifest->memory.regions[p->index];
	uint64_t offset = part * CHUNK_BYTES_MAX;
	uint32_t len = chunk_part_bytes(region->len_bytes, part);
	int r = p->sink(p->arg, offset, data, len);

	return r < 0 ? brumate_fail(err, -r,
				    "what was read cannot be put at 0x%" PRIx64
				    " of process %d: %m",
				    region->va + offset, region->pid)
		     : 0;
}

static int load_chunk(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct load *l = arg;
	const char *why;
	const void *data = check_chunk(c, &why);
	int r = 0;

	if (!data)
		return chunks_fail_chunk(l->m, c->record, why, err);
	for (size_t i = l->first[c->item]; r == 0 && i < l->first[c->item + 1]; i++)
		r = give_part(l, l->parts[i].place, l->parts[i].part, data, err);
	return r;
}

static int load_zeros(struct load *l, uint32_t place, struct brumate_error *err)
{
	const struct chunk_region *region = region_of(l, place);
	const uint32_t *chunks = l->m->table.parts + region->first;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < chunk_parts(region->len_bytes); i++) {
		if (chunks[i] != CHUNK_ZERO)
			continue;
		r = load_tick(l) < 0 ? brumate_fail(err, ECANCELED, "stopped: %m")
				     : give_part(l, place, i, NULL, err);
	}
	return r;
}

static int load_all(struct load *l, unsigned threads, struct brumate_error *err)
{
	struct chunks_task task = {
		.chunks = l->chunks,
		.n = l->n,
		.threads = threads,
		.fn = load_chunk,
		.arg = l,
		.tick = load_tick,
		.tick_arg = l,
	};
	int r = 0;

	for (uint32_t k = 0; r == 0 && k < l->n_places; k++)
		r = load_zeros(l, k, err);
	return r < 0 ? r : chunks_read(l->m, &task, err);
}

static int fail_key(const struct chunks_reader *m, struct brumate_error *err)
{
	return brumate_fail(err, ENOKEY, "checkpoint %s: encrypted, and there is no key",
			    m->manifest->id);
}

int chunks_load_all(struct chunks_reader *m, const struct chunks_place *places, size_t n,
		    unsigned threads, bool (*cancelled)(void *arg), void *arg,
		    struct brumate_error *err)
{
	auto_(load_fini) struct load l = {
		.m = m, .places = places, .n_places = n, .cancelled = cancelled, .arg = arg
	};

	for (size_t k = 0; k < n; k++)
		if (places[k].index >= m->table.n_regions)
			return brumate_fail(err, EINVAL, "no region %zu", places[k].index);
	if (m->table.sealed && !m->key)
		return fail_key(m, err);
	int r = plan_load(&l);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	r = load_all(&l, threads, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->manifest->id) : 0;
}

/* ---- loading parts in an order ---- */

/* A chunk of the table that is wanted for several parts. Its bytes stay from the first of them to the last, so that it is
 * not read for each. */
struct repeated {
	uint32_t left; /* parts that do not have it yet */
	void *kept;    /* owned; NULL: they are read again */
};

struct ordered {
	struct chunks_reader *m;
	const struct chunks_stream *stream;
	const uint32_t *chunks;
	uint64_t most_bytes;	   /* that are kept at a time */
	pthread_mutex_t lock;	   /* of the next two */
	struct repeated *repeated; /* for each chunk of the table */
	uint64_t kept_bytes;
	atomic_size_t n_filled;
	bool (*cancelled)(void *arg);
	void *arg;
};

static void ordered_stop(void *arg)
{
	const struct ordered *o = arg;

	o->stream->stop(o->stream->arg);
}

static int ordered_tick(void *arg)
{
	const struct ordered *o = arg;

	if (!o->cancelled || !o->cancelled(o->arg))
		return 0;
	o->stream->stop(o->stream->arg);
	return -ECANCELED;
}

static int ordered_admit(void *arg, size_t item, bool block)
{
	const struct ordered *o = arg;

	return o->stream->admit(o->stream->arg, item, block);
}

static void *ordered_room(void *arg, size_t item, size_t len_bytes)
{
	const struct ordered *o = arg;

	return len_bytes == CHUNK_BYTES ? o->stream->room(o->stream->arg, item) : NULL;
}

/* Valid until ordered_keep() is called for the item. */
static const void *ordered_ready(void *arg, size_t item)
{
	struct ordered *o = arg;

	pthread_mutex_lock(&o->lock);
	const void *kept = o->repeated[o->chunks[item]].kept;
	pthread_mutex_unlock(&o->lock);
	return kept;
}

/* The item has its chunk, which is @data. */
static void ordered_keep(struct ordered *o, size_t item, const void *data)
{
	struct repeated *r = &o->repeated[o->chunks[item]];
	void *copy = NULL;

	pthread_mutex_lock(&o->lock);
	bool keeps = --r->left && !r->kept && o->kept_bytes + CHUNK_BYTES <= o->most_bytes;
	if (keeps)
		o->kept_bytes += CHUNK_BYTES;
	if (!r->left && r->kept) {
		o->kept_bytes -= CHUNK_BYTES;
		free(take_ptr(&r->kept));
	}
	pthread_mutex_unlock(&o->lock);
	if (!keeps)
		return;
	copy = malloc(CHUNK_BYTES);
	if (copy)
		memcpy(copy, data, CHUNK_BYTES);
	pthread_mutex_lock(&o->lock);
	/* Another thread may have read it as well, and all may have it by now. */
	if (copy && r->left && !r->kept)
		r->kept = take_ptr(&copy);
	else
		o->kept_bytes -= CHUNK_BYTES;
	pthread_mutex_unlock(&o->lock);
	free(copy);
}

static int ordered_chunk(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct ordered *o = arg;
	const struct chunks_stream *s = o->stream;
	const char *why;
	const void *data = c->ready	   ? c->ready
			   : s->unverified ? expand_chunk(c, &why)
					   : check_chunk(c, &why);
	void *room = s->room(s->arg, c->item);

	if (!data)
		return chunks_fail_chunk(o->m, c->record, why, err);
	if (data != room)
		memcpy(room, data, c->record->len_bytes);
	ordered_keep(o, c->item, room);
	/* Being stopped is not an error of this thread: another thread has one to report. */
	if (s->filled(s->arg, c->item) == 0)
		atomic_fetch_add(&o->n_filled, 1);
	return 0;
}

/* Finds the chunk of each part, and how often each is wanted. */
static int find_chunks(const struct chunks_reader *m, const struct chunks_stream *s, uint32_t *ret,
		       struct repeated *repeated)
{
	const struct chunk_table *t = &m->table;

	for (size_t i = 0; i < s->n; i++) {
		const struct chunks_part *p = &s->parts[i];

		if (!chunks_part_is_stored(m, p->region, p->part))
			return -EINVAL;
		ret[i] = t->parts[t->regions[p->region].first + p->part];
		if (t->chunks[ret[i]].len_bytes != CHUNK_BYTES)
			return -EINVAL;
		repeated[ret[i]].left++;
	}
	return 0;
}

/* A small part of the memory that is available. */
static uint64_t choose_kept_bytes(void)
{
	uint64_t bytes = machine_room_bytes() / KEPT_PART;

	return bytes < KEPT_BYTES_MAX ? bytes : KEPT_BYTES_MAX;
}

static void ordered_fini(struct ordered *o)
{
	for (size_t i = 0; o->repeated && i < o->m->table.n_chunks; i++)
		free(o->repeated[i].kept);
	free(o->repeated);
	pthread_mutex_destroy(&o->lock);
}
DEFINE_AUTO_FINI(struct ordered, ordered_fini)

int chunks_load_stream(struct chunks_reader *m, const struct chunks_stream *s,
		       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	auto_free uint32_t *chunks = calloc(s->n + 1, sizeof(*chunks));
	auto_(ordered_fini) struct ordered o = {
		.m = m,
		.stream = s,
		.chunks = chunks,
		.most_bytes = choose_kept_bytes(),
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.repeated = calloc(m->table.n_chunks + 1, sizeof(*o.repeated)),
		.cancelled = cancelled,
		.arg = arg,
	};
	const struct chunks_task task = {
		.chunks = chunks,
		.n = s->n,
		.fn = ordered_chunk,
		.room = ordered_room,
		.admit = ordered_admit,
		.ready = ordered_ready,
		.stop = ordered_stop,
		.arg = &o,
		.tick = ordered_tick,
		.tick_arg = &o,
	};

	if (!chunks || !o.repeated)
		return brumate_fail(err, ENOMEM, "%m");
	int r = find_chunks(m, s, chunks, o.repeated);
	if (r < 0)
		return brumate_fail(err, -r, "parts of regions: %m");
	if (m->table.sealed && !m->key)
		return fail_key(m, err);
	r = chunks_read(m, &task, err);
	if (r == 0 && o.n_filled < s->n)
		r = brumate_fail(err, ECANCELED, "stopped: %m");
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->manifest->id) : 0;
}

bool chunks_part_is_stored(const struct chunks_reader *m, size_t index, uint64_t part)
{
	const struct chunk_table *t = &m->table;

	return index < t->n_regions && part < chunk_parts(t->regions[index].len_bytes) &&
	       t->parts[t->regions[index].first + part] != CHUNK_ZERO;
}

int chunks_digests(const struct chunks_reader *m, size_t index, struct digest *ret, size_t n)
{
	const struct chunk_table *t = &m->table;
	const struct chunk_region *region;
	struct digest zero = { 0 };
	bool have_zero = false;

	if (t->sealed)
		return 0;
	if (index >= t->n_regions || chunk_parts(t->regions[index].len_bytes) != n ||
	    t->regions[index].len_bytes % CHUNK_BYTES_MAX)
		return -EINVAL;
	region = &t->regions[index];
	for (size_t i = 0; i < n; i++) {
		uint32_t part = t->parts[region->first + i];

		if (part == CHUNK_ZERO && !have_zero) {
			int r = chunk_digest_zeros(&zero);

			if (r < 0)
				return r;
			have_zero = true;
		}
		ret[i] = part == CHUNK_ZERO ? zero : t->chunks[part].digest;
	}
	return 1;
}
