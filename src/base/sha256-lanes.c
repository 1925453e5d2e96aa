// SPDX-License-Identifier: MIT
/*
 * SHA-256 (FIPS 180-4) of many messages: with AVX-512, where vector i of the state is word i of all messages, or two
 * at a time with the SHA instructions. Names of variables and functions are those of the standard.
 */
#include "base/sha256-lanes.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define INLINE AVX512 static inline __attribute__((always_inline))

enum { WORDS = 16, STATE = 8, ROUNDS = 64 };

static const uint32_t k[ROUNDS] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static const uint32_t initial[STATE] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/* Truth tables of three inputs. */
enum { XOR3 = 0x96, CHOOSE = 0xca, MAJORITY = 0xe8 };

INLINE __m512i add(__m512i a, __m512i b)
{
	return _mm512_add_epi32(a, b);
}

#define SIGMA(x, a, b, c)                                                         \
	_mm512_ternarylogic_epi32(_mm512_ror_epi32(x, a), _mm512_ror_epi32(x, b), \
				  _mm512_ror_epi32(x, c), XOR3)
#define SIGMA_SHIFT(x, a, b, c)                                                   \
	_mm512_ternarylogic_epi32(_mm512_ror_epi32(x, a), _mm512_ror_epi32(x, b), \
				  _mm512_srli_epi32(x, c), XOR3)

/* Word t of the schedule, in place of word t - 16. */
INLINE void schedule(__m512i w[WORDS], int t)
{
	__m512i w2 = w[(t + 14) % WORDS], w15 = w[(t + 1) % WORDS];
	__m512i sum = add(w[t % WORDS], w[(t + 9) % WORDS]);

	w[t % WORDS] = add(sum, add(SIGMA_SHIFT(w2, 17, 19, 10), SIGMA_SHIFT(w15, 7, 18, 3)));
}

/* Instead of moving the variables a to h, their names move. */
#define VARIABLE(name, t) s[(STATE + (name) - (t) % STATE) % STATE]

INLINE void round_t(__m512i s[STATE], __m512i w, int t, uint32_t constant)
{
	enum { A, B, C, D, E, F, G, H };
	__m512i e = VARIABLE(E, t), a = VARIABLE(A, t);
	__m512i t1 = add(add(VARIABLE(H, t), SIGMA(e, 6, 11, 25)),
			 add(_mm512_ternarylogic_epi32(e, VARIABLE(F, t), VARIABLE(G, t), CHOOSE),
			     add(w, _mm512_set1_epi32((int)constant))));
	__m512i t2 = add(SIGMA(a, 2, 13, 22),
			 _mm512_ternarylogic_epi32(a, VARIABLE(B, t), VARIABLE(C, t), MAJORITY));

	VARIABLE(D, t) = add(VARIABLE(D, t), t1);
	VARIABLE(H, t) = add(t1, t2);
}

AVX512 static void compress(__m512i state[STATE], __m512i w[WORDS])
{
	__m512i s[STATE], words[WORDS];

	memcpy(s, state, sizeof(s));
	memcpy(words, w, sizeof(words));
#pragma GCC unroll 16
	for (int t = 0; t < WORDS; t++)
		round_t(s, words[t], t, k[t]);
	for (int base = WORDS; base < ROUNDS; base += WORDS)
#pragma GCC unroll 16
		for (int t = 0; t < WORDS; t++) {
			schedule(words, t);
			round_t(s, words[t], t, k[base + t]);
		}
	for (int i = 0; i < STATE; i++)
		state[i] = add(state[i], s[i]);
}

/* Transposes: 16 blocks of 16 words each become word 0 of all, word 1 of all … */
INLINE void transpose(__m512i r[WORDS])
{
	__m512i p[WORDS];

#pragma GCC unroll 8
	for (int i = 0; i < WORDS; i += 2) {
		p[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
		p[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
	}
#pragma GCC unroll 4
	for (int i = 0; i < WORDS; i += 4) {
		r[i] = _mm512_unpacklo_epi64(p[i], p[i + 2]);
		r[i + 1] = _mm512_unpackhi_epi64(p[i], p[i + 2]);
		r[i + 2] = _mm512_unpacklo_epi64(p[i + 1], p[i + 3]);
		r[i + 3] = _mm512_unpackhi_epi64(p[i + 1], p[i + 3]);
	}
	/* Now r[4 * i + j] has word j of rows 4i to 4i + 3 in its first quarter, word 4 + j in the next … */
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		p[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
		p[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
		p[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
		p[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
	}
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		r[j] = _mm512_shuffle_i32x4(p[j], p[8 + j], 0x88);
		r[8 + j] = _mm512_shuffle_i32x4(p[j], p[8 + j], 0xdd);
		r[4 + j] = _mm512_shuffle_i32x4(p[4 + j], p[12 + j], 0x88);
		r[12 + j] = _mm512_shuffle_i32x4(p[4 + j], p[12 + j], 0xdd);
	}
}

/* Words are stored with their most significant byte first. */
INLINE __m512i swap_bytes(__m512i v)
{
	const __m512i order = _mm512_broadcast_i32x4(
		_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));

	return _mm512_shuffle_epi8(v, order);
}

AVX512 static void add_blocks(__m512i s[STATE], const uint8_t *at, size_t stride)
{
	__m512i w[WORDS];

#pragma GCC unroll 16
	for (size_t i = 0; i < WORDS; i++)
		w[i] = swap_bytes(_mm512_loadu_si512(at + i * stride));
	transpose(w);
	compress(s, w);
}

/* The last block consists of padding alone, the same for all. */
AVX512 static void add_padding(__m512i s[STATE], size_t len_bytes)
{
	uint64_t bits = (uint64_t)len_bytes * 8;
	__m512i w[WORDS];

	memset(w, 0, sizeof(w));
	w[0] = _mm512_set1_epi32((int)0x80000000);
	w[14] = _mm512_set1_epi32((int)(bits >> 32));
	w[15] = _mm512_set1_epi32((int)bits);
	compress(s, w);
}

AVX512 static void lanes_avx512(struct digest *ret, const void *buf, size_t len_bytes)
{
	uint32_t words[STATE][SHA256_LANES];
	__m512i s[STATE];

	for (int i = 0; i < STATE; i++)
		s[i] = _mm512_set1_epi32((int)initial[i]);
	for (size_t at = 0; at < len_bytes; at += SHA256_BLOCK_BYTES)
		add_blocks(s, (const uint8_t *)buf + at, len_bytes);
	add_padding(s, len_bytes);
	for (int i = 0; i < STATE; i++)
		_mm512_storeu_si512(words[i], s[i]);
	for (int lane = 0; lane < SHA256_LANES; lane++)
		for (int i = 0; i < STATE; i++) {
			uint32_t word = __builtin_bswap32(words[i][lane]);

			memcpy(&ret[lane].bytes[4 * i], &word, sizeof(word));
		}
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

/* ---- by the SHA instructions ---- */

#define SHA	   __attribute__((target("sha,sse4.1,ssse3")))
#define SHA_INLINE SHA static inline __attribute__((always_inline))

/* Two, as the next instruction could start before the result of one is available. */
enum { PAIR = 2, QUADS = WORDS / 4 };

/* The state as the instructions expect it: words from the lowest, F E B A and H G D C. */
struct sha_state {
	__m128i feba, hgdc;
};

SHA_INLINE struct sha_state sha_begin(void)
{
	const int *h = (const int *)initial;

	return (struct sha_state){ .feba = _mm_set_epi32(h[0], h[1], h[4], h[5]),
				   .hgdc = _mm_set_epi32(h[2], h[3], h[6], h[7]) };
}

SHA_INLINE __m128i sha_load(const uint8_t *at)
{
	const __m128i order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);

	return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)at), order);
}

/* Words 4q to 4q + 3 of the schedule, in place of those sixteen positions earlier. */
SHA_INLINE void sha_schedule(__m128i w[QUADS], int q)
{
	__m128i last = w[(q + 3) % QUADS];
	__m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[q % QUADS], w[(q + 1) % QUADS]),
				    _mm_alignr_epi8(last, w[(q + 2) % QUADS], 4));

	w[q % QUADS] = _mm_sha256msg2_epu32(sum, last);
}

SHA_INLINE void sha_rounds(struct sha_state *s, __m128i words, int q)
{
	__m128i sum = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)&k[4 * q]));

	s->hgdc = _mm_sha256rnds2_epu32(s->hgdc, s->feba, sum);
	s->feba = _mm_sha256rnds2_epu32(s->feba, s->hgdc, _mm_shuffle_epi32(sum, 0x0e));
}

SHA_INLINE void sha_compress(struct sha_state state[PAIR], __m128i w[PAIR][QUADS])
{
	struct sha_state s[PAIR] = { state[0], state[1] };

#pragma GCC unroll 16
	for (int q = 0; q < ROUNDS / 4; q++)
#pragma GCC unroll 2
		for (int i = 0; i < PAIR; i++) {
			if (q >= QUADS)
				sha_schedule(w[i], q);
			sha_rounds(&s[i], w[i][q % QUADS], q);
		}
	for (int i = 0; i < PAIR; i++) {
		state[i].feba = _mm_add_epi32(state[i].feba, s[i].feba);
		state[i].hgdc = _mm_add_epi32(state[i].hgdc, s[i].hgdc);
	}
}

SHA_INLINE void sha_finish(struct digest *ret, const struct sha_state *s)
{
	uint32_t feba[4], hgdc[4];

	_mm_storeu_si128((__m128i *)feba, s->feba);
	_mm_storeu_si128((__m128i *)hgdc, s->hgdc);
	const uint32_t words[STATE] = { feba[3], feba[2], hgdc[3], hgdc[2],
					feba[1], feba[0], hgdc[1], hgdc[0] };
	for (int i = 0; i < STATE; i++) {
		uint32_t word = __builtin_bswap32(words[i]);

		memcpy(&ret->bytes[4 * i], &word, sizeof(word));
	}
}

SHA static void digest_pair(struct digest *ret, const uint8_t *first, size_t len_bytes)
{
	const uint64_t bits = (uint64_t)len_bytes * 8;
	struct sha_state s[PAIR] = { sha_begin(), sha_begin() };
	__m128i w[PAIR][QUADS];

	for (size_t at = 0; at < len_bytes; at += SHA256_BLOCK_BYTES) {
		for (int i = 0; i < PAIR; i++)
			for (int q = 0; q < QUADS; q++)
				w[i][q] = sha_load(first + (size_t)i * len_bytes + at +
						   (size_t)q * sizeof(__m128i));
		sha_compress(s, w);
	}
	for (int i = 0; i < PAIR; i++) {
		w[i][0] = _mm_set_epi32(0, 0, 0, (int)0x80000000);
		w[i][1] = w[i][2] = _mm_setzero_si128();
		w[i][3] = _mm_set_epi32((int)bits, (int)(bits >> 32), 0, 0);
	}
	sha_compress(s, w);
	for (int i = 0; i < PAIR; i++)
		sha_finish(&ret[i], &s[i]);
}

static void lanes_sha(struct digest *ret, const void *buf, size_t len_bytes)
{
	for (size_t i = 0; i < SHA256_LANES; i += PAIR)
		digest_pair(&ret[i], (const uint8_t *)buf + i * len_bytes, len_bytes);
}

/* Not all compilers know the name for __builtin_cpu_supports(). */
static bool has_sha(void)
{
	enum { LEAF = 7, SHA_BIT = 1 << 29 };
	unsigned a, b, c, d;

	return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (b & SHA_BIT) &&
	       __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

void sha256_lanes(struct digest *ret, const void *buf, size_t len_bytes)
{
	if (has_avx512())
		lanes_avx512(ret, buf, len_bytes);
	else
		lanes_sha(ret, buf, len_bytes);
}

bool sha256_has_lanes(void)
{
	return has_avx512() || has_sha();
}

#else

void sha256_lanes(struct digest *ret, const void *buf, size_t len_bytes)
{
	(void)ret;
	(void)buf;
	(void)len_bytes;
}

bool sha256_has_lanes(void)
{
	return false;
}

#endif
