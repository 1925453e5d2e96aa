// SPDX-License-Identifier: MIT
/* Opening libcurl; see libcurl.h. */
#include "edges/http/libcurl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "base/symbols.h"

struct libcurl libcurl;

static struct brumate_error failure;

static const struct symbol functions[] = {
#define X(name) { "curl_" #name, (void **)&libcurl.name },
	LIBCURL_API(X)
#undef X
};

static void open_once(void)
{
	void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		brumate_fail(&failure, EOPNOTSUPP, "%s", dlerror());
		return;
	}
	const char *missing =
		symbols_resolve(library, functions, sizeof(functions) / sizeof(functions[0]));
	if (missing) {
		brumate_fail(&failure, EOPNOTSUPP, "libcurl.so.4 has no %s", missing);
		return;
	}
	libcurl.global_init(CURL_GLOBAL_DEFAULT);
}

int libcurl_open(const char *what, struct brumate_error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_once);
	if (failure.code && err) {
		*err = failure;
		brumate_hint(err, "%s need libcurl: install libcurl4", what);
	}
	return -failure.code;
}
