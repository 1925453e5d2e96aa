// SPDX-License-Identifier: MIT
/* Chunks of packs as they come by; see pack-check.h. */
#include "chunks/pack-check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "chunks/codec.h"

struct pack_check {
	struct chunks_reader *reader;
	struct codec *codec;
	const struct chunk_record *next; /* the chunk that comes */
	size_t have;
	uint8_t room[CHUNK_BYTES_MAX + CHUNK_ALIGN_BYTES];
};

int pack_check_new(struct pack_check **ret, int dir_fd, const struct manifest *m,
		   struct brumate_error *err)
{
	auto_(pack_check_free) struct pack_check *c = calloc(1, sizeof(*c));

	if (!c || codec_new(&c->codec) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = chunks_open(&c->reader, dir_fd, m, NULL, NULL, err);
	if (r < 0)
		return r;
	*ret = take_ptr(&c);
	return 0;
}

void pack_check_free(struct pack_check *c)
{
	if (!c)
		return;
	chunks_reader_free(c->reader);
	codec_free(c->codec);
	free(c);
}

void pack_check_begin(struct pack_check *c, size_t index)
{
	size_t n;

	c->next = chunk_table_pack(&c->reader->table, (uint32_t)index, &n);
	c->have = 0;
}

int pack_check_feed(struct pack_check *c, const void *buf, size_t len_bytes,
		    struct brumate_error *err)
{
	const uint8_t *from = buf;
	const char *why;

	while (len_bytes) {
		size_t want = chunk_padded(c->next->stored_bytes) - c->have;
		size_t n = want < len_bytes ? want : len_bytes;

		memcpy(c->room + c->have, from, n);
		c->have += n;
		from += n;
		len_bytes -= n;
		if (n < want)
			break;
		struct stored_chunk chunk = {
			.reader = c->reader, .record = c->next, .stored = c->room, .codec = c->codec
		};
		if (!chunks_check_stored(&chunk, &why))
			return chunks_fail_chunk(c->reader, c->next, why, err);
		c->next++;
		c->have = 0;
	}
	return 0;
}
