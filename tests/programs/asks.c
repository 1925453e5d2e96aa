// SPDX-License-Identifier: MIT
/*
 * A program that has itself saved by libbrumate, and says what became of it: asks end|on NAME [again], and with "again" once
 * more where that failed; asks files NAME FILE: with the content of FILE, which it changes once it is saved, and says after
 * the restore. "asks VERB JOB [NAME]" does that to another job, which goes on after a checkpoint.
 */
#include <fcntl.h>
#include <signal.h>
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

static int operate(const char *verb, const char *job, const char *name)
{
	int r = !strcmp(verb, "suspend")   ? brumate_job_suspend(job)
		: !strcmp(verb, "resume")  ? brumate_job_resume(job)
		: !strcmp(verb, "restore") ? brumate_job_restore(job)
		: !strcmp(verb, "checkpoint")
			? brumate_job_checkpoint(job, name, BRUMATE_LEAVE_RUNNING)
			: brumate_job_checkpoint(job, name, ~0u);

	printf("%d %s\n", r, brumate_error());
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && strcmp(argv[1], "on") && strcmp(argv[1], "end") &&
	    strcmp(argv[1], "files")) {
		if (argc > 4)
			signal(SIGCHLD, SIG_IGN);
		return operate(argv[1], strcmp(argv[2], "NULL") ? argv[2] : NULL, argv[3]);
	}
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
