// SPDX-License-Identifier: MIT
/* Tables of chunks: any bytes are refused, or are exactly what the table that they make is encoded as. Each
 * input is tried with a right digest too, which mutations would not find. */
#include "image/chunk-table.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
	if (!holds)
		abort();
}

/* What users of a table rely on. */
static void walk(const struct chunk_table *t)
{
	uint64_t total = 0;
	size_t chunks = 0;

	for (size_t k = 0; k < t->n_regions; k++) {
		uint64_t n = chunk_parts(t->regions[k].len_bytes);

		check(t->regions[k].first + n <= t->n_parts);
		for (uint64_t i = 0; i < n; i++) {
			uint32_t at = t->parts[t->regions[k].first + i];

			total += chunk_part_bytes(t->regions[k].len_bytes, i);
			check(at == CHUNK_ZERO || at < t->n_chunks);
		}
		total -= t->regions[k].len_bytes;
	}
	check(total == 0);
	for (uint32_t pack = 0; pack < t->n_packs; pack++) {
		size_t n;
		const struct chunk_record *c = chunk_table_pack(t, pack, &n);

		check(n > 0 && c == t->chunks + chunks && c->offset == 0);
		check(chunk_table_pack_bytes(t, pack) > c[n - 1].offset);
		chunks += n;
	}
	check(chunks == t->n_chunks);
}

static void decode(const uint8_t *data, size_t size)
{
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;
	auto_free void *again = NULL;
	size_t len = 0;
	int r = chunk_table_decode(&t, data, size, NULL);

	if (r < 0) {
		check(r == -EBADMSG || r == -EPROTONOSUPPORT || r == -ENOMEM);
		return;
	}
	walk(&t);
	check(chunk_table_encode(&t, &again, &len, NULL) == 0);
	check(len == size && !memcmp(again, data, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct digest digest;

	decode(data, size);
	if (size < sizeof(digest))
		return 0;
	auto_free uint8_t *sealed = malloc(size);
	size_t body = size - sizeof(digest);
	check(sealed);
	memcpy(sealed, data, body);
	check(digest_buffer(&digest, data, body) == 0);
	memcpy(sealed + body, &digest, sizeof(digest));
	decode(sealed, size);
	return 0;
}
