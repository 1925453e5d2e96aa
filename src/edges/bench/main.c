// SPDX-License-Identifier: MIT
/* The program brumate-bench: runs `brumate bench`. */
#include <stddef.h>

#include "edges/bench/options.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "bench", verb_bench },
		{ NULL, NULL },
	};

	return command_main(argc, argv, own);
}
