// SPDX-License-Identifier: MIT
/* Boxes and keys by libcrypto: AES-256 and HMAC-SHA-256. Ciphers are fetched once. */
#include "base/seal.h"
#include "base/digest.h"
#include "base/hex.h"

#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(EVP_CIPHER *) gcm, ctr,
	xts; /* kept for the life of the process once they are found */

DEFINE_AUTO(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_free)

/* Tries again after a failure for lack of memory. */
static bool find_ciphers(void)
{
	if (gcm && ctr && xts)
		return true;
	pthread_mutex_lock(&lock);
	if (!gcm && digest_has_libcrypto())
		gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
	if (gcm && !ctr)
		ctr = EVP_CIPHER_fetch(NULL, "AES-256-CTR", NULL);
	if (ctr && !xts)
		xts = EVP_CIPHER_fetch(NULL, "AES-256-XTS", NULL);
	pthread_mutex_unlock(&lock);
	return gcm && ctr;
}

static EVP_CIPHER_CTX *new_context(void)
{
	return find_ciphers() ? EVP_CIPHER_CTX_new() : NULL;
}

void seal_key_fini(struct seal_key *k)
{
	explicit_bzero(k, sizeof(*k));
}

int seal_key_parse(struct seal_key *ret, const void *text, size_t len_bytes)
{
	auto_(seal_key_fini) struct seal_key k;
	const uint8_t *p = text;

	if (len_bytes == SEAL_KEY_BYTES) {
		memcpy(ret->bytes, p, SEAL_KEY_BYTES);
		return 0;
	}
	if (len_bytes == 2 * SEAL_KEY_BYTES + 1 && p[len_bytes - 1] == '\n')
		len_bytes--;
	if (len_bytes != 2 * SEAL_KEY_BYTES)
		return -EINVAL;
	for (int i = 0; i < SEAL_KEY_BYTES; i++) {
		int high = hex_value(tolower(p[2 * i])), low = hex_value(tolower(p[2 * i + 1]));

		if (high < 0 || low < 0)
			return -EINVAL;
		k.bytes[i] = (uint8_t)(high << 4 | low);
	}
	*ret = k;
	return 0;
}

int seal_derive(struct seal_key *ret, const struct seal_key *from, const char *purpose,
		const void *context, size_t len_bytes)
{
	size_t head = strlen(purpose) + 1; /* its NUL separates it from the context */
	auto_free uint8_t *input = malloc(head + len_bytes);
	auto_(seal_key_fini) struct seal_key k;

	if (!input || !digest_has_libcrypto())
		return -ENOMEM;
	memcpy(input, purpose, head);
	if (len_bytes)
		memcpy(input + head, context, len_bytes);
	if (!HMAC(EVP_sha256(), from->bytes, SEAL_KEY_BYTES, input, head + len_bytes, k.bytes,
		  NULL))
		return -ENOMEM;
	*ret = k;
	return 0;
}

static bool start_cipher(EVP_CIPHER_CTX *ctx, const struct seal_key *key, const uint8_t *nonce,
			 struct seal_with with, int encrypt)
{
	int n;

	return EVP_CipherInit_ex(ctx, gcm, NULL, key->bytes, nonce, encrypt) &&
	       (!with.len_bytes || EVP_CipherUpdate(ctx, NULL, &n, with.data, (int)with.len_bytes));
}

static bool is_too_long(struct seal_with with, size_t len_bytes)
{
	return len_bytes > SEAL_BYTES_MAX || with.len_bytes > SEAL_BYTES_MAX;
}

int seal_close(void *ret, const struct seal_key *key, struct seal_with with, const void *buf,
	       size_t len_bytes)
{
	int n = 0, end = 0;

	if (is_too_long(with, len_bytes))
		return -EFBIG;
	uint8_t *nonce = ret, *data = nonce + SEAL_NONCE_BYTES, *tag = data + len_bytes;
	auto_(EVP_CIPHER_CTX_free) EVP_CIPHER_CTX *ctx = new_context();
	if (!ctx)
		return -ENOMEM;
	if (getrandom(nonce, SEAL_NONCE_BYTES, 0) != SEAL_NONCE_BYTES)
		return -errno;
	if (!start_cipher(ctx, key, nonce, with, 1) ||
	    (len_bytes && !EVP_CipherUpdate(ctx, data, &n, buf, (int)len_bytes)) ||
	    !EVP_CipherFinal_ex(ctx, data + n, &end) ||
	    !EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, tag))
		return -ENOMEM;
	return 0;
}

int seal_open(void *ret, const struct seal_key *key, struct seal_with with, const void *box,
	      size_t len_bytes)
{
	uint8_t tag[SEAL_TAG_BYTES];
	int n = 0, end = 0;

	if (len_bytes < SEAL_EXTRA_BYTES || is_too_long(with, len_bytes - SEAL_EXTRA_BYTES))
		return -EBADMSG;
	const uint8_t *nonce = box, *data = nonce + SEAL_NONCE_BYTES;
	size_t inside = len_bytes - SEAL_EXTRA_BYTES;
	auto_(EVP_CIPHER_CTX_free) EVP_CIPHER_CTX *ctx = new_context();
	if (!ctx)
		return -ENOMEM;
	memcpy(tag, data + inside, sizeof(tag));
	if (!start_cipher(ctx, key, nonce, with, 0) ||
	    (inside && !EVP_CipherUpdate(ctx, ret, &n, data, (int)inside)) ||
	    !EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, tag))
		return -ENOMEM;
	if (EVP_CipherFinal_ex(ctx, (uint8_t *)ret + n, &end))
		return 0;
	explicit_bzero(ret, inside); /* a forger would have chosen these bytes */
	return -EBADMSG;
}

int seal_stream(void *ret, const struct seal_key *key, const void *buf, size_t len_bytes)
{
	static const uint8_t counter[16]; /* the key is new, so the counter may start at zero */
	int n;

	if (len_bytes > SEAL_BYTES_MAX)
		return -EFBIG;
	auto_(EVP_CIPHER_CTX_free) EVP_CIPHER_CTX *ctx = new_context();
	if (!ctx || !EVP_EncryptInit_ex(ctx, ctr, NULL, key->bytes, counter) ||
	    (len_bytes && !EVP_EncryptUpdate(ctx, ret, &n, buf, (int)len_bytes)))
		return -ENOMEM;
	return 0;
}

void seal_disk_key_fini(struct seal_disk_key *k)
{
	explicit_bzero(k, sizeof(*k));
}

int seal_disk(void *ret, const struct seal_disk_key *key, enum seal_disk_way way, uint64_t offset,
	      const void *buf, size_t len_bytes)
{
	const int encrypt = way == SEAL_DISK_CLOSE;
	const uint8_t *from = buf;
	uint8_t *to = ret;

	if (offset % SEAL_DISK_UNIT_BYTES || len_bytes % SEAL_DISK_UNIT_BYTES)
		return -EINVAL;
	auto_(EVP_CIPHER_CTX_free) EVP_CIPHER_CTX *ctx = new_context();
	if (!ctx || !xts || !EVP_CipherInit_ex(ctx, xts, NULL, key->bytes, NULL, encrypt))
		return -ENOMEM;
	for (size_t done = 0; done < len_bytes; done += SEAL_DISK_UNIT_BYTES) {
		uint64_t unit[2] = { htole64((offset + done) / SEAL_DISK_UNIT_BYTES), 0 };
		int n;

		if (!EVP_CipherInit_ex(ctx, NULL, NULL, NULL, (const uint8_t *)unit, encrypt) ||
		    !EVP_CipherUpdate(ctx, to + done, &n, from + done, SEAL_DISK_UNIT_BYTES))
			return -ENOMEM;
	}
	return 0;
}
