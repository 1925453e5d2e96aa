// SPDX-License-Identifier: MIT
/* What compression costs and brings; see tuner.h. */
#include "chunks/tuner.h"

enum { SAMPLE_BYTES = 32 << 10 };

/* Until it is known better: nanoseconds a byte on an ordinary core, and what a frame of Zstandard saves
 * beyond a block of LZ4. */
#define LZ4_NS	  1.5
#define ZSTD_NS	  3.0
#define ZSTD_GAIN 0.8
/* How much the last chunk counts. */
#define WEIGHT 0.125
/* What saves less than that is not worth expanding at restore. */
#define WORTH 0.9

struct tuner tuner_new(enum chunks_compress wish)
{
	return (struct tuner){
		.wish = wish,
		.compress_ns = { [CHUNK_LZ4] = LZ4_NS, [CHUNK_ZSTD] = ZSTD_NS },
	};
}

static void learn(double *value, double seen)
{
	*value += (seen - *value) * WEIGHT;
}

/* What a sample from the middle comes to in LZ4, of 1. */
static double sample(struct codec *c, const void *buf, size_t len)
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
	/* Even compressed to nothing it would take longer: the usual case, at no cost. */
	if (t->wish == CHUNKS_COMPRESS_NONE || t->compress_ns[CHUNK_LZ4] >= cost)
		return CHUNK_RAW;
	double ratio = sample(c, buf, len_bytes);
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
	learn(&t->compress_ns[encoding], (double)ns / (double)len_bytes);
}

void tuner_appended(struct tuner *t, size_t stored_bytes, uint64_t ns)
{
	learn(&t->append_ns, (double)ns / (double)stored_bytes);
}
