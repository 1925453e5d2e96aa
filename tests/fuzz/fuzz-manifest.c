// SPDX-License-Identifier: MIT
/*
 * Manifests: any bytes are decoded or refused, and what was decoded is written and read back the
 * same. Each input is tried as it is and sealed with its right digest, or nothing would get past that.
 */
#include "image/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *rewrite(const char *text, size_t len, size_t *ret_len)
{
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	char *again = NULL;

	if (manifest_decode(&m, text, len, NULL) < 0)
		return NULL;
	if (manifest_encode(&m, &again, ret_len, NULL) < 0)
		abort();
	return again;
}

static void check(const char *text, size_t len)
{
	size_t once_len, twice_len;
	auto_free char *once = rewrite(text, len, &once_len);

	if (!once)
		return;
	auto_free char *twice = rewrite(once, once_len, &twice_len);
	if (!twice || once_len != twice_len || memcmp(once, twice, once_len))
		abort();
}

static char *sealed(const char *text, size_t len)
{
	json_auto_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	char hex[DIGEST_TEXT_BYTES];
	struct digest d;

	if (!json_is_object(object))
		return NULL;
	json_object_del(object, "digest");
	if (manifest_canonical_digest(&d, object) < 0)
		return NULL;
	digest_format(hex, &d);
	json_object_set_new(object, "digest", json_string(hex));
	return json_dumps(object, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check((const char *)data, size);

	auto_free char *text = sealed((const char *)data, size);
	if (text)
		check(text, strlen(text));
	return 0;
}
