// SPDX-License-Identifier: MIT
/* Reading chunks from where each request takes its time; see far.h. Nothing is written anywhere. */
#include "chunks/far.h"
#include "chunks/codec.h"
#include "chunks/pack-source.h"
#include "chunks/team.h"

#include <errno.h>
#include <stdlib.h>

/* Of all buffers of one reading, of which there may be two at a time: device and host memory. */
#define BUFFERS_BYTES  (96u << 20)
#define SPAN_BYTES_MAX (8u << 20)

enum { THREADS_MAX = 32 };

struct far {
	struct chunks_reader *m;
	const struct chunks_task *task;
	struct team team;
	size_t span_bytes;   /* of a request, at most */
	atomic_bool stopped; /* by the first failure, or the owner */

	pthread_mutex_t lock;
	size_t next;		    /* item; under lock, as are */
	void *readers[THREADS_MAX]; /* of the threads that are at work */
};

/* Items of the task that lie side by side in one pack. */
struct span {
	size_t first, n;
	uint32_t pack;
	uint64_t offset;
	size_t len_bytes;
};

static const struct chunk_record *record_of(const struct far *f, size_t item)
{
	return &f->m->table.chunks[f->task->chunks ? f->task->chunks[item] : item];
}

/* False: there is no more. */
static bool take_span(struct far *f, struct span *ret)
{
	bool found = false;

	pthread_mutex_lock(&f->lock);
	*ret = (struct span){ .first = f->next };
	for (; f->next < f->task->n; f->next++, ret->n++) {
		const struct chunk_record *c = record_of(f, f->next);
		size_t len = chunk_padded(c->stored_bytes);

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

/* Ends what all threads do, so that nobody waits for a network whose answer is of no use any more. True for
 * the first who says so. */
static bool stop_all(struct far *f)
{
	if (atomic_exchange(&f->stopped, true))
		return false;
	pthread_mutex_lock(&f->lock);
	for (size_t i = 0; i < THREADS_MAX; i++)
		if (f->readers[i])
			f->m->source->stop(f->readers[i]);
	pthread_mutex_unlock(&f->lock);
	return true;
}

/* What is damaged may have been so on its way only: it is asked for once more. */
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

static int give_span(struct far *f, void *reader, const struct span *s, char *buf,
		     struct codec *codec, struct brumate_error *err)
{
	int r = 0;

	for (size_t i = s->first; r == 0 && i < s->first + s->n && !atomic_load(&f->stopped); i++) {
		const struct chunk_record *record = record_of(f, i);
		struct stored_chunk c = { .reader = f->m,
					  .record = record,
					  .item = i,
					  .stored = buf + (record->offset - s->offset),
					  .codec = codec };

		r = give_chunk(f, reader, &c, err);
	}
	return r;
}

static int read_spans(struct far *f, void *reader, struct brumate_error *err)
{
	auto_(codec_free) struct codec *codec = NULL;
	auto_free char *buf = aligned_alloc(CHUNK_ALIGN_BYTES, f->span_bytes);
	int r = codec_new(&codec);
	struct span s;

	if (r < 0 || !buf)
		return brumate_fail(err, ENOMEM, "%m");
	while (r == 0 && !atomic_load(&f->stopped) && take_span(f, &s)) {
		r = f->m->source->read(reader, s.pack, s.offset, buf, s.len_bytes, err);
		if (r == 0)
			r = give_span(f, reader, &s, buf, codec, err);
	}
	return r;
}

/* The first failure is the one that is told: all others are but its consequences. */
static int work(void *arg, unsigned index, struct brumate_error *err)
{
	struct far *f = arg;
	const struct pack_source *source = f->m->source;
	void *reader = NULL;
	int r = source->open(source->arg, &reader, err);

	if (r == 0) {
		pthread_mutex_lock(&f->lock);
		f->readers[index] = reader;
		pthread_mutex_unlock(&f->lock);
		r = read_spans(f, reader, err);
		pthread_mutex_lock(&f->lock);
		f->readers[index] = NULL;
		pthread_mutex_unlock(&f->lock);
		source->close(reader);
	}
	return r < 0 && stop_all(f) ? r : 0;
}

static int tick(void *arg)
{
	struct far *f = arg;
	int r = f->task->tick ? f->task->tick(f->task->tick_arg) : 0;

	if (r < 0)
		stop_all(f);
	return r;
}

/* As long as memory allows, but so that all threads have something to do. */
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

int chunks_read_far(struct chunks_reader *m, const struct chunks_task *task,
		    struct brumate_error *err)
{
	struct far f = { .m = m, .task = task, .lock = PTHREAD_MUTEX_INITIALIZER };
	unsigned threads = m->source->threads;

	if (task->n == 0)
		return 0;
	if (threads > THREADS_MAX)
		threads = THREADS_MAX;
	if (threads > task->n)
		threads = (unsigned)task->n;
	f.span_bytes = choose_span(task, threads);
	int r = team_start(&f.team, threads, work, &f);
	if (r < 0)
		return brumate_fail(err, -r, "threads that fetch memory: %m");
	r = team_wait(&f.team, tick, &f, err);
	pthread_mutex_destroy(&f.lock);
	return r;
}
