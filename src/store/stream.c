// SPDX-License-Identifier: MIT
/* The stream form of a checkpoint; see stream.h. */
#include "store/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/tar.h"

enum { ENTRY_BYTES_MAX = MANIFEST_ID_BYTES + 1 + 4096 };

size_t stream_padding(uint64_t len_bytes)
{
	return tar_padding(len_bytes);
}

/* "LENGTH KEY=VALUE\n", where the length counts its own digits. Returns its bytes. */
static size_t add_record(char *out, size_t room, const char *key, const char *value)
{
	size_t rest = strlen(key) + strlen(value) + 3, len = rest + 1;

	for (size_t n = 10; n <= len; n *= 10)
		len++;
	snprintf(out, room, "%zu %s=%s\n", len, key, value);
	return len;
}

size_t stream_header(uint8_t ret[static STREAM_HEADER_BYTES_MAX], const char *id, const char *path,
		     uint64_t len_bytes)
{
	char name[ENTRY_BYTES_MAX], size[32], records[ENTRY_BYTES_MAX + 128];
	struct tar_header h;
	size_t n = 0, used = 0;
	bool large = len_bytes > TAR_OCTAL_MAX;

	memset(ret, 0, STREAM_HEADER_BYTES_MAX);
	snprintf(name, sizeof(name), "%s/%s", id, path);
	if (strlen(name) > sizeof(h.name))
		n += add_record(records, sizeof(records), "path", name);
	if (large) {
		snprintf(size, sizeof(size), "%" PRIu64, len_bytes);
		n += add_record(records + n, sizeof(records) - n, "size", size);
	}
	if (n) {
		char title[MANIFEST_ID_BYTES + 8];

		snprintf(title, sizeof(title), "%s/pax", id);
		tar_fill(&h, title, 'x', n);
		memcpy(ret, &h, sizeof(h));
		memcpy(ret + sizeof(h), records, n);
		used = sizeof(h) + n + stream_padding(n);
	}
	tar_fill(&h, name, '0', large ? 0 : len_bytes);
	memcpy(ret + used, &h, sizeof(h));
	return used + sizeof(h);
}

/* ---- decoding ---- */

enum state {
	FIRST_HEADER,
	MANIFEST,
	MANIFEST_PADDING,
	HEADER, /* in this state and those below, the bytes in expected[] must come */
	DATA,
	PADDING,
	END,
	DONE,
};

struct stream_decoder {
	const struct stream_sink *sink;
	void *arg;
	enum state state;
	char id[MANIFEST_ID_BYTES];
	struct manifest manifest;
	char *text; /* of the manifest */
	size_t text_len;
	uint8_t expected[STREAM_HEADER_BYTES_MAX];
	size_t want, have; /* bytes of the header, the manifest or expected[] */
	size_t file;	   /* index of the current one in the manifest: files, then packs */
	uint64_t left;	   /* of its data */
	struct digest_run *digest;
};

int stream_decoder_new(struct stream_decoder **ret, const struct stream_sink *sink, void *arg)
{
	auto_free struct stream_decoder *d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	int r = digest_begin(&d->digest);
	if (r < 0)
		return r;
	d->sink = sink;
	d->arg = arg;
	d->want = STREAM_BLOCK_BYTES;
	*ret = take_ptr(&d);
	return 0;
}

void stream_decoder_free(struct stream_decoder *d)
{
	if (!d)
		return;
	manifest_fini(&d->manifest);
	digest_run_free(d->digest);
	free(d->text);
	free(d);
}

static int fail_foreign(struct brumate_error *err)
{
	brumate_fail(err, EBADMSG, "this is not a checkpoint: it does not begin as one");
	brumate_hint(err, "expected what `brumate export` wrote, unchanged and not compressed");
	return -EBADMSG;
}

static size_t count(const struct stream_decoder *d)
{
	return d->manifest.n_files + d->manifest.memory.n_packs;
}

static struct stream_file current(const struct stream_decoder *d)
{
	const struct manifest *m = &d->manifest;
	size_t i = d->file;

	if (i < m->n_files)
		return (struct stream_file){ m->files[i].path, m->files[i].len_bytes, false, i };
	i -= m->n_files;
	return (struct stream_file){ m->memory.packs[i].path, m->memory.packs[i].len_bytes, true,
				     i };
}

/* The position in the stream, for messages. */
static const char *where(const struct stream_decoder *d)
{
	if (d->state <= MANIFEST_PADDING)
		return MANIFEST_FILE_NAME;
	return d->file < count(d) ? current(d).path : "its end";
}

/* After a file, or the manifest: the next one's header, or the end. */
static void expect_next(struct stream_decoder *d)
{
	d->have = 0;
	if (d->file < count(d)) {
		struct stream_file f = current(d);

		d->state = HEADER;
		d->want = stream_header(d->expected, d->id, f.path, f.len_bytes);
	} else {
		d->state = END;
		d->want = STREAM_END_BYTES;
		memset(d->expected, 0, d->want);
	}
}

/* The header of the manifest: takes id and size from it, and then requires exactly the header that these two make. */
static int take_first_header(struct stream_decoder *d, struct brumate_error *err)
{
	uint8_t expected[STREAM_HEADER_BYTES_MAX];
	struct tar_header h;
	uint64_t size;

	memcpy(&h, d->expected, sizeof(h));
	const char *slash = memchr(h.name, '/', sizeof(h.name));
	size_t len = slash ? (size_t)(slash - h.name) : 0;
	if (len == 0 || len >= sizeof(d->id) || tar_parse_octal(&size, h.size, 11) < 0)
		return fail_foreign(err);
	memcpy(d->id, h.name, len);
	if (!manifest_id_is_valid(d->id) || size == 0 || size > MANIFEST_BYTES_MAX)
		return fail_foreign(err);
	stream_header(expected, d->id, MANIFEST_FILE_NAME, size);
	if (memcmp(expected, &h, sizeof(h)))
		return fail_foreign(err);

	d->text = malloc((size_t)size + 1);
	if (!d->text)
		return brumate_fail(err, ENOMEM, "%m");
	d->text_len = d->want = (size_t)size;
	d->have = 0;
	d->state = MANIFEST;
	return 0;
}

static int take_manifest(struct stream_decoder *d, struct brumate_error *err)
{
	d->text[d->text_len] = '\0';
	int r = manifest_decode(&d->manifest, d->text, d->text_len, err);
	if (r < 0)
		return r;
	if (strcmp(d->manifest.id, d->id))
		return brumate_fail(err, EBADMSG, "checkpoint %s: its manifest is that of %s",
				    d->id, d->manifest.id);
	d->state = MANIFEST_PADDING;
	d->have = 0;
	d->want = stream_padding(d->text_len);
	memset(d->expected, 0, d->want);
	return d->sink->manifest(d->arg, &d->manifest, d->text, d->text_len, err);
}

static int check_digest(struct stream_decoder *d, const struct stream_file *f,
			struct brumate_error *err)
{
	struct digest digest;
	int r = digest_take(d->digest, &digest);

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&digest, &d->manifest.files[f->index].digest, sizeof(digest)))
		return brumate_fail(err, EBADMSG, "%s: damaged: its digest does not match",
				    f->path);
	return 0;
}

static int end_file(struct stream_decoder *d, struct brumate_error *err)
{
	struct stream_file f = current(d);
	int r = f.pack ? 0 : check_digest(d, &f, err);

	if (r == 0)
		r = d->sink->end(d->arg, &f, err);
	if (r < 0)
		return r;
	d->state = PADDING;
	d->have = 0;
	d->want = stream_padding(f.len_bytes);
	memset(d->expected, 0, d->want);
	return 0;
}

static int begin_file(struct stream_decoder *d, struct brumate_error *err)
{
	struct stream_file f = current(d);

	d->state = DATA;
	d->left = f.len_bytes;
	int r = d->sink->begin(d->arg, &f, err);
	return r < 0 || d->left ? r : end_file(d, err);
}

/* All bytes of the current state have arrived. */
static int advance(struct stream_decoder *d, struct brumate_error *err)
{
	switch (d->state) {
	case FIRST_HEADER:
		return take_first_header(d, err);
	case MANIFEST:
		return take_manifest(d, err);
	case HEADER:
		return begin_file(d, err);
	case DATA:
		return end_file(d, err);
	case PADDING:
		d->file++;
		expect_next(d);
		return 0;
	case MANIFEST_PADDING:
		expect_next(d);
		return 0;
	default:
		d->state = DONE;
		return 0;
	}
}

static int take_data(struct stream_decoder *d, const void *buf, size_t len,
		     struct brumate_error *err)
{
	int r = d->file < d->manifest.n_files ? digest_add(d->digest, buf, len) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	d->left -= len;
	return d->sink->data(d->arg, buf, len, err);
}

static int take_bytes(struct stream_decoder *d, const uint8_t *buf, size_t len,
		      struct brumate_error *err)
{
	switch (d->state) {
	case FIRST_HEADER:
		memcpy(d->expected + d->have, buf, len);
		break;
	case MANIFEST:
		memcpy(d->text + d->have, buf, len);
		break;
	default:
		if (memcmp(d->expected + d->have, buf, len))
			return brumate_fail(err, EBADMSG,
					    "%s: the stream is damaged, or was made otherwise",
					    where(d));
	}
	d->have += len;
	return 0;
}

static bool is_complete(const struct stream_decoder *d)
{
	return d->state == DATA ? d->left == 0 : d->state != DONE && d->have == d->want;
}

int stream_decode(struct stream_decoder *d, const void *buf, size_t len_bytes,
		  struct brumate_error *err)
{
	const uint8_t *p = buf, *end = p + len_bytes;

	while (p < end) {
		size_t there = (size_t)(end - p);
		uint64_t want = d->state == DATA ? d->left : d->want - d->have;
		size_t n = want < there ? (size_t)want : there;

		if (d->state == DONE)
			return brumate_fail(err, EBADMSG,
					    "something follows the end of the checkpoint");
		int r = d->state == DATA ? take_data(d, p, n, err) : take_bytes(d, p, n, err);
		p += n;
		while (r == 0 && is_complete(d))
			r = advance(d, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int stream_decode_end(const struct stream_decoder *d, struct brumate_error *err)
{
	if (d->state == DONE)
		return 0;
	if (d->state == FIRST_HEADER)
		return fail_foreign(err);
	if (d->state == DATA)
		return brumate_fail(err, EBADMSG, "%s: truncated: %" PRIu64 " of %" PRIu64 " bytes",
				    where(d), current(d).len_bytes - d->left, current(d).len_bytes);
	return brumate_fail(err, EBADMSG, "truncated: the stream ends at %s", where(d));
}
