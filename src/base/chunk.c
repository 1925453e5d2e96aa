// SPDX-License-Identifier: MIT
/*
 * Chunk digests, by libcrypto. SHA-256 is fetched once: fetching it again for every leaf would cost as much as the leaf.
 */
#include "base/chunk.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <string.h>

enum { PREFIX_BYTES = 16, HEAD_BYTES = PREFIX_BYTES + 8, ZERO_STEP_WORDS = 64 };

static const char prefix[PREFIX_BYTES] = "brumate-chunk-1";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(EVP_MD *) sha256; /* kept for the life of the process once it is found */

DEFINE_AUTO(EVP_MD_CTX *, EVP_MD_CTX_free)

/* Tries again after a failure for lack of memory. */
static bool find_sha256(void)
{
	if (sha256)
		return true;
	pthread_mutex_lock(&lock);
	if (!sha256 && digest_has_libcrypto())
		sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
	pthread_mutex_unlock(&lock);
	return sha256;
}

static EVP_MD_CTX *new_context(void)
{
	return find_sha256() ? EVP_MD_CTX_new() : NULL;
}

static bool hash_bytes(EVP_MD_CTX *ctx, struct digest *ret, const void *buf, size_t len_bytes)
{
	return EVP_DigestInit_ex(ctx, sha256, NULL) && EVP_DigestUpdate(ctx, buf, len_bytes) &&
	       EVP_DigestFinal_ex(ctx, ret->bytes, NULL);
}

/* The input of the root's digest. */
struct root {
	uint8_t head[HEAD_BYTES];
	struct digest leaves[CHUNK_LEAVES_MAX];
};
_Static_assert(sizeof(struct root) == HEAD_BYTES + CHUNK_LEAVES_MAX * DIGEST_BYTES, "padding");

static size_t fill_head(struct root *r, size_t len_bytes)
{
	memcpy(r->head, prefix, PREFIX_BYTES);
	for (int i = 0; i < 8; i++)
		r->head[PREFIX_BYTES + i] = (uint8_t)((uint64_t)len_bytes >> (8 * i));
	return HEAD_BYTES + chunk_leaves(len_bytes) * DIGEST_BYTES;
}

static int finish_root(EVP_MD_CTX *ctx, struct digest *ret, const struct chunk_key *key,
		       struct root *root, size_t len_bytes)
{
	size_t len = fill_head(root, len_bytes);
	struct digest d;

	if (!key && !hash_bytes(ctx, &d, root, len))
		return -ENOMEM;
	if (key && !HMAC(sha256, key->bytes, CHUNK_KEY_BYTES, root->head, len, d.bytes, NULL))
		return -ENOMEM;
	*ret = d;
	return 0;
}

static int digest_chunk(struct digest *ret, const struct chunk_key *key, const void *buf,
			size_t len_bytes)
{
	struct root root;

	if (len_bytes > CHUNK_BYTES_MAX)
		return -EINVAL;
	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = new_context();
	if (!ctx)
		return -ENOMEM;
	for (size_t i = 0; i < chunk_leaves(len_bytes); i++) {
		size_t start = i * CHUNK_LEAF_BYTES, left = len_bytes - start;
		size_t len = left < CHUNK_LEAF_BYTES ? left : CHUNK_LEAF_BYTES;

		if (!hash_bytes(ctx, &root.leaves[i], (const char *)buf + start, len))
			return -ENOMEM;
	}
	return finish_root(ctx, ret, key, &root, len_bytes);
}

int chunk_digest(struct digest *ret, const void *buf, size_t len_bytes)
{
	return digest_chunk(ret, NULL, buf, len_bytes);
}

int chunk_digest_keyed(struct digest *ret, const struct chunk_key *key, const void *buf,
		       size_t len_bytes)
{
	return digest_chunk(ret, key, buf, len_bytes);
}

int chunk_digest_zeros(struct digest *ret)
{
	static const char zeros[CHUNK_LEAF_BYTES];
	struct root root;

	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = new_context();
	if (!ctx || !hash_bytes(ctx, &root.leaves[0], zeros, sizeof(zeros)))
		return -ENOMEM;
	for (size_t i = 1; i < CHUNK_LEAVES_MAX; i++)
		root.leaves[i] = root.leaves[0];
	return finish_root(ctx, ret, NULL, &root, CHUNK_BYTES_MAX);
}

bool chunk_is_zero(const void *buf, size_t len_bytes)
{
	const char *p = buf, *end = p + len_bytes;
	uint64_t words[ZERO_STEP_WORDS];
	uint64_t any = 0;

	while (end - p >= (ptrdiff_t)sizeof(words)) {
		memcpy(words, p, sizeof(words));
		for (int i = 0; i < ZERO_STEP_WORDS; i++)
			any |= words[i];
		if (any)
			return false;
		p += sizeof(words);
	}
	while (p < end)
		any |= (uint8_t)*p++;
	return !any;
}
