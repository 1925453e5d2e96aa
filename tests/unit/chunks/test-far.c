// SPDX-License-Identifier: MIT
/*
 * Memory whose packs are somewhere else: it comes back the same, in few requests and bounded memory; the first
 * failure is the one that is told, and ends what all others wait for.
 */
#include "memory-job.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "chunks/chunks.h"

static const char when[] = "2026-01-01T00:00:00.000Z";

enum mood { SOUND, FLIPS_ONCE, FLIPS, FAILS, HANGS };

/* A place that is far away. */
struct place {
	struct store_image image; /* whose packs are read */
	enum mood mood; /* of the request at which @until_mood is 0; FLIPS: from there on */
	atomic_int until_mood;
	atomic_int n_reads, n_open, n_most;
	_Atomic uint64_t most_bytes; /* of one request */
};

struct far_reader {
	struct place *place;
	int stop_fd;
};

static int far_open(void *arg, void **ret, struct brumate_error *err)
{
	struct place *p = arg;
	struct far_reader *r = calloc(1, sizeof(*r));
	int n = atomic_fetch_add(&p->n_open, 1) + 1;

	CHECK(r);
	*r = (struct far_reader){ p, eventfd(0, EFD_CLOEXEC) };
	CHECK(r->stop_fd >= 0);
	for (int most = p->n_most; n > most && !atomic_compare_exchange_weak(&p->n_most, &most, n);)
		;
	*ret = r;
	return 0;
}

static void far_stop(void *reader)
{
	const struct far_reader *r = reader;

	eventfd_write(r->stop_fd, 1);
}

static void far_close(void *reader)
{
	struct far_reader *r = reader;

	atomic_fetch_sub(&r->place->n_open, 1);
	close(r->stop_fd);
	free(r);
}

static bool is_stopped(const struct far_reader *r, int timeout_ms)
{
	struct pollfd fd = { .fd = r->stop_fd, .events = POLLIN };

	return poll(&fd, 1, timeout_ms) == 1;
}

static int far_read(void *reader, uint32_t pack, uint64_t offset, void *buf, size_t len,
		    struct brumate_error *err)
{
	struct far_reader *r = reader;
	struct place *p = r->place;
	int until = atomic_fetch_sub(&p->until_mood, 1);
	bool now = until == 0;
	const char *path = p->image.manifest.memory.packs[pack].path;
	auto_close int fd = openat(p->image.dir_fd, path, O_RDONLY | O_CLOEXEC);

	atomic_fetch_add(&p->n_reads, 1);
	for (uint64_t most = p->most_bytes;
	     len > most && !atomic_compare_exchange_weak(&p->most_bytes, &most, len);)
		;
	if (now && p->mood == FAILS)
		return brumate_fail(err, EREMOTEIO, "the network is gone");
	/* All but the one that fails wait for ever, or until they are told to stop. */
	if ((p->mood == FAILS || p->mood == HANGS) && is_stopped(r, -1))
		return brumate_fail(err, ECANCELED, "stopped");
	CHECK(fd >= 0 && pread(fd, buf, len, (off_t)offset) == (ssize_t)len);
	if ((now && p->mood == FLIPS_ONCE) || (until <= 0 && p->mood == FLIPS))
		((uint8_t *)buf)[len / 2] ^= 1;
	return 0;
}

static struct pack_source source_of(struct place *p, unsigned threads)
{
	return (struct pack_source){ .threads = threads,
				     .open = far_open,
				     .read = far_read,
				     .stop = far_stop,
				     .close = far_close,
				     .arg = p };
}

/* The checkpoint as it is here: without its packs. */
static void open_far(struct store_image *ret, const char *id, const struct pack_source *source)
{
	CHECK(store_open(ret, dir, id, NULL) == 0);
	ret->source = source;
}

static void test_comes_back(unsigned threads, uint64_t most_bytes, enum mood mood)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	struct chunks_options options = { .compress = CHUNKS_COMPRESS_LZ4 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct place p = { .image = STORE_IMAGE_EMPTY, .mood = mood, .until_mood = 3 };
	struct pack_source source = source_of(&p, threads);

	add_region(&j, 40 * CHUNK_BYTES, FILL_RANDOM, 1);
	add_region(&j, 5 * CHUNK_BYTES + 12345, FILL_MIXED, 2);
	add_region(&j, 3 * CHUNK_BYTES, FILL_ZERO, 0);
	add_region(&j, 1, FILL_TEXT, 3);
	save(&j, "far", when, &options);
	CHECK(store_open(&p.image, dir, "far", NULL) == 0);
	open_far(&image, "far", &source);
	CHECK(store_chunks_open(&reader, &image, &err) == 0);
	for (size_t i = 0; i < j.n; i++)
		CHECK(load_region(reader, &j, i, &err) == 0);
	CHECK(p.n_open == 0 && p.n_most >= 1 && (unsigned)p.n_most <= threads);
	CHECK(p.most_bytes == most_bytes && (uint64_t)p.n_reads <= 13 + (80ull << 20) / most_bytes);
	store_image_fini(&p.image);
	CHECK(store_remove(dir, "far", NULL) == 0);
}

static bool when_all_hang(void *arg)
{
	struct target *t = arg;

	return t->got == 0;
}

static int put_nowhere(void *arg, uint64_t offset, const void *data, size_t len)
{
	struct target *t = arg;

	t->got += len;
	return 0;
}

static void test_fails(enum mood mood, int at, int want, const char *text)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	struct chunks_options options = { .compress = CHUNKS_COMPRESS_NONE };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct place p = { .image = STORE_IMAGE_EMPTY, .mood = mood, .until_mood = at };
	struct pack_source source = source_of(&p, 4);
	struct target t = { 0 };

	add_region(&j, 20 * CHUNK_BYTES, FILL_RANDOM, 1);
	save(&j, "fails", when, &options);
	CHECK(store_open(&p.image, dir, "fails", NULL) == 0);
	open_far(&image, "fails", &source);
	CHECK(store_chunks_open(&reader, &image, &err) == 0);
	const struct chunks_place region = { 0, put_nowhere, &t };
	int r = chunks_load_all(reader, &region, 1, 0, mood == HANGS ? when_all_hang : NULL, &t,
				&err);
	if (r != want || !strstr(err.text, text))
		fprintf(stderr, "%d: %s\n", r, err.text);
	CHECK(r == want && strstr(err.text, text));
	CHECK(p.n_open == 0 && t.got < j.regions[0].len_bytes);
	store_image_fini(&p.image);
	CHECK(store_remove(dir, "fails", NULL) == 0);
}

int main(void)
{
	new_scratch();
	test_comes_back(1, 8 << 20, SOUND);
	test_comes_back(16, 6 << 20, SOUND);
	test_comes_back(1000, 2 << 20, SOUND);
	test_comes_back(1, 8 << 20, FLIPS_ONCE); /* it is asked for once more */
	test_comes_back(16, 6 << 20, FLIPS_ONCE);
	for (int at = 0; at < 4; at++)
		test_fails(FAILS, at, -EREMOTEIO, "checkpoint fails: the network is gone");
	test_fails(FLIPS, 2, -EBADMSG, "damaged: its digest does not match; it holds 0x7");
	test_fails(HANGS, 0, -ECANCELED, "stopped");
	remove_scratch();
	return 0;
}
