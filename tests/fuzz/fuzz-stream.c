// SPDX-License-Identifier: MIT
/* Streams of checkpoints: any bytes are refused or make files that are as the manifest says, and how they
 * are cut into pieces makes no difference. */
#include "store/stream.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	const struct manifest *manifest;
	size_t begun, ended;
	uint64_t bytes; /* of the file that comes */
};

static void check(bool holds)
{
	if (!holds)
		abort();
}

static int on_manifest(void *arg, const struct manifest *m, const char *text, size_t len,
		       struct brumate_error *err)
{
	struct seen *s = arg;

	check(!s->manifest && manifest_id_is_valid(m->id) && text[len] == '\0');
	s->manifest = m;
	return 0;
}

static int on_begin(void *arg, const struct stream_file *f, struct brumate_error *err)
{
	struct seen *s = arg;

	check(s->manifest && s->begun == s->ended);
	check(f->index + (f->pack ? s->manifest->n_files : 0) == s->begun);
	check(manifest_path_is_valid(f->path));
	s->begun++;
	s->bytes = 0;
	return 0;
}

static int on_data(void *arg, const void *buf, size_t len, struct brumate_error *err)
{
	struct seen *s = arg;

	check(s->begun == s->ended + 1 && len);
	s->bytes += len;
	return 0;
}

static int on_end(void *arg, const struct stream_file *f, struct brumate_error *err)
{
	struct seen *s = arg;

	s->ended++;
	check(s->begun == s->ended && s->bytes == f->len_bytes);
	return 0;
}

static int decode(const uint8_t *data, size_t size, size_t step)
{
	static const struct stream_sink sink = { on_manifest, on_begin, on_data, on_end };
	auto_(stream_decoder_free) struct stream_decoder *d = NULL;
	struct seen seen = { 0 };
	int r = stream_decoder_new(&d, &sink, &seen);

	check(r == 0);
	for (size_t at = 0; r == 0 && at < size; at += step)
		r = stream_decode(d, data + at, size - at < step ? size - at : step, NULL);
	if (r == 0)
		r = stream_decode_end(d, NULL);
	check(r < 0 || (seen.manifest &&
			seen.ended == seen.manifest->n_files + seen.manifest->memory.n_packs));
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int r = decode(data, size, size ? size : 1);

	check(decode(data, size, 7) == r && decode(data, size, 513) == r);
	return 0;
}
