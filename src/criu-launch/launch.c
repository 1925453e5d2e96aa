// SPDX-License-Identifier: MIT
/*
 * brumate-criu-launch swrk FD, or --version: runs CRIU for a user other than root, with CAP_CHECKPOINT_RESTORE and no
 * other capability. It has the capability from its file (setcap) and passes it on as an ambient one.
 *
 * The caller chooses the requests to CRIU, but not which CRIU runs or what is loaded into it: the program, its plugin
 * and all folders above them belong to root alone, and are found from the place of this program, never from arguments
 * or the environment. CRIU gets an environment made here. SECURITY.md says what the capability gives to such a user.
 *
 * It links none of our libraries.
 */
#include "criu-launch/launch.h"
#include "criu-plugin/hidden.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Noreturn void __attribute__((format(printf, 2, 3)))
refuse(enum launch_exit code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vdprintf(2, fmt, ap);
	va_end(ap);
	dprintf(2, "\n");
	_exit(code);
}

/* So that files opened later do not get the number of a standard stream. */
static void fill_standard_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR | O_NOCTTY);
	while (fd >= 0 && fd < 3);
	if (fd < 0)
		_exit(LAUNCH_EXIT_REFUSED);
	close(fd);
}

/* ---- which CRIU ---- */

static bool is_of_root_alone(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0 || st.st_uid != 0)
		return false;
	/* In a sticky directory, other users cannot replace root's files. */
	return !(st.st_mode & 022) || (S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX));
}

/* Writes the path without links to @ret; ENOENT if there is none. Ends the program if users other than root could
 * replace anything on the way. */
static int resolve_trusted(const char *path, char ret[static PATH_MAX])
{
	char up_to[PATH_MAX];

	if (!realpath(path, ret))
		return -errno;
	if (!is_of_root_alone("/"))
		refuse(LAUNCH_EXIT_REFUSED, "/ does not belong to root alone");
	for (size_t n = 1; n <= strlen(ret); n++) {
		if (ret[n] && ret[n] != '/')
			continue;
		memcpy(up_to, ret, n);
		up_to[n] = '\0';
		if (!is_of_root_alone(up_to))
			refuse(LAUNCH_EXIT_REFUSED,
			       "%s does not belong to root alone, so %s is not run with a "
			       "capability",
			       up_to, ret);
	}
	return 0;
}

/* Finds @name in the folder of this program, or one folder above, as in a build directory. */
static bool find_beside(const char *name, char ret[static PATH_MAX])
{
	static const char *const ways[] = { "", "/.." };
	char self[PATH_MAX], path[2 * PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n <= 0)
		refuse(LAUNCH_EXIT_REFUSED, "/proc/self/exe cannot be read: %m");
	self[n] = '\0';
	char *slash = strrchr(self, '/');
	if (!slash)
		return false;
	*slash = '\0';
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		snprintf(path, sizeof(path), "%s%s/%s", self, ways[i], name);
		if (resolve_trusted(path, ret) == 0)
			return true;
	}
	return false;
}

static void find_criu(char ret[static PATH_MAX])
{
	static const char *const of_system[] = { "/usr/sbin/criu", "/usr/bin/criu",
						 "/usr/local/sbin/criu" };

	if (find_beside("criu/criu", ret))
		return;
	for (size_t i = 0; i < sizeof(of_system) / sizeof(of_system[0]); i++)
		if (resolve_trusted(of_system[i], ret) == 0)
			return;
	refuse(LAUNCH_EXIT_REFUSED, "no CRIU is installed next to this program or in /usr/sbin");
}

/* ---- what it gets ---- */

/* Only this capability of all that the process may have is passed on to the executed program. */
static void pass_capability_on(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { 0 };
	const int word = CAP_CHECKPOINT_RESTORE / 32;
	const uint32_t bit = 1u << CAP_CHECKPOINT_RESTORE % 32;

	if (syscall(SYS_capget, &header, caps) < 0)
		refuse(LAUNCH_EXIT_REFUSED, "capabilities cannot be read: %m");
	if (!(caps[word].permitted & bit))
		refuse(LAUNCH_EXIT_NO_CAPABILITY, "%s",
		       prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1
			       ? "the calling program set no_new_privs, so CRIU gets no "
				 "CAP_CHECKPOINT_RESTORE"
			       : "its file has no CAP_CHECKPOINT_RESTORE, or lies on a file system "
				 "that is mounted nosuid");
	memset(caps, 0, sizeof(caps));
	caps[word].permitted = caps[word].effective = caps[word].inheritable = bit;
	if (syscall(SYS_capset, &header, caps) < 0 ||
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHECKPOINT_RESTORE, 0, 0) < 0)
		refuse(LAUNCH_EXIT_REFUSED, "CAP_CHECKPOINT_RESTORE cannot be passed on: %m");
}

/* NAME=VALUE of our own environment; NULL if it is not set. The kernel wrote it: it must not be changed. */
static char *keep(const char *name)
{
	size_t len = strlen(name);

	for (char **e = environ; *e; e++)
		if (!strncmp(*e, name, len) && (*e)[len] == '=')
			return *e;
	return NULL;
}

/* CRIU_CONFIG_FILE is not passed on. Our plugin is loaded if its table is passed; otherwise CRIU gets a directory of
 * the kernel's as plugin directory, in which no file can be placed. */
static char **make_environment(void)
{
	static char libs[PATH_MAX + 32] = "CRIU_LIBS_DIR=/proc/self/task";
	static char *env[9] = { (char *)"PATH=/usr/sbin:/usr/bin:/sbin:/bin", (char *)"LC_ALL=C",
				libs };
	static const char *const kept[] = { HIDDEN_FD_VARIABLE, HIDDEN_DEV_VARIABLE,
					    HIDDEN_VENDOR_VARIABLE, "XDG_RUNTIME_DIR" };
	char dir[PATH_MAX];
	size_t n = 3;

	if (keep(HIDDEN_FD_VARIABLE)) {
		if (!find_beside("criu-plugin", dir))
			refuse(LAUNCH_EXIT_REFUSED, "the plugin for CRIU is not installed");
		snprintf(libs, sizeof(libs), "CRIU_LIBS_DIR=%s", dir);
	}
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		if (keep(kept[i]))
			env[n++] = keep(kept[i]);
	return env;
}

static bool is_number(const char *text)
{
	return *text && strlen(text) < 8 && strspn(text, "0123456789") == strlen(text);
}

int main(int argc, char **argv)
{
	char *criu_argv[] = { (char *)"criu", NULL, (char *)CRIU_WITHOUT_CONFIG, NULL, NULL };
	char path[PATH_MAX];

	fill_standard_streams();
	if (argc > 2 && !strcmp(argv[argc - 1], CRIU_WITHOUT_CONFIG))
		argc--;
	if (argc == 3 && !strcmp(argv[1], "swrk") && is_number(argv[2])) {
		criu_argv[2] = argv[2];
		criu_argv[3] = (char *)CRIU_WITHOUT_CONFIG;
	} else if (argc != 2 || strcmp(argv[1], "--version")) {
		refuse(LAUNCH_EXIT_REFUSED,
		       "usage: " LAUNCH_PROGRAM " swrk FD (started by brumate)");
	}
	criu_argv[1] = argv[1];
	umask(077);
	find_criu(path);
	char **env = make_environment();
	pass_capability_on();
	execve(path, criu_argv, env);
	refuse(LAUNCH_EXIT_REFUSED, "%s: %m", path);
}
