// SPDX-License-Identifier: MIT
/*
 * Memory whose packs are somewhere else: it comes back the same, in few requests and bounded memory; the first
 * failure is the one that is told, and ends what all others wait for.
 */
#include "far-place.h"

static const char when[] = "2026-01-01T00:00:00.000Z";

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
