// SPDX-License-Identifier: MIT
/*
 * Starting a job's command: a session of the job, stdin from /dev/null, output appended to its log, as its user. In its
 * environment it finds, in addition to what its user gave, our library and the place where its agent listens. Its
 * parent is brumate-reaper, the root of the job's tree. Between fork and exec only async-signal-safe calls: the shim
 * has threads.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"
#include "base/user.h"
#include "client/broker.h"
#include "job/log.h"
#include "process/driver-job.h"
#include "process/reap.h"
#include "process/reaper.h"
#include "gpu/vendor.h"
#include "wire/agent.h"

/* ---- the environment ---- */

static const char preload[] = "LD_PRELOAD=", agent_dir[] = AGENT_DIR_VARIABLE "=";

static bool is_of(const char *entry, const char *variable)
{
	return !strncmp(entry, variable, strlen(variable));
}

/* Our library comes first; what else is preloaded stays. */
static char *preload_entry(const char *name, char *const *env)
{
	auto_free char *library = path_find_helper(name);
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
	auto_free char *dir = job_agent_dir(&job->target);
	const char *name = gpu_kind_vendor(&job->gpu_kind)->interposer;
	auto_free char *library = preload_entry(name, env);
	auto_free char *variable = dir ? path_format("%s%s", agent_dir, dir) : NULL;

	if (!all || !variable)
		return brumate_fail(err, ENOMEM, "%m");
	if (!library)
		return brumate_fail(err, ENOENT, "%s is not installed", name);
	for (size_t i = 0; i < n; i++)
		if (!is_of(env[i], preload) && !is_of(env[i], agent_dir))
			all[kept++] = env[i];
	*ret_own = kept;
	all[kept++] = take_ptr(&library);
	all[kept++] = take_ptr(&variable);
	*ret = take_ptr(&all);
	return 0;
}

/* ---- a job of the driver ---- */

/* What the vendor's tool wrote into a file of its own goes into one that the reaper holds open, where all processes of
 * the job find it: a descriptor of the command would be closed by programs that close all they have before they start
 * others. */
enum { JOB_FILE_FD = 3, TOOL_TIMEOUT_S = 10, PID_DIGITS = 10 };
static const char job_file_before[] = "=/proc/", job_file_after[] = "/fd/3"; /* JOB_FILE_FD */

static bool has_variable(char *const *env, const char *entry)
{
	size_t n = strcspn(entry, "=") + 1;

	for (; *env; env++)
		if (!strncmp(*env, entry, n))
			return true;
	return false;
}

static bool driver_has_jobs(const struct gpu_kind *kind)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_free struct broker_info *info = calloc(1, sizeof(*info));

	return info && broker_client_open(&broker, kind, NULL) == 0 &&
	       broker_client_info(&broker, info, NULL) == 0 && info->device.features & DEV_JOB_FILE;
}

char *driver_job_tool(const struct job *job, char *const *env)
{
	const struct gpu_vendor *vendor = gpu_kind_vendor(&job->gpu_kind);
	auto_free char *tool = job->simulated ? path_find_helper(vendor->driver_job.simulated_tool)
					      : driver_job_find_tool(vendor, env);

	return tool && driver_has_jobs(&job->gpu_kind) ? take_ptr(&tool) : NULL;
}

int driver_job_environment(char ***ret, size_t *ret_own, const struct job *job, char *const *env,
			   struct brumate_error *err)
{
	const struct gpu_driver_job *v = &gpu_kind_vendor(&job->gpu_kind)->driver_job;
	size_t n = 0, kept = 0, n_wanted = 0;

	while (env[n])
		n++;
	while (v->environment[n_wanted])
		n_wanted++;
	auto_free char **all = calloc(n + n_wanted + 2, sizeof(*all));
	auto_free char *file = path_format("%s%s%*s%s", v->variable, job_file_before, PID_DIGITS,
					   "", job_file_after);
	if (!all || !file)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++)
		if (strncmp(env[i], file, strlen(v->variable) + 1) != 0)
			all[kept++] = env[i];
	for (size_t i = 0; i < n_wanted; i++)
		if (!has_variable(env, v->environment[i]))
			all[kept++] = (char *)v->environment[i];
	*ret_own = kept;
	all[kept++] = take_ptr(&file);
	*ret = take_ptr(&all);
	return 0;
}

/* ---- the process ---- */

struct child {
	struct job *job;
	char *const *env;
	const char *tool; /* makes the file of a job of the driver; NULL: there is none */
	char **job_file;  /* the last entry of @env, which names the file, with room for the pid */
	int job_file_fd;
	gid_t *groups;
	size_t n_groups;
	int log_fd;   /* of the job's output */
	char *reaper; /* path of its program */
	int report_fd; /* closed once both processes run their programs, else gets errno and the place */
	int go_fd; /* readable once the record names the child; at its end the shim is gone */
};

struct report {
	int code;
	char place[16]; /* "exec", "cwd" … */
};

static _Noreturn void give_up(const struct child *c, const char *place)
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
	if (user_become(job->uid, job->gid, c->groups, c->n_groups) < 0)
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

/* Ends the child unless it is in the record: nobody would know of it. */
static void await_go(const struct child *c)
{
	char go;

	if (read(c->go_fd, &go, 1) != 1)
		_exit(EXIT_OURS);
}

static _Noreturn void run_command(const struct child *c)
{
	const struct job *job = c->job;

	/* It stays in the reaper's session: CRIU does not bring orphans back to us whose session has lost its
	 * leader. */
	setpgid(0, 0);
	int in = open("/dev/null", O_RDONLY);
	if (in < 0 || dup2(in, 0) < 0)
		give_up(c, "stdin");
	if (dup2(c->log_fd, 1) < 0 || dup2(c->log_fd, 2) < 0)
		give_up(c, "log");
	if (fcntl(c->report_fd, F_SETFD, FD_CLOEXEC) < 0)
		give_up(c, "report");
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	if (chdir(job->cwd) < 0)
		give_up(c, "cwd");
	execvp(job->argv[0], job->argv);
	give_up(c, "exec");
}

static char *format_pid(char ret[static 16], pid_t pid)
{
	char *number = ret + 15;

	*number = '\0';
	for (pid_t left = pid; left; left /= 10)
		*--number = (char)('0' + left % 10);
	return number;
}

/* The tool tells what it wrote through a command that reads it. */
static _Noreturn void run_tool(const struct child *c)
{
	static char shell[] = "/bin/sh", option[] = "-c";
	const struct gpu_driver_job *v = &gpu_kind_vendor(&c->job->gpu_kind)->driver_job;
	char script[64] = "exec cat \"$";

	strncat(script, v->variable, sizeof(script) - strlen(script) - 2);
	strcat(script, "\"");
	/* It is to take no part in the job's terminal or time. */
	alarm(TOOL_TIMEOUT_S);
	int in = open("/dev/null", O_RDONLY);
	if (in >= 0 && dup2(in, 0) == 0 && dup2(c->job_file_fd, 1) == 1 &&
	    dup2(c->log_fd, 2) == 2) {
		close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
		execve(c->tool,
		       (char *[]){ (char *)v->tool, (char *)v->option, shell, option, script,
				   NULL },
		       environ);
	}
	_exit(EXIT_OURS);
}

/* Without a file the job starts anyway, but is no job of the driver's. */
static void make_job_file(struct child *c)
{
	struct stat st;
	int status = -1;

	c->job_file_fd = memfd_create("driver-job", MFD_CLOEXEC);
	pid_t pid = c->job_file_fd < 0 ? -1 : _Fork();
	if (pid == 0)
		run_tool(c);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid > 0 && !status && fstat(c->job_file_fd, &st) == 0 && st.st_size > 0)
		return;
	cleanup_close(&c->job_file_fd);
}

/* Names the file by the reaper, which this process is to become; where there is none, nothing does. */
static void name_job_file(struct child *c)
{
	char digits[16];

	if (c->job_file_fd < 0) {
		*c->job_file = NULL;
		return;
	}
	char *at = strchr(*c->job_file, '=') + sizeof(job_file_before) - 1;
	strcpy(at, format_pid(digits, getpid()));
	strcat(at, job_file_after);
}

/* Becomes the reaper of the job, whose command is @pid. It has nothing open but the file of the driver's job, and the
 * report, which it closes itself: exec closes descriptors before /proc shows the new arguments, and they name the
 * command. It holds no directory. */
static _Noreturn void run_reaper(const struct child *c, pid_t pid)
{
	char name[] = REAPER_PROGRAM, digits[16], *number = format_pid(digits, pid);

	if (chdir("/") == 0 && dup2(c->report_fd, 0) == 0) {
		close(1);
		close(2);
		close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
		if (c->job_file_fd >= 0) {
			dup2(c->job_file_fd, JOB_FILE_FD);
			fcntl(JOB_FILE_FD, F_SETFD, 0);
		}
		execve(c->reaper, (char *[]){ name, number, NULL }, environ);
	}
	int code = errno;
	kill(pid, SIGKILL);
	errno = code;
	give_up(c, "reaper");
}

static _Noreturn void run_child(struct child *c)
{
	reset_signals();
	limits_restore();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	setsid();
	become_user(c);
	environ = (char **)c->env;
	await_go(c);
	if (c->tool) {
		make_job_file(c);
		name_job_file(c);
	}
	pid_t pid = _Fork();
	if (pid < 0)
		give_up(c, "fork");
	if (pid == 0)
		run_command(c);
	run_reaper(c, pid);
}

static int explain(const struct job *job, const struct report *report, struct brumate_error *err)
{
	if (!strcmp(report->place, "cwd"))
		return brumate_fail(err, report->code, "directory %s: %m", job->cwd);
	if (report->place[0] == 'e' && report->code == ENOENT && !strchr(job->argv[0], '/')) {
		brumate_fail(err, ENOENT, "%s: command not found", job->argv[0]);
		brumate_hint(err, "it is looked for in PATH; a file of this directory is ./%s",
			     job->argv[0]);
	} else {
		brumate_fail(err, report->code, "%s: %m",
			     report->place[0] == 'e' ? job->argv[0] : report->place);
	}
	if (!strcmp(report->place, "reaper"))
		return -report->code;
	brumate_error_exit(err, report->code == ENOENT ? EXIT_NO_COMMAND : EXIT_NOT_EXECUTABLE);
	return -report->code;
}

/* Writes the child into the record before it becomes the job's command: a shim that dies right now leaves a job
 * that the next one finds, or none. */
static int record_child(struct job *job, pid_t pid, int go_fd, struct brumate_error *err)
{
	struct proc_info info;
	int r = proc_read(&info, pid, err);

	if (r < 0)
		return r;
	job->root = info.id;
	if (fault_point("start.forked") < 0)
		r = brumate_fail(err, EIO, "record of job %s: %m", job->id);
	if (r == 0)
		r = job_save(job, err);
	if (r == 0 && write(go_fd, "1", 1) < 0)
		r = brumate_fail(err, errno, "start of job %s: %m", job->id);
	return r;
}

/* Forgets a child that did not become the job's command. */
static void forget_child(struct job *job, pid_t pid)
{
	waitpid(pid, NULL, 0);
	job->root = PROC_ID_NONE;
	job_save(job, NULL);
}

static int fork_and_identify(struct child *c, int report[2], int go[2], struct brumate_error *err)
{
	struct report why;
	pid_t pid = fork();

	if (pid == 0) {
		close(go[1]);
		run_child(c);
	}
	int r = pid < 0 ? brumate_fail(err, errno, "fork: %m") : 0;
	cleanup_close(&report[1]);
	if (r == 0)
		r = record_child(c->job, pid, go[1], err);
	cleanup_close(&go[1]);
	/* One that has ended already is a zombie until the caller allows to reap. */
	if (r == 0 && fd_read_full(report[0], &why, sizeof(why)) == sizeof(why))
		r = explain(c->job, &why, err);
	if (r < 0 && pid > 0)
		forget_child(c->job, pid);
	else
		c->job->command = reaper_find_command(c->job->root);
	return r;
}

static int make_pipes(int report[2], int go[2], struct brumate_error *err)
{
	if (pipe2(report, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	if (pipe2(go, O_CLOEXEC) == 0)
		return 0;
	int r = brumate_fail(err, errno, "pipe: %m");
	close(report[0]);
	close(report[1]);
	return r;
}

/* The one that driver_job_environment() made. */
static char **last_entry(char *const *env)
{
	while (env[1])
		env++;
	return (char **)env;
}

int spawn_job(struct job *job, char *const *env, const char *tool, struct brumate_error *err)
{
	auto_free gid_t *groups = NULL;
	auto_free char *reaper = path_find_helper(REAPER_PROGRAM);
	struct child c = {
		.job = job, .env = env, .reaper = reaper, .tool = tool, .job_file_fd = -1
	};
	int report[2], go[2], r;

	if (!reaper)
		return brumate_fail(err, ENOENT, REAPER_PROGRAM " is not installed");
	if ((r = user_groups(&groups, &c.n_groups, job->uid, job->gid, err)) < 0)
		return r;
	c.groups = groups;
	if (tool)
		c.job_file = last_entry(env);
	auto_close int log_fd = job_log_open(&job->target, false, err);
	if (log_fd < 0)
		return log_fd;
	c.log_fd = log_fd;
	if ((r = make_pipes(report, go, err)) < 0)
		return r;
	auto_close int report_end = report[0], go_end = go[0];
	c.report_fd = report[1];
	c.go_fd = go_end;
	(void)report_end; /* is closed at the end */

	/* Nothing is reaped until the root is known, or the end of a short command would be missed. */
	reap_lock();
	r = fork_and_identify(&c, report, go, err);
	reap_unlock();
	return r;
}

/* The job's user may stop the child before it runs its program, and holds the other end once it does. */
static bool has_report(struct report *ret, int fd, uint64_t deadline_ns)
{
	return fd_wait(fd, POLLIN, deadline_ns) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0 &&
	       read(fd, ret, sizeof(*ret)) == sizeof(*ret);
}

static int fork_hook(pid_t *ret, struct child *c, int report[2], uint64_t deadline_ns,
		     struct brumate_error *err)
{
	struct report why;
	pid_t pid = reap_fork();

	if (pid == 0)
		run_child(c);
	cleanup_close(&report[1]);
	if (pid < 0)
		return brumate_fail(err, (int)-pid, "fork: %m");
	if (has_report(&why, report[0], deadline_ns)) {
		int r = explain(c->job, &why, err);

		reap_wait_for(pid, deadline_left_ms(deadline_ns));
		return r;
	}
	*ret = pid;
	return 0;
}

int spawn_hook(pid_t *ret, const struct job *of, char **argv, char *const *env, int out_fd,
	       uint64_t deadline_ns, struct brumate_error *err)
{
	auto_free gid_t *groups = NULL;
	auto_free char *reaper = path_find_helper(REAPER_PROGRAM);
	char root[] = "/";
	struct job hook = { .uid = of->uid, .gid = of->gid, .argv = argv, .cwd = root };
	struct child c = {
		.job = &hook, .env = env, .reaper = reaper, .job_file_fd = -1, .log_fd = out_fd
	};
	int report[2], go[2], r;

	if (!reaper)
		return brumate_fail(err, ENOENT, REAPER_PROGRAM " is not installed");
	if ((r = user_groups(&groups, &c.n_groups, of->uid, of->gid, err)) < 0 ||
	    (r = make_pipes(report, go, err)) < 0)
		return r;
	c.groups = groups;
	auto_close int report_end = report[0], go_end = go[0], go_in = go[1];
	c.report_fd = report[1];
	c.go_fd = go_end;
	(void)report_end; /* is closed at the end */
	if (write(go_in, "1", 1) < 0)
		return brumate_fail(err, errno, "%m");
	return fork_hook(ret, &c, report, deadline_ns, err);
}

int spawn_exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
