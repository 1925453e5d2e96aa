// SPDX-License-Identifier: MIT
/*
 * ProctrackType=proctrack/brumate: wraps the site's own proctrack plugin, passes every call on, and adds to proctrack_p_signal(),
 * which all versions of Slurm call, in slurmstepd, as root, one after the other: SIGTSTP and SIGSTOP to suspend a step, SIGCONT to
 * resume it, SIGTERM and SIGKILL to end it. Before SIGTSTP the jobs of the step are suspended, after SIGCONT they are resumed, by
 * brumate-slurm as the user of the step, with a deadline: then Slurm goes on as without us.
 *
 * Slurm takes plugins of its own version alone: ours has that of the plugin it wraps, and looks into nothing of Slurm's, so that one
 * binary serves every version.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "edges/slurm/abi.h"
#include "edges/slurm/cgroup.h"
#include "edges/slurm/step.h"

#define EXPORTED __attribute__((visibility("default")))
/* A function that Slurm finds by its name; no header of ours declares it. */
#define CALLED_BY_SLURM(type, name, ...) \
	EXPORTED type name(__VA_ARGS__); \
	EXPORTED type name(__VA_ARGS__)

EXPORTED const char plugin_name[] = "brumate around the site's process tracking";
EXPORTED const char plugin_type[] = "proctrack/brumate";
EXPORTED uint32_t plugin_version;

extern char **environ;

enum { SPARE_S = 10, GROUPS_MAX = 1024, SAID_BYTES = 512, LOOK_MS = 20 };

static struct {
	void *library;
	int (*init)(void), (*fini)(void);
	int (*create)(void *), (*add)(void *, pid_t), (*signal)(uint64_t, int);
	int (*destroy)(uint64_t), (*wait)(uint64_t), (*get_pids)(uint64_t, pid_t **, int *);
	uint64_t (*find)(pid_t);
	bool (*has_pid)(uint64_t, pid_t);
	int (*wait_for_any_task)(void *, int *, bool); /* from 25.05 on; NULL before */
} real;
static struct site site;
static char wrong_plugin[PATH_MAX]; /* of another Slurm, and not taken; "": none */

#define LOG(how, ...)                     \
	do {                              \
		if (how)                  \
			how(__VA_ARGS__); \
	} while (0)

/* ---- the wrapped plugin ---- */

/* Slurm reads the version before it calls anything. */
__attribute__((constructor)) static void take_version(void)
{
	char name[sizeof(site.proctrack) + 16];

	site_load(&site);
	snprintf(name, sizeof(name), "proctrack_%s.so", site.proctrack);
	real.library = site_open_plugin(&site, name, (const void *)slurm_error, &plugin_version,
					wrong_plugin);
}

static bool take_calls(void)
{
	const struct {
		const char *name;
		void *at;
		bool optional;
	} calls[] = {
		{ "init", &real.init, true },
		{ "fini", &real.fini, true },
		{ "proctrack_p_create", &real.create, false },
		{ "proctrack_p_add", &real.add, false },
		{ "proctrack_p_signal", &real.signal, false },
		{ "proctrack_p_destroy", &real.destroy, false },
		{ "proctrack_p_wait", &real.wait, false },
		{ "proctrack_p_get_pids", &real.get_pids, false },
		{ "proctrack_p_find", &real.find, false },
		{ "proctrack_p_has_pid", &real.has_pid, false },
		{ "proctrack_p_wait_for_any_task", &real.wait_for_any_task, true },
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void *found = real.library ? dlsym(real.library, calls[i].name) : NULL;

		if (!found && !calls[i].optional) {
			LOG(slurm_error,
			    "proctrack/brumate: proctrack/%s has no %s: set Proctrack= and "
			    "PluginDir= in brumate-slurm.conf",
			    site.proctrack, calls[i].name);
			return false;
		}
		memcpy(calls[i].at, &found, sizeof(found));
	}
	return true;
}

CALLED_BY_SLURM(int, init, void)
{
	if (!take_calls())
		return -1;
	if (*wrong_plugin)
		LOG(slurm_error,
		    "proctrack/brumate: %s is of another Slurm, and the one of this Slurm is "
		    "taken: "
		    "set PluginDir= in brumate-slurm.conf",
		    wrong_plugin);
	if (*site.problem)
		LOG(slurm_error,
		    "proctrack/brumate: brumate-slurm.conf: \"%s\" is not understood and left out",
		    site.problem);
	return real.init ? real.init() : 0;
}

CALLED_BY_SLURM(int, fini, void)
{
	return real.fini ? real.fini() : 0;
}

/* ---- brumate-slurm, as the user of the step ---- */

/* What the child needs, all made before it is forked: slurmstepd has threads. */
struct act_of_user {
	const char *argv[4];
	char *env[64];
	gid_t groups[GROUPS_MAX];
	int n_groups;
	struct step_of step;
	int said_fd;
};

/* The user's own variables, as the SPANK plugin has kept them; owned by the environment. */
static void make_env(struct act_of_user *h)
{
	static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
	static const char *const kept[] = { "SLURM_CONF=", "SLURMD_NODENAME=" };
	const size_t prefix = strlen(STEP_USER_VARIABLE);
	size_t n = 0;

	h->env[n++] = path;
	for (char **e = environ; *e && n < sizeof(h->env) / sizeof(*h->env) - 1; e++) {
		if (!strncmp(*e, STEP_USER_VARIABLE, prefix))
			h->env[n++] = *e + prefix;
		for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
			if (!strncmp(*e, kept[i], strlen(kept[i])))
				h->env[n++] = *e;
	}
}

static int get_groups(struct act_of_user *h)
{
	char buf[16384];
	struct passwd user, *found = NULL;

	h->n_groups = GROUPS_MAX;
	if (getpwuid_r(h->step.uid, &user, buf, sizeof(buf), &found) != 0 || !found ||
	    getgrouplist(user.pw_name, h->step.gid, h->groups, &h->n_groups) < 0) {
		h->groups[0] = h->step.gid;
		h->n_groups = 1;
	}
	return h->n_groups;
}

/* Async-signal-safe calls only. */
static void become_helper(const struct act_of_user *h)
{
	const int null_fd = open("/dev/null", O_RDWR);
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	setsid();
	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(h->said_fd, 2) < 0)
		_exit(125);
	syscall(SYS_close_range, 3, ~0u, 0);
	if ((geteuid() == 0 && setgroups((size_t)h->n_groups, h->groups) < 0) ||
	    setresgid(h->step.gid, h->step.gid, h->step.gid) < 0 ||
	    setresuid(h->step.uid, h->step.uid, h->step.uid) < 0 || chdir("/") < 0)
		_exit(125);
	execve(h->argv[0], (char *const *)h->argv, h->env);
	_exit(127);
}

static int ms_until(const struct timespec *end)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	const int64_t ms =
		(end->tv_sec - now.tv_sec) * 1000 + (end->tv_nsec - now.tv_nsec) / 1000000;
	return ms > 0 ? (int)ms : 0;
}

/* Reads what the helper says until it hangs up; false: the time is over. Keeps the beginning. The helper is the user's to
 * trace: it may say something for ever, or read from the pipe itself. */
static bool listen_to(int fd, char said[static SAID_BYTES], const struct timespec *end)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t len = 0;
	int left_ms;

	while ((left_ms = ms_until(end)) > 0) {
		char more[SAID_BYTES];
		ssize_t n = poll(&p, 1, left_ms) > 0 ? read(fd, more, sizeof(more)) : -1;

		if (n == 0)
			return true;
		if (n > 0 && len + (size_t)n < SAID_BYTES) {
			memcpy(said + len, more, (size_t)n);
			len += (size_t)n;
			said[len] = '\0';
		}
	}
	return false;
}

/* One that has closed its end may be stopped by the user; false: the time is over. Ends it then. */
static bool await_end(pid_t pid, bool in_time, const struct timespec *end, int *ret_status)
{
	pid_t r;

	while (in_time && (r = waitpid(pid, ret_status, WNOHANG)) != pid) {
		if (r < 0 && errno != EINTR)
			return true; /* slurmstepd has waited for it */
		in_time = ms_until(end) > 0;
		poll(NULL, 0, LOOK_MS);
	}
	if (in_time)
		return true;
	kill(-pid, SIGKILL);
	kill(pid, SIGKILL); /* it may have been stopped before it had a session */
	while (waitpid(pid, ret_status, 0) < 0 && errno == EINTR)
		;
	return false;
}

/* 0: done. What failed is in Slurm's log; Slurm goes on either way. */
static int run_helper(struct act_of_user *h)
{
	struct timespec end;
	int fds[2], status = 0;
	char said[SAID_BYTES] = "";

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	h->said_fd = fds[1];
	clock_gettime(CLOCK_BOOTTIME, &end);
	end.tv_sec += site.wait_s + SPARE_S;
	pid_t pid = fork();
	if (pid == 0)
		become_helper(h);
	close(fds[1]);
	const bool in_time =
		pid > 0 && await_end(pid, listen_to(fds[0], said, &end), &end, &status);
	close(fds[0]);
	said[strcspn(said, "\n")] = '\0';
	if (pid < 0 || !in_time)
		LOG(slurm_error, "proctrack/brumate: %s of step %s: %s; going on without it",
		    h->argv[1], h->step.name, pid < 0 ? "cannot fork" : "no end in time, killed");
	else if (status)
		LOG(slurm_error, "proctrack/brumate: %s of step %s failed: %s", h->argv[1],
		    h->step.name, *said ? said : "no reason given");
	return pid < 0 || !in_time || status ? -1 : 0;
}

static int act(const struct step_of *step, const char *verb)
{
	struct act_of_user *h = calloc(1, sizeof(*h));
	int r = -1;

	if (h) {
		h->argv[0] = site.helper;
		h->argv[1] = verb;
		h->argv[2] = step->name;
		h->step = *step;
		make_env(h);
		if (get_groups(h) > 0)
			r = run_helper(h);
	}
	free(h);
	return r;
}

/* ---- processes of the step ---- */

/* A file that its user could have written is not ours, even with such a name. Its file system is not asked: that may be the user's
 * own, which need not answer. */
static bool is_roots(const char *path)
{
	struct statx st;

	return statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_UID | STATX_MODE, &st) == 0 &&
	       (st.stx_mask & (STATX_UID | STATX_MODE)) == (STATX_UID | STATX_MODE) &&
	       st.stx_uid == 0 && !(st.stx_mode & 022);
}

static bool is_program(pid_t pid, const char *const *names)
{
	char link[64], path[PATH_MAX];

	snprintf(link, sizeof(link), "/proc/%d/exe", (int)pid);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	const char *base = strrchr(path, '/');
	for (; base && *names; names++)
		if (!strcmp(base + 1, *names))
			return is_roots(link);
	return false;
}

/* Calls @fn for the processes of the container that run one of these programs; how many. */
static size_t each_program(uint64_t id, const char *const *names, void (*fn)(pid_t pid, long arg),
			   long arg)
{
	pid_t *pids = NULL;
	int n = 0;
	size_t found = 0;

	if (real.get_pids(id, &pids, &n) != 0)
		return 0;
	for (int i = 0; i < n; i++)
		if (is_program(pids[i], names)) {
			fn(pids[i], arg);
			found++;
		}
	if (slurm_xfree)
		slurm_xfree((void **)&pids);
	return found;
}

static void move_out(pid_t pid, long uid)
{
	cgroup_move_out(pid, (uid_t)uid);
}

/* They work for other steps of the user as well, and must neither be frozen nor killed with this one. */
static void rescue(uint64_t id, const struct step_of *step)
{
	static const char *const ours[] = { "brumate-broker", "brumate-shim", NULL };

	each_program(id, ours, move_out, (long)step->uid);
}

static void send_signal(pid_t pid, long number)
{
	kill(pid, (int)number);
}

/* Signals are for the one who watches over the task: it saves the job, or passes them on. */
static bool signal_watchers(uint64_t id, int number)
{
	static const char *const watchers[] = { "brumate-slurm", NULL };

	return each_program(id, watchers, send_signal, number) > 0;
}

CALLED_BY_SLURM(int, proctrack_p_signal, uint64_t id, int number)
{
	struct step_of step;

	if (!step_get(&step))
		return real.signal(id, number);
	switch (number) {
	case SIGTSTP:
		rescue(id, &step);
		if (act(&step, "suspend") == 0)
			step_place(&site, step.name, STEP_AWAY);
		return real.signal(id, number);
	case SIGCONT: {
		int r = real.signal(id, number);
		step_place(&site, step.name, STEP_HERE);
		act(&step, "resume");
		return r;
	}
	case SIGKILL:
		rescue(id, &step);
		return real.signal(id, number);
	case SIGSTOP:
	case 0:
		return real.signal(id, number);
	default:
		return signal_watchers(id, number) ? 0 : real.signal(id, number);
	}
}

/* ---- passed on ---- */

CALLED_BY_SLURM(int, proctrack_p_create, void *step)
{
	return real.create(step);
}

CALLED_BY_SLURM(int, proctrack_p_add, void *step, pid_t pid)
{
	return real.add(step, pid);
}

CALLED_BY_SLURM(int, proctrack_p_destroy, uint64_t id)
{
	return real.destroy(id);
}

CALLED_BY_SLURM(uint64_t, proctrack_p_find, pid_t pid)
{
	return real.find(pid);
}

CALLED_BY_SLURM(bool, proctrack_p_has_pid, uint64_t id, pid_t pid)
{
	return real.has_pid(id, pid);
}

CALLED_BY_SLURM(int, proctrack_p_wait, uint64_t id)
{
	return real.wait(id);
}

CALLED_BY_SLURM(int, proctrack_p_get_pids, uint64_t id, pid_t **pids, int *n)
{
	return real.get_pids(id, pids, n);
}

CALLED_BY_SLURM(int, proctrack_p_wait_for_any_task, void *step, int *status, bool block)
{
	return real.wait_for_any_task ? real.wait_for_any_task(step, status, block) : -1;
}
