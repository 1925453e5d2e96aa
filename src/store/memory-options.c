// SPDX-License-Identifier: MIT
/* Words for how memory is written. Pure. */
#include "store/memory.h"

#include <errno.h>
#include <string.h>

static const char *const words[MEMORY_COMPRESS__MAX] = { "auto", "none", "lz4", "zstd" };

const char *memory_compress_word(enum memory_compress compress)
{
	return words[compress];
}

int memory_parse_compress(enum memory_compress *ret, const char *word)
{
	for (int i = 0; i < MEMORY_COMPRESS__MAX; i++) {
		if (!strcmp(word, words[i])) {
			*ret = (enum memory_compress)i;
			return 0;
		}
	}
	return -EINVAL;
}
