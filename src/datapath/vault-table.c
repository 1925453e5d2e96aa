// SPDX-License-Identifier: MIT
/* The table of a job's memory outside its processes, as JSON. See vault.h. */
#include "datapath/vault.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TABLE_VERSION = 1 };

static json_t *encode_piece(const struct vault_piece *p)
{
	return json_pack("{s:i,s:I,s:I,s:I,s:I,s:s}", "pid", p->process.pid, "start",
			 (json_int_t)p->process.start_ticks, "id", (json_int_t)p->id, "va",
			 (json_int_t)p->va, "len", (json_int_t)p->len_bytes, "gpu", p->gpu);
}

static json_t *encode_copy(const struct host_copy *copy)
{
	return json_pack("{s:I,s:I,s:I}", "total", (json_int_t)copy->total_bytes, "segment",
			 (json_int_t)copy->segment_bytes, "segments", (json_int_t)copy->n_segments);
}

char *vault_encode(const struct vault *h)
{
	const bool kept = !h->n_pieces && h->kept.n_pieces;
	const struct vault_piece *list = kept ? h->kept.pieces : h->pieces;
	size_t n = kept ? h->kept.n_pieces : h->n_pieces;
	json_t *pieces = json_array(), *copy = NULL;

	for (size_t i = 0; pieces && i < n; i++)
		if (json_array_append_new(pieces, encode_piece(&list[i])) < 0)
			return NULL;
	if (kept || h->copied)
		copy = encode_copy(kept ? &h->kept.copy : &h->copy);
	auto_json json_t *o = json_pack("{s:i,s:o,s:o,s:b}", "version", TABLE_VERSION, "copy",
					copy ? copy : json_null(), "pieces", pieces, "kept",
					kept || h->of_running);
	return o ? json_dumps(o, JSON_COMPACT) : NULL;
}

static int decode_piece(struct vault_piece *ret, json_t *o, struct brumate_error *err)
{
	int64_t pid = 0, start = -1, id = 0, va = -1, len = 0;
	const char *gpu;
	int r;

	if ((r = wire_get_int(o, "pid", 1, 1 << 22, &pid, err)) < 0 ||
	    (r = wire_get_int(o, "start", 0, INT64_MAX, &start, err)) < 0 ||
	    (r = wire_get_int(o, "id", 1, INT64_MAX, &id, err)) < 0 ||
	    (r = wire_get_int(o, "va", 0, INT64_MAX, &va, err)) < 0 ||
	    (r = wire_get_int(o, "len", 1, 1ll << 48, &len, err)) < 0 ||
	    (r = wire_need_string(o, "gpu", &gpu, err)) < 0)
		return r;
	if (!pid || start < 0 || !id || va < 0 || !len || strlen(gpu) >= sizeof(ret->gpu))
		return brumate_fail(err, EBADMSG, "incomplete");
	*ret = (struct vault_piece){ .process = { (pid_t)pid, (uint64_t)start },
				     .id = (uint64_t)id,
				     .va = (uint64_t)va,
				     .len_bytes = (uint64_t)len,
				     .fd = -1 };
	strcpy(ret->gpu, gpu);
	return 0;
}

static int decode_pieces(struct vault *h, json_t *o, struct brumate_error *err)
{
	json_t *list;
	int r = wire_get_array(o, "pieces", &list, err);
	size_t n = json_array_size(list);

	if (r < 0)
		return r;
	if (n > VAULT_PIECES_MAX)
		return brumate_fail(err, EBADMSG, "pieces: %zu", n);
	h->pieces = calloc(n + 1, sizeof(*h->pieces));
	if (!h->pieces)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		json_t *piece = json_array_get(list, i);

		r = json_is_object(piece) ? decode_piece(&h->pieces[i], piece, err) : -EBADMSG;
		if (r < 0)
			return brumate_wrap(err, r, "pieces: item %zu", i);
		h->n_pieces++;
	}
	return 0;
}

/* The sizes must be those of the pieces: fds are looked into by them. */
static int decode_copy(struct vault *h, size_t *ret_segments, json_t *o, struct brumate_error *err)
{
	int64_t total = -1, segment = 0, segments = 0;
	auto_free struct device_piece *pieces = NULL;
	json_t *copy;
	int r = wire_get_object(o, "copy", &copy, err);

	if (r < 0 || !copy)
		return r;
	if ((r = wire_get_int(copy, "total", 0, 1ll << 50, &total, err)) < 0 ||
	    (r = wire_get_int(copy, "segment", 1, 1ll << 50, &segment, err)) < 0 ||
	    (r = wire_get_int(copy, "segments", 1, VAULT_SEGMENTS_MAX, &segments, err)) < 0)
		return brumate_wrap(err, r, "copy");
	pieces = vault_device_pieces(h);
	if (!pieces)
		return brumate_fail(err, ENOMEM, "%m");
	uint64_t want = host_copy_offset(pieces, h->n_pieces);
	if (!segment || !segments || (uint64_t)total != want ||
	    (uint64_t)segment * (uint64_t)segments < want)
		return brumate_fail(err, EBADMSG, "copy: %lld bytes in %lld segments of %lld",
				    (long long)total, (long long)segments, (long long)segment);
	h->copy.total_bytes = (uint64_t)total;
	h->copy.segment_bytes = (uint64_t)segment;
	h->copied = true;
	*ret_segments = (size_t)segments;
	return 0;
}

int vault_decode(struct vault *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		 struct brumate_error *err)
{
	auto_json json_t *o = NULL;
	struct vault h = VAULT_EMPTY;
	int64_t version = 0;
	size_t segments = 0;
	int r = wire_decode(&o, text, len_bytes, err);

	if (r == 0)
		r = wire_get_int(o, "version", 0, INT32_MAX, &version, err);
	if (r == 0 && version != TABLE_VERSION)
		r = brumate_fail(err, EBADMSG, "version %lld, want %d", (long long)version,
				 TABLE_VERSION);
	if (r == 0)
		r = decode_pieces(&h, o, err);
	if (r == 0)
		r = decode_copy(&h, &segments, o, err);
	if (r == 0)
		r = wire_get_bool(o, "kept", &h.of_running, err);
	if (r < 0) {
		free(h.pieces);
		if (err && r != -ENOMEM)
			err->code = EBADMSG;
		return r == -ENOMEM ? r : -EBADMSG;
	}
	*ret = h;
	*ret_segments = segments;
	return 0;
}
