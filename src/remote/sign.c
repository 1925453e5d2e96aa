// SPDX-License-Identifier: MIT
/* Signing requests; see sign.h and "Signature Version 4 signing process" of AWS. */
#include "remote/sign.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"

enum { DAY_LEN = 8, SCOPE_BYTES = 128 };

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct sign_header *)a)->name, ((const struct sign_header *)b)->name);
}

/* The names, with ';' between them. */
static int join_names(char *ret, size_t room, const struct sign_header *headers, size_t n)
{
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		len += (size_t)snprintf(ret + len, room - len, "%s%s", i ? ";" : "",
					headers[i].name);
		if (len >= room)
			return -E2BIG;
	}
	return 0;
}

static int digest_canonical(char ret[static DIGEST_TEXT_BYTES], const struct sign_request *q,
			    const struct sign_header *headers, const char *names)
{
	auto_free char *text = NULL;
	size_t len = 0;
	struct digest digest;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	fprintf(out, "%s\n%s\n%s\n", q->method, q->path, q->query);
	for (size_t i = 0; i < q->n_headers; i++)
		fprintf(out, "%s:%s\n", headers[i].name, headers[i].value);
	fprintf(out, "\n%s\n%s", names, q->payload);
	if (fclose(out) == EOF)
		return -ENOMEM;
	int r = digest_buffer(&digest, text, len);
	if (r == 0)
		digest_format(ret, &digest);
	return r;
}

static int hmac(struct digest *ret, const void *key, size_t key_len, const char *text)
{
	unsigned len = 0;

	if (!HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text),
		  ret->bytes, &len))
		return -ENOMEM;
	return 0;
}

/* The key of one day, region and service. */
static int derive_key(struct digest *ret, const struct sign_request *q)
{
	char seed[256], day[DAY_LEN + 1];
	const char *const steps[] = { q->region, "s3", "aws4_request" };

	if ((size_t)snprintf(seed, sizeof(seed), "AWS4%s", q->secret) >= sizeof(seed))
		return -E2BIG;
	snprintf(day, sizeof(day), "%.*s", DAY_LEN, q->date);
	int r = hmac(ret, seed, strlen(seed), day);
	for (size_t i = 0; r == 0 && i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct digest key = *ret;

		r = hmac(ret, key.bytes, sizeof(key.bytes), steps[i]);
		OPENSSL_cleanse(&key, sizeof(key));
	}
	OPENSSL_cleanse(seed, sizeof(seed));
	return r;
}

static int sign_digest(char ret[static DIGEST_TEXT_BYTES], const struct sign_request *q,
		       const char *scope, const char *canonical)
{
	char text[SCOPE_BYTES + DIGEST_TEXT_BYTES + 64];
	struct digest key, signature;

	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", q->date, scope, canonical);
	int r = derive_key(&key, q);
	if (r == 0)
		r = hmac(&signature, key.bytes, sizeof(key.bytes), text);
	if (r == 0)
		digest_format(ret, &signature);
	OPENSSL_cleanse(&key, sizeof(key));
	return r;
}

int sign_request(char ret[static SIGN_ANSWER_BYTES], const struct sign_request *q)
{
	struct sign_header headers[SIGN_HEADERS_MAX];
	char names[512], canonical[DIGEST_TEXT_BYTES], signature[DIGEST_TEXT_BYTES];
	char scope[SCOPE_BYTES];

	if (q->n_headers > SIGN_HEADERS_MAX)
		return -E2BIG;
	memcpy(headers, q->headers, q->n_headers * sizeof(headers[0]));
	qsort(headers, q->n_headers, sizeof(headers[0]), by_name);
	if ((size_t)snprintf(scope, sizeof(scope), "%.*s/%s/s3/aws4_request", DAY_LEN, q->date,
			     q->region) >= sizeof(scope))
		return -E2BIG;

	int r = join_names(names, sizeof(names), headers, q->n_headers);
	if (r == 0)
		r = digest_canonical(canonical, q, headers, names);
	if (r == 0)
		r = sign_digest(signature, q, scope, canonical);
	if (r < 0)
		return r;
	int len = snprintf(ret, SIGN_ANSWER_BYTES,
			   "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
			   q->key_id, scope, names, signature);
	return len < SIGN_ANSWER_BYTES ? 0 : -E2BIG;
}
