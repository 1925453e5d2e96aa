// SPDX-License-Identifier: MIT
/* Records of groups: any bytes are decoded or refused, and what was decoded is written and read back the same. */
#include "job/group.h"
#include "rewrite.h"

static char *rewrite(const char *text, size_t len)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;

	if (group_decode(&g, text, len, NULL) < 0)
		return NULL;
	char *again = group_encode(&g);
	if (!again || g.dir || g.way >= GROUP_WAY__MAX)
		abort();
	return again;
}
