// SPDX-License-Identifier: MIT
/* Signatures of requests: AWS Signature Version 4, by libcrypto's HMAC. Pure. */
#pragma once

#include <stddef.h>

#include "base/error.h"

enum {
	SIGN_HEADERS_MAX = 12,
	SIGN_DATE_BYTES = sizeof("20260102T030405Z"),
	SIGN_ANSWER_BYTES = 1024,
};

struct sign_header {
	const char *name; /* lower case */
	const char *value;
};

/** What is signed. All borrowed. */
struct sign_request {
	const char *method;
	const char *path;  /* percent-encoded */
	const char *query; /* percent-encoded, sorted, "name=value&name=value"; "" for none */
	const struct sign_header
		*headers;    /* with "host", "x-amz-date" and "x-amz-content-sha256" */
	size_t n_headers;    /* at most SIGN_HEADERS_MAX */
	const char *payload; /* SHA-256 of the body in hexadecimal */
	const char *date;    /* as "x-amz-date" */
	const char *region, *key_id, *secret;
};

/** Writes the value of the header "Authorization". 0, -ENOMEM, -E2BIG. */
int sign_request(char ret[static SIGN_ANSWER_BYTES], const struct sign_request *q);
