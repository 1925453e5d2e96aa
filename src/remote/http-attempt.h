// SPDX-License-Identifier: MIT
/* One attempt at a request. Private to this layer. */
#pragma once

#include "remote/http.h"

/** How an attempt went beside its answer. */
struct attempt {
	int failure;   /* of the network or of the answer's form: -errno; 0: there is an answer */
	bool final;    /* trying again cannot help */
	char why[256]; /* in words */
};

/**
 * Sends @q once. 0: @a or @t->failure says how it went; <0: what is wrong on this side. Bytes that went
 * over are counted in the client and in @s->counted.
 */
int attempt_send(struct session *s, const struct http_request *q, struct http_answer *a,
		 struct attempt *t, struct brumate_error *err);
