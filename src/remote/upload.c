// SPDX-License-Identifier: MIT
/* Multipart uploads; see upload.h. */
#include "remote/upload.h"
#include "remote/object.h"
#include "remote/xml.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"

enum { HASH_BYTES = 1 << 20 };

void upload_fini(struct upload *u)
{
	free(u->id);
	free(u->parts);
	*u = UPLOAD_EMPTY;
}

uint64_t upload_part_bytes(uint64_t len_bytes, uint64_t wanted_bytes)
{
	const uint64_t mib = 1 << 20;
	uint64_t least = (len_bytes / UPLOAD_PARTS_MAX + mib) / mib * mib;

	return wanted_bytes > least ? wanted_bytes : least;
}

static uint64_t part_len(const struct upload *u, size_t i)
{
	uint64_t offset = i * u->part_bytes;

	return u->len_bytes - offset < u->part_bytes ? u->len_bytes - offset : u->part_bytes;
}

/* Unfinished uploads whose key starts with ours: the last one of exactly our key. */
struct find {
	const char *key;
	char found_key[1025], found_id[XML_TEXT_BYTES_MAX + 1];
	char *id; /* owned */
};

static int take_upload(void *arg, const char *path, const char *text)
{
	static const char root[] = "ListMultipartUploadsResult/Upload";
	struct find *f = arg;

	if (strncmp(path, root, strlen(root)))
		return 0;
	path += strlen(root);
	if (!strcmp(path, "/Key"))
		snprintf(f->found_key, sizeof(f->found_key), "%s", text);
	else if (!strcmp(path, "/UploadId"))
		snprintf(f->found_id, sizeof(f->found_id), "%s", text);
	else if (!*path && !strcmp(f->found_key, f->key)) {
		free(f->id);
		f->id = strdup(f->found_id);
	}
	return 0;
}

/* 0 and u->id, or -ENOENT. What cannot be listed is not resumed. */
static int find_upload(struct upload *u, struct session *s, const char *key,
		       struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	auto_free char *encoded = place_encode(key, false);
	auto_free char *query = encoded ? path_format("prefix=%s&uploads=", encoded) : NULL;
	auto_free struct find *f = calloc(1, sizeof(*f));
	struct http_request q = HTTP_REQUEST("GET");

	if (!query || !f)
		return brumate_fail(err, ENOMEM, "%m");
	f->key = key;
	q.query = query;
	int r = http_send(s, &q, &a, err);
	if (r == -ECANCELED)
		return r;
	if (r == 0)
		xml_read(a.body ? a.body : "", a.body_len, take_upload, f);
	u->id = f->id;
	return u->id ? 0 : -ENOENT;
}

struct parts {
	struct upload *upload;
	struct upload_part part;
	unsigned long number, last;
	bool truncated;
};

static int take_part(void *arg, const char *path, const char *text)
{
	static const char root[] = "ListPartsResult/";
	struct parts *p = arg;

	if (strncmp(path, root, strlen(root)))
		return 0;
	path += strlen(root);
	if (!strcmp(path, "Part/PartNumber"))
		p->number = strtoul(text, NULL, 10);
	else if (!strcmp(path, "Part/ETag"))
		snprintf(p->part.etag, sizeof(p->part.etag), "%s", text);
	else if (!strcmp(path, "Part/Size"))
		p->part.len_bytes = strtoull(text, NULL, 10);
	else if (!strcmp(path, "Part/ChecksumSHA256"))
		snprintf(p->part.checksum, sizeof(p->part.checksum), "%s", text);
	else if (!strcmp(path, "IsTruncated"))
		p->truncated = !strcmp(text, "true");
	else if (!strcmp(path, "Part")) {
		if (p->number > p->last)
			p->last = p->number;
		if (p->number >= 1 && p->number <= p->upload->n_parts)
			p->upload->parts[p->number - 1] = p->part;
		p->part = (struct upload_part){ 0 };
	}
	return 0;
}

/* What is there of the upload. Parts that the server tells no checksum of are put again. */
static int list_parts(struct upload *u, struct session *s, const char *key,
		      struct brumate_error *err)
{
	struct parts p = { .upload = u };
	unsigned long after;

	do {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		auto_free char *id = place_encode(u->id, false);
		auto_free char *query =
			id ? path_format("part-number-marker=%lu&uploadId=%s", p.last, id) : NULL;
		struct http_request q = HTTP_REQUEST("GET");

		if (!query)
			return brumate_fail(err, ENOMEM, "%m");
		q.key = key;
		q.query = query;
		int r = http_send(s, &q, &a, err);
		if (r < 0)
			return r;
		after = p.last;
		p.truncated = false;
		if (xml_read(a.body ? a.body : "", a.body_len, take_part, &p) < 0)
			return brumate_fail(err, EBADMSG,
					    "%s: the server's list of parts cannot "
					    "be understood",
					    key);
	} while (p.truncated && p.last > after);
	return 0;
}

static int take_id(void *arg, const char *path, const char *text)
{
	struct upload *u = arg;

	if (strcmp(path, "InitiateMultipartUploadResult/UploadId"))
		return 0;
	free(u->id);
	u->id = strdup(text);
	return u->id ? 0 : -ENOMEM;
}

static int create_upload(struct upload *u, struct session *s, const char *key,
			 const struct digest *digest, struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	struct http_request q = HTTP_REQUEST("POST");
	char text[DIGEST_TEXT_BYTES];

	q.key = key;
	q.query = "uploads=";
	q.headers[0] = (struct http_header){ "x-amz-checksum-algorithm", "SHA256" };
	if (digest) {
		digest_format(text, digest);
		q.headers[1] = (struct http_header){ HTTP_META_DIGEST, text };
	}
	int r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	r = xml_read(a.body ? a.body : "", a.body_len, take_id, u);
	if (r < 0 || !u->id || !*u->id)
		return brumate_fail(err, EBADMSG,
				    "%s: the server's answer to a new upload cannot be understood",
				    key);
	return 0;
}

int upload_begin(struct upload *u, struct session *s, const char *key, uint64_t len_bytes,
		 uint64_t part_bytes, const struct digest *digest, struct brumate_error *err)
{
	struct brumate_error quiet = BRUMATE_ERROR_NONE;

	u->len_bytes = len_bytes;
	u->part_bytes = upload_part_bytes(len_bytes, part_bytes);
	u->n_parts = (size_t)((len_bytes + u->part_bytes - 1) / u->part_bytes);
	u->parts = calloc(u->n_parts, sizeof(*u->parts));
	if (!u->parts)
		return brumate_fail(err, ENOMEM, "%m");
	int r = find_upload(u, s, key, &quiet);
	if (r == 0)
		r = list_parts(u, s, key, &quiet);
	if (r == 0)
		return 0;
	if (r == -ECANCELED || r == -ENOMEM)
		return brumate_fail(err, -r, "%s: %m", key);
	free(take_ptr(&u->id));
	memset(u->parts, 0, u->n_parts * sizeof(*u->parts));
	return create_upload(u, s, key, digest, err);
}

static int digest_range(struct digest *ret, int fd, uint64_t offset, uint64_t len_bytes)
{
	auto_(digest_run_free) struct digest_run *run = NULL;
	auto_free void *buf = malloc(HASH_BYTES);
	int r = buf ? digest_begin(&run) : -ENOMEM;

	while (r == 0 && len_bytes) {
		size_t want = len_bytes < HASH_BYTES ? (size_t)len_bytes : HASH_BYTES;
		ssize_t n = pread(fd, buf, want, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EBUSY;
		r = digest_add(run, buf, (size_t)n);
		offset += (uint64_t)n;
		len_bytes -= (uint64_t)n;
	}
	return r < 0 ? r : digest_take(run, ret);
}

int upload_put(struct upload *u, struct session *s, const char *key, size_t i, int fd,
	       struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	auto_free char *id = place_encode(u->id, false);
	auto_free char *query = id ? path_format("partNumber=%zu&uploadId=%s", i + 1, id) : NULL;
	struct http_request q = HTTP_REQUEST("PUT");
	struct upload_part *part = &u->parts[i];
	char checksum[OBJECT_CHECKSUM_BYTES];

	if (!query)
		return brumate_fail(err, ENOMEM, "%m");
	q.key = key;
	q.query = query;
	q.fd = fd;
	q.offset = i * u->part_bytes;
	q.len_bytes = part_len(u, i);
	int r = digest_range(&q.payload, fd, q.offset, q.len_bytes);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", key);
	object_checksum(checksum, &q.payload);
	if (part->etag[0] && part->len_bytes == q.len_bytes && !strcmp(part->checksum, checksum)) {
		atomic_fetch_add(&s->client->done_bytes, q.len_bytes);
		return 0;
	}
	q.headers[0] = (struct http_header){ "x-amz-checksum-sha256", checksum };
	r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	if (!a.etag[0])
		return brumate_fail(err, EBADMSG, "%s: the server gave no ETag for a part", key);
	memcpy(part->etag, a.etag, sizeof(part->etag));
	memcpy(part->checksum, checksum, sizeof(checksum));
	return 0;
}

/* ETags are the server's words: only what cannot end an element goes back into one. */
static bool is_quotable(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || strchr("<>&", *text))
			return false;
	return true;
}

static char *completion(const struct upload *u, size_t *ret_len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, ret_len);

	if (!out)
		return NULL;
	fputs("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">", out);
	for (size_t i = 0; i < u->n_parts; i++)
		fprintf(out,
			"<Part><ChecksumSHA256>%s</ChecksumSHA256><ETag>%s</ETag>"
			"<PartNumber>%zu</PartNumber></Part>",
			u->parts[i].checksum, u->parts[i].etag, i + 1);
	fputs("</CompleteMultipartUpload>", out);
	if (fclose(out) == EOF) {
		free(text);
		return NULL;
	}
	return text;
}

int upload_end(struct upload *u, struct session *s, const char *key, struct brumate_error *err)
{
	auto_free char *id = place_encode(u->id, false);
	auto_free char *query = id ? path_format("uploadId=%s", id) : NULL;
	struct http_request q = HTTP_REQUEST("POST");
	size_t len = 0;

	for (size_t i = 0; i < u->n_parts; i++)
		if (!is_quotable(u->parts[i].etag))
			return brumate_fail(err, EBADMSG, "%s: the server gave an odd ETag", key);
	auto_free char *text = completion(u, &len);
	if (!text || !query || digest_buffer(&q.payload, text, len) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	q.key = key;
	q.query = query;
	q.text = text;
	q.len_bytes = len;
	return http_send(s, &q, NULL, err);
}

int upload_abort(struct upload *u, struct session *s, const char *key, struct brumate_error *err)
{
	auto_free char *id = place_encode(u->id, false);
	auto_free char *query = id ? path_format("uploadId=%s", id) : NULL;
	struct http_request q = HTTP_REQUEST("DELETE");

	if (!query)
		return brumate_fail(err, ENOMEM, "%m");
	q.key = key;
	q.query = query;
	return http_send(s, &q, NULL, err);
}
