// SPDX-License-Identifier: MIT
/* The program brumate-watch: runs `brumate top` and `brumate metrics`. */
#include <stddef.h>

#include "edges/watch/options.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "top", verb_top },
		{ "metrics", verb_metrics },
		{ NULL, NULL },
	};

	return command_main(argc, argv, own);
}
