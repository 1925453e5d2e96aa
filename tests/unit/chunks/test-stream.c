// SPDX-License-Identifier: MIT
/* Parts of regions that are loaded in the caller's order, through a few slots: whole, damaged, stopped, cancelled. */
#include "far-place.h"

#include <pthread.h>

enum { SLOTS = 3, REPEATED = 20 };

static struct memory_job job;
static const struct pack_source *far; /* where packs are read from; NULL: the store */

/* Slots that are free again once they were looked at. */
struct ring {
	struct chunks_part *parts;
	size_t n;
	uint8_t *slots;
	bool verify;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	int *slot_of; /* of each item; -1: none yet */
	bool taken[SLOTS], stopped, stuck;
	size_t n_admitted, n_filled, stop_at;
};

static int find_free(const struct ring *r)
{
	for (int i = 0; i < SLOTS; i++)
		if (!r->taken[i])
			return i;
	return -1;
}

static int admit(void *arg, size_t item, bool block)
{
	struct ring *r = arg;
	int slot, result;

	pthread_mutex_lock(&r->lock);
	while (!r->stopped && item >= r->n_admitted) {
		if ((slot = find_free(r)) >= 0) {
			r->taken[slot] = true;
			r->slot_of[r->n_admitted++] = slot;
		} else if (!block) {
			break;
		} else {
			pthread_cond_wait(&r->changed, &r->lock);
		}
	}
	result = r->stopped ? -ECANCELED : item < r->n_admitted;
	pthread_mutex_unlock(&r->lock);
	return result;
}

static void *room(void *arg, size_t item)
{
	const struct ring *r = arg;

	CHECK(r->slot_of[item] >= 0);
	return r->slots + (size_t)r->slot_of[item] * CHUNK_BYTES;
}

static int filled(void *arg, size_t item)
{
	struct ring *r = arg;
	const struct chunks_part *p = &r->parts[item];
	bool right =
		!memcmp(room(r, item), job.bytes[p->region] + p->part * CHUNK_BYTES, CHUNK_BYTES);

	CHECK(right || !r->verify);
	pthread_mutex_lock(&r->lock);
	r->taken[r->slot_of[item]] = r->stuck;
	r->stopped = r->stopped || ++r->n_filled == r->stop_at;
	int result = r->stopped ? -ECANCELED : 0;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return result;
}

static void stop(void *arg)
{
	struct ring *r = arg;

	pthread_mutex_lock(&r->lock);
	r->stopped = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
}

static bool at_once(void *arg)
{
	return true;
}

/* By turns of all regions, the last parts first. */
static void collect(struct ring *r, const struct chunks_reader *reader)
{
	uint64_t most = 0;

	for (size_t i = 0; i < job.n; i++)
		most += job.regions[i].len_bytes / CHUNK_BYTES;
	r->parts = calloc(most, sizeof(*r->parts));
	r->slot_of = malloc(most * sizeof(*r->slot_of));
	CHECK(r->parts && r->slot_of &&
	      !posix_memalign((void **)&r->slots, 4096, SLOTS * CHUNK_BYTES));
	memset(r->slot_of, 0xff, most * sizeof(*r->slot_of));
	for (uint64_t k = most; k-- > 0;)
		for (uint32_t i = 0; i < job.n; i++)
			if (k < job.regions[i].len_bytes / CHUNK_BYTES &&
			    chunks_part_is_stored(reader, i, k))
				r->parts[r->n++] = (struct chunks_part){ i, (uint32_t)k };
	CHECK(r->n > 4 * SLOTS);
}

/* Loads what is stored of the checkpoint through @r. */
static int load(const char *id, struct ring *r, bool (*cancelled)(void *arg),
		struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;

	*err = BRUMATE_ERROR_NONE;
	CHECK(store_open(&image, dir, id, NULL) == 0);
	image.source = far;
	CHECK(store_chunks_open(&reader, &image, NULL) == 0);
	collect(r, reader);
	const struct chunks_stream s = { .parts = r->parts,
					 .n = r->n,
					 .unverified = !r->verify,
					 .admit = admit,
					 .room = room,
					 .filled = filled,
					 .stop = stop,
					 .arg = r };
	int result = chunks_load_stream(reader, &s, cancelled, NULL, err);
	free(r->parts);
	free(r->slot_of);
	free(r->slots);
	return result;
}

static struct ring ring_for(bool verify)
{
	return (struct ring){ .verify = verify,
			      .lock = PTHREAD_MUTEX_INITIALIZER,
			      .changed = PTHREAD_COND_INITIALIZER };
}

static void test_whole(const char *id)
{
	struct brumate_error err;
	struct ring r = ring_for(true);

	CHECK(load(id, &r, NULL, &err) == 0 && r.n_filled == r.n && !r.stopped);
	r = ring_for(false);
	CHECK(load(id, &r, NULL, &err) == 0 && r.n_filled == r.n);
}

/* Nobody waits for a slot that no one will free. */
static void test_ended_early(const char *id)
{
	struct brumate_error err;
	struct ring r = ring_for(true);

	r.stop_at = 5;
	CHECK(load(id, &r, NULL, &err) == -ECANCELED && r.n_filled < r.n);
	r = ring_for(true);
	r.stuck = true;
	CHECK(load(id, &r, at_once, &err) == -ECANCELED && r.n_filled < r.n);
}

static void test_damaged(const char *id)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct brumate_error err;
	uint8_t byte;

	CHECK(store_open(&image, dir, id, NULL) == 0);
	const struct manifest_pack *p = &image.manifest.memory.packs[0];
	auto_close int fd = openat(image.dir_fd, p->path, O_RDWR | O_CLOEXEC);
	off_t middle = (off_t)(p->len_bytes / 2);
	CHECK(fd >= 0 && pread(fd, &byte, 1, middle) == 1);
	byte ^= 16;
	CHECK(pwrite(fd, &byte, 1, middle) == 1);
	struct ring r = ring_for(true);
	CHECK(load(id, &r, NULL, &err) == -EBADMSG && strstr(err.text, p->path));
	CHECK(strstr(err.text, ": chunk ") && strstr(err.text, " of process "));
	r = ring_for(true);
	CHECK(ftruncate(fd, middle) == 0);
	CHECK(load(id, &r, NULL, &err) == -EBADMSG && strstr(err.text, "truncated"));
}

static void test_wrong_part(const char *id)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	const struct chunks_part parts[] = { { 0, 1 << 20 }, { 77, 0 }, { 3, 0 } };

	CHECK(store_open(&image, dir, id, NULL) == 0 &&
	      store_chunks_open(&reader, &image, NULL) == 0);
	for (size_t i = 0; i < 3; i++) {
		const struct chunks_stream s = { .parts = &parts[i], .n = 1 };
		struct brumate_error err;

		CHECK(chunks_load_stream(reader, &s, NULL, NULL, &err) == -EINVAL);
	}
}

/* A chunk that is there again and again is read for those alone that were begun before it was there. */
static void test_repeated(const char *id)
{
	char lines[(SLOTS + 1) * 32] = "";
	struct brumate_error err;
	struct ring r = ring_for(true);

	for (int i = 0; i < SLOTS; i++)
		strcat(lines, "store.io-read delay:0\n");
	strcat(lines, "store.io-read error:5\n");
	put_file(AT_FDCWD, fault_file, lines, strlen(lines));
	CHECK(load(id, &r, NULL, &err) == 0 && r.n_filled == r.n);
	CHECK(!was_hit() && unlink(fault_file) == 0);
}

/* What is asked for by several threads, of which each waits for a slot, comes in as from here; the first failure ends
 * what all others wait for. */
static void test_far(unsigned threads, const char *id)
{
	struct place p = { .image = STORE_IMAGE_EMPTY, .mood = SOUND };
	const struct pack_source source = source_of(&p, threads);
	struct brumate_error err;

	CHECK(store_open(&p.image, dir, id, NULL) == 0);
	far = &source;
	test_whole(id);
	test_ended_early(id);
	struct ring r = ring_for(true);
	p.mood = FLIPS_ONCE;
	p.until_mood = 2;
	CHECK(load(id, &r, NULL, &err) == 0 && r.n_filled == r.n);
	r = ring_for(true);
	p.mood = FAILS;
	p.until_mood = 0; /* all others wait */
	CHECK(load(id, &r, NULL, &err) == -EREMOTEIO && strstr(err.text, "the network is gone"));
	r = ring_for(true);
	p.mood = HANGS;
	CHECK(load(id, &r, at_once, &err) == -ECANCELED && r.n_filled < r.n);
	CHECK(p.n_open == 0 && (unsigned)p.n_most <= threads);
	store_image_fini(&p.image);
	far = NULL;
}

/* A chunk that is there again and again is asked for by each thread once at most. */
static void test_far_repeated(unsigned threads, const char *id)
{
	struct place p = { .image = STORE_IMAGE_EMPTY, .mood = SOUND };
	const struct pack_source source = source_of(&p, threads);

	CHECK(store_open(&p.image, dir, id, NULL) == 0);
	far = &source;
	test_whole(id);
	CHECK((unsigned)p.n_reads <= 2 * threads);
	store_image_fini(&p.image);
	far = NULL;
}

static void save_repeated(const char *id)
{
	memory_job_fini(&job);
	add_region(&job, REPEATED * CHUNK_BYTES, FILL_RANDOM, 5);
	for (size_t i = 1; i < REPEATED; i++)
		memcpy(job.bytes[0] + i * CHUNK_BYTES, job.bytes[0], CHUNK_BYTES);
	save(&job, id, "2026-01-01T00:00:02.000Z",
	     &(struct chunks_options){ .compress = CHUNKS_COMPRESS_NONE, .no_sharing = true });
}

int main(void)
{
	new_scratch();
	begin_faults();
	add_region(&job, 12 * CHUNK_BYTES, FILL_RANDOM, 1);
	add_region(&job, 8 * CHUNK_BYTES, FILL_MIXED, 2);
	add_region(&job, 6 * CHUNK_BYTES, FILL_TEXT, 3);
	add_region(&job, CHUNK_BYTES / 2, FILL_TEXT, 4); /* no whole chunk */
	save(&job, "raw", "2026-01-01T00:00:00.000Z",
	     &(struct chunks_options){ .compress = CHUNKS_COMPRESS_NONE, .no_sharing = true });
	save(&job, "packed", "2026-01-01T00:00:01.000Z",
	     &(struct chunks_options){ .compress = CHUNKS_COMPRESS_LZ4, .no_sharing = true });
	test_whole("raw");
	test_whole("packed");
	test_ended_early("raw");
	for (unsigned threads = 1; threads <= 16; threads *= 4) {
		test_far(threads, "raw");
		test_far(threads, "packed");
	}
	test_wrong_part("raw");
	test_damaged("raw");
	test_damaged("packed");
	save_repeated("repeated");
	test_repeated("repeated");
	test_far_repeated(1, "repeated");
	test_far_repeated(4, "repeated");
	memory_job_fini(&job);
	remove_scratch();
	return 0;
}
