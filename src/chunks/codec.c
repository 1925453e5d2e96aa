// SPDX-License-Identifier: MIT
/* Compression of chunks by liblz4 and libzstd, and the choice whether to compress; see codec.h. */
#include "chunks/codec.h"

#include <errno.h>
#include <lz4.h>
#include <stdlib.h>
#include <zstd.h>

enum { ZSTD_LEVEL = 1 };

struct codec {
	ZSTD_CCtx *compress; /* created on first use */
	ZSTD_DCtx *expand;
	void *room; /* of a chunk */
};

int codec_new(struct codec **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void codec_free(struct codec *c)
{
	if (!c)
		return;
	ZSTD_freeCCtx(c->compress);
	ZSTD_freeDCtx(c->expand);
	free(c->room);
	free(c);
}

static size_t compress_zstd(struct codec *c, void *ret, size_t room, const void *buf, size_t len)
{
	if (!c->compress)
		c->compress = ZSTD_createCCtx();
	if (!c->compress)
		return 0;
	size_t n = ZSTD_compressCCtx(c->compress, ret, room, buf, len, ZSTD_LEVEL);

	return ZSTD_isError(n) ? 0 : n;
}

size_t codec_compress(struct codec *c, enum chunk_encoding encoding, void *ret, size_t room,
		      const void *buf, size_t len_bytes)
{
	if (encoding == CHUNK_ZSTD)
		return compress_zstd(c, ret, room, buf, len_bytes);
	if (encoding != CHUNK_LZ4)
		return 0;
	int n = LZ4_compress_default(buf, ret, (int)len_bytes, (int)room);

	return n > 0 ? (size_t)n : 0;
}

static size_t expand_zstd(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	if (!c->expand)
		c->expand = ZSTD_createDCtx();
	if (!c->expand)
		return 0;
	size_t n = ZSTD_decompressDCtx(c->expand, c->room, chunk->len_bytes, stored,
				       chunk->stored_bytes);

	return ZSTD_isError(n) ? 0 : n;
}

static size_t expand_lz4(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	int n = LZ4_decompress_safe(stored, c->room, (int)chunk->stored_bytes,
				    (int)chunk->len_bytes);

	return n > 0 ? (size_t)n : 0;
}

const void *codec_expand(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	size_t n;

	if (chunk->encoding == CHUNK_RAW)
		return stored;
	if (!c->room)
		c->room = malloc(CHUNK_BYTES_MAX);
	if (!c->room)
		return NULL;
	n = chunk->encoding == CHUNK_ZSTD ? expand_zstd(c, chunk, stored)
					  : expand_lz4(c, chunk, stored);
	return n == chunk->len_bytes ? c->room : NULL;
}

/* ---- tuner ---- */

enum { SAMPLE_BYTES = 32 << 10 };

/* Initial estimates: nanoseconds per byte on an ordinary core, and the size of a Zstandard frame relative to an LZ4
 * block. */
#define LZ4_NS	  1.5
#define ZSTD_NS	  3.0
#define ZSTD_GAIN 0.8
/* The weight of the latest chunk in an average. */
#define WEIGHT 0.125
/* A chunk that does not get smaller than this part of its size is not worth expanding at restore. */
#define WORTH 0.9

struct tuner tuner_new(enum chunks_compress wish)
{
	return (struct tuner){
		.wish = wish,
		.compress_ns = { [CHUNK_LZ4] = LZ4_NS, [CHUNK_ZSTD] = ZSTD_NS },
	};
}

static void learn_cost(double *value, double seen)
{
	*value += (seen - *value) * WEIGHT;
}

/* The compressed size, as a part of 1, of a sample from the middle of the chunk in LZ4. */
static double sample_ratio(struct codec *c, const void *buf, size_t len)
{
	uint8_t out[SAMPLE_BYTES];
	size_t n = len < SAMPLE_BYTES ? len : SAMPLE_BYTES;
	const uint8_t *from = (const uint8_t *)buf + (len - n) / 2;
	size_t packed = codec_compress(c, CHUNK_LZ4, out, n, from, n);

	return packed ? (double)packed / (double)n : 1;
}

enum chunk_encoding tuner_choose(struct tuner *t, struct codec *c, const void *buf,
				 size_t len_bytes)
{
	enum chunk_encoding best = CHUNK_RAW;
	static const double gain[CHUNK__MAX] = { 1, 1, ZSTD_GAIN };
	double cost = t->append_ns;

	if (t->wish == CHUNKS_COMPRESS_LZ4)
		return CHUNK_LZ4;
	if (t->wish == CHUNKS_COMPRESS_ZSTD)
		return CHUNK_ZSTD;
	/* Compressing would take longer than writing raw even if nothing were left to write: the usual case, decided
	 * without a sample. */
	if (t->wish == CHUNKS_COMPRESS_NONE || t->compress_ns[CHUNK_LZ4] >= cost)
		return CHUNK_RAW;
	double ratio = sample_ratio(c, buf, len_bytes);
	if (ratio > WORTH)
		return CHUNK_RAW;
	for (enum chunk_encoding e = CHUNK_LZ4; e < CHUNK__MAX; e++) {
		double sum = t->compress_ns[e] + ratio * gain[e] * t->append_ns;

		if (sum < cost) {
			cost = sum;
			best = e;
		}
	}
	return best;
}

void tuner_compressed(struct tuner *t, enum chunk_encoding encoding, size_t len_bytes, uint64_t ns)
{
	learn_cost(&t->compress_ns[encoding], (double)ns / (double)len_bytes);
}

void tuner_appended(struct tuner *t, size_t stored_bytes, uint64_t ns)
{
	learn_cost(&t->append_ns, (double)ns / (double)stored_bytes);
}
