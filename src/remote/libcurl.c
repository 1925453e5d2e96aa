// SPDX-License-Identifier: MIT
/* Opening libcurl; see libcurl.h. */
#include "remote/libcurl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

struct libcurl libcurl;

static struct brumate_error failure;

static const struct {
	const char *name;
	void *at;
} functions[] = {
#define X(name) { "curl_" #name, &libcurl.name },
	LIBCURL_API(X)
#undef X
};

static void open_once(void)
{
	void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		brumate_fail(&failure, EOPNOTSUPP, "%s", dlerror());
		brumate_hint(&failure, "object stores need libcurl: install libcurl4");
		return;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		*(void **)functions[i].at = dlsym(library, functions[i].name);
		if (!*(void **)functions[i].at) {
			brumate_fail(&failure, EOPNOTSUPP, "libcurl.so.4 has no %s",
				     functions[i].name);
			return;
		}
	}
	libcurl.global_init(CURL_GLOBAL_DEFAULT);
}

int libcurl_open(struct brumate_error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_once);
	if (failure.code && err)
		*err = failure;
	return -failure.code;
}
