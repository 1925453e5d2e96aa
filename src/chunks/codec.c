// SPDX-License-Identifier: MIT
/* Compression of chunks by liblz4 and libzstd; see codec.h. */
#include "chunks/codec.h"

#include <errno.h>
#include <lz4.h>
#include <stdlib.h>
#include <zstd.h>

enum { ZSTD_LEVEL = 1 };

struct codec {
	ZSTD_CCtx *compress; /* made when it is needed first */
	ZSTD_DCtx *expand;
	void *room; /* of a chunk */
};

int codec_new(struct codec **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void codec_free(struct codec *c)
{
	if (!c)
		return;
	ZSTD_freeCCtx(c->compress);
	ZSTD_freeDCtx(c->expand);
	free(c->room);
	free(c);
}

static size_t compress_zstd(struct codec *c, void *ret, size_t room, const void *buf, size_t len)
{
	if (!c->compress)
		c->compress = ZSTD_createCCtx();
	if (!c->compress)
		return 0;
	size_t n = ZSTD_compressCCtx(c->compress, ret, room, buf, len, ZSTD_LEVEL);

	return ZSTD_isError(n) ? 0 : n;
}

size_t codec_compress(struct codec *c, enum chunk_encoding encoding, void *ret, size_t room,
		      const void *buf, size_t len_bytes)
{
	if (encoding == CHUNK_ZSTD)
		return compress_zstd(c, ret, room, buf, len_bytes);
	if (encoding != CHUNK_LZ4)
		return 0;
	int n = LZ4_compress_default(buf, ret, (int)len_bytes, (int)room);

	return n > 0 ? (size_t)n : 0;
}

static size_t expand_zstd(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	if (!c->expand)
		c->expand = ZSTD_createDCtx();
	if (!c->expand)
		return 0;
	size_t n = ZSTD_decompressDCtx(c->expand, c->room, chunk->len_bytes, stored,
				       chunk->stored_bytes);

	return ZSTD_isError(n) ? 0 : n;
}

static size_t expand_lz4(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	int n = LZ4_decompress_safe(stored, c->room, (int)chunk->stored_bytes,
				    (int)chunk->len_bytes);

	return n > 0 ? (size_t)n : 0;
}

const void *codec_expand(struct codec *c, const struct chunk_record *chunk, const void *stored)
{
	size_t n;

	if (chunk->encoding == CHUNK_RAW)
		return stored;
	if (!c->room)
		c->room = malloc(CHUNK_BYTES_MAX);
	if (!c->room)
		return NULL;
	n = chunk->encoding == CHUNK_ZSTD ? expand_zstd(c, chunk, stored)
					  : expand_lz4(c, chunk, stored);
	return n == chunk->len_bytes ? c->room : NULL;
}
