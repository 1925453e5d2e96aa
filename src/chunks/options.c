// SPDX-License-Identifier: MIT
/* Words for how memory is written. Pure. */
#include "chunks/chunks.h"

#include <errno.h>
#include <string.h>

static const char *const words[CHUNKS_COMPRESS__MAX] = { "auto", "none", "lz4", "zstd" };

const char *chunks_compress_word(enum chunks_compress compress)
{
	return words[compress];
}

int chunks_parse_compress(enum chunks_compress *ret, const char *word)
{
	for (int i = 0; i < CHUNKS_COMPRESS__MAX; i++) {
		if (!strcmp(word, words[i])) {
			*ret = (enum chunks_compress)i;
			return 0;
		}
	}
	return -EINVAL;
}
