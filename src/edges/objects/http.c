// SPDX-License-Identifier: MIT
/*
 * Requests through libcurl; see http.h. One attempt at a request consists of an address, a signature, and the bodies
 * in both directions; the rest are retries, and messages for the errors of an object store.
 */
#include "edges/objects/http.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/fd.h"
#include "edges/http/libcurl.h"
#include "base/paths.h"
#include "base/workers.h"
#include "edges/objects/xml.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 20000 };
enum { CONNECT_MS = 10000, BODY_STEP_BYTES = 64 << 10 };
enum { SKEW_WORTH_S = 300 };

/* The host name as libcurl sends it, without the port if that is the default. Owned. */
static char *host_of(const struct remote_config *config, const struct remote_place *place)
{
	const char *host = strstr(config->endpoint, "://") + 3;
	bool tls = !strncmp(config->endpoint, "https", 5);
	const char *port = tls ? ":443" : ":80";
	size_t len = strlen(host);

	if (len > strlen(port) && !strcmp(host + len - strlen(port), port))
		len -= strlen(port);
	if (config->path_style)
		return path_format("%.*s", (int)len, host);
	return path_format("%s.%.*s", place->bucket, (int)len, host);
}

int http_client_init(struct http_client *c, const struct remote_config *config,
		     const struct remote_place *place, struct brumate_error *err)
{
	int r = libcurl_open("object stores", err);

	*c = (struct http_client){ .config = config, .place = place, .stop_fd = -1 };
	if (r < 0)
		return r;
	c->host = host_of(config, place);
	c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!c->host || c->stop_fd < 0) {
		http_client_fini(c);
		return brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

void http_client_fini(struct http_client *c)
{
	free(c->host);
	c->host = NULL;
	cleanup_close(&c->stop_fd);
}

void http_client_stop(struct http_client *c)
{
	atomic_store(&c->stop, true);
	eventfd_write(c->stop_fd, 1);
}

/* Allows its connections to work again. */
static void client_go_on(struct http_client *c)
{
	eventfd_t value;

	eventfd_read(c->stop_fd, &value);
	atomic_store(&c->stop, false);
}

int http_connection_init(struct http_connection *s, struct http_client *c,
			 struct brumate_error *err)
{
	*s = (struct http_connection){ .client = c, .curl = libcurl.easy_init() };
	return s->curl ? 0 : brumate_fail(err, ENOMEM, "libcurl: no handle");
}

void http_connection_fini(struct http_connection *s)
{
	if (s->curl)
		libcurl.easy_cleanup(s->curl);
	s->curl = NULL;
}

void http_answer_fini(struct http_answer *a)
{
	free(a->body);
	*a = (struct http_answer){ 0 };
}

/* ---- one attempt ---- */

/* The outcome of an attempt, in addition to the server's answer. */
struct attempt {
	int failure;   /* -errno of the network, or for a malformed answer; 0: there is an answer */
	bool final;    /* trying again cannot help */
	char why[256]; /* message */
};

struct exchange {
	struct http_connection *connection;
	const struct http_request *q;
	struct http_answer *a;
	struct attempt *t;
	uint64_t sent, received;
	size_t body_room;
	int local;    /* -errno of our own files or memory */
	uint64_t now; /* bytes moved in this attempt */
};

static size_t send_some(char *out, size_t size, size_t n, void *arg)
{
	struct exchange *x = arg;
	uint64_t left = x->q->len_bytes - x->sent;
	size_t room = size * n < left ? size * n : (size_t)left;

	if (!room)
		return 0;
	if (x->q->fd < 0) {
		memcpy(out, x->q->text + x->sent, room);
		x->sent += room;
		return room;
	}
	ssize_t got = pread(x->q->fd, out, room, (off_t)(x->q->offset + x->sent));
	if (got <= 0) { /* the file was truncated during the transfer */
		x->local = got < 0 ? -errno : -EBUSY;
		return CURL_READFUNC_ABORT;
	}
	x->sent += (uint64_t)got;
	return (size_t)got;
}

/* A connection that the server had closed is replaced, and the body is sent again from its start. */
static int rewind_body(void *arg, curl_off_t offset, int origin)
{
	struct exchange *x = arg;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > x->q->len_bytes)
		return CURL_SEEKFUNC_CANTSEEK;
	x->sent = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

static bool to_sink(const struct exchange *x)
{
	long status = 0;

	libcurl.easy_getinfo(x->connection->curl, CURLINFO_RESPONSE_CODE, &status);
	return x->q->range && status >= 200 && status < 300;
}

static int sink_some(struct exchange *x, const char *data, size_t len)
{
	const struct http_request *q = x->q;

	if (len > q->range_len - x->received)
		return -EMSGSIZE;
	if (q->sink)
		memcpy(q->sink + x->received, data, len);
	else
		x->local = fd_write_at(q->sink_fd, data, len, q->sink_offset + x->received);
	if (x->local == 0)
		x->received += len;
	return x->local;
}

static int keep_some(struct exchange *x, const char *data, size_t len)
{
	struct http_answer *a = x->a;

	if (len > HTTP_BODY_BYTES_MAX - a->body_len)
		return -EMSGSIZE;
	if (a->body_len + len + 1 > x->body_room) {
		size_t room = 2 * (a->body_len + len) + BODY_STEP_BYTES;
		char *body = realloc(a->body, room);

		if (!body) {
			x->local = -ENOMEM;
			return -ENOMEM;
		}
		a->body = body;
		x->body_room = room;
	}
	memcpy(a->body + a->body_len, data, len);
	a->body_len += len;
	a->body[a->body_len] = '\0';
	return 0;
}

static size_t receive_some(char *data, size_t size, size_t n, void *arg)
{
	struct exchange *x = arg;
	size_t len = size * n;
	int r = to_sink(x) ? sink_some(x, data, len) : keep_some(x, data, len);

	return r < 0 ? 0 : len; /* any number other than @len ends the transfer */
}

/* The value of the header @name in "@name: value\r\n"; cut to fit, "" if the line is another header. */
static bool take_header(char *ret, size_t room, const char *name, const char *line, size_t len)
{
	size_t name_len = strlen(name);

	if (len <= name_len || line[name_len] != ':' || strncasecmp(line, name, name_len))
		return false;
	line += name_len + 1;
	len -= name_len + 1;
	while (len && strchr(" \t", *line)) {
		line++;
		len--;
	}
	while (len && strchr(" \t\r\n", line[len - 1]))
		len--;
	snprintf(ret, room, "%.*s", (int)len, line);
	return true;
}

static size_t take_line(char *line, size_t size, size_t n, void *arg)
{
	struct exchange *x = arg;
	struct http_answer *a = x->a;
	size_t len = size * n;
	char text[64];

	if (take_header(a->etag, sizeof(a->etag), "etag", line, len) ||
	    take_header(a->digest, sizeof(a->digest), HTTP_META_DIGEST, line, len) ||
	    take_header(a->region, sizeof(a->region), "x-amz-bucket-region", line, len))
		return len;
	if (take_header(text, sizeof(text), "content-length", line, len))
		a->len_bytes = strtoll(text, NULL, 10);
	if (take_header(text, sizeof(text), "date", line, len)) {
		time_t date = libcurl.getdate(text, NULL);

		a->date = date < 0 ? 0 : date;
	}
	return len;
}

/* Counts transferred bytes, and ends the transfer once the client is stopped. */
static int count_some(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
		      curl_off_t up)
{
	struct exchange *x = arg;
	struct http_connection *s = x->connection;
	uint64_t now = (uint64_t)(x->q->range ? down : up);

	if ((x->q->range || x->q->fd >= 0) && now > x->now) {
		atomic_fetch_add(&s->client->done_bytes, now - x->now);
		s->counted += now - x->now;
		x->now = now;
	}
	return atomic_load(&s->client->stop);
}

static char *path_of(const struct http_client *c, const struct http_request *q)
{
	auto_free char *key = q->key ? place_encode(q->key, true) : strdup("");

	if (!key)
		return NULL;
	if (!c->config->path_style)
		return path_format("/%s", key);
	return path_format("/%s%s%s", c->place->bucket, q->key ? "/" : "", key);
}

static int add_line(struct curl_slist **lines, const char *name, const char *value)
{
	auto_free char *line = path_format("%s: %s", name, value);
	struct curl_slist *more = line ? libcurl.slist_append(*lines, line) : NULL;

	if (!more)
		return -ENOMEM;
	*lines = more;
	return 0;
}

/* The headers that are signed, and the signature. */
static int add_signature(struct curl_slist **lines, const struct http_client *c,
			 const struct http_request *q, const char *path)
{
	char date[SIGN_DATE_BYTES], payload[DIGEST_TEXT_BYTES], answer[SIGN_ANSWER_BYTES];
	struct sign_header headers[SIGN_HEADERS_MAX] = { { "host", c->host },
							 { "x-amz-content-sha256", payload },
							 { "x-amz-date", date } };
	struct digest digest = q->payload;
	time_t now = time(NULL);
	struct tm tm;
	size_t n = 3;
	int r = q->len_bytes ? 0 : digest_buffer(&digest, "", 0);

	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", &tm);
	digest_format(payload, &digest);
	if (c->config->token)
		headers[n++] = (struct sign_header){ "x-amz-security-token", c->config->token };
	for (size_t i = 0; i < HTTP_HEADERS_MAX && q->headers[i].name; i++)
		headers[n++] = (struct sign_header){ q->headers[i].name, q->headers[i].value };

	struct sign_request sign = {
		.method = q->method,
		.path = path,
		.query = q->query ? q->query : "",
		.headers = headers,
		.n_headers = n,
		.payload = payload,
		.date = date,
		.region = c->config->region,
		.key_id = c->config->key_id,
		.secret = c->config->secret,
	};
	if (r == 0)
		r = sign_request(answer, &sign);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = add_line(lines, headers[i].name, headers[i].value);
	return r < 0 ? r : add_line(lines, "authorization", answer);
}

static int make_lines(struct curl_slist **lines, const struct http_client *c,
		      const struct http_request *q, const char *path)
{
	char range[64];
	int r = add_signature(lines, c, q, path);

	/* Send the body without asking first ("Expect"), and without a content type. */
	if (r == 0)
		r = add_line(lines, "Expect", "");
	if (r == 0)
		r = add_line(lines, "Content-Type", "");
	if (r < 0 || !q->range || !q->range_len)
		return r;
	snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, q->range_offset,
		 q->range_offset + q->range_len - 1);
	return add_line(lines, "range", range);
}

static void set_method(CURL *curl, struct exchange *x)
{
	const struct http_request *q = x->q;

	libcurl.easy_setopt(curl, CURLOPT_CUSTOMREQUEST, q->method);
	if (!strcmp(q->method, "HEAD")) {
		libcurl.easy_setopt(curl, CURLOPT_NOBODY, 1L);
	} else if (!strcmp(q->method, "PUT") || !strcmp(q->method, "POST")) {
		libcurl.easy_setopt(curl, CURLOPT_UPLOAD, 1L);
		libcurl.easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->len_bytes);
		libcurl.easy_setopt(curl, CURLOPT_READFUNCTION, send_some);
		libcurl.easy_setopt(curl, CURLOPT_READDATA, x);
		libcurl.easy_setopt(curl, CURLOPT_SEEKFUNCTION, rewind_body);
		libcurl.easy_setopt(curl, CURLOPT_SEEKDATA, x);
	}
}

static void set_connection(CURL *curl, const struct remote_config *config)
{
	struct curl_blob ca = { .data = config->ca, .flags = CURL_BLOB_NOCOPY };

	libcurl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	libcurl.easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	libcurl.easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
	libcurl.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	libcurl.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
	libcurl.easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
	libcurl.easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)config->stall_s);
	libcurl.easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
	libcurl.easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
	libcurl.easy_setopt(curl, CURLOPT_USERAGENT, "brumate/" BRUMATE_VERSION);
	if (config->ca) {
		ca.len = strlen(config->ca);
		/* Replaces all authorities of the system, including the directory that libcurl adds. */
		libcurl.easy_setopt(curl, CURLOPT_CAPATH, NULL);
		libcurl.easy_setopt(curl, CURLOPT_CAINFO_BLOB, &ca);
	}
}

static void set_callbacks(CURL *curl, struct exchange *x)
{
	libcurl.easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_some);
	libcurl.easy_setopt(curl, CURLOPT_WRITEDATA, x);
	libcurl.easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_line);
	libcurl.easy_setopt(curl, CURLOPT_HEADERDATA, x);
	libcurl.easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, count_some);
	libcurl.easy_setopt(curl, CURLOPT_XFERINFODATA, x);
	libcurl.easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

static int errno_of(CURLcode code)
{
	switch (code) {
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return -EHOSTUNREACH;
	case CURLE_COULDNT_CONNECT:
		return -ECONNREFUSED;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	default:
		return -EREMOTEIO;
	}
}

static bool is_final(CURLcode code)
{
	return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
	       code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
}

static int take_error(void *arg, const char *path, const char *text)
{
	struct http_answer *a = arg;

	if (!strcmp(path, "Error/Code"))
		snprintf(a->code, sizeof(a->code), "%s", text);
	else if (!strcmp(path, "Error/Message"))
		snprintf(a->message, sizeof(a->message), "%s", text);
	return 0;
}

/* Finds errors in the answer, and a wrong range, which libcurl does not check. */
static void check_answer(struct exchange *x)
{
	const struct http_request *q = x->q;
	struct http_answer *a = x->a;
	struct attempt *t = x->t;

	if (a->status >= 300 || !q->range) {
		/* Most errors are XML; for others only the status is known. The completion of an upload may fail with
		 * status 200. */
		if (a->body && strstr(a->body, "<Error>"))
			xml_read(a->body, a->body_len, take_error, a);
		return;
	}
	if (q->range_len && a->status != 206) {
		t->failure = -EREMOTEIO;
		t->final = true;
		snprintf(t->why, sizeof(t->why), "the server does not serve ranges (%ld)",
			 a->status);
	} else if (x->received != q->range_len) {
		t->failure = -EREMOTEIO;
		snprintf(t->why, sizeof(t->why), "%" PRIu64 " of %" PRIu64 " bytes came",
			 x->received, q->range_len);
	}
}

static int perform(struct exchange *x, const char *url, struct curl_slist *lines,
		   struct brumate_error *err)
{
	CURL *curl = x->connection->curl;
	char why[CURL_ERROR_SIZE] = "";

	libcurl.easy_reset(curl);
	libcurl.easy_setopt(curl, CURLOPT_URL, url);
	libcurl.easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
	libcurl.easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
	set_method(curl, x);
	set_connection(curl, x->connection->client->config);
	set_callbacks(curl, x);
	CURLcode code = libcurl.easy_perform(curl);
	libcurl.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &x->a->status);
	libcurl.easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);

	if (x->local < 0)
		return brumate_fail(err, -x->local, "%s: %m", x->q->key ? x->q->key : "a file");
	if (code != CURLE_OK) {
		x->t->failure = errno_of(code);
		x->t->final = is_final(code);
		snprintf(x->t->why, sizeof(x->t->why), "%s",
			 *why ? why : libcurl.easy_strerror(code));
	} else {
		check_answer(x);
	}
	return 0;
}

/* Sends @q once. 0: the result is in @a or @t->failure; <0: a failure on this side. Transferred bytes are counted in
 * the client and in @s->counted. */
static int send_once(struct http_connection *s, const struct http_request *q, struct http_answer *a,
		     struct attempt *t, struct brumate_error *err)
{
	struct http_client *c = s->client;
	struct exchange x = { .connection = s, .q = q, .a = a, .t = t };
	bool tls = !strncmp(c->config->endpoint, "https", 5);
	auto_free char *path = path_of(c, q);
	auto_free char *url =
		path ? path_format("%s://%s%s%s%s", tls ? "https" : "http", c->host, path,
				   q->query ? "?" : "", q->query ? q->query : "")
		     : NULL;
	struct curl_slist *lines = NULL;

	s->counted = 0;
	a->len_bytes = HTTP_ANY_LENGTH;
	int r = url ? make_lines(&lines, c, q, path) : -ENOMEM;
	if (r < 0)
		brumate_fail(err, -r, "request: %m");
	else
		r = perform(&x, url, lines, err);
	libcurl.slist_free_all(lines);
	return r;
}

/* ---- refusals ---- */

static bool is_code(const struct http_answer *a, const char *code)
{
	return !strcmp(a->code, code);
}

static void hint_refused(const struct http_client *c, const struct http_answer *a,
			 struct brumate_error *err)
{
	int64_t skew = a->date ? (int64_t)time(NULL) - a->date : 0;

	if (is_code(a, "RequestTimeTooSkewed") || skew > SKEW_WORTH_S || skew < -SKEW_WORTH_S)
		brumate_hint(err, "this machine's clock is %" PRId64 " s %s the server's: set it",
			     skew < 0 ? -skew : skew, skew < 0 ? "behind" : "ahead of");
	else if (is_code(a, "ExpiredToken") || is_code(a, "TokenRefreshRequired"))
		brumate_hint(err, "the session token has expired: get new credentials");
	else if (is_code(a, "InvalidAccessKeyId"))
		brumate_hint(err, "the server does not know this access key: see AWS_PROFILE and "
				  "AWS_ACCESS_KEY_ID");
	else if (is_code(a, "SignatureDoesNotMatch"))
		brumate_hint(err,
			     "the secret does not belong to this access key, or the region %s "
			     "is not the bucket's",
			     c->config->region);
	else
		brumate_hint(err, "the owner of the bucket must allow it to this key: get, put, "
				  "delete and list, and multipart uploads");
}

static int fail_access(const struct http_client *c, const char *where, const struct http_answer *a,
		       struct brumate_error *err)
{
	brumate_fail(err, EACCES, "%s: access key %s may not do this in bucket %s (%ld%s%s)", where,
		     c->config->key_id, c->place->bucket, a->status, a->code[0] ? " " : "",
		     a->code);
	hint_refused(c, a, err);
	return -EACCES;
}

static int fail_region(const struct http_client *c, const char *where, const struct http_answer *a,
		       struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "%s: bucket %s is not in region %s (%ld %s)", where,
		     c->place->bucket, c->config->region, a->status, a->code);
	if (a->region[0])
		brumate_hint(err, "AWS_REGION=%s", a->region);
	else
		brumate_hint(err, "set AWS_REGION to the bucket's region");
	return -EINVAL;
}

/* Starts @err for a final answer. Returns -errno. */
static int fail_refused(const struct http_client *c, const struct http_request *q,
			const struct http_answer *a, struct brumate_error *err)
{
	char where[1400];

	snprintf(where, sizeof(where), "s3://%s%s%s", c->place->bucket, q->key ? "/" : "",
		 q->key ? q->key : "");
	if (is_code(a, "NoSuchBucket")) {
		brumate_fail(err, ENOENT, "no bucket %s at %s", c->place->bucket,
			     c->config->endpoint);
		brumate_hint(err, "make it first; AWS_ENDPOINT_URL and AWS_REGION say where");
		return -ENOENT;
	}
	if (a->status == 404)
		return brumate_fail(err, ENOENT, "%s: is not there", where);
	if (a->status == 301 || a->status == 307 || is_code(a, "AuthorizationHeaderMalformed") ||
	    is_code(a, "IllegalLocationConstraintException"))
		return fail_region(c, where, a, err);
	if (a->status == 401 || a->status == 403 || is_code(a, "ExpiredToken") ||
	    is_code(a, "InvalidToken"))
		return fail_access(c, where, a, err);
	return brumate_fail(err, EREMOTEIO, "%s: %s: the server answered %ld%s%s%s%s", where,
			    q->method, a->status, a->code[0] ? " " : "", a->code,
			    a->message[0] ? ": " : "", a->message);
}

/* ---- requests ---- */

enum http_verdict http_judge(long status, const char *code)
{
	/* These include bytes that were damaged in transit, and a server that timed out waiting for them. */
	static const char *const again[] = { "RequestTimeout",
					     "BadDigest",
					     "SlowDown",
					     "XAmzContentSHA256Mismatch",
					     "InternalError",
					     "ServiceUnavailable",
					     "Throttling",
					     "ThrottlingException",
					     "RequestLimitExceeded" };

	for (size_t i = 0; i < sizeof(again) / sizeof(again[0]); i++)
		if (!strcmp(code, again[i]))
			return HTTP_AGAIN;
	if (status >= 200 && status < 300)
		return *code ? HTTP_REFUSED : HTTP_DONE; /* an error may have status 200 */
	return status >= 500 || status == 429 || status == 408 ? HTTP_AGAIN : HTTP_REFUSED;
}

/* Waits before attempt @n + 1, for a random time in a span that doubles each time, so that many clients that failed
 * together do not retry together. -ECANCELED once the client is stopped. */
static int pause_after(struct http_client *c, int64_t n)
{
	struct pollfd fd = { .fd = c->stop_fd, .events = POLLIN };
	uint64_t span_ms = PAUSE_MIN_MS, random = 0;

	while (--n > 0 && span_ms < PAUSE_MAX_MS)
		span_ms *= 2;
	if (span_ms > PAUSE_MAX_MS)
		span_ms = PAUSE_MAX_MS;
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = clock_now_ns();
	uint64_t deadline_ns = deadline_in_ms(span_ms / 2 + random % (span_ms / 2 + 1));
	while (!atomic_load(&c->stop)) {
		int left_ms = deadline_left_ms(deadline_ns);

		if (left_ms == 0)
			return 0;
		if (poll(&fd, 1, left_ms) < 0 && errno != EINTR)
			return -errno;
	}
	return -ECANCELED;
}

static int fail_tired(const struct http_client *c, const struct http_request *q,
		      const struct http_answer *a, const struct attempt *t,
		      struct brumate_error *err)
{
	if (t->failure)
		brumate_fail(err, -t->failure, "%s: %s%s%s: %s", c->config->endpoint, q->method,
			     q->key ? " " : "", q->key ? q->key : "", t->why);
	else
		brumate_fail(err, EREMOTEIO, "%s: %s%s%s: the server answered %ld%s%s",
			     c->config->endpoint, q->method, q->key ? " " : "",
			     q->key ? q->key : "", a->status, a->code[0] ? " " : "", a->code);
	brumate_hint(err, "tried %lld times; run it again later: it continues where it stopped",
		     (long long)c->config->attempts);
	return -(t->failure ? -t->failure : EREMOTEIO);
}

int http_send(struct http_connection *s, const struct http_request *q, struct http_answer *ret,
	      struct brumate_error *err)
{
	struct http_client *c = s->client;

	for (int64_t n = 1;; n++) {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		struct attempt t = { 0 };
		int r = send_once(s, q, &a, &t, err);

		if (atomic_load(&c->stop))
			return brumate_fail(err, ECANCELED, "stopped: %m");
		if (r < 0) /* on this side: memory, a file */
			return r;
		enum http_verdict verdict = t.failure ? HTTP_AGAIN : http_judge(a.status, a.code);
		if (verdict == HTTP_REFUSED)
			return fail_refused(c, q, &a, err);
		if (verdict == HTTP_DONE) {
			if (ret)
				*ret = take_struct(a, (struct http_answer){ 0 });
			return 0;
		}
		atomic_fetch_sub(&c->done_bytes, s->counted);
		s->counted = 0;
		if (t.final || n >= c->config->attempts)
			return fail_tired(c, q, &a, &t, err);
		r = pause_after(c, n);
		if (r < 0)
			return brumate_fail(err, -r, "stopped: %m");
	}
}

bool http_may_go_on(int r)
{
	return r == -ECANCELED || r == -EREMOTEIO || r == -ETIMEDOUT || r == -ECONNREFUSED ||
	       r == -EHOSTUNREACH || r == -EACCES;
}

/* ---- several connections ---- */

struct units {
	struct http_client *client;
	http_connection_fn fn;
	void *arg;
	size_t n;
	atomic_size_t next;
	atomic_bool failed;
	const struct http_watch *watch;
};

static int do_units(struct units *u, struct http_connection *s, struct brumate_error *err)
{
	int r = 0;

	while (r == 0 && !atomic_load(&u->client->stop)) {
		size_t i = atomic_fetch_add(&u->next, 1);

		if (i >= u->n)
			break;
		r = u->fn(u->arg, s, i, err);
	}
	return r;
}

/* Reports the first failure; the others only follow from it. */
static int serve_units(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct units *u = arg;
	struct http_connection s;
	int r = http_connection_init(&s, u->client, err);

	if (r == 0)
		r = do_units(u, &s, err);
	http_connection_fini(&s);
	if (r == 0 || atomic_exchange(&u->failed, true))
		return 0;
	http_client_stop(u->client);
	return r;
}

static int report_units(void *arg)
{
	const struct units *u = arg;
	const struct http_watch *watch = u->watch;
	int r = watch->progress(watch->arg, atomic_load(&u->client->done_bytes),
				watch->total_bytes);

	if (r < 0)
		http_client_stop(u->client);
	return r;
}

int http_client_run(struct http_client *c, size_t n, http_connection_fn fn, void *arg,
		    const struct http_watch *watch, struct brumate_error *err)
{
	struct units u = { .client = c, .fn = fn, .arg = arg, .n = n, .watch = watch };
	unsigned threads = (unsigned)c->config->connections;
	bool told = watch && watch->progress;
	struct workers workers;

	if (!n)
		return 0;
	if (workers_start(&workers, n < threads ? (unsigned)n : threads, serve_units, &u) < 0)
		return brumate_fail(err, EAGAIN, "no thread: %m");
	int r = workers_wait(&workers, told ? report_units : NULL, &u, err);
	client_go_on(c);
	return r;
}

/* ---- signatures ---- */

enum { DAY_LEN = 8, SCOPE_BYTES = 128 };

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct sign_header *)a)->name, ((const struct sign_header *)b)->name);
}

/* The names, separated by ';'. */
static int join_names(char *ret, size_t room, const struct sign_header *headers, size_t n)
{
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		len += (size_t)snprintf(ret + len, room - len, "%s%s", i ? ";" : "",
					headers[i].name);
		if (len >= room)
			return -E2BIG;
	}
	return 0;
}

static int digest_canonical(char ret[static DIGEST_TEXT_BYTES], const struct sign_request *q,
			    const struct sign_header *headers, const char *names)
{
	auto_free char *text = NULL;
	size_t len = 0;
	struct digest digest;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	fprintf(out, "%s\n%s\n%s\n", q->method, q->path, q->query);
	for (size_t i = 0; i < q->n_headers; i++)
		fprintf(out, "%s:%s\n", headers[i].name, headers[i].value);
	fprintf(out, "\n%s\n%s", names, q->payload);
	if (fclose(out) == EOF)
		return -ENOMEM;
	int r = digest_buffer(&digest, text, len);
	if (r == 0)
		digest_format(ret, &digest);
	return r;
}

static int hmac(struct digest *ret, const void *key, size_t key_len, const char *text)
{
	unsigned len = 0;

	if (!digest_has_libcrypto() ||
	    !HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text),
		  ret->bytes, &len))
		return -ENOMEM;
	return 0;
}

/* Derives the key for one day, region and service. */
static int derive_key(struct digest *ret, const struct sign_request *q)
{
	char seed[256], day[DAY_LEN + 1];
	const char *const steps[] = { q->region, "s3", "aws4_request" };

	if ((size_t)snprintf(seed, sizeof(seed), "AWS4%s", q->secret) >= sizeof(seed))
		return -E2BIG;
	snprintf(day, sizeof(day), "%.*s", DAY_LEN, q->date);
	int r = hmac(ret, seed, strlen(seed), day);
	for (size_t i = 0; r == 0 && i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct digest key = *ret;

		r = hmac(ret, key.bytes, sizeof(key.bytes), steps[i]);
		OPENSSL_cleanse(&key, sizeof(key));
	}
	OPENSSL_cleanse(seed, sizeof(seed));
	return r;
}

static int sign_digest(char ret[static DIGEST_TEXT_BYTES], const struct sign_request *q,
		       const char *scope, const char *canonical)
{
	char text[SCOPE_BYTES + DIGEST_TEXT_BYTES + 64];
	struct digest key, signature;

	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", q->date, scope, canonical);
	int r = derive_key(&key, q);
	if (r == 0)
		r = hmac(&signature, key.bytes, sizeof(key.bytes), text);
	if (r == 0)
		digest_format(ret, &signature);
	OPENSSL_cleanse(&key, sizeof(key));
	return r;
}

int sign_request(char ret[static SIGN_ANSWER_BYTES], const struct sign_request *q)
{
	struct sign_header headers[SIGN_HEADERS_MAX];
	char names[512], canonical[DIGEST_TEXT_BYTES], signature[DIGEST_TEXT_BYTES];
	char scope[SCOPE_BYTES];

	if (q->n_headers > SIGN_HEADERS_MAX)
		return -E2BIG;
	memcpy(headers, q->headers, q->n_headers * sizeof(headers[0]));
	qsort(headers, q->n_headers, sizeof(headers[0]), by_name);
	if ((size_t)snprintf(scope, sizeof(scope), "%.*s/%s/s3/aws4_request", DAY_LEN, q->date,
			     q->region) >= sizeof(scope))
		return -E2BIG;

	int r = join_names(names, sizeof(names), headers, q->n_headers);
	if (r == 0)
		r = digest_canonical(canonical, q, headers, names);
	if (r == 0)
		r = sign_digest(signature, q, scope, canonical);
	if (r < 0)
		return r;
	int len = snprintf(ret, SIGN_ANSWER_BYTES,
			   "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
			   q->key_id, scope, names, signature);
	return len < SIGN_ANSWER_BYTES ? 0 : -E2BIG;
}
