// SPDX-License-Identifier: MIT
/* Configuration files: any bytes are applied or refused; the same bytes twice change nothing more. */
#include "base/conf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int same(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_(conf_fini) struct brumate_conf once = BRUMATE_CONF_DEFAULT,
					     twice = BRUMATE_CONF_DEFAULT;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = conf_apply(&once, "fuzz", (const char *)data, size, &err);

	if ((r < 0) != (err.code != 0) || (r < 0 && strncmp(err.text, "fuzz:", 5)))
		abort();
	for (int i = 0; i < 2; i++)
		if (conf_apply(&twice, "fuzz", (const char *)data, size, NULL) != r)
			abort();
	if (!same(once.store_dir, twice.store_dir) || !same(once.criu_path, twice.criu_path) ||
	    once.lock_timeout_ms != twice.lock_timeout_ms || once.timeout_ms != twice.timeout_ms ||
	    once.idle_timeout_ms != twice.idle_timeout_ms || once.gpu != twice.gpu ||
	    once.tcp_close != twice.tcp_close || once.gpu >= CONF_GPU__MAX)
		abort();
	return 0;
}
