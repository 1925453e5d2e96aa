// SPDX-License-Identifier: MIT
/* Operations on an object, in one request or in parts; see object.h. */
#include "edges/objects/object.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/paths.h"
#include "edges/objects/xml.h"

enum { PAGES_MAX = 10000, HASH_BYTES = 1 << 20 };

#define CHECKSUM_HEADER "x-amz-checksum-sha256"

/* The digest as base64, the format of checksum headers. */
static void object_checksum(char ret[static OBJECT_CHECKSUM_BYTES], const struct digest *d)
{
	EVP_EncodeBlock((unsigned char *)ret, d->bytes, sizeof(d->bytes));
}

int object_put(struct http_connection *s, const char *key, int fd, uint64_t len_bytes,
	       const struct digest *digest, struct brumate_error *err)
{
	char checksum[OBJECT_CHECKSUM_BYTES], text[DIGEST_TEXT_BYTES];
	struct http_request q = HTTP_REQUEST(.method = "PUT", .key = key, .len_bytes = len_bytes,
					     .payload = *digest,
					     .headers = { { CHECKSUM_HEADER, checksum },
							  { HTTP_META_DIGEST, text } });

	q.fd = fd;
	object_checksum(checksum, digest);
	digest_format(text, digest);
	return http_send(s, &q, NULL, err);
}

int object_put_text(struct http_connection *s, const char *key, const char *text, size_t len_bytes,
		    struct brumate_error *err)
{
	char checksum[OBJECT_CHECKSUM_BYTES];
	struct http_request q =
		HTTP_REQUEST(.method = "PUT", .key = key, .text = text, .len_bytes = len_bytes,
			     .headers = { { CHECKSUM_HEADER, checksum } });
	int r = digest_buffer(&q.payload, text, len_bytes);

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	object_checksum(checksum, &q.payload);
	return http_send(s, &q, NULL, err);
}

int object_head(struct http_connection *s, const char *key, uint64_t *ret_len_bytes,
		char ret_digest[static DIGEST_TEXT_BYTES], struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	const struct http_request q = HTTP_REQUEST(.method = "HEAD", .key = key);
	int r = http_send(s, &q, &a, err);

	if (r < 0)
		return r;
	*ret_len_bytes = a.len_bytes < 0 ? 0 : (uint64_t)a.len_bytes;
	memcpy(ret_digest, a.digest, DIGEST_TEXT_BYTES);
	return 0;
}

int object_get_text(struct http_connection *s, const char *key, char **ret, size_t *ret_len_bytes,
		    struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	const struct http_request q = HTTP_REQUEST(.method = "GET", .key = key);
	int r = http_send(s, &q, &a, err);

	if (r < 0)
		return r;
	if (!a.body) /* of an empty object */
		a.body = strdup("");
	if (!a.body)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&a.body);
	*ret_len_bytes = a.body_len;
	return 0;
}

int object_get_range(struct http_connection *s, const char *key, uint64_t offset,
		     uint64_t len_bytes, int fd, struct brumate_error *err)
{
	struct http_request q =
		HTTP_REQUEST(.method = "GET", .key = key, .range = true, .range_offset = offset,
			     .range_len = len_bytes, .sink_offset = offset);

	q.sink_fd = fd;
	return len_bytes ? http_send(s, &q, NULL, err) : 0;
}

int object_get_bytes(struct http_connection *s, const char *key, uint64_t offset,
		     uint64_t len_bytes, void *ret, struct brumate_error *err)
{
	const struct http_request q =
		HTTP_REQUEST(.method = "GET", .key = key, .range = true, .range_offset = offset,
			     .range_len = len_bytes, .sink = ret);

	return len_bytes ? http_send(s, &q, NULL, err) : 0;
}

int object_delete(struct http_connection *s, const char *key, struct brumate_error *err)
{
	return http_send(s, &HTTP_REQUEST(.method = "DELETE", .key = key), NULL, err);
}

/* An answer without a body is an invalid document. */
static int read_answer(const struct http_answer *a, xml_fn fn, void *arg)
{
	return xml_read(a->body ? a->body : "", a->body_len, fn, arg);
}

/* One page of a listing that is being read. */
struct page {
	const char *prefix;
	object_fn fn;
	void *arg;
	char key[1025];
	uint64_t size;
	bool truncated;
	char token[XML_TEXT_BYTES_MAX + 1];
	size_t n_names;
	bool is_listing;
};

/* Names from the server are untrusted: one outside of the requested prefix is skipped. */
static int tell_key(struct page *p, const char *key, uint64_t size)
{
	size_t len = strlen(p->prefix);

	if (strncmp(key, p->prefix, len) || !key[len])
		return 0;
	p->n_names++;
	return p->fn(p->arg, key + len, size);
}

static int take_element(void *arg, const char *path, const char *text)
{
	static const char root[] = "ListBucketResult";
	struct page *p = arg;

	if (strncmp(path, root, strlen(root)))
		return 0;
	path += strlen(root);
	if (!*path)
		p->is_listing = true;
	else if (!strcmp(path, "/Contents/Key"))
		snprintf(p->key, sizeof(p->key), "%s", text);
	else if (!strcmp(path, "/Contents/Size"))
		p->size = strtoull(text, NULL, 10);
	else if (!strcmp(path, "/Contents"))
		return tell_key(p, p->key, p->size);
	else if (!strcmp(path, "/CommonPrefixes/Prefix"))
		return tell_key(p, text, 0);
	else if (!strcmp(path, "/IsTruncated"))
		p->truncated = !strcmp(text, "true");
	else if (!strcmp(path, "/NextContinuationToken"))
		snprintf(p->token, sizeof(p->token), "%s", text);
	return 0;
}

static int pass_over(void *arg, const char *path, const char *text)
{
	return 0;
}

/* The parameters, sorted by name, as the signature requires. */
static char *list_query(const char *prefix, bool folders, const char *token)
{
	auto_free char *encoded = place_encode(prefix, false);
	auto_free char *encoded_token = place_encode(token, false);

	if (!encoded || !encoded_token)
		return NULL;
	return path_format("%s%s%s%slist-type=2&prefix=%s", *token ? "continuation-token=" : "",
			   encoded_token, *token ? "&" : "", folders ? "delimiter=%2F&" : "",
			   encoded);
}

/* Gets a page. A truncated page is requested again, as none of its entries has been passed on yet. */
static int fetch_page(struct http_connection *s, const char *query, struct http_answer *ret,
		      struct brumate_error *err)
{
	const struct http_request q = HTTP_REQUEST(.method = "GET", .query = query);

	for (int64_t i = 1;; i++) {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		int r = http_send(s, &q, &a, err);

		if (r < 0)
			return r;
		r = read_answer(&a, pass_over, NULL);
		if (r == -EBADMSG && i < s->client->config->attempts)
			continue;
		if (r == 0)
			*ret = take_struct(a, (struct http_answer){ 0 });
		return r < 0 ? brumate_fail(err, -r, "no XML that can be read") : 0;
	}
}

static int read_page(struct http_connection *s, struct page *p, bool folders,
		     struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	auto_free char *query = list_query(p->prefix, folders, p->token);

	if (!query)
		return brumate_fail(err, ENOMEM, "%m");
	int r = fetch_page(s, query, &a, err);
	if (r < 0)
		return brumate_wrap(err, r, "list");
	p->truncated = p->is_listing = false;
	p->token[0] = '\0';
	r = read_answer(&a, take_element, p);
	if (r < 0)
		return brumate_fail(err, -r, "s3://%s/%s: list: %m", s->client->place->bucket,
				    p->prefix);
	if (p->is_listing && (!p->truncated || p->token[0]))
		return 0;
	return brumate_fail(err, EBADMSG, "s3://%s/%s: the server's listing cannot be understood",
			    s->client->place->bucket, p->prefix);
}

int object_list(struct http_connection *s, const char *prefix, bool folders, object_fn fn,
		void *arg, struct brumate_error *err)
{
	auto_free struct page *p = calloc(1, sizeof(*p));

	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	*p = (struct page){ .prefix = prefix, .fn = fn, .arg = arg };
	for (int i = 0; i < PAGES_MAX; i++) {
		int r = read_page(s, p, folders, err);

		if (r < 0 || !p->truncated)
			return r;
	}
	return brumate_fail(err, EBADMSG, "s3://%s/%s: the server's listing does not end",
			    s->client->place->bucket, prefix);
}

/* ---- uploads in parts ---- */

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

/* Searches unfinished uploads whose key starts with ours for the last one of exactly our key. */
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

/* Returns 0 and u->id, or -ENOENT. If uploads cannot be listed, none is resumed. */
static int find_upload(struct upload *u, struct http_connection *s, const char *key,
		       struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	auto_free char *encoded = place_encode(key, false);
	auto_free char *query = encoded ? path_format("prefix=%s&uploads=", encoded) : NULL;
	auto_free struct find *f = calloc(1, sizeof(*f));
	const struct http_request q = HTTP_REQUEST(.method = "GET", .query = query);

	if (!query || !f)
		return brumate_fail(err, ENOMEM, "%m");
	f->key = key;
	int r = http_send(s, &q, &a, err);
	if (r == -ECANCELED)
		return r;
	if (r == 0)
		read_answer(&a, take_upload, f);
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

/* Makes the query "WHATuploadId=ID" (owned; NULL without memory). */
static char *upload_query(const char *what, const struct upload *u)
{
	auto_free char *id = place_encode(u->id, false);

	return id ? path_format("%suploadId=%s", what, id) : NULL;
}

/* Lists the parts that the upload has. Parts for which the server reports no checksum are uploaded again. */
static int list_parts(struct upload *u, struct http_connection *s, const char *key,
		      struct brumate_error *err)
{
	struct parts p = { .upload = u };
	unsigned long after;

	do {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		auto_free char *marker = path_format("part-number-marker=%lu&", p.last);
		auto_free char *query = marker ? upload_query(marker, u) : NULL;
		const struct http_request q =
			HTTP_REQUEST(.method = "GET", .key = key, .query = query);

		if (!query)
			return brumate_fail(err, ENOMEM, "%m");
		int r = http_send(s, &q, &a, err);
		if (r < 0)
			return r;
		after = p.last;
		p.truncated = false;
		if (read_answer(&a, take_part, &p) < 0)
			return brumate_fail(err, EBADMSG,
					    "%s: the server's list of parts cannot be understood",
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

static int create_upload(struct upload *u, struct http_connection *s, const char *key,
			 const struct digest *digest, struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	struct http_request q =
		HTTP_REQUEST(.method = "POST", .key = key, .query = "uploads=",
			     .headers = { { "x-amz-checksum-algorithm", "SHA256" } });
	char text[DIGEST_TEXT_BYTES];

	if (digest) {
		digest_format(text, digest);
		q.headers[1] = (struct http_header){ HTTP_META_DIGEST, text };
	}
	int r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	r = read_answer(&a, take_id, u);
	if (r < 0 || !u->id || !*u->id)
		return brumate_fail(err, EBADMSG,
				    "%s: the server's answer to a new upload cannot be understood",
				    key);
	return 0;
}

int upload_begin(struct upload *u, struct http_connection *s, const char *key, uint64_t len_bytes,
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
		ssize_t n = fd_read_at(fd, buf, want, offset);

		if (n < (ssize_t)want)
			return n < 0 ? (int)n : -EBUSY;
		r = digest_add(run, buf, want);
		offset += want;
		len_bytes -= want;
	}
	return r < 0 ? r : digest_take(run, ret);
}

int upload_put(struct upload *u, struct http_connection *s, const char *key, size_t i, int fd,
	       struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	auto_free char *number = path_format("partNumber=%zu&", i + 1);
	auto_free char *query = number ? upload_query(number, u) : NULL;
	char checksum[OBJECT_CHECKSUM_BYTES];
	struct http_request q =
		HTTP_REQUEST(.method = "PUT", .key = key, .query = query,
			     .headers = { { CHECKSUM_HEADER, checksum } },
			     .offset = i * u->part_bytes, .len_bytes = part_len(u, i));
	struct upload_part *part = &u->parts[i];

	if (!query)
		return brumate_fail(err, ENOMEM, "%m");
	q.fd = fd;
	int r = digest_range(&q.payload, fd, q.offset, q.len_bytes);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", key);
	object_checksum(checksum, &q.payload);
	if (part->etag[0] && part->len_bytes == q.len_bytes && !strcmp(part->checksum, checksum)) {
		atomic_fetch_add(&s->client->done_bytes, q.len_bytes);
		return 0;
	}
	r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	if (!a.etag[0])
		return brumate_fail(err, EBADMSG, "%s: the server gave no ETag for a part", key);
	memcpy(part->etag, a.etag, sizeof(part->etag));
	memcpy(part->checksum, checksum, sizeof(checksum));
	return 0;
}

/* Whether an ETag, which the server chose, can be in an element of XML without ending it. */
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

int upload_end(struct upload *u, struct http_connection *s, const char *key,
	       struct brumate_error *err)
{
	auto_free char *query = upload_query("", u);
	struct http_request q = HTTP_REQUEST(.method = "POST", .key = key, .query = query);
	size_t len = 0;

	for (size_t i = 0; i < u->n_parts; i++)
		if (!is_quotable(u->parts[i].etag))
			return brumate_fail(err, EBADMSG, "%s: the server gave an odd ETag", key);
	auto_free char *text = completion(u, &len);
	if (!text || !query || digest_buffer(&q.payload, text, len) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	q.text = text;
	q.len_bytes = len;
	return http_send(s, &q, NULL, err);
}

int upload_abort(struct upload *u, struct http_connection *s, const char *key,
		 struct brumate_error *err)
{
	auto_free char *query = upload_query("", u);
	const struct http_request q = HTTP_REQUEST(.method = "DELETE", .key = key, .query = query);

	return query ? http_send(s, &q, NULL, err) : brumate_fail(err, ENOMEM, "%m");
}
