// SPDX-License-Identifier: MIT
/* Which CRIU is used: the one that was named, the system's, or the one provisioned beside us; for users who are not
 * root the one that the launcher runs. */
#include "base/conf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/paths.h"
#include "criu-launch/launch.h"
#include "criu/criu.h"
#include "process/reap.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VERSION_TIMEOUT_MS = 10000, OUTPUT_BYTES = 512 };

static const char how_to_get[] =
	"run tools/criu-provision, or name one by BRUMATE_CRIU=/path/to/criu";

/* Output of the program until it ends, or as much as fits. */
static int read_output(int fd, char *buf, size_t room)
{
	uint64_t deadline_ns = deadline_in_ms(VERSION_TIMEOUT_MS);
	size_t len = 0;

	while (len < room - 1) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int n = poll(&p, 1, deadline_left_ms(deadline_ns));

		if (n == 0)
			return -ETIMEDOUT;
		ssize_t got = n < 0 ? -1 : read(fd, buf + len, room - 1 - len);
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got == 0)
			break;
		len += got > 0 ? (size_t)got : 0;
	}
	buf[len] = '\0';
	return 0;
}

/* Its messages go where its output does, for the launcher says there why it fails. */
static int spawn_protected(pid_t *ret, const char *path, int out_fd)
{
	char *argv[] = { (char[]){ "criu" }, (char[]){ "--version" },
			 (char[]){ CRIU_WITHOUT_CONFIG }, NULL };
	char *envp[] = { (char[]){ "PATH=/usr/sbin:/usr/bin:/sbin:/bin" }, NULL };
	posix_spawn_file_actions_t actions;

	if (posix_spawn_file_actions_init(&actions))
		return -ENOMEM;
	int r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, 2);
	if (!r) {
		reap_lock();
		r = posix_spawn(ret, path, &actions, NULL, argv, envp);
		if (!r)
			reap_protect(*ret);
		reap_unlock();
	}
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/* Runs "PATH --version", without configuration, to its end: what it said, and its wait status. */
static int run_for_version(const char *path, char text[static OUTPUT_BYTES], int *ret_status)
{
	int p[2];
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	auto_close int in = p[0];
	int r = spawn_protected(&pid, path, p[1]);
	close(p[1]);
	if (r < 0)
		return r;

	r = read_output(in, text, OUTPUT_BYTES);
	if (r < 0)
		kill(pid,
		     SIGKILL); /* a child that nobody else waits for: the number is still its own */
	reap_wait(pid, ret_status);
	return r;
}

/* Pure. -EBADMSG if it does not say one. */
static int parse_version(const char *text, int *ret)
{
	const char *version = strstr(text, "Version:");
	int major = 0, minor = 0, sub = 0;

	if (!version || sscanf(version, "Version: %*[v]%d.%d.%d", &major, &minor, &sub) < 1)
		major = 0;
	if (!major && (!version || sscanf(version, "Version: %d.%d.%d", &major, &minor, &sub) < 1))
		return -EBADMSG;
	if (major < 0 || major > 999 || minor < 0 || minor > 99 || sub < 0 || sub > 99)
		return -EBADMSG;
	*ret = major * 10000 + minor * 100 + sub;
	return 0;
}

/* 0, -ENOENT, -EACCES …, -EBADMSG if it does not say a version. */
static int ask_version(const char *path, int *ret_version)
{
	char text[OUTPUT_BYTES];
	int status;
	int r = run_for_version(path, text, &status);

	return r < 0 ? r : parse_version(text, ret_version);
}

static const char *version_text(int version, char buf[static 32])
{
	if (version % 100)
		snprintf(buf, 32, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	else
		snprintf(buf, 32, "%d.%d", version / 10000, version / 100 % 100);
	return buf;
}

static int take_program(struct criu_program *ret, const char *path, int version, const char *why)
{
	struct criu_program found = { .version = version };

	if (snprintf(found.path, sizeof(found.path), "%s", path) >= (int)sizeof(found.path))
		return -ENAMETOOLONG;
	snprintf(found.why, sizeof(found.why), "%s", why);
	*ret = found;
	return 0;
}

/* @by: who named it, "BRUMATE_CRIU" or the configuration. */
static int find_named(struct criu_program *ret, const char *path, const char *by,
		      struct brumate_error *err)
{
	struct stat st;
	char text[32];
	int version;
	int r = ask_version(path, &version);

	if (r == -EBADMSG)
		return brumate_fail(err, EOPNOTSUPP, "%s: %s is not a CRIU", by, path);
	if (r < 0) {
		if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
			brumate_fail(err, EISDIR, "%s: %s is a directory, not a program", by, path);
		else
			brumate_fail(err, -r, "%s: cannot run %s: %m", by, path);
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		brumate_hint(err, "%s", how_to_get);
		return r;
	}
	if (version < CRIU_VERSION_MIN) {
		brumate_fail(err, EOPNOTSUPP, "%s: %s is version %s, 4.2 or newer is needed", by,
			     path, version_text(version, text));
		brumate_hint(err, "%s", how_to_get);
		return -EOPNOTSUPP;
	}
	char why[128];
	snprintf(why, sizeof(why), "named by %s", by);
	r = take_program(ret, path, version, why);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", by) : 0;
}

/* The first "criu" in PATH, and in the directories of administrators that users' paths lack. */
static char *find_in_path(void)
{
	const char *path = secure_getenv("PATH");
	auto_free char *dirs =
		path_format("%s:/usr/local/sbin:/usr/sbin:/sbin", path ? path : "/usr/bin");

	if (!dirs)
		return NULL;
	char *rest = dirs;
	for (const char *dir; (dir = strsep(&rest, ":"));) {
		auto_free char *file = *dir == '/' ? path_format("%s/criu", dir) : NULL;

		if (file && access(file, X_OK) == 0)
			return take_ptr(&file);
	}
	return NULL;
}

/* "the system's /usr/sbin/criu is version 3.17, 4.2 or newer is needed", or that there is none */
static void describe_system(char *buf, size_t room, const char *path, int r, int version)
{
	char text[32];

	if (!path)
		snprintf(buf, room, "no criu in PATH");
	else if (r < 0)
		snprintf(buf, room, "%s does not run (%s)", path, strerror(-r));
	else
		snprintf(buf, room, "%s is version %s, 4.2 or newer is needed", path,
			 version_text(version, text));
}

static int find_program(struct criu_program *ret, struct brumate_error *err)
{
	const char *named = secure_getenv("BRUMATE_CRIU");
	char system_says[PATH_MAX + 128], why[PATH_MAX + 160], text[32];
	int version = 0;

	if (named && *named)
		return find_named(ret, named, "BRUMATE_CRIU", err);

	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int configured = conf_load(&conf, err);
	if (configured < 0)
		return configured;
	if (conf.criu_path)
		return find_named(ret, conf.criu_path, "Path= in [Criu] of brumate.conf", err);

	auto_free char *system = find_in_path();
	int r = system ? ask_version(system, &version) : -ENOENT;
	if (r >= 0 && version >= CRIU_VERSION_MIN) {
		snprintf(why, sizeof(why), "in PATH, version %s", version_text(version, text));
		return take_program(ret, system, version, why);
	}
	describe_system(system_says, sizeof(system_says), system, r, version);

	auto_free char *ours = path_find_helper("criu/criu");
	int ours_r = ours ? ask_version(ours, &version) : -ENOENT;
	if (ours_r >= 0 && version >= CRIU_VERSION_MIN) {
		snprintf(why, sizeof(why), "provisioned: %s", system_says);
		return take_program(ret, ours, version, why);
	}
	brumate_fail(err, system ? EOPNOTSUPP : ENOENT, "no CRIU to use: %s", system_says);
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err, "%s", how_to_get);
	return system ? -EOPNOTSUPP : -ENOENT;
}

/* ---- for users who are not root ---- */

/* Whether what we run has the capability without our doing, as a service manager may give it. */
static bool is_given_capability(void)
{
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_CHECKPOINT_RESTORE, 0, 0) == 1;
}

static int fail_launch(const char *path, const char *text, int status, struct brumate_error *err)
{
	bool no_capability = WIFEXITED(status) && WEXITSTATUS(status) == LAUNCH_EXIT_NO_CAPABILITY;

	brumate_fail(err, EPERM, "%s: %.*s", path, (int)strcspn(text, "\n"), text);
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	if (no_capability && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		brumate_hint(err,
			     "run brumate outside of what sets it: a container, a sandbox, a unit "
			     "with NoNewPrivileges=");
	else if (no_capability)
		brumate_hint(err, "once, as root: setcap cap_checkpoint_restore=ep %s", path);
	else
		brumate_hint(err, "install brumate as root, into directories of root's");
	return -EPERM;
}

static int fail_no_launcher(struct brumate_error *err)
{
	brumate_fail(err, ENOENT,
		     LAUNCH_PROGRAM " is not installed, and only root can run CRIU without it");
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err, "install brumate again, as root");
	return -ENOENT;
}

/* Root decides who has the capability, by the group of the file. */
static int fail_not_in_group(const char *path, struct brumate_error *err)
{
	struct group group, *found = NULL;
	char names[4096];
	struct stat st;

	if (stat(path, &st) == 0 && st.st_gid)
		getgrgid_r(st.st_gid, &group, names, sizeof(names), &found);
	brumate_fail(err, EPERM, "%s: only users of %s may run it", path,
		     found ? found->gr_name : "its group");
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err,
		     "as root: usermod -aG %s USER, who then logs in again; SECURITY.md says what "
		     "that grants",
		     found ? found->gr_name : LAUNCH_GROUP);
	return -EPERM;
}

static int find_launched(struct criu_program *ret, struct brumate_error *err)
{
	auto_free char *helper = path_find_helper(LAUNCH_PROGRAM);
	auto_free char *path = helper ? realpath(helper, NULL) : NULL;
	char text[OUTPUT_BYTES] = "", is[32];
	int status = 0, version;

	if (!path)
		return fail_no_launcher(err);
	if (access(path, X_OK) < 0 && errno == EACCES)
		return fail_not_in_group(path, err);
	int r = run_for_version(path, text, &status);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);
	if (parse_version(text, &version) < 0)
		return fail_launch(path, text, status, err);
	if (version < CRIU_VERSION_MIN) {
		brumate_fail(err, EOPNOTSUPP, "%s runs version %s, 4.2 or newer is needed", path,
			     version_text(version, is));
		brumate_hint(err, "%s", how_to_get);
		return -EOPNOTSUPP;
	}
	r = take_program(ret, path, version, "the launcher's, for users who are not root");
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

int criu_find(struct criu_program *ret, struct brumate_error *err)
{
	bool is_root = getuid() == 0;
	int r = is_root || is_given_capability() ? find_program(ret, err) : find_launched(ret, err);

	if (r == 0)
		ret->unprivileged = !is_root;
	return r;
}
