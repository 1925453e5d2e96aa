// SPDX-License-Identifier: MIT
/* The `brumate` program: the command line, and what it does under the name of cuda-checkpoint. */
#include <string.h>

#include "cli/command.h"
#include "programs/cuda-checkpoint.h"

int main(int argc, char **argv)
{
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;

	if (argc > 0 && !strcmp(slash ? slash + 1 : argv[0], "cuda-checkpoint"))
		return cuda_checkpoint_main(argc, argv);
	return command_main(argc, argv, NULL);
}
