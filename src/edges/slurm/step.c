// SPDX-License-Identifier: MIT
/* See step.h. */
#include "edges/slurm/step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char away_suffix[] = ".away";

bool step_get(struct step_of *ret)
{
	const char *text = getenv(STEP_VARIABLE);

	return text && sscanf(text, "%63s %u %u", ret->name, &ret->uid, &ret->gid) == 3;
}

void step_place(const struct site *s, const char *name, enum step_place place)
{
	char here[PATH_MAX], away[PATH_MAX];

	if (snprintf(here, sizeof(here), "%s/%s", s->run_dir, name) >= PATH_MAX ||
	    snprintf(away, sizeof(away), "%s/%s%s", s->run_dir, name, away_suffix) >= PATH_MAX)
		return;
	if (place == STEP_GONE) {
		unlink(here);
		unlink(away);
		return;
	}
	if (rename(place == STEP_AWAY ? here : away, place == STEP_AWAY ? away : here) == 0 ||
	    place == STEP_AWAY)
		return;
	mkdir(s->run_dir, 0755);
	int fd = open(here, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd >= 0) {
		dprintf(fd, "%d\n", (int)getpid());
		close(fd);
	}
}

/* The file of a slurmstepd that was killed says nothing. */
static bool is_alive(int dir_fd, const char *name)
{
	char text[32] = "";
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	return n > 0 && (kill((pid_t)atoi(text), 0) == 0 || errno == EPERM);
}

/* Steps of @job, or, with @others, of all jobs but that one. @away: those count, too. */
static bool any_step(const struct site *s, const char *job, bool others, bool away)
{
	DIR *dir = opendir(s->run_dir);
	const size_t len = strlen(job);
	bool found = false;
	struct dirent *e;

	while (dir && !found && (e = readdir(dir))) {
		const bool is_of_job = !strncmp(e->d_name, job, len) && e->d_name[len] == '.';

		found = *e->d_name != '.' && is_of_job != others &&
			(away || !strstr(e->d_name, away_suffix)) &&
			is_alive(dirfd(dir), e->d_name);
	}
	if (dir)
		closedir(dir);
	return found;
}

bool step_is_here(const struct site *s, const char *job)
{
	return any_step(s, job, false, false);
}

bool step_has_neighbours(const struct site *s, const char *job)
{
	return any_step(s, job, true, true);
}
