// SPDX-License-Identifier: MIT
/* Heads of requests of HTTP: what is taken, and what is refused. */
#include "edges/serve/http-head.h"

#include <errno.h>
#include <string.h>

#include "check.h"

static struct http_head q;

static int parse(const char *text)
{
	return http_head_parse(&q, text, strlen(text));
}

static void test_taken(void)
{
	const char *text = "POST /v1/Resume HTTP/1.1\r\nhost: x\r\nCONTENT-length:\t 12 \r\n"
			   "Expect: 100-Continue\r\n\r\n{";

	CHECK(parse(text) == 1);
	CHECK_STR(q.method, "POST");
	CHECK_STR(q.target, "/v1/Resume");
	CHECK(q.body_bytes == 12 && q.expects && q.head_bytes == strlen(text) - 1);
	CHECK(parse("GET / HTTP/1.0\r\n\r\n") == 1 && !q.body_bytes && !q.expects);
	CHECK(parse("G / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n") == 1);
	CHECK(q.body_bytes == 3);
	for (size_t n = 0; n < strlen(text) - 1; n++)
		CHECK(http_head_parse(&q, text, n) == 0);
}

static void test_refused(void)
{
	static const char *const wrong[] = {
		"\r\n\r\n",
		"POST / HTTP/2\r\n\r\n",
		"POST /\r\n\r\n",
		"POST  HTTP/1.1\r\n\r\n",
		"POST / HTTP/1.1 \r\n\r\n",
		"P(ST / HTTP/1.1\r\n\r\n",
		"POST / HTTP/1.1\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost : x\r\n\r\n",
		"POST / HTTP/1.1\r\n folded\r\n\r\n",
		"POST / HTTP/1.1\r\nHost\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: \001\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: \r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK(parse(wrong[i]) == -EBADMSG);
	CHECK(http_head_parse(&q, "GET / HTTP/1.1\r\nA: \0\r\n\r\n", 24) == -EBADMSG);
	CHECK(parse("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n") == -EOPNOTSUPP);
}

static void test_too_large(void)
{
	static char large[HTTP_HEAD_BYTES_MAX + 1], target[HTTP_TARGET_BYTES + 64];

	memset(large, 'a', sizeof(large) - 1);
	CHECK(http_head_parse(&q, large, HTTP_HEAD_BYTES_MAX - 1) == 0);
	CHECK(http_head_parse(&q, large, HTTP_HEAD_BYTES_MAX) == -EMSGSIZE);
	snprintf(target, sizeof(target), "POST /%0*d HTTP/1.1\r\n\r\n", HTTP_TARGET_BYTES, 0);
	CHECK(parse(target) == -EMSGSIZE);
}

int main(void)
{
	test_taken();
	test_refused();
	test_too_large();
	return 0;
}
