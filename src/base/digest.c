// SPDX-License-Identifier: MIT
/* SHA-256 through libcrypto's EVP interface. */
#include "base/digest.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/hex.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 128 << 10 }; /* which stay in the cache of a core until they are digested */

DEFINE_AUTO(EVP_MD_CTX *, EVP_MD_CTX_free)
DEFINE_AUTO(EVP_MAC *, EVP_MAC_free)
DEFINE_AUTO(EVP_CIPHER *, EVP_CIPHER_free)

/* ---- memory for its beginning ---- */

/*
 * OpenSSL 3.5 records each failed allocation, and initialises itself for that first: if the allocation is part of the
 * initialisation, the thread deadlocks. So until it is initialised, allocations that fail are served from a fixed
 * stock.
 */
static struct {
	_Alignas(max_align_t) char bytes[256 << 10];
	_Atomic size_t used_bytes;
	atomic_bool is_closed;
} stock;

static bool is_of_stock(const void *p)
{
	return (uintptr_t)p - (uintptr_t)stock.bytes < sizeof(stock.bytes);
}

static void *take_stock(size_t bytes)
{
	const size_t align = _Alignof(max_align_t), whole = (bytes + align - 1) / align * align;

	if (atomic_load(&stock.is_closed) || bytes > sizeof(stock.bytes))
		return NULL;
	size_t at = atomic_fetch_add(&stock.used_bytes, whole);
	return at + whole <= sizeof(stock.bytes) ? stock.bytes + at : NULL;
}

static void *allocate(size_t bytes, const char *file, int line)
{
	void *p = bytes ? malloc(bytes) : NULL;

	return p || !bytes ? p : take_stock(bytes);
}

static void deallocate(void *p, const char *file, int line)
{
	if (!is_of_stock(p))
		free(p);
}

static void *reallocate(void *p, size_t bytes, const char *file, int line)
{
	if (bytes && p && !is_of_stock(p))
		return realloc(p, bytes);
	void *other = allocate(bytes, file, line);
	if (other && p) {
		size_t most = (size_t)(stock.bytes + sizeof(stock.bytes) - (char *)p);
		memcpy(other, p, bytes < most ? bytes : most);
	}
	if (!bytes)
		deallocate(p, file, line);
	return other;
}

static void begin_libcrypto(void)
{
	CRYPTO_set_mem_functions(allocate, reallocate, deallocate);
	OSSL_LIB_CTX_get0_global_default();
	atomic_store(&stock.is_closed, true);
}

bool digest_has_libcrypto(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, begin_libcrypto);
	return OSSL_LIB_CTX_get0_global_default() != NULL;
}

/* ---- digests ---- */

static bool find_cipher(const char *name)
{
	auto_(EVP_CIPHER_free) EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, NULL);

	return cipher;
}

/* libcrypto lists all algorithms of a kind on the first search for one of that kind: those for which it has no memory
 * at that time are never found later. So search for each that is used (seal.c has the ciphers). */
int digest_set_up(void)
{
	auto_(EVP_MAC_free) EVP_MAC *mac = NULL;
	struct digest d;
	int r = digest_buffer(&d, "", 0);

	if (r < 0)
		return r;
	mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	return mac && find_cipher("AES-256-GCM") && find_cipher("AES-256-CTR") &&
			       find_cipher("AES-256-XTS")
		       ? 0
		       : -ENOMEM;
}

/* NULL if out of memory. */
static EVP_MD_CTX *begin_sha256(void)
{
	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = digest_has_libcrypto() ? EVP_MD_CTX_new() : NULL;

	return ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? take_ptr(&ctx) : NULL;
}

int digest_buffer(struct digest *ret, const void *buf, size_t len_bytes)
{
	struct digest d;

	if (!digest_has_libcrypto() ||
	    !EVP_Digest(buf, len_bytes, d.bytes, NULL, EVP_sha256(), NULL))
		return -ENOMEM;
	*ret = d;
	return 0;
}

int digest_file(struct digest *ret, int fd, uint64_t *ret_len_bytes)
{
	return digest_file_steps(ret, fd, ret_len_bytes, NULL, NULL);
}

int digest_file_steps(struct digest *ret, int fd, uint64_t *ret_len_bytes, digest_step_fn step,
		      void *arg)
{
	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = begin_sha256();
	auto_free uint8_t *buf = malloc(READ_BYTES);
	struct digest d;
	uint64_t len = 0;

	if (!ctx || !buf)
		return -ENOMEM;

	for (;;) {
		ssize_t n = fd_read_at(fd, buf, READ_BYTES, len);

		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		if (!EVP_DigestUpdate(ctx, buf, (size_t)n))
			return -ENOMEM;
		len += (uint64_t)n;
		int r = step ? step(arg, (size_t)n) : 0;
		if (r < 0)
			return r;
	}
	if (!EVP_DigestFinal_ex(ctx, d.bytes, NULL))
		return -ENOMEM;
	*ret = d;
	if (ret_len_bytes)
		*ret_len_bytes = len;
	return 0;
}

/* The context itself: the type only keeps libcrypto out of the header. */
int digest_begin(struct digest_run **ret)
{
	EVP_MD_CTX *ctx = begin_sha256();

	if (!ctx)
		return -ENOMEM;
	*ret = (struct digest_run *)ctx;
	return 0;
}

int digest_add(struct digest_run *run, const void *buf, size_t len_bytes)
{
	return EVP_DigestUpdate((EVP_MD_CTX *)run, buf, len_bytes) ? 0 : -ENOMEM;
}

int digest_take(struct digest_run *run, struct digest *ret)
{
	EVP_MD_CTX *ctx = (EVP_MD_CTX *)run;
	struct digest d;

	if (!EVP_DigestFinal_ex(ctx, d.bytes, NULL) || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL))
		return -ENOMEM;
	*ret = d;
	return 0;
}

void digest_run_free(struct digest_run *run)
{
	EVP_MD_CTX_free((EVP_MD_CTX *)run);
}

void digest_format(char ret[static DIGEST_TEXT_BYTES], const struct digest *d)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < DIGEST_BYTES; i++) {
		ret[2 * i] = hex[d->bytes[i] >> 4];
		ret[2 * i + 1] = hex[d->bytes[i] & 15];
	}
	ret[2 * DIGEST_BYTES] = '\0';
}

int digest_parse(struct digest *ret, const char *text)
{
	struct digest d;

	if (strlen(text) != 2 * DIGEST_BYTES)
		return -EBADMSG;
	for (int i = 0; i < DIGEST_BYTES; i++) {
		int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EBADMSG;
		d.bytes[i] = (uint8_t)(high << 4 | low);
	}
	*ret = d;
	return 0;
}

size_t digest_hash(const struct digest *d)
{
	size_t h;

	memcpy(&h, d, sizeof(h));
	return h;
}
