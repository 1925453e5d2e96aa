// SPDX-License-Identifier: MIT
/* Checks of our own installation: directories, programs, brumated, and what was left behind. */
#include "service/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/paths.h"
#include "job/job.h"
#include "service/access.h"

/* A directory that is not there yet can be made if the nearest one above it may be written. */
static bool is_writable(const char *path)
{
	auto_free char *copy = strdup(path);

	while (copy && access(copy, F_OK) < 0) {
		char *slash = strrchr(copy, '/');

		if (errno != ENOENT || !slash)
			return false;
		slash[slash == copy ? 1 : 0] = '\0';
	}
	return copy && access(copy, W_OK | X_OK) == 0;
}

static void check_dirs(struct doctor *d)
{
	const struct {
		const char *key, *path, *variable;
	} dirs[] = {
		{ "runtime-dir", path_runtime_dir(), "BRUMATE_RUNTIME_DIR" },
		{ "state-dir", path_state_dir(), "BRUMATE_STATE_DIR" },
		{ "log-dir", path_log_dir(), "BRUMATE_LOG_DIR" },
	};

	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		char hint[128];

		snprintf(hint, sizeof(hint), "make it writable for root, or set %s",
			 dirs[i].variable);
		fact(d, dirs[i].key, json_string(dirs[i].path));
		if (is_writable(dirs[i].path))
			finding(d, FINDING_OK, dirs[i].key, "", "%s", dirs[i].path);
		else
			finding(d, FINDING_FAIL, dirs[i].key, hint, "%s cannot be written",
				dirs[i].path);
	}
}

static void check_programs(struct doctor *d)
{
	static const char *const programs[] = { "brumate-shim", "brumate-broker" };

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		auto_free char *path = path_find_helper(programs[i]);

		if (path && access(path, X_OK) == 0)
			finding(d, FINDING_OK, programs[i], "", "%s", path);
		else
			finding(d, FINDING_FAIL, programs[i],
				"install brumate again, or set BRUMATE_LIBEXEC_DIR",
				"%s is not installed", programs[i]);
	}
}

static void check_daemon(struct doctor *d)
{
	auto_free char *path = path_format("%s/brumated.sock", path_runtime_dir());
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = path ? access_check_socket(path, &err) : -ENOMEM;

	if (r == 0)
		finding(d, FINDING_OK, "brumated", "", "whoever may connect to %s can become root",
			path);
	else if (r == -ENOENT)
		finding(d, FINDING_OK, "brumated", "", "no socket: only root can use brumate");
	else
		finding_error(d, FINDING_FAIL, "brumated", &err);
}

static void check_job(void *arg, const struct job *j, const char *id,
		      const struct brumate_error *why)
{
	struct doctor *d = arg;

	if (!j)
		finding(d, FINDING_WARN, "job", "restore its directory, or remove it",
			"the record of job %s is damaged: %s", id, why->text);
	else if (job_is_alive(j) && !shim_is_alive(j))
		finding(d, FINDING_WARN, "job", "the next command on it starts another one",
			"job %s runs without its shim", id);
}

static bool is_partial(const char *name)
{
	size_t len = strlen(name), suffix = strlen(".partial");

	return name[0] == '.' && len > suffix && !strcmp(name + len - suffix, ".partial");
}

/* Its writer holds a lock on it for as long as it lives. */
static bool is_abandoned(int dir_fd, const char *name)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
}

static void check_partials(struct doctor *d)
{
	struct service_call as_root = { 0 };
	auto_free char *path = NULL;
	unsigned n = 0;

	if (access_store(&path, &as_root, NULL, NULL) < 0)
		return; /* said by the check of the store */
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		n += is_partial(entry->d_name) && is_abandoned(dirfd(dir), entry->d_name);
	if (n)
		finding(d, FINDING_WARN, "partial", "the next checkpoint removes them",
			"%u unfinished checkpoints in %s", n, path);
}

void doctor_brumate(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	check_dirs(d);
	check_programs(d);
	check_daemon(d);
	if (job_list(check_job, d, &err) < 0)
		finding_error(d, FINDING_WARN, "job", &err);
	check_partials(d);
}
