// SPDX-License-Identifier: MIT
/* Answers of object stores: read or refused, with paths and texts within their bounds. */
#include "edges/objects/xml.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static int check(void *arg, const char *path, const char *text)
{
	if (!*path || strlen(path) >= XML_PATH_BYTES || strlen(text) > XML_TEXT_BYTES_MAX)
		abort();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	xml_read((const char *)data, len_bytes, check, NULL);
	return 0;
}
