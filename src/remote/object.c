// SPDX-License-Identifier: MIT
/* What can be done with an object in one request; see object.h. */
#include "remote/object.h"
#include "remote/xml.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/paths.h"

enum { PAGES_MAX = 10000 };

void object_checksum(char ret[static OBJECT_CHECKSUM_BYTES], const struct digest *d)
{
	EVP_EncodeBlock((unsigned char *)ret, d->bytes, sizeof(d->bytes));
}

int object_put(struct session *s, const char *key, int fd, uint64_t len_bytes,
	       const struct digest *digest, struct brumate_error *err)
{
	char checksum[OBJECT_CHECKSUM_BYTES], text[DIGEST_TEXT_BYTES];
	struct http_request q = HTTP_REQUEST("PUT");

	object_checksum(checksum, digest);
	digest_format(text, digest);
	q.key = key;
	q.fd = fd;
	q.len_bytes = len_bytes;
	q.payload = *digest;
	q.headers[0] = (struct http_header){ "x-amz-checksum-sha256", checksum };
	q.headers[1] = (struct http_header){ HTTP_META_DIGEST, text };
	return http_send(s, &q, NULL, err);
}

int object_put_text(struct session *s, const char *key, const char *text, size_t len_bytes,
		    struct brumate_error *err)
{
	char checksum[OBJECT_CHECKSUM_BYTES];
	struct http_request q = HTTP_REQUEST("PUT");
	int r = digest_buffer(&q.payload, text, len_bytes);

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	object_checksum(checksum, &q.payload);
	q.key = key;
	q.text = text;
	q.len_bytes = len_bytes;
	q.headers[0] = (struct http_header){ "x-amz-checksum-sha256", checksum };
	return http_send(s, &q, NULL, err);
}

int object_head(struct session *s, const char *key, uint64_t *ret_len_bytes,
		char ret_digest[static DIGEST_TEXT_BYTES], struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	struct http_request q = HTTP_REQUEST("HEAD");

	q.key = key;
	int r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	*ret_len_bytes = a.len_bytes < 0 ? 0 : (uint64_t)a.len_bytes;
	memcpy(ret_digest, a.digest, DIGEST_TEXT_BYTES);
	return 0;
}

int object_get_text(struct session *s, const char *key, char **ret, size_t *ret_len_bytes,
		    struct brumate_error *err)
{
	auto_(http_answer_fini) struct http_answer a = { 0 };
	struct http_request q = HTTP_REQUEST("GET");

	q.key = key;
	int r = http_send(s, &q, &a, err);
	if (r < 0)
		return r;
	if (!a.body) /* of no bytes */
		a.body = strdup("");
	if (!a.body)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&a.body);
	*ret_len_bytes = a.body_len;
	return 0;
}

/* @q: says where it is to go. */
static int get_range(struct session *s, struct http_request *q, const char *key, uint64_t offset,
		     uint64_t len_bytes, struct brumate_error *err)
{
	if (!len_bytes)
		return 0;
	q->key = key;
	q->range = true;
	q->range_offset = offset;
	q->range_len = len_bytes;
	return http_send(s, q, NULL, err);
}

int object_get_range(struct session *s, const char *key, uint64_t offset, uint64_t len_bytes,
		     int fd, struct brumate_error *err)
{
	struct http_request q = HTTP_REQUEST("GET");

	q.sink_fd = fd;
	q.sink_offset = offset;
	return get_range(s, &q, key, offset, len_bytes, err);
}

int object_get_bytes(struct session *s, const char *key, uint64_t offset, uint64_t len_bytes,
		     void *ret, struct brumate_error *err)
{
	struct http_request q = HTTP_REQUEST("GET");

	q.sink = ret;
	return get_range(s, &q, key, offset, len_bytes, err);
}

int object_delete(struct session *s, const char *key, struct brumate_error *err)
{
	struct http_request q = HTTP_REQUEST("DELETE");

	q.key = key;
	return http_send(s, &q, NULL, err);
}

/* One page of a listing while it is read. */
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

/* Names from the server are untrusted: one outside of what was asked for is passed over. */
static int tell(struct page *p, const char *key, uint64_t size)
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
		return tell(p, p->key, p->size);
	else if (!strcmp(path, "/CommonPrefixes/Prefix"))
		return tell(p, text, 0);
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

/* Parameters in the order of their names, as the signature wants them. */
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

/* A listing that is cut off is asked for again: nothing of it has been told yet. */
static int check_page(const struct http_answer *a)
{
	return xml_read(a->body ? a->body : "", a->body_len, pass_over, NULL);
}

static int fetch_page(struct session *s, const char *query, struct http_answer *ret,
		      struct brumate_error *err)
{
	struct http_request q = HTTP_REQUEST("GET");

	q.query = query;
	for (int64_t i = 1;; i++) {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		int r = http_send(s, &q, &a, err);

		if (r < 0)
			return r;
		r = check_page(&a);
		if (r == -EBADMSG && i < s->client->config->attempts)
			continue;
		if (r == 0) {
			*ret = a;
			a = (struct http_answer){ 0 };
		}
		return r < 0 ? brumate_fail(err, -r, "no XML that can be read") : 0;
	}
}

static int read_page(struct session *s, struct page *p, bool folders, struct brumate_error *err)
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
	r = xml_read(a.body ? a.body : "", a.body_len, take_element, p);
	if (r < 0)
		return brumate_fail(err, -r, "s3://%s/%s: list: %m", s->client->place->bucket,
				    p->prefix);
	if (p->is_listing && (!p->truncated || p->token[0]))
		return 0;
	return brumate_fail(err, EBADMSG, "s3://%s/%s: the server's listing cannot be understood",
			    s->client->place->bucket, p->prefix);
}

int object_list(struct session *s, const char *prefix, bool folders, object_fn fn, void *arg,
		struct brumate_error *err)
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
