// SPDX-License-Identifier: MIT
/* The chunk table as bytes, little-endian; see chunk-table.h. Pure. */
#include "image/chunk-table.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = { 'B', 'R', 'U', 'M', 'C', 'H', 'N', 'K' };

struct header {
	char magic[8];
	uint32_t version, chunk_bytes;
	uint32_t n_packs, n_chunks, n_regions, sealed;
	uint64_t n_parts;
};

struct record {
	struct digest digest, stored;
	uint64_t offset;
	uint32_t pack, len_bytes, stored_bytes, encoding;
};

_Static_assert(sizeof(struct header) == 40 && sizeof(struct record) == 88, "as documented");

void chunk_table_fini(struct chunk_table *t)
{
	free(t->chunks);
	free(t->regions);
	free(t->parts);
	*t = CHUNK_TABLE_EMPTY;
}

/* The first chunk whose pack is not below @pack. */
static size_t lower_bound(const struct chunk_table *t, uint32_t pack)
{
	size_t low = 0, high = t->n_chunks;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (t->chunks[middle].pack < pack)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct chunk_record *chunk_table_pack(const struct chunk_table *t, uint32_t pack,
					    size_t *ret_n)
{
	size_t first = lower_bound(t, pack);

	*ret_n = lower_bound(t, pack + 1) - first;
	return t->chunks + first;
}

uint64_t chunk_table_pack_bytes(const struct chunk_table *t, uint32_t pack)
{
	size_t n;
	const struct chunk_record *first = chunk_table_pack(t, pack, &n);

	return n ? first[n - 1].offset + chunk_padded(first[n - 1].stored_bytes) : 0;
}

static int bad_chunk(struct brumate_error *err, size_t i, const char *what)
{
	return brumate_fail(err, EBADMSG, "chunk %zu: %s", i, what);
}

static int check_chunk(const struct chunk_record *c, bool sealed, size_t i,
		       struct brumate_error *err)
{
	if (c->len_bytes == 0 || c->len_bytes > CHUNK_BYTES_MAX)
		return bad_chunk(err, i, "its length is none of a chunk");
	if ((unsigned)c->encoding >= CHUNK__MAX)
		return bad_chunk(err, i, "its encoding is unknown");
	if (c->encoding == CHUNK_RAW &&
	    (c->stored_bytes != c->len_bytes ||
	     (!sealed && memcmp(&c->stored, &c->digest, sizeof(c->digest)))))
		return bad_chunk(err, i, "raw, but stored as something else");
	if (c->encoding != CHUNK_RAW && (c->stored_bytes == 0 || c->stored_bytes >= c->len_bytes))
		return bad_chunk(err, i, "compressed to nothing or to more than it was");
	return 0;
}

/* Checks that chunks follow each other without a gap, and that every pack has some. */
static int check_chunks(const struct chunk_table *t, struct brumate_error *err)
{
	uint32_t pack = 0;
	uint64_t end = 0;

	for (size_t i = 0; i < t->n_chunks; i++) {
		const struct chunk_record *c = &t->chunks[i];
		int r = check_chunk(c, t->sealed, i, err);

		if (r < 0)
			return r;
		if (c->pack != pack && end && c->pack == pack + 1) {
			pack++;
			end = 0;
		}
		if (c->pack != pack || c->offset != end)
			return bad_chunk(err, i, "it does not follow the one before");
		if (end > INT64_MAX - CHUNK_BYTES_MAX - CHUNK_ALIGN_BYTES)
			return bad_chunk(err, i, "beyond the end of any file");
		end += chunk_padded(c->stored_bytes);
	}
	if (t->n_packs != (t->n_chunks ? (size_t)pack + 1 : 0))
		return brumate_fail(err, EBADMSG, "expected chunks in %zu packs", t->n_packs);
	return 0;
}

static int check_part(const struct chunk_table *t, const struct chunk_region *region, uint64_t i,
		      struct brumate_error *err)
{
	uint32_t at = t->parts[region->first + i];

	if (at == CHUNK_ZERO)
		return 0;
	if (at >= t->n_chunks)
		return brumate_fail(err, EBADMSG, "part %" PRIu64 ": no chunk %" PRIu32, i, at);
	if (t->chunks[at].len_bytes != chunk_part_bytes(region->len_bytes, i))
		return brumate_fail(err, EBADMSG, "part %" PRIu64 ": not as long as chunk %" PRIu32,
				    i, at);
	return 0;
}

/* Also fills in where regions start. */
static int check_regions(struct chunk_table *t, struct brumate_error *err)
{
	size_t first = 0;

	for (size_t k = 0; k < t->n_regions; k++) {
		uint64_t n = chunk_parts(t->regions[k].len_bytes);

		if (n > t->n_parts - first)
			return brumate_fail(err, EBADMSG, "region %zu: longer than its parts", k);
		t->regions[k].first = first;
		for (uint64_t i = 0; i < n; i++) {
			int r = check_part(t, &t->regions[k], i, err);

			if (r < 0)
				return brumate_wrap(err, r, "region %zu", k);
		}
		first += (size_t)n;
	}
	if (first != t->n_parts)
		return brumate_fail(err, EBADMSG, "parts of no region");
	return 0;
}

static struct header header_of(const struct chunk_table *t)
{
	struct header h = {
		.version = htole32(CHUNK_TABLE_VERSION),
		.chunk_bytes = htole32(CHUNK_BYTES_MAX),
		.n_packs = htole32((uint32_t)t->n_packs),
		.n_chunks = htole32((uint32_t)t->n_chunks),
		.n_regions = htole32((uint32_t)t->n_regions),
		.n_parts = htole64(t->n_parts),
		.sealed = htole32(t->sealed),
	};

	memcpy(h.magic, magic, sizeof(magic));
	return h;
}

static uint8_t *put(uint8_t *at, const void *what, size_t len)
{
	memcpy(at, what, len);
	return at + len;
}

static uint8_t *put_chunk(uint8_t *at, const struct chunk_record *c)
{
	struct record r = {
		.digest = c->digest,
		.stored = c->stored,
		.offset = htole64(c->offset),
		.pack = htole32(c->pack),
		.len_bytes = htole32(c->len_bytes),
		.stored_bytes = htole32(c->stored_bytes),
		.encoding = htole32((uint32_t)c->encoding),
	};

	return put(at, &r, sizeof(r));
}

/* Writes all but the digest. */
static void put_all(uint8_t *at, const struct chunk_table *t)
{
	struct header h = header_of(t);

	at = put(at, &h, sizeof(h));
	for (size_t i = 0; i < t->n_regions; i++) {
		uint64_t len = htole64(t->regions[i].len_bytes);

		at = put(at, &len, sizeof(len));
	}
	for (size_t i = 0; i < t->n_chunks; i++)
		at = put_chunk(at, &t->chunks[i]);
	for (size_t i = 0; i < t->n_parts; i++) {
		uint32_t part = htole32(t->parts[i]);

		at = put(at, &part, sizeof(part));
	}
}

/* The bytes of a table with that many items. The sum does not overflow: there are at most 2^32 of each, and the
 * number of parts is checked. */
static uint64_t table_bytes(uint64_t n_regions, uint64_t n_chunks, uint64_t n_parts)
{
	if (n_parts > CHUNK_TABLE_BYTES_MAX)
		return UINT64_MAX;
	return sizeof(struct header) + n_regions * sizeof(uint64_t) +
	       n_chunks * sizeof(struct record) + n_parts * sizeof(uint32_t) +
	       sizeof(struct digest);
}

int chunk_table_encode(const struct chunk_table *t, void **ret, size_t *ret_len_bytes,
		       struct brumate_error *err)
{
	auto_(chunk_table_fini) struct chunk_table again = CHUNK_TABLE_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	uint64_t len = table_bytes(t->n_regions, t->n_chunks, t->n_parts);

	if (t->n_chunks >= CHUNK_ZERO || len > CHUNK_TABLE_BYTES_MAX)
		return brumate_fail(err, EFBIG, "more memory than a table of chunks can hold");
	auto_free uint8_t *buf = malloc(len);
	if (!buf)
		return brumate_fail(err, ENOMEM, "%m");
	put_all(buf, t);

	struct digest digest;
	size_t body = len - sizeof(digest);
	int r = digest_buffer(&digest, buf, body);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	memcpy(buf + body, &digest, sizeof(digest));
	r = chunk_table_decode(&again, buf, len, &why);
	if (r < 0)
		return brumate_fail(err, r == -ENOMEM ? ENOMEM : EINVAL, "%s", why.text);
	*ret = take_ptr(&buf);
	*ret_len_bytes = len;
	return 0;
}

static const uint8_t *get(void *what, const uint8_t *at, size_t len)
{
	memcpy(what, at, len);
	return at + len;
}

static const uint8_t *get_chunk(struct chunk_record *c, const uint8_t *at)
{
	struct record r;

	at = get(&r, at, sizeof(r));
	*c = (struct chunk_record){
		.digest = r.digest,
		.stored = r.stored,
		.offset = le64toh(r.offset),
		.pack = le32toh(r.pack),
		.len_bytes = le32toh(r.len_bytes),
		.stored_bytes = le32toh(r.stored_bytes),
		.encoding = (enum chunk_encoding)le32toh(r.encoding),
	};
	return at;
}

static int alloc(struct chunk_table *t)
{
	t->regions = calloc(t->n_regions + 1, sizeof(*t->regions));
	t->chunks = calloc(t->n_chunks + 1, sizeof(*t->chunks));
	t->parts = calloc(t->n_parts + 1, sizeof(*t->parts));
	return t->regions && t->chunks && t->parts ? 0 : -ENOMEM;
}

static void get_all(struct chunk_table *t, const uint8_t *at)
{
	for (size_t i = 0; i < t->n_regions; i++) {
		uint64_t len;

		at = get(&len, at, sizeof(len));
		t->regions[i].len_bytes = le64toh(len);
	}
	for (size_t i = 0; i < t->n_chunks; i++)
		at = get_chunk(&t->chunks[i], at);
	for (size_t i = 0; i < t->n_parts; i++) {
		uint32_t part;

		at = get(&part, at, sizeof(part));
		t->parts[i] = le32toh(part);
	}
}

static int check_header(const struct header *h, struct brumate_error *err)
{
	if (memcmp(h->magic, magic, sizeof(magic)))
		return brumate_fail(err, EBADMSG, "not a table of chunks");
	if (le32toh(h->version) > CHUNK_TABLE_VERSION) {
		brumate_fail(err, EPROTONOSUPPORT,
			     "version %u is newer than version %d, the newest this brumate reads",
			     le32toh(h->version), CHUNK_TABLE_VERSION);
		brumate_hint(err, "use the brumate that wrote it, or a newer one");
		return -EPROTONOSUPPORT;
	}
	if (le32toh(h->version) != CHUNK_TABLE_VERSION || le32toh(h->sealed) > 1 ||
	    le32toh(h->chunk_bytes) != CHUNK_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "its header makes no sense");
	return 0;
}

static int check_seal(const uint8_t *buf, size_t len, struct brumate_error *err)
{
	struct digest digest;
	int r = digest_buffer(&digest, buf, len - sizeof(digest));

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&digest, buf + len - sizeof(digest), sizeof(digest)))
		return brumate_fail(err, EBADMSG, "damaged: its digest does not match");
	return 0;
}

static int decode(struct chunk_table *t, const uint8_t *buf, size_t len, struct brumate_error *err)
{
	struct header h;

	if (len < sizeof(h) + sizeof(struct digest))
		return brumate_fail(err, EBADMSG, "truncated: %zu bytes", len);
	const uint8_t *at = get(&h, buf, sizeof(h));
	int r = check_header(&h, err);
	if (r < 0)
		return r;
	if (table_bytes(le32toh(h.n_regions), le32toh(h.n_chunks), le64toh(h.n_parts)) != len)
		return brumate_fail(err, EBADMSG, "%zu bytes are not what its header says", len);
	if ((r = check_seal(buf, len, err)) < 0)
		return r;

	t->sealed = le32toh(h.sealed);
	t->n_packs = le32toh(h.n_packs);
	t->n_chunks = le32toh(h.n_chunks);
	t->n_regions = le32toh(h.n_regions);
	t->n_parts = (size_t)le64toh(h.n_parts);
	if (alloc(t) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	get_all(t, at);
	r = check_chunks(t, err);
	return r < 0 ? r : check_regions(t, err);
}

int chunk_table_decode(struct chunk_table *ret, const void *buf, size_t len_bytes,
		       struct brumate_error *err)
{
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;

	if (len_bytes > CHUNK_TABLE_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "%zu bytes, expected at most %d", len_bytes,
				    CHUNK_TABLE_BYTES_MAX);
	int r = decode(&t, buf, len_bytes, err);
	if (r < 0)
		return r;
	*ret = take_struct(t, CHUNK_TABLE_EMPTY);
	return 0;
}
