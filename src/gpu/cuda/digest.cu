// SPDX-License-Identifier: MIT
/*
 * Digests of memory on the GPU, equal to chunk_digest() of base/chunk.h: SHA-256 (FIPS 180-4) of each
 * leaf of 4096 bytes, a thread a leaf, then of each chunk's leaf digests, a thread a chunk, by the same kernel. A chunk
 * that holds nothing but zeros is told too, since it is not stored. digest.ptx is made from this file
 * by tools/make-digest-ptx and committed, so that no vendor compiler is needed to build.
 */
#ifndef KERNEL /* its test runs it on the CPU */
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
	LEAF_BYTES = 4096,
	LEAVES = (2 << 20) / LEAF_BYTES, /* of a chunk */
	BLOCK_WORDS = 16,
};
#define PAD 0x80000000u

__constant__ static const u32 K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

__device__ static __forceinline__ u32 rotate(u32 x, int n)
{
	return __funnelshift_r(x, x, n);
}

__device__ static __forceinline__ void begin(u32 h[8])
{
	h[0] = 0x6a09e667;
	h[1] = 0xbb67ae85;
	h[2] = 0x3c6ef372;
	h[3] = 0xa54ff53a;
	h[4] = 0x510e527f;
	h[5] = 0x9b05688c;
	h[6] = 0x1f83d9ab;
	h[7] = 0x5be0cd19;
}

/* The words of the sixteen rounds after those that used @w. */
__device__ static __forceinline__ void schedule(u32 w[BLOCK_WORDS])
{
#pragma unroll
	for (int i = 0; i < BLOCK_WORDS; i++) {
		u32 a = w[(i + 1) & 15], b = w[(i + 14) & 15];

		w[i] += (rotate(a, 7) ^ rotate(a, 18) ^ (a >> 3)) + w[(i + 9) & 15] +
			(rotate(b, 17) ^ rotate(b, 19) ^ (b >> 10));
	}
}

/* Rounds @first to @first + 15; @first is a multiple of 16, so the state has turned back by then. */
__device__ static __forceinline__ void rounds(u32 s[8], const u32 w[BLOCK_WORDS], int first)
{
#pragma unroll
	for (int i = 0; i < BLOCK_WORDS; i++) {
		u32 e = s[(4 - i) & 7], f = s[(5 - i) & 7], g = s[(6 - i) & 7];
		u32 a = s[(0 - i) & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7];
		u32 t = s[(7 - i) & 7] + K[first + i] + w[i] +
			(rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g));

		s[(3 - i) & 7] += t;
		s[(7 - i) & 7] = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
				 ((a & b) ^ (a & c) ^ (b & c));
	}
}

/* One block; @w is used up. All in registers: the loop is over what a compiler can unroll with fixed indices. */
__device__ static __forceinline__ void compress(u32 h[8], u32 w[BLOCK_WORDS])
{
	u32 s[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		s[i] = h[i];
#pragma unroll 1
	for (int first = 0; first < 64; first += BLOCK_WORDS) {
		if (first)
			schedule(w);
		rounds(s, w, first);
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

__device__ static __forceinline__ u32 swap(u32 x)
{
	return __byte_perm(x, 0, 0x0123);
}

/**
 * Digests @n messages of @words words each, side by side from @data (16-byte aligned) on, with @prefix in front of each: 8
 * words each to @digests (likewise), in the byte order of the digest. Of leaves, which have no prefix and are whole blocks,
 * @nonzero, one word a chunk of LEAVES leaves, is set where a leaf holds any bit; NULL: not asked for.
 */
KERNEL(128)
brumate_digest(const u32 *data, u64 n, u32 words, const u32 *prefix, u32 prefix_words, uint4 *digests, u32 *nonzero)
{
	u64 message = blockIdx.x * (u64)blockDim.x + threadIdx.x;
	u32 all = prefix_words + words, h[8], any = 0;
	/* The message, a word of padding and two of its length, in whole blocks. */
	u32 end = (all + 3 + BLOCK_WORDS - 1) / BLOCK_WORDS * BLOCK_WORDS;

	if (message >= n)
		return;
	const u32 *p = data + message * words;
	begin(h);
#pragma unroll 1
	for (u32 first = 0; first < end; first += BLOCK_WORDS) {
		u32 w[BLOCK_WORDS];

		if (!prefix_words && first < words) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint4 v = ((const uint4 *)(p + first))[i];

				w[4 * i] = swap(v.x);
				w[4 * i + 1] = swap(v.y);
				w[4 * i + 2] = swap(v.z);
				w[4 * i + 3] = swap(v.w);
				any |= v.x | v.y | v.z | v.w;
			}
		} else {
#pragma unroll
			for (u32 i = 0; i < BLOCK_WORDS; i++) {
				u32 j = first + i;
				const u32 *from = j < prefix_words ? prefix + j : p + (j - prefix_words);

				/* Without a branch, so that the loads do not wait for each other. */
				u32 word = swap(*(j < all ? from : p));
				w[i] = j < all ? word : j == all ? PAD : 0;
			}
			if (first + BLOCK_WORDS == end)
				w[BLOCK_WORDS - 1] = all * 32;
		}
		compress(h, w);
	}
	digests[2 * message] = make_uint4(swap(h[0]), swap(h[1]), swap(h[2]), swap(h[3]));
	digests[2 * message + 1] = make_uint4(swap(h[4]), swap(h[5]), swap(h[6]), swap(h[7]));
	if (nonzero && any)
		nonzero[message / LEAVES] = 1;
}
