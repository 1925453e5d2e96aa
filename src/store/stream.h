// SPDX-License-Identifier: MIT
/*
 * A checkpoint as one stream: a POSIX tar archive that contains ID/manifest.json first, then every file and then
 * every pack of the manifest, in its order. Everything else about it follows from the manifest, so a reader knows
 * each header in advance and accepts no other bytes.
 * docs/image-format.md, "As a stream". Pure: no files here.
 */
#pragma once

#include "base/digest.h"
#include "image/manifest.h"

enum {
	STREAM_BLOCK_BYTES = 512, /* of tar */
	STREAM_HEADER_BYTES_MAX = 16 * STREAM_BLOCK_BYTES, /* of the longest path */
	STREAM_END_BYTES = 2 * STREAM_BLOCK_BYTES,
};

/** Writes the header of the file @path of the checkpoint @id. Returns its length, whole blocks. */
size_t stream_header(uint8_t ret[static STREAM_HEADER_BYTES_MAX], const char *id, const char *path,
		     uint64_t len_bytes);

/** The number of zeros that follow @len_bytes of a file. */
size_t stream_padding(uint64_t len_bytes);

/** The next file or pack. */
struct stream_file {
	const char *path;
	uint64_t len_bytes;
	bool pack;
	size_t index; /* in the manifest's files, or packs */
};

/** The output of a decoder, in this order. Each function returns 0, or -errno to refuse the rest. */
struct stream_sink {
	/* @m and @text (its unchanged bytes) live until the decoder is freed. */
	int (*manifest)(void *arg, const struct manifest *m, const char *text, size_t len_bytes,
			struct brumate_error *err);
	int (*begin)(void *arg, const struct stream_file *f, struct brumate_error *err);
	int (*data)(void *arg, const void *buf, size_t len_bytes, struct brumate_error *err);
	/* The size is correct, and so is the digest of a file; chunks of a pack have to be checked by the sink. */
	int (*end)(void *arg, const struct stream_file *f, struct brumate_error *err);
};

struct stream_decoder;

/** @sink and @arg borrowed. 0 or -ENOMEM. */
int stream_decoder_new(struct stream_decoder **ret, const struct stream_sink *sink, void *arg);

/**
 * Takes the next bytes of the stream, any number. -EBADMSG: not a checkpoint, damaged, or continuing after its end;
 * -EPROTONOSUPPORT: from a newer writer; what the sink returned.
 */
int stream_decode(struct stream_decoder *d, const void *buf, size_t len_bytes,
		  struct brumate_error *err);

/** The stream has ended: -EBADMSG if it is incomplete. */
int stream_decode_end(const struct stream_decoder *d, struct brumate_error *err);

/** Accepts NULL. */
void stream_decoder_free(struct stream_decoder *d);
DEFINE_AUTO(struct stream_decoder *, stream_decoder_free)
