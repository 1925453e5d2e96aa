// SPDX-License-Identifier: MIT
/* Requests over libcurl; see http.h. One request in one attempt is in http-attempt.c. */
#include "remote/http.h"
#include "remote/http-attempt.h"
#include "remote/http-fail.h"
#include "remote/libcurl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/paths.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 20000 };

/* As libcurl would name it: without the port that goes without saying. */
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

int client_init(struct client *c, const struct remote_config *config,
		const struct remote_place *place, struct brumate_error *err)
{
	int r = libcurl_open(err);

	*c = (struct client){ .config = config, .place = place, .stop_fd = -1 };
	if (r < 0)
		return r;
	c->host = host_of(config, place);
	c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!c->host || c->stop_fd < 0) {
		client_fini(c);
		return brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

void client_fini(struct client *c)
{
	free(c->host);
	c->host = NULL;
	cleanup_close(&c->stop_fd);
}

void client_stop(struct client *c)
{
	atomic_store(&c->stop, true);
	eventfd_write(c->stop_fd, 1);
}

void client_go_on(struct client *c)
{
	eventfd_t value;

	eventfd_read(c->stop_fd, &value);
	atomic_store(&c->stop, false);
}

int session_init(struct session *s, struct client *c, struct brumate_error *err)
{
	*s = (struct session){ .client = c, .curl = libcurl.easy_init() };
	return s->curl ? 0 : brumate_fail(err, ENOMEM, "libcurl: no handle");
}

void session_fini(struct session *s)
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

enum http_verdict http_judge(long status, const char *code)
{
	/* Bytes that changed on the way, and a server that got tired of waiting for them. */
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
		return *code ? HTTP_REFUSED : HTTP_DONE; /* an error may come with 200 */
	return status >= 500 || status == 429 || status == 408 ? HTTP_AGAIN : HTTP_REFUSED;
}

/* Waits before attempt @n + 1, somewhere in a span that doubles each time, so that many clients which
 * failed together do not come back together. -ECANCELED once the client is stopped. */
static int pause_after(struct client *c, int64_t n)
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

static int fail_tired(const struct client *c, const struct http_request *q,
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
	brumate_hint(err, "tried %lld times; run it again later: what is done is not done twice",
		     (long long)c->config->attempts);
	return -(t->failure ? -t->failure : EREMOTEIO);
}

int http_send(struct session *s, const struct http_request *q, struct http_answer *ret,
	      struct brumate_error *err)
{
	struct client *c = s->client;

	for (int64_t n = 1;; n++) {
		auto_(http_answer_fini) struct http_answer a = { 0 };
		struct attempt t = { 0 };
		int r = attempt_send(s, q, &a, &t, err);

		if (atomic_load(&c->stop))
			return brumate_fail(err, ECANCELED, "stopped: %m");
		if (r < 0) /* ours: memory, a file */
			return r;
		enum http_verdict verdict = t.failure ? HTTP_AGAIN : http_judge(a.status, a.code);
		if (verdict == HTTP_REFUSED)
			return http_fail_refused(c, q, &a, err);
		if (verdict == HTTP_DONE) {
			if (ret) {
				*ret = a;
				a = (struct http_answer){ 0 };
			}
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
