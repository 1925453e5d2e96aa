// SPDX-License-Identifier: MIT
/*
 * The head of a request of HTTP/1.1 (RFC 9112), as far as `brumate http` takes one: what is not understood is refused, and
 * nothing is guessed. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HTTP_HEAD_BYTES_MAX = 16384,
	HTTP_TARGET_BYTES = 128,
	HTTP_METHOD_BYTES = 16,
};

struct http_head {
	char method[HTTP_METHOD_BYTES], target[HTTP_TARGET_BYTES];
	size_t head_bytes; /* with the empty line */
	uint64_t body_bytes;
	bool expects; /* the client sends the body after "100 Continue" */
};

/** Reads the head at the beginning of @text, foreign bytes. 1; 0: it is not whole yet; -EBADMSG; -EMSGSIZE: it is too large;
 * -EOPNOTSUPP: the body comes in another form than as Content-Length says. */
int http_head_parse(struct http_head *ret, const char *text, size_t len_bytes);
