// SPDX-License-Identifier: MIT
/* The program brumate-k8s: runs `brumate k8s`. */
#include <stddef.h>

#include "edges/k8s/options.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "k8s", verb_k8s },
		{ NULL, NULL },
	};

	return command_main(argc, argv, own);
}
