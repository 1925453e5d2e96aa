// SPDX-License-Identifier: MIT
/* See step.h. */
#include "edges/slurm/step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

/* The kernel drops the lock when slurmstepd ends. It does not depend on the pid, and those who cannot see that process can ask for
 * it. Nothing closes its descriptor. */
static void make_file(const char *path)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);

	if (fd < 0)
		return;
	fchmod(fd, 0644); /* the tasks look, too */
	if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
		close(fd);
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
	if (mkdir(s->run_dir, 0755) == 0)
		chmod(s->run_dir, 0755);
	make_file(here);
}

/* Without a lock it is of a slurmstepd that was killed. One that cannot be looked at counts. */
static bool is_alive(int dir_fd, const char *name)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return errno != ENOENT;
	int r = fcntl(fd, F_OFD_GETLK, &lock);
	close(fd);
	return r < 0 || lock.l_type != F_UNLCK;
}

/* Steps of @job, or, with @others, of all jobs but that one. @away: those count, too. */
static bool any_step(const struct site *s, const char *job, bool others, bool away)
{
	DIR *dir = opendir(s->run_dir);
	const size_t len = strlen(job);
	bool found = !dir && errno != ENOENT;
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
