// SPDX-License-Identifier: MIT
/* Init of a job's own pid namespace; see pidns.h. It is forked from a program with threads, so what
 * runs in it is async-signal-safe. */
#include "process/pidns.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "process/reap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	STATUS_FD = 3,
	FIRST_SPARE_FD = 4,
	SAFE_FD_MIN =
		16, /* copies of the descriptors the init keeps, clear of the numbers it gives them */
	STATUS_BYTES_MAX = 1024 * 1024,
};

static char *append_number(char *p, long number)
{
	char digits[24];
	size_t n = 0;

	do
		digits[n++] = (char)('0' + number % 10);
	while (number /= 10);
	while (n)
		*p++ = digits[--n];
	return p;
}

static void leave_status(pid_t pid, int status)
{
	char line[64], *p = append_number(line, pid);

	*p++ = ' ';
	p = append_number(p, status);
	*p++ = '\n';
	/* A full disk loses the status: the job counts as lost then, and there is nobody to tell. */
	if (write(STATUS_FD, line, (size_t)(p - line)) < 0)
		return;
}

static int wait_status(const siginfo_t *info)
{
	if (info->si_code == CLD_EXITED)
		return (info->si_status & 0xff) << 8;
	return info->si_status | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

/* True when the last child has been reaped. The root's end is noted before it is reaped, so the note exists once the root is
 * gone. */
static bool reap_all(pid_t root_pid, bool *had_job)
{
	for (;;) {
		siginfo_t info = { 0 };

		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0)
			return errno == ECHILD;
		if (!info.si_pid)
			return false;
		if (info.si_pid == root_pid) {
			*had_job = true;
			leave_status(root_pid, wait_status(&info));
		}
		waitpid(info.si_pid, NULL, __WALL);
	}
}

static _Noreturn void init_main(pid_t root_pid, const sigset_t *child_ended)
{
	bool had_job = false;

	/* Nothing says that a process has been given to this one when its parent ended; only its own
	 * end does. So this waits for ends, and stays until that of the root was among them. */
	while (!reap_all(root_pid, &had_job) || !had_job)
		sigwaitinfo(child_ended, NULL);
	/* CRIU, which is not a child of this one, may still be about to say how it went: pidns_hold(). */
	while (flock(STATUS_FD, LOCK_EX) < 0 && errno == EINTR)
		;
	_exit(0);
}

/* What an init is made with, before the fork. */
struct init {
	pid_t root_pid;
	int status_fd, null_fd;
	const char *status_path;
	const struct pidns_place *place; /* NULL: none */
	char *arguments; /* of this program, which /proc shows as its command line */
	size_t arguments_len;
};

static void find_arguments(struct init *ret)
{
	auto_free char *text = NULL;
	unsigned long start = 0, end = 0;

	if (file_read(AT_FDCWD, "/proc/self/stat", STATUS_BYTES_MAX, &text, NULL) < 0)
		return;
	const char *place = proc_stat_field(text, 48);
	if (!place || sscanf(place, "%lu %lu", &start, &end) != 2 || end <= start)
		return;
	ret->arguments = (char *)start;
	ret->arguments_len = end - start;
}

/* What ps shows: who this is, and by the path of whose job. */
static int take_name(const struct init *init)
{
	static const char name[] = PIDNS_INIT_PROGRAM;
	size_t len = init->arguments_len;

	if (len > sizeof(name)) {
		memset(init->arguments, 0, len);
		memcpy(init->arguments, name, sizeof(name));
		strncpy(init->arguments + sizeof(name), init->status_path, len - sizeof(name) - 1);
	}
	return prctl(PR_SET_NAME, name) < 0 ? -errno : 0;
}

/* Nobody can take such a mount away by removing the directory under it, as that is of the namespace alone. */
static int take_place(const struct pidns_place *place)
{
	char dir[48] = "/proc/self/fd/";
	/* Opened before the new mount hides it, should it lie near that place. */
	auto_close int fd = open(place->dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	*append_number(dir + strlen(dir), fd) = '\0';
	if (mount("brumate", place->parent, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "mode=0711,size=64k") < 0 ||
	    mkdir(place->path, 0711) < 0 || mount(dir, place->path, NULL, MS_BIND, NULL) < 0)
		return -errno;
	return 0;
}

static int init_set_up(const struct init *init)
{
	if (setsid() < 0 || chdir("/") < 0)
		return -errno;
	/* What is mounted on the host shows up here, but not the other way round. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
	    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	int r = init->place ? take_place(init->place) : 0;
	if (r < 0)
		return r;
	for (int fd = 0; fd < STATUS_FD; fd++)
		if (dup2(init->null_fd, fd) < 0)
			return -errno;
	return dup2(init->status_fd, STATUS_FD) < 0 ? -errno : take_name(init);
}

static _Noreturn void init_run(const struct init *init, int report_fd)
{
	struct sigaction sa = { .sa_handler = SIG_DFL };
	sigset_t mask;

	for (int s = 1; s < NSIG; s++)
		if (s != SIGKILL && s != SIGSTOP)
			sigaction(s, &sa, NULL);
	sigfillset(&mask);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);

	int code = -init_set_up(init);
	if (write(report_fd, &code, sizeof(code)) < 0 || code)
		_exit(1);
	if (syscall(SYS_close_range, FIRST_SPARE_FD, ~0u, 0) < 0)
		_exit(1);
	init_main(init->root_pid, &mask);
}

static int wait_for_report(int fd)
{
	int code;
	ssize_t n = fd_read_full(fd, &code, sizeof(code));

	if (n < 0)
		return (int)n;
	return n == (ssize_t)sizeof(code) ? -code : -EPIPE;
}

/* Under the lock of reaping: an init that fails at once is waited for here. */
static int fork_init(pid_t *ret, const struct init *init)
{
	int report[2], status;

	if (pipe2(report, O_CLOEXEC) < 0)
		return -errno;
	auto_close int read_fd = report[0];
	auto_close int write_fd = report[1];
	if (fd_move_up(&write_fd, SAFE_FD_MIN) < 0)
		return -errno;

	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
	if (pid < 0)
		return -errno;
	if (pid == 0)
		init_run(init, write_fd);
	close(take_fd(&write_fd));

	int r = wait_for_report(read_fd);
	if (r < 0)
		waitpid(pid, &status, 0);
	else
		*ret = pid;
	return r;
}

int pidns_start(struct proc_id *ret_init, pid_t root_pid, const char *status_path,
		const struct pidns_place *place, struct brumate_error *err)
{
	auto_close int status_fd =
		open(status_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	pid_t pid = 0;

	if (fd_move_up(&status_fd, SAFE_FD_MIN) < 0)
		return brumate_fail(err, errno, "%s: %m", status_path);
	if (fd_move_up(&null_fd, SAFE_FD_MIN) < 0)
		return brumate_fail(err, errno, "/dev/null: %m");

	struct init init = { .root_pid = root_pid,
			     .status_fd = status_fd,
			     .null_fd = null_fd,
			     .status_path = status_path,
			     .place = place };
	find_arguments(&init);

	reap_lock();
	int r = fork_init(&pid, &init);
	reap_unlock();
	if (r < 0)
		return brumate_fail(err, -r, "cannot make a pid namespace: %m");
	return proc_identify(ret_init, pid, err);
}

int pidns_hold(pid_t init)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", init, STATUS_FD);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) < 0)
		return -errno;
	return take_fd(&fd);
}

int pidns_read_status(const char *status_path, pid_t root_pid, int *ret_status)
{
	auto_free char *text = NULL;
	int r = file_read(AT_FDCWD, status_path, STATUS_BYTES_MAX, &text, NULL);

	if (r < 0)
		return r;
	r = -ENOENT;
	char *rest = text;
	for (const char *line; (line = strsep(&rest, "\n"));) {
		int pid, status;

		if (sscanf(line, "%d %d", &pid, &status) != 2 || pid != root_pid)
			continue;
		*ret_status = status;
		r = 0;
	}
	return r;
}

static bool notes_into(pid_t pid, const char *status_path)
{
	char path[48], target[PATH_MAX];
	size_t len = strlen(status_path);

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, STATUS_FD);
	ssize_t n = readlink(path, target, sizeof(target) - 1);
	if (n < (ssize_t)len || strncmp(target, status_path, len))
		return false;
	target[n] = '\0';
	return !target[len] || !strcmp(target + len, " (deleted)");
}

int pidns_end_all(const char *status_path)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, "/proc");
	pid_t pid;
	int r;

	if (!dir)
		return -errno;
	while ((r = proc_next(dir, &pid)) > 0) {
		struct proc_info info;

		r = proc_read(&info, pid, NULL);
		if (r == 0 && info.inner_pid == 1 && notes_into(pid, status_path))
			r = proc_signal(info.id, SIGKILL);
		if (r < 0 && r != -ESRCH && r != -EINVAL)
			return r;
	}
	return r;
}

uint64_t pidns_own(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) < 0 ? 0 : st.st_ino;
}

char *pidns_own_status_path(void)
{
	static const char name[] = PIDNS_INIT_PROGRAM;
	auto_free char *text = NULL;
	size_t len = 0;

	if (file_read(AT_FDCWD, "/proc/1/cmdline", STATUS_BYTES_MAX, &text, &len) < 0 ||
	    len <= sizeof(name) || memcmp(text, name, sizeof(name)))
		return NULL;
	return strdup(text + sizeof(name));
}

pid_t pidns_translate(pid_t of, pid_t inner_pid)
{
	char ns[64], each_ns[64];
	auto_closedir DIR *dir = opendir("/proc");

	if (!dir || proc_link_read(of, "ns/pid", ns, sizeof(ns)) <= 0)
		return 0;
	for (pid_t pid; proc_next(dir, &pid) > 0;) {
		struct proc_info info;

		if (proc_read(&info, pid, NULL) == 0 && info.inner_pid == inner_pid &&
		    proc_link_read(pid, "ns/pid", each_ns, sizeof(each_ns)) > 0 &&
		    !strcmp(ns, each_ns))
			return pid;
	}
	return 0;
}
