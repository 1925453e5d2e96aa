// SPDX-License-Identifier: MIT
/* Where things of users live, and traps where a user's sockets are to lie. */
#include "base/cleanup.h"
#include "base/paths.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "scratch.h"

enum { UID_FIRST = 65000, UIDS = 500, SKIPPED = 77 };

static uid_t uid; /* nobody else's, as far as can be */

static void forget_environment(void)
{
	static const char *const variables[] = { "BRUMATE_RUNTIME_DIR", "BRUMATE_STATE_DIR",
						 "BRUMATE_LOG_DIR",	"BRUMATE_CONFIG",
						 "XDG_STATE_HOME",	"XDG_CONFIG_HOME",
						 "XDG_RUNTIME_DIR" };

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
}

/* Runs @fn as a user, in a process of its own: what is found is kept for as long as a process lives. */
static void as_user(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		forget_environment();
		setenv("HOME", "/home/her", 1);
		CHECK(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
		fn();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void below_home(void)
{
	struct utsname machine;
	char want[512];
	auto_free char *checkpoints = path_checkpoints_dir();

	uname(&machine);
	snprintf(want, sizeof(want), "/home/her/.local/state/brumate/on-%s", machine.nodename);
	CHECK_STR(path_state_dir(), want);
	CHECK_STR(checkpoints, "/home/her/.local/state/brumate/checkpoints");
	CHECK_STR(path_log_dir(), "/home/her/.local/state/brumate/logs");
	CHECK_STR(path_config_of_user(), "/home/her/.config/brumate/brumate.conf");
	CHECK_STR(path_config(), BRUMATE_DEFAULT_CONFIG);
	snprintf(want, sizeof(want), "/tmp/brumate-%u", (unsigned)uid);
	CHECK_STR(path_runtime_dir(), want);
}

static void by_xdg(void)
{
	setenv("XDG_STATE_HOME", "/state", 1);
	setenv("XDG_CONFIG_HOME", "relative", 1);
	CHECK_STR(path_log_dir(), "/state/brumate/logs");
	CHECK_STR(path_config_of_user(), "/home/her/.config/brumate/brumate.conf");
}

static void by_own_variables(void)
{
	setenv("BRUMATE_STATE_DIR", "/elsewhere", 1);
	setenv("BRUMATE_CONFIG", "/conf", 1);
	auto_free char *checkpoints = path_checkpoints_dir();
	CHECK_STR(path_state_dir(), "/elsewhere");
	CHECK_STR(checkpoints, "/elsewhere/checkpoints");
	CHECK_STR(path_config(), "/conf");
	CHECK(!path_config_of_user());
}

static void without_home(void)
{
	char want[64];

	unsetenv("HOME");
	snprintf(want, sizeof(want), "/tmp/brumate-%u/.local/state/logs", (unsigned)uid);
	CHECK_STR(path_log_dir(), want);
}

static void makes_it(void)
{
	struct stat st;

	CHECK(path_make_runtime_dir(NULL) == 0 && path_make_runtime_dir(NULL) == 0);
	CHECK(lstat(path_runtime_dir(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid &&
	      (st.st_mode & 07777) == 0700);
	CHECK(rmdir(path_runtime_dir()) == 0);
}

static void is_refused(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(path_make_runtime_dir(&err) == -EPERM);
	CHECK(strstr(err.text, path_runtime_dir()) && strstr(err.hint, "BRUMATE_RUNTIME_DIR"));
}

static void test_traps(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/tmp/brumate-%u", (unsigned)uid);
	CHECK(mkdir(path, 0755) == 0); /* somebody else's */
	as_user(makes_it);
	CHECK(chown(path, uid, uid) == 0 && chmod(path, 0777) == 0);
	as_user(is_refused);
	CHECK(rmdir(path) == 0);

	CHECK(chown(scratch, uid, uid) == 0 && symlink(scratch, path) == 0);
	as_user(makes_it); /* somebody else's link, even to what is the user's */
	CHECK(lchown(path, uid, uid) == 0);
	as_user(is_refused);
	CHECK(unlink(path) == 0);
}

static void check_choice(const char *for_all, const char *tmp, const char *format)
{
	auto_free char *got = path_choose_runtime_dir(for_all, tmp, uid);
	char want[512];

	snprintf(want, sizeof(want), format, scratch, (unsigned)uid);
	CHECK(got);
	CHECK_STR(got, want);
}

static void test_choice(void)
{
	char all[256], tmp[256], usual[300], theirs[300];

	snprintf(all, sizeof(all), "%s/users", scratch);
	snprintf(tmp, sizeof(tmp), "%s/tmp", scratch);
	snprintf(usual, sizeof(usual), "%s/brumate-%u", tmp, (unsigned)uid);
	snprintf(theirs, sizeof(theirs), "%s/%u", all, (unsigned)uid);
	CHECK(mkdir(tmp, 0700) == 0);
	check_choice(all, tmp, "%s/tmp/brumate-%u");
	CHECK(mkdir(all, 0755) == 0); /* not for all */
	check_choice(all, tmp, "%s/tmp/brumate-%u");
	CHECK(chmod(all, 01777) == 0);
	check_choice(all, tmp, "%s/users/%u");
	CHECK(mkdir(theirs, 0700) == 0);
	check_choice(all, tmp, "%s/users/%u.1");
	CHECK(chown(theirs, uid, uid) == 0);
	check_choice(all, tmp, "%s/users/%u");
	CHECK(mkdir(usual, 0700) == 0); /* somebody else's */
	check_choice(all, tmp, "%s/users/%u");
	CHECK(chown(usual, uid, uid) == 0); /* where jobs of before have their sockets */
	check_choice(all, tmp, "%s/tmp/brumate-%u");
}

int main(void)
{
	if (getuid() != 0)
		return SKIPPED;
	uid = UID_FIRST + (uid_t)getpid() % UIDS;
	close(new_scratch());
	as_user(below_home);
	as_user(by_xdg);
	as_user(by_own_variables);
	as_user(without_home);
	as_user(makes_it);
	test_traps();
	test_choice();
	remove_scratch();
	forget_environment();
	CHECK_STR(path_runtime_dir(), BRUMATE_DEFAULT_RUNTIME_DIR);
	CHECK(!path_config_of_user());
	return 0;
}
