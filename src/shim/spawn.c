// SPDX-License-Identifier: MIT
/*
 * Starting a job's command: its own session, stdin from /dev/null, output appended to its log, as its user. Beside
 * what its user gave, it finds in its environment our library and the place where its agent listens. Between fork
 * and exec only async-signal-safe calls: the shim has threads.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"
#include "job/log.h"
#include "process/reap.h"
#include "gpu/vendor.h"
#include "wire/agent.h"

/* ---- the environment ---- */

static const char preload[] = "LD_PRELOAD=", agent_dir[] = AGENT_DIR_VARIABLE "=";

static bool is_of(const char *entry, const char *variable)
{
	return !strncmp(entry, variable, strlen(variable));
}

/* Our library comes first; what else is preloaded stays. */
static char *preload_entry(char *const *env)
{
	auto_free char *library = path_find_helper(gpu_vendor()->interposer);
	const char *before = "";

	for (char *const *e = env; *e; e++)
		if (is_of(*e, preload))
			before = *e + strlen(preload);
	if (!library)
		return NULL;
	return path_format("%s%s%s%s", preload, library, *before ? ":" : "", before);
}

int agent_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
		      struct brumate_error *err)
{
	size_t n = 0, kept = 0;

	while (env[n])
		n++;
	auto_free char **all = calloc(n + 3, sizeof(*all));
	auto_free char *dir = job_agent_dir(job);
	auto_free char *library = preload_entry(env);
	auto_free char *variable = dir ? path_format("%s%s", agent_dir, dir) : NULL;

	if (!all || !variable)
		return brumate_fail(err, ENOMEM, "%m");
	if (!library)
		return brumate_fail(err, ENOENT, "%s is not installed",
				    gpu_vendor()->interposer);
	for (size_t i = 0; i < n; i++)
		if (!is_of(env[i], preload) && !is_of(env[i], agent_dir))
			all[kept++] = env[i];
	*ret_own = kept;
	all[kept++] = take_ptr(&library);
	all[kept++] = take_ptr(&variable);
	*ret = take_ptr(&all);
	return 0;
}

/* ---- the process ---- */

struct child {
	struct job *job;
	char *const *env;
	gid_t *groups;
	size_t n_groups;
	int log_fd;    /* of the job's output */
	int report_fd; /* closed by a successful exec, else gets errno and the place */
};

struct report {
	int code;
	char place[16]; /* "exec", "cwd" … */
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
	if (setgroups(c->n_groups, c->groups) < 0 || setresgid(job->gid, job->gid, job->gid) < 0 ||
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
	if (in < 0 || dup2(in, 0) < 0)
		give_up(c, "stdin");
	if (dup2(c->log_fd, 1) < 0 || dup2(c->log_fd, 2) < 0)
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

static int explain(const struct job *job, const struct report *report, struct brumate_error *err)
{
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
	/* If it has ended already, it is a zombie until the caller allows to reap. */
	struct proc_info info;
	int r = proc_read(&info, pid, err);
	if (r == 0)
		c->job->root = info.id;
	return r;
}

int spawn_job(struct job *job, char *const *env, struct brumate_error *err)
{
	auto_free gid_t *groups = NULL;
	struct child c = { .job = job, .env = env };
	int ends[2], r;

	if ((r = user_groups(&groups, &c.n_groups, job->uid, job->gid, err)) < 0)
		return r;
	c.groups = groups;
	auto_close int log_fd = job_log_open(job, false, err);
	if (log_fd < 0)
		return log_fd;
	c.log_fd = log_fd;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int read_end = ends[0];
	c.report_fd = ends[1];

	/* Nothing is reaped until the root is known, or the end of a short command would be missed. */
	reap_lock();
	r = fork_and_identify(&c, read_end, ends[1], err);
	reap_unlock();
	return r;
}

int spawn_exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
