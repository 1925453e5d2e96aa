// SPDX-License-Identifier: MIT
/* Which CRIU is used: the one that was named, the system's, or the one provisioned in our own directory; for users other
 * than root the one that the launcher runs. */
#include "base/conf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"
#include "criu-launch/launch.h"
#include "criu/criu.h"
#include "process/reap.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	ANSWER_TIMEOUT_MS = 30000, /* the machine may be busy */
	ANSWER_BYTES = 4096,
	WORDS_BYTES = 160,
	DESCRIPTION_BYTES = PATH_MAX + 256,
};

static const char how_to_get[] =
	"run tools/criu-provision, or name one by BRUMATE_CRIU=/path/to/criu";

/* ---- asking for the version ---- */

/* What a program came to that was run to tell its version. */
struct answer {
	enum {
		ANSWER_VERSION,
		ANSWER_OTHER,  /* it ended without printing one */
		ANSWER_NO_RUN, /* there is none, or none that can be run */
		/* Of these nothing is known: it may be a good one. */
		ANSWER_NOT_NOW, /* it could not be run, for a reason that may pass */
		ANSWER_KILLED,
		ANSWER_LATE,
	} what;
	int version;
	int number;		 /* an errno; the exit status; the signal */
	char text[ANSWER_BYTES]; /* what it said, as much as fits */
};

static bool is_known(const struct answer *a)
{
	return a->what < ANSWER_NOT_NOW;
}

/* Its messages go where its output does, for it says there why it fails. */
static int spawn_protected(pid_t *ret, const char *path, int out_fd)
{
	char *argv[] = { (char[]){ "criu" }, (char[]){ "--version" },
			 (char[]){ CRIU_WITHOUT_CONFIG }, NULL };
	char *envp[] = { (char[]){ "PATH=/usr/sbin:/usr/bin:/sbin:/bin" }, NULL };

	return reap_spawn(ret, path, argv, envp, out_fd, out_fd);
}

/* Takes some of the output; closes *@fd at its end, or when no more of it fits. Returns whether there was any. */
static bool take_output(int *fd, char text[static ANSWER_BYTES], size_t *len)
{
	ssize_t n = read(*fd, text + *len, ANSWER_BYTES - 1 - *len);

	if (n > 0)
		*len += (size_t)n;
	else if (n == 0 || (errno != EAGAIN && errno != EINTR))
		cleanup_close(fd);
	if (*len == ANSWER_BYTES - 1)
		cleanup_close(fd);
	return n > 0;
}

/* Reads until the process has ended. The end of its output may come before that, or later: others that are forked
 * meanwhile have it open, too. */
static int read_output(int *fd, int process_fd, char text[static ANSWER_BYTES])
{
	uint64_t deadline_ns = deadline_in_ms(ANSWER_TIMEOUT_MS);
	struct pollfd p[] = { { .fd = process_fd, .events = POLLIN }, { .events = POLLIN } };
	size_t len = 0;

	while (!p[0].revents) {
		p[1].fd = *fd;
		int n = poll(p, 2, deadline_left_ms(deadline_ns));

		if (n == 0)
			return -ETIMEDOUT;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0 && p[1].revents)
			take_output(fd, text, &len);
	}
	while (*fd >= 0 && take_output(fd, text, &len))
		;
	return 0;
}

/* Runs "PATH --version", without configuration, to its end. 0; -errno where it could not be run, or be waited for. */
static int run_for_version(struct answer *a, const char *path, int *ret_status)
{
	int p[2];
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	auto_close int in = p[0];
	int r = fcntl(in, F_SETFL, O_NONBLOCK) < 0 ? -errno : spawn_protected(&pid, path, p[1]);
	close(p[1]);
	if (r < 0)
		return r;

	auto_close int process_fd = (int)syscall(SYS_pidfd_open, pid, 0);
	r = process_fd < 0 ? -errno : read_output(&in, process_fd, a->text);
	if (r < 0)
		kill(pid,
		     SIGKILL); /* a child that nobody else waits for: the number is still its own */
	int waited = reap_wait(pid, ret_status);
	return r < 0 ? r : waited;
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

/* Whether running it again would fail with the same errno. */
static bool is_lasting(int number)
{
	static const int lasting[] = { ENOENT,	ENOTDIR, EISDIR,       EACCES,	EPERM,
				       ENOEXEC, ELOOP,	 ENAMETOOLONG, ELIBBAD, EINVAL };

	for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++)
		if (number == lasting[i])
			return true;
	return false;
}

static void ask_version(struct answer *ret, const char *path)
{
	int status = 0;

	*ret = (struct answer){ .what = ANSWER_VERSION };
	int r = run_for_version(ret, path, &status);
	if (parse_version(ret->text, &ret->version) == 0)
		return;
	bool killed = r == 0 && WIFSIGNALED(status);
	bool told_much =
		strlen(ret->text) == ANSWER_BYTES - 1; /* then it may die of our hanging up */

	ret->number = r < 0 ? -r : killed ? WTERMSIG(status) : WEXITSTATUS(status);
	if (r == -ETIMEDOUT)
		ret->what = ANSWER_LATE;
	else if (r < 0)
		ret->what = is_lasting(-r) ? ANSWER_NO_RUN : ANSWER_NOT_NOW;
	else
		ret->what = killed && !told_much ? ANSWER_KILLED : ANSWER_OTHER;
}

static const char *version_text(int version, char buf[static 32])
{
	if (version % 100)
		snprintf(buf, 32, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	else
		snprintf(buf, 32, "%d.%d", version / 10000, version / 100 % 100);
	return buf;
}

int criu_check_vendor(const struct criu_program *program, const char *vendor,
		      struct brumate_error *err)
{
	auto_free char *name = path_format("criu-plugin/%s/VERSION", vendor);
	auto_free char *path = name ? path_find_helper(name) : NULL;
	auto_free char *text = NULL;
	int major, minor, sub = 0;
	char is[32];

	if (!path || file_read(AT_FDCWD, path, 4096, &text, NULL) < 0 ||
	    sscanf(text, "%d.%d.%d", &major, &minor, &sub) < 2 ||
	    major * 10000 + minor * 100 + sub == program->version)
		return 0;
	brumate_fail(err, EOPNOTSUPP, "the plugin for GPUs in %.*s is of CRIU %.*s, %s is %s",
		     (int)(strrchr(path, '/') - path), path, (int)strcspn(text, " \n"), text,
		     program->path, version_text(program->version, is));
	brumate_hint(err, "build it of the sources of that CRIU");
	return -EOPNOTSUPP;
}

/* ---- what is said of it ---- */

/* "it said "hello"": the first line that has any words. */
static void quote_words(char ret[static WORDS_BYTES], const char *text)
{
	const char *from = text + strspn(text, " \t\n");
	int len = (int)strcspn(from, "\n");

	if (len)
		snprintf(ret, WORDS_BYTES, "it said \"%.*s\"", len < 128 ? len : 128, from);
	else
		snprintf(ret, WORDS_BYTES, "it said nothing");
	for (char *c = ret; *c; c++)
		if (!isprint((unsigned char)*c))
			*c = '?';
}

/* Of any answer but a version that is new enough. */
static void describe(char ret[static DESCRIPTION_BYTES], const struct answer *a, const char *path)
{
	char words[WORDS_BYTES], version[32];

	quote_words(words, a->text);
	switch (a->what) {
	case ANSWER_VERSION:
		snprintf(ret, DESCRIPTION_BYTES, "%s is version %s, 4.2 or newer is needed", path,
			 version_text(a->version, version));
		break;
	case ANSWER_OTHER:
		snprintf(ret, DESCRIPTION_BYTES, "%s is not a CRIU: %s, exit status %d", path,
			 words, a->number);
		break;
	case ANSWER_NO_RUN:
	case ANSWER_NOT_NOW:
		snprintf(ret, DESCRIPTION_BYTES, "cannot run %s: %s", path, strerror(a->number));
		break;
	case ANSWER_KILLED:
		snprintf(ret, DESCRIPTION_BYTES,
			 "%s was killed by signal %d before it told its version: %s", path,
			 a->number, words);
		break;
	case ANSWER_LATE:
		snprintf(ret, DESCRIPTION_BYTES, "%s did not tell its version within %d s: %s",
			 path, ANSWER_TIMEOUT_MS / 1000, words);
		break;
	}
}

static int code_of(const struct answer *a)
{
	switch (a->what) {
	case ANSWER_NO_RUN:
	case ANSWER_NOT_NOW:
	case ANSWER_LATE:
		return a->number;
	case ANSWER_KILLED:
		return EIO;
	default:
		return EOPNOTSUPP;
	}
}

/* @by: who named it, "BRUMATE_CRIU: " or the configuration; or "". */
static int fail_answer(const struct answer *a, const char *path, const char *by,
		       struct brumate_error *err)
{
	char what[DESCRIPTION_BYTES];
	struct stat st;

	describe(what, a, path);
	if (a->what == ANSWER_NO_RUN && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		snprintf(what, sizeof(what), "%s is a directory, not a program", path);
	brumate_fail(err, code_of(a), "%s%s", by, what);
	brumate_error_exit(err, is_known(a) ? EXIT_UNSUPPORTED : EXIT_FAILED);
	if (is_known(a))
		brumate_hint(err, "%s", how_to_get);
	else
		brumate_hint(err,
			     "try again; if that does not help, run it with --version by hand");
	return -code_of(a);
}

/* ---- for root ---- */

static bool is_new_enough(const struct answer *a)
{
	return a->what == ANSWER_VERSION && a->version >= CRIU_VERSION_MIN;
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
	struct answer a;
	char why[128];

	ask_version(&a, path);
	if (!is_new_enough(&a)) {
		snprintf(why, sizeof(why), "%s: ", by);
		return fail_answer(&a, path, why, err);
	}
	snprintf(why, sizeof(why), "named by %s", by);
	int r = take_program(ret, path, a.version, why);
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

/* Neither that of the system nor the provisioned one is known to be good. NULL: there is none. */
static int fail_neither(const char *system, const struct answer *system_says, const char *ours,
			const struct answer *ours_says, struct brumate_error *err)
{
	char what[DESCRIPTION_BYTES] = "no criu in PATH", other[DESCRIPTION_BYTES] = "";

	if (system)
		describe(what, system_says, system);
	if (ours)
		describe(other, ours_says, ours);
	brumate_fail(err, system || ours ? EOPNOTSUPP : ENOENT, "no CRIU to use: %.400s%s%.400s",
		     what, ours ? "; " : "", other);
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err, "%s", how_to_get);
	return system || ours ? -EOPNOTSUPP : -ENOENT;
}

/* The first that is good. One of which nothing is known is not passed over: what the other one saves it may not be able
 * to restore. */
static int find_first(struct criu_program *ret, struct brumate_error *err)
{
	auto_free char *system = find_in_path(), *ours = path_find_helper("criu/criu");
	char why[DESCRIPTION_BYTES + 16], text[32];
	struct answer system_says = { 0 }, ours_says = { 0 };

	if (system)
		ask_version(&system_says, system);
	if (system && is_new_enough(&system_says)) {
		snprintf(why, sizeof(why), "in PATH, version %s",
			 version_text(system_says.version, text));
		return take_program(ret, system, system_says.version, why);
	}
	if (system && !is_known(&system_says))
		return fail_answer(&system_says, system, "", err);

	if (ours)
		ask_version(&ours_says, ours);
	if (ours && is_new_enough(&ours_says)) {
		char what[DESCRIPTION_BYTES] = "no criu in PATH";

		if (system)
			describe(what, &system_says, system);
		snprintf(why, sizeof(why), "provisioned: %s", what);
		return take_program(ret, ours, ours_says.version, why);
	}
	if (ours && !is_known(&ours_says))
		return fail_answer(&ours_says, ours, "", err);
	return fail_neither(system, &system_says, ours, &ours_says, err);
}

static int find_program(struct criu_program *ret, struct brumate_error *err)
{
	const char *named = secure_getenv("BRUMATE_CRIU");

	if (named && *named)
		return find_named(ret, named, "BRUMATE_CRIU", err);

	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);
	if (r < 0)
		return r;
	if (conf.criu_path)
		return find_named(ret, conf.criu_path, "Path= in [Criu] of brumate.conf", err);
	return find_first(ret, err);
}

/* ---- for users who are not root ---- */

/* Whether what we run has the capability without our doing, as a service manager may give it. */
static bool is_given_capability(void)
{
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_CHECKPOINT_RESTORE, 0, 0) == 1;
}

/* The launcher says why it does not reach CRIU. */
static int fail_launch(const char *path, const struct answer *a, struct brumate_error *err)
{
	bool no_capability = a->number == LAUNCH_EXIT_NO_CAPABILITY;

	brumate_fail(err, EPERM, "%s: %.*s", path, (int)strcspn(a->text, "\n"), a->text);
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

/* Whether our user is of the group by now, and got no rights by it at the login that we come from. */
static bool is_since_of(gid_t gid)
{
	auto_free gid_t *groups = NULL;
	size_t n = 0;

	if (user_groups(&groups, &n, getuid(), getgid(), NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (groups[i] == gid)
			return true;
	return false;
}

/* Root grants the capability by the group of the file. */
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
	if (found && is_since_of(st.st_gid))
		brumate_hint(
			err,
			"you are of it since: log in again; a job from before that can be saved "
			"once it is started again");
	else
		brumate_hint(
			err,
			"as root: usermod -aG %s USER, who then logs in again and starts the job "
			"again; SECURITY.md says what that grants",
			found ? found->gr_name : LAUNCH_GROUP);
	return -EPERM;
}

static int find_launched(struct criu_program *ret, struct brumate_error *err)
{
	auto_free char *helper = path_find_helper(LAUNCH_PROGRAM);
	auto_free char *path = helper ? realpath(helper, NULL) : NULL;
	struct answer a;

	if (!path)
		return fail_no_launcher(err);
	if (access(path, X_OK) < 0 && errno == EACCES)
		return fail_not_in_group(path, err);
	ask_version(&a, path);
	if (a.what == ANSWER_OTHER)
		return fail_launch(path, &a, err);
	if (!is_new_enough(&a))
		return fail_answer(&a, path, "", err);
	int r = take_program(ret, path, a.version, "the launcher's, for users who are not root");
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

int criu_find_apart(struct criu_program *ret, struct brumate_error *err)
{
	int r = find_program(ret, err);

	if (r == 0)
		ret->unprivileged = getuid() != 0;
	return r;
}
