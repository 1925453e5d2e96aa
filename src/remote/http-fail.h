// SPDX-License-Identifier: MIT
/* The words for what an object store refused. Private to this layer. */
#pragma once

#include "remote/http.h"

/** Starts @err for an answer that is final. Returns -errno. */
int http_fail_refused(const struct client *c, const struct http_request *q,
		      const struct http_answer *a, struct brumate_error *err);
