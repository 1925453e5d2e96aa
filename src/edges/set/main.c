// SPDX-License-Identifier: MIT
/* The program brumate-set: runs `brumate set`. */
#include <stddef.h>

#include "edges/set/options.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "set", verb_set },
		{ NULL, NULL },
	};

	return command_main(argc, argv, own);
}
