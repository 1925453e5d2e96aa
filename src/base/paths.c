// SPDX-License-Identifier: MIT
/* Paths of files and directories: compiled-in ones or those of a user, each overridden by its variable. */
#include "base/paths.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { PLACES = 100 };

/* For a user other than root; determined once, from the environment at that time. */
static struct {
	char *runtime, *state, *checkpoints, *logs, *config;
} of_user;

static const char *value_of(const char *variable)
{
	const char *value = secure_getenv(variable);

	return value && *value ? value : NULL;
}

/* A relative path is meaningless to programs that run elsewhere, and the XDG specification says to ignore it. */
static const char *absolute_of(const char *variable)
{
	const char *value = value_of(variable);

	return value && *value == '/' ? value : NULL;
}

/* In $@variable, or in @below of the home directory; for a user without either, in the runtime directory. Owned. */
static char *make_base(const char *variable, const char *below)
{
	const char *base = absolute_of(variable), *home = absolute_of("HOME");
	const struct passwd *user = base || home ? NULL : getpwuid(getuid());

	if (base)
		return path_format("%s/brumate", base);
	if (!home && user && user->pw_dir && user->pw_dir[0] == '/')
		home = user->pw_dir;
	return home ? path_format("%s/%s/brumate", home, below)
		    : path_format("%s/%s", of_user.runtime, below);
}

/* Whether everybody may have a directory there that nobody else can take away; as tmpfiles.d makes it. */
static bool is_for_all(const char *dir)
{
	struct stat st;

	return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == 0 &&
	       (st.st_mode & (S_ISVTX | 0777)) == (S_ISVTX | 0777);
}

static bool is_another_users(const char *path, uid_t uid)
{
	struct stat st;

	return lstat(path, &st) == 0 && st.st_uid != uid;
}

char *path_choose_runtime_dir(const char *for_all, const char *tmp, uid_t uid)
{
	struct stat st;
	auto_free char *usual = path_format("%s/brumate-%u", tmp, (unsigned)uid);
	const bool has_usual = usual && lstat(usual, &st) == 0 && st.st_uid == uid;
	auto_free char *place = usual && !has_usual && is_for_all(for_all)
					? path_format("%s/%u", for_all, (unsigned)uid)
					: take_ptr(&usual);
	auto_free char *path = place ? strdup(place) : NULL;

	for (int n = 1; path && n < PLACES && is_another_users(path, uid); n++) {
		free(path);
		path = path_format("%s.%d", place, n);
	}
	return take_ptr(&path);
}

static void work_out_of_user(void)
{
	struct utsname machine;

	if (uname(&machine) < 0)
		strcpy(machine.nodename, "localhost");
	for (char *c = machine.nodename; *c; c++)
		if (*c == '/')
			*c = '-';
	of_user.runtime =
		path_choose_runtime_dir(BRUMATE_DEFAULT_RUNTIME_DIR "/users", "/tmp", getuid());
	if (!of_user.runtime)
		return;
	auto_free char *state = make_base("XDG_STATE_HOME", ".local/state");
	auto_free char *config = make_base("XDG_CONFIG_HOME", ".config");
	of_user.state = state ? path_format("%s/on-%s", state, machine.nodename) : NULL;
	of_user.checkpoints = state ? path_format("%s/checkpoints", state) : NULL;
	of_user.logs = state ? path_format("%s/logs", state) : NULL;
	of_user.config = config ? path_format("%s/brumate.conf", config) : NULL;
}

/* Root's directory, or what @at has for another user. Callers could not handle lack of memory. */
static const char *fallback_to(const char *of_root, char *const *at)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (getuid() == 0)
		return of_root;
	pthread_once(&once, work_out_of_user);
	if (!*at)
		abort();
	return *at;
}

int path_check_given(struct brumate_error *err)
{
	static const char *const variables[] = { "BRUMATE_RUNTIME_DIR", "BRUMATE_STATE_DIR",
						 "BRUMATE_LOG_DIR", "BRUMATE_LIBEXEC_DIR" };

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *value = value_of(variables[i]);

		if (value && *value != '/')
			return brumate_fail(err, EINVAL, "%s=%s: expected an absolute path",
					    variables[i], value);
	}
	return 0;
}

const char *path_runtime_dir(void)
{
	const char *given = value_of("BRUMATE_RUNTIME_DIR");

	return given ? given : fallback_to(BRUMATE_DEFAULT_RUNTIME_DIR, &of_user.runtime);
}

const char *path_state_dir(void)
{
	const char *given = value_of("BRUMATE_STATE_DIR");

	return given ? given : fallback_to(BRUMATE_DEFAULT_STATE_DIR, &of_user.state);
}

char *path_checkpoints_dir(void)
{
	if (!value_of("BRUMATE_STATE_DIR") && getuid() != 0)
		return strdup(fallback_to(NULL, &of_user.checkpoints));
	return path_format("%s/checkpoints", path_state_dir());
}

const char *path_log_dir(void)
{
	const char *given = value_of("BRUMATE_LOG_DIR");

	return given ? given : fallback_to(BRUMATE_DEFAULT_LOG_DIR, &of_user.logs);
}

const char *path_config(void)
{
	const char *given = value_of("BRUMATE_CONFIG");

	return given ? given : BRUMATE_DEFAULT_CONFIG;
}

const char *path_config_of_user(void)
{
	return value_of("BRUMATE_CONFIG") || getuid() == 0 ? NULL
							   : fallback_to(NULL, &of_user.config);
}

char *path_format(const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	int n = vasprintf(&text, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : text;
}

static int refuse_runtime_dir(const char *dir, const char *why, struct brumate_error *err)
{
	brumate_fail(err, EPERM, "%s: %s", dir, why);
	brumate_hint(err,
		     "see whose it is and remove it, or set BRUMATE_RUNTIME_DIR to a directory "
		     "that only you can write to");
	return -EPERM;
}

/* A file with the name of a user's directory in /tmp may be another user's trap, for example a link. */
static int check_runtime_dir(const char *dir, bool in_tmp, struct brumate_error *err)
{
	struct stat st;

	if ((in_tmp ? lstat(dir, &st) : stat(dir, &st)) < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	if (!S_ISDIR(st.st_mode))
		return refuse_runtime_dir(dir, "is not a directory", err);
	if (st.st_uid != geteuid() && (in_tmp || st.st_uid != 0))
		return refuse_runtime_dir(dir, "belongs to another user", err);
	if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
		return refuse_runtime_dir(dir, "other users could replace what is in it", err);
	return 0;
}

int path_make_runtime_dir(struct brumate_error *err)
{
	const char *dir = path_runtime_dir();
	bool in_tmp = dir == of_user.runtime;
	int r = mkdir_parents(dir, in_tmp ? 0700 : 0711);

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", dir);
	return check_runtime_dir(dir, in_tmp, err);
}

char *path_find_helper(const char *name)
{
	const char *given = secure_getenv("BRUMATE_LIBEXEC_DIR");
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';

	/* In a build directory each program is in a folder of its own, with links to all in the directory above. */
	auto_free char *above = path_format("%s/..", self);
	const char *dirs[] = { given, self, above, BRUMATE_DEFAULT_LIBEXEC_DIR };
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		if (!dirs[i] || !*dirs[i])
			continue;
		auto_free char *path = path_format("%s/%s", dirs[i], name);
		if (path && access(path, F_OK) == 0)
			return take_ptr(&path);
	}
	return NULL;
}
