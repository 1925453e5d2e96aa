// SPDX-License-Identifier: MIT
/*
 * A program that has itself saved by libbrumate, and says what became of it: asks end|on NAME [again], and with "again" once
 * more where that failed; asks files NAME FILE: with the content of FILE, which it changes once it is saved, and says after
 * the restore.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/brumate.h"

static int save_with_file(const char *name, const char *path)
{
	char text[4] = "";
	int fd = open(path, O_RDWR);
	int r = brumate_checkpoint(name, BRUMATE_LEAVE_RUNNING | BRUMATE_WITH_FILES |
						 BRUMATE_TCP_CLOSE | BRUMATE_DROP_EXTERNAL);

	if (r == BRUMATE_SAVED && pwrite(fd, "two", 3, 0) != 3)
		return 1;
	if (pread(fd, text, 3, 0) != 3)
		return 1;
	printf("asked %d %s %s\n", r, text, brumate_error());
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready asks");
	if (argc == 4 && !strcmp(argv[1], "files"))
		return save_with_file(argv[2], argv[3]);
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
