// SPDX-License-Identifier: MIT
/* The program brumate-serve: runs `brumate serve`, `share` and `http`. */
#include <stddef.h>

#include "edges/serve/options.h"

int main(int argc, char **argv)
{
	static const struct edge_verb own[] = {
		{ "http", verb_http },
		{ "serve", verb_serve },
		{ "share", verb_share },
		{ NULL, NULL },
	};

	return command_main(argc, argv, own);
}
