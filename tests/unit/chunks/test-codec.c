// SPDX-License-Identifier: MIT
/* Which encoding a chunk gets: by what the disk and the cores take for it, and never for what does not
 * compress. */
#include "memory-job.h"

#include "chunks/codec.h"

enum { LEN = CHUNK_BYTES };

static uint8_t text[LEN], noise[LEN];

/* A thread that has seen so many nanoseconds a byte, often enough to believe it. */
static struct tuner taught(enum chunks_compress wish, double append_ns, double lz4_ns,
			   double zstd_ns)
{
	struct tuner t = tuner_new(wish);

	for (int i = 0; i < 100; i++) {
		tuner_appended(&t, LEN, (uint64_t)(append_ns * LEN));
		tuner_compressed(&t, CHUNK_LZ4, LEN, (uint64_t)(lz4_ns * LEN));
		tuner_compressed(&t, CHUNK_ZSTD, LEN, (uint64_t)(zstd_ns * LEN));
	}
	return t;
}

static void test_wishes(struct codec *c)
{
	struct tuner none = taught(CHUNKS_COMPRESS_NONE, 1000, 1, 1);
	struct tuner lz4 = taught(CHUNKS_COMPRESS_LZ4, 0, 1, 1);
	struct tuner zstd = taught(CHUNKS_COMPRESS_ZSTD, 0, 1, 1);

	CHECK(tuner_choose(&none, c, text, LEN) == CHUNK_RAW);
	CHECK(tuner_choose(&lz4, c, noise, LEN) == CHUNK_LZ4);
	CHECK(tuner_choose(&zstd, c, noise, LEN) == CHUNK_ZSTD);
}

static void test_auto(struct codec *c)
{
	struct tuner unknown = tuner_new(CHUNKS_COMPRESS_AUTO);
	struct tuner fast = taught(CHUNKS_COMPRESS_AUTO, 0.3, 1.5, 3);
	struct tuner slow = taught(CHUNKS_COMPRESS_AUTO, 8, 1.5, 5);
	struct tuner slower = taught(CHUNKS_COMPRESS_AUTO, 200, 1.5, 3);

	CHECK(tuner_choose(&unknown, c, text, LEN) == CHUNK_RAW);
	CHECK(tuner_choose(&fast, c, text, LEN) == CHUNK_RAW);
	CHECK(tuner_choose(&slow, c, text, LEN) == CHUNK_LZ4);
	CHECK(tuner_choose(&slower, c, text, LEN) == CHUNK_ZSTD);
	CHECK(tuner_choose(&slower, c, noise, LEN) == CHUNK_RAW);
	CHECK(tuner_choose(&slower, c, text, 1) == CHUNK_RAW);

	/* A disk that has caught up gets them raw again. */
	for (int i = 0; i < 100; i++)
		tuner_appended(&slow, LEN, LEN / 10);
	CHECK(tuner_choose(&slow, c, text, LEN) == CHUNK_RAW);
}

/* What is compressed comes back, and damage does not go beyond the room for it. */
static void test_codec(struct codec *c)
{
	static uint8_t packed[LEN];

	for (enum chunk_encoding e = CHUNK_LZ4; e < CHUNK__MAX; e++) {
		size_t n = codec_compress(c, e, packed, LEN, text, LEN);
		struct chunk_record record = { .len_bytes = LEN,
					       .stored_bytes = (uint32_t)n,
					       .encoding = e };

		CHECK(n > 0 && n < LEN / 2);
		CHECK(!memcmp(codec_expand(c, &record, packed), text, LEN));
		CHECK(codec_compress(c, e, packed, LEN / 2, noise, LEN) == 0);
		n = codec_compress(c, e, packed, LEN, text, LEN);
		record.len_bytes = LEN - 1;
		CHECK(!codec_expand(c, &record, packed));
		record.len_bytes = LEN;
		record.stored_bytes = (uint32_t)n - 1;
		CHECK(!codec_expand(c, &record, packed));
		for (uint64_t seed = 1; seed < 50; seed++) {
			fill_random(packed, 1000, seed);
			record.stored_bytes = 1000;
			codec_expand(c, &record, packed);
		}
	}
}

int main(void)
{
	auto_(codec_free) struct codec *c = NULL;

	CHECK(codec_new(&c) == 0);
	fill_text(text, LEN, 1);
	fill_random(noise, LEN, 2);
	test_wishes(c);
	test_auto(c);
	test_codec(c);
	return 0;
}
