// SPDX-License-Identifier: MIT
/* Tables of chunks: what is written is read back, every rule is held, every flipped bit found. */
#include "check.h"
#include "image/chunk-table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { N_CHUNKS = 4, N_PARTS = 6 };

/* Three packs' worth of chunks for two regions; one chunk is used twice, one not at all. */
struct sample {
	struct chunk_record chunks[N_CHUNKS];
	struct chunk_region regions[3];
	uint32_t parts[N_PARTS];
	struct chunk_table table;
};

static void fill_chunk(struct chunk_record *c, uint8_t name, uint32_t pack, uint64_t offset,
		       uint32_t len)
{
	*c = (struct chunk_record){
		.offset = offset, .pack = pack, .len_bytes = len, .stored_bytes = len
	};
	memset(&c->digest, name, sizeof(c->digest));
	c->stored = c->digest;
}

static struct chunk_table *sample(struct sample *s)
{
	static const uint32_t parts[N_PARTS] = { 0, CHUNK_ZERO, 1, 0, 2, CHUNK_ZERO };

	memset(s, 0, sizeof(*s));
	fill_chunk(&s->chunks[0], 1, 0, 0, CHUNK_BYTES_MAX);
	fill_chunk(&s->chunks[1], 2, 0, CHUNK_BYTES_MAX, 100);
	fill_chunk(&s->chunks[2], 3, 1, 0, CHUNK_BYTES_MAX);
	s->chunks[2].encoding = CHUNK_LZ4;
	s->chunks[2].stored_bytes = 5000;
	s->chunks[2].stored.bytes[0] = 9;
	fill_chunk(&s->chunks[3], 4, 1, 8192, 7);
	s->regions[0].len_bytes = 2ull * CHUNK_BYTES_MAX + 100;
	s->regions[2].len_bytes = 3ull * CHUNK_BYTES_MAX;
	memcpy(s->parts, parts, sizeof(parts));
	s->table = (struct chunk_table){ .chunks = s->chunks,
					 .n_chunks = N_CHUNKS,
					 .n_packs = 2,
					 .regions = s->regions,
					 .n_regions = 3,
					 .parts = s->parts,
					 .n_parts = N_PARTS };
	return &s->table;
}

static void test_round_trip(void)
{
	struct sample s;
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free void *buf = NULL;
	size_t len, n;

	CHECK(chunk_table_encode(sample(&s), &buf, &len, &err) == 0);
	CHECK(chunk_table_decode(&t, buf, len, &err) == 0);
	CHECK(t.n_chunks == N_CHUNKS && t.n_packs == 2 && t.n_regions == 3 && t.n_parts == N_PARTS);
	CHECK(!memcmp(t.parts, s.parts, sizeof(s.parts)));
	CHECK(t.regions[0].first == 0 && t.regions[1].first == 3 && t.regions[2].first == 3);
	CHECK(t.chunks[2].encoding == CHUNK_LZ4 && t.chunks[2].stored_bytes == 5000);
	CHECK(!memcmp(&t.chunks[2].stored, &s.chunks[2].stored, sizeof(struct digest)));
	CHECK(chunk_table_pack(&t, 1, &n) == &t.chunks[2] && n == 2);
	CHECK(chunk_table_pack_bytes(&t, 0) == CHUNK_BYTES_MAX + 4096);
	CHECK(chunk_table_pack_bytes(&t, 1) == 8192 + 4096);
	CHECK(chunk_part_bytes(s.regions[0].len_bytes, 2) == 100);

	/* Nothing at all is a table too. */
	auto_(chunk_table_fini) struct chunk_table none = CHUNK_TABLE_EMPTY;
	auto_free void *small = NULL;
	CHECK(chunk_table_encode(&none, &small, &len, &err) == 0);
	CHECK(chunk_table_decode(&none, small, len, &err) == 0);
}

static void test_damage(void)
{
	struct sample s;
	struct chunk_table t = CHUNK_TABLE_EMPTY;
	auto_free uint8_t *buf = NULL;
	void *encoded;
	size_t len;

	CHECK(chunk_table_encode(sample(&s), &encoded, &len, NULL) == 0);
	buf = encoded;
	for (size_t i = 0; i < len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			buf[i] ^= (uint8_t)(1 << bit);
			int r = chunk_table_decode(&t, buf, len, NULL);
			CHECK(r == -EBADMSG || r == -EPROTONOSUPPORT);
			buf[i] ^= (uint8_t)(1 << bit);
		}
	}
	for (size_t cut = 0; cut < len; cut++)
		CHECK(chunk_table_decode(&t, buf, cut, NULL) == -EBADMSG);
	CHECK(!t.chunks && !t.parts);
}

static void refused(struct sample *s, const char *why)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	void *buf = NULL;
	size_t len;
	int r = chunk_table_encode(&s->table, &buf, &len, &err);

	if (r != -EINVAL || !strstr(err.text, why))
		fprintf(stderr, "expected \"%s\": %d %s\n", why, r, err.text);
	CHECK(r == -EINVAL && strstr(err.text, why) && !buf);
	sample(s);
}

/* Each rule broken by itself; the digest is right. */
static void test_rules(void)
{
	struct sample s;

	sample(&s);
	s.chunks[0].len_bytes = 0;
	refused(&s, "chunk 0: its length");
	s.chunks[0].len_bytes = CHUNK_BYTES_MAX + 1;
	refused(&s, "chunk 0: its length");
	s.chunks[1].encoding = CHUNK__MAX;
	refused(&s, "chunk 1: its encoding");
	s.chunks[0].stored_bytes--;
	refused(&s, "chunk 0: raw");
	s.chunks[0].stored.bytes[5]++;
	refused(&s, "chunk 0: raw");
	s.chunks[2].stored_bytes = CHUNK_BYTES_MAX;
	refused(&s, "chunk 2: compressed");
	s.chunks[2].stored_bytes = 0;
	refused(&s, "chunk 2: compressed");
	s.chunks[3].offset = 4096;
	refused(&s, "chunk 3: it does not follow");
	s.chunks[3].offset = 12288;
	refused(&s, "chunk 3: it does not follow");
	s.chunks[0].offset = 4096;
	refused(&s, "chunk 0: it does not follow");
	s.chunks[0].pack = 1;
	refused(&s, "chunk 0: it does not follow");
	s.chunks[2].pack = s.chunks[3].pack = 2;
	refused(&s, "chunk 2: it does not follow");
	s.table.n_packs = 3;
	refused(&s, "3 packs");
	s.parts[0] = N_CHUNKS;
	refused(&s, "region 0: part 0: no chunk 4");
	s.parts[2] = 0;
	refused(&s, "region 0: part 2: not as long");
	s.regions[2].len_bytes++;
	refused(&s, "region 2: longer");
	s.regions[2].len_bytes = UINT64_MAX;
	refused(&s, "region 2: longer");
	s.regions[2].len_bytes = CHUNK_BYTES_MAX;
	refused(&s, "parts of no region");
}

static void test_newer(void)
{
	struct sample s;
	struct chunk_table t;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free void *buf = NULL;
	size_t len;

	CHECK(chunk_table_encode(sample(&s), &buf, &len, NULL) == 0);
	((uint8_t *)buf)[8] = CHUNK_TABLE_VERSION + 1;
	CHECK(chunk_table_decode(&t, buf, len, &err) == -EPROTONOSUPPORT);
	CHECK(strstr(err.text, "newer than version") && err.hint[0]);
}

int main(void)
{
	test_round_trip();
	test_damage();
	test_rules();
	test_newer();
	return 0;
}
