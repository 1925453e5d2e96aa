// SPDX-License-Identifier: MIT
/*
 * Starting a job's command: its own session, stdin from /dev/null, output appended to its log, as its
 * user. Between fork and exec only async-signal-safe calls: the shim has threads.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "process/reap.h"

enum { GROUPS_MAX = 1024 };

struct child {
	struct job *job;
	char *const *env;
	gid_t groups[GROUPS_MAX];
	int n_groups;
	int report_fd; /* closed by a successful exec, else gets errno and the place */
};

struct report {
	int code;
	char place[16]; /* "exec", "log" … */
};

static void give_up(const struct child *c, const char *place)
{
	struct report report = { .code = errno };

	strncpy(report.place, place, sizeof(report.place) - 1);
	if (write(c->report_fd, &report, sizeof(report)) < 0)
		_exit(EXIT_OURS);
	_exit(EXIT_NO_COMMAND);
}

static void become_user(const struct child *c)
{
	const struct job *job = c->job;

	if (geteuid() != 0)
		return;
	if (setgroups((size_t)c->n_groups, c->groups) < 0 ||
	    setresgid(job->gid, job->gid, job->gid) < 0 ||
	    setresuid(job->uid, job->uid, job->uid) < 0)
		give_up(c, "user");
}

static void reset_signals(void)
{
	struct sigaction dfl = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &dfl, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static void run_child(const struct child *c)
{
	const struct job *job = c->job;

	reset_signals();
	shim_restore_files();
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	setsid();
	become_user(c);
	int in = open("/dev/null", O_RDONLY);
	int out = open(job->log, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY, 0600);
	if (in < 0 || dup2(in, 0) < 0)
		give_up(c, "stdin");
	if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
		give_up(c, "log");
	if (fcntl(c->report_fd, F_SETFD, FD_CLOEXEC) < 0)
		give_up(c, "report");
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	umask(022);
	if (chdir(job->cwd) < 0)
		give_up(c, "cwd");
	environ = (char **)c->env;
	execvp(job->argv[0], job->argv);
	give_up(c, "exec");
}

static int find_groups(struct child *c)
{
	struct passwd pw, *found = NULL;
	char buf[4096];

	c->n_groups = 0;
	if (getpwuid_r(c->job->uid, &pw, buf, sizeof(buf), &found) || !found)
		return 0; /* a user without a name has no more groups */
	c->n_groups = GROUPS_MAX;
	return getgrouplist(pw.pw_name, c->job->gid, c->groups, &c->n_groups) < 0 ? -E2BIG : 0;
}

/* Our own log directory is root's: the file is made here and given to the user. */
static int prepare_log(const struct job *job, struct brumate_error *err)
{
	const char *dir = path_log_dir();

	if (strncmp(job->log, dir, strlen(dir)) || job->log[strlen(dir)] != '/')
		return 0;
	int r = mkdir_parents(dir, 0711);
	if (r < 0)
		return brumate_fail(err, -r, "log directory %s: %m", dir);
	auto_close int fd =
		open(job->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return brumate_fail(err, errno, "log %s: %m", job->log);
	if (geteuid() == 0 && fchown(fd, job->uid, job->gid) < 0)
		return brumate_fail(err, errno, "log %s: %m", job->log);
	return 0;
}

static int explain(const struct job *job, const struct report *report, struct brumate_error *err)
{
	if (!strcmp(report->place, "log"))
		return brumate_fail(err, report->code, "log %s: %m", job->log);
	if (!strcmp(report->place, "cwd"))
		return brumate_fail(err, report->code, "directory %s: %m", job->cwd);
	brumate_fail(err, report->code, "%s: %m",
		     report->place[0] == 'e' ? job->argv[0] : report->place);
	brumate_error_exit(err, report->code == ENOENT ? EXIT_NO_COMMAND : EXIT_NOT_EXECUTABLE);
	return -report->code;
}

static int fork_and_identify(struct child *c, int read_end, int write_end,
			     struct brumate_error *err)
{
	struct report report;
	pid_t pid = fork();

	if (pid == 0)
		run_child(c);
	int code = errno;
	close(write_end);
	if (pid < 0)
		return brumate_fail(err, code, "fork: %m");
	if (fd_read_full(read_end, &report, sizeof(report)) == sizeof(report)) {
		waitpid(pid, NULL, 0);
		return explain(c->job, &report, err);
	}
	/* It may have ended already: a zombie until the caller lets it be reaped. */
	struct proc_info info;
	int r = proc_read(&info, pid, err);
	if (r == 0)
		c->job->root = info.id;
	return r;
}

int spawn_job(struct job *job, char *const *env, struct brumate_error *err)
{
	auto_free struct child *c = calloc(1, sizeof(*c));
	int ends[2], r;

	if (!c)
		return brumate_fail(err, ENOMEM, "%m");
	*c = (struct child){ .job = job, .env = env };
	if ((r = find_groups(c)) < 0)
		return brumate_fail(err, -r, "user %u: %m", job->uid);
	if ((r = prepare_log(job, err)) < 0)
		return r;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int read_end = ends[0];
	c->report_fd = ends[1];

	/* Held until the root is known, so that a command that ends at once is not reaped unseen. */
	reap_lock();
	r = fork_and_identify(c, read_end, ends[1], err);
	reap_unlock();
	return r;
}

int spawn_exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
