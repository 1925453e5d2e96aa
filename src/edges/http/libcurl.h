// SPDX-License-Identifier: MIT
/*
 * libcurl, opened when it is first needed: it loads two dozen other libraries, which most commands do not need.
 */
#pragma once

#include <curl/curl.h>

#include "base/error.h"

#define LIBCURL_API(X)    \
	X(global_init)    \
	X(easy_init)      \
	X(easy_cleanup)   \
	X(easy_reset)     \
	X(easy_setopt)    \
	X(easy_getinfo)   \
	X(easy_perform)   \
	X(easy_strerror)  \
	X(slist_append)   \
	X(slist_free_all) \
	X(getdate)

/** Its functions, by their names without "curl_". NULL before libcurl_open(). */
struct libcurl {
#define X(name) __typeof__(curl_##name) *name;
	LIBCURL_API(X)
#undef X
};
extern struct libcurl libcurl;

/** Opens it, once. @what needs it, for a hint ("object stores"). 0; -EOPNOTSUPP: it is not installed, or too old. */
int libcurl_open(const char *what, struct brumate_error *err);
