// SPDX-License-Identifier: MIT
/* The program brumate-container: commands of `brumate` that are about containers, and the helper of CRIU's plugin. */
#include <stddef.h>

#include "edges/containers/container-verbs.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "checkpoint", checkpoint_by_engine },
		{ "restore", restore_by_engine },
		{ "cdi", verb_cdi },
		{ NULL, NULL },
	};

	return helper_is_meant(argc, argv) ? helper_main(argc, argv)
					   : command_main(argc, argv, own);
}
