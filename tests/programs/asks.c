// SPDX-License-Identifier: MIT
/* A program that has itself saved by libbrumate, and says what became of it: asks end|on NAME [again], and with "again" once
 * more where that failed. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/brumate.h"

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready asks");
	int r = -1;
	for (int tries = argc - 2; r < 0 && tries > 0; tries--) {
		r = brumate_checkpoint(argv[2], !strcmp(argv[1], "on") ? BRUMATE_LEAVE_RUNNING : 0);
		printf("asked %d %s\n", r, brumate_error());
	}
	if (r >= 0)
		for (;;)
			pause();
	return 0;
}
