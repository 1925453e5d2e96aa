// SPDX-License-Identifier: MIT
/* Files of AWS's tools, and what a metadata service answers. */
#include "edges/objects/config.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	auto_(remote_config_fini) struct remote_config c = REMOTE_CONFIG_DEFAULT;
	auto_free char *text = strndup((const char *)data, len_bytes);

	if (!text)
		return 0;
	free(config_find(text, "default", "aws_secret_access_key"));
	if (metadata_parse(&c, text) == 0 && (!c.key_id || !c.secret))
		abort();
	return 0;
}
