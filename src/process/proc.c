// SPDX-License-Identifier: MIT
/*
 * One process as /proc shows it, and signals to exactly that process. Everything about a process is
 * read beneath one descriptor of its directory: that stays with the process when its number is
 * given to another one.
 */
#include "process/process.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/user.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Facts of the kernel, linux/sched.h. */
enum {
	PROC_FILE_BYTES_MAX = 64 * 1024,
	PF_EXITING = 0x4,
	PF_FORKNOEXEC = 0x40,
	PF_KTHREAD = 0x200000
};

int proc_boot_id(char ret[static PROC_BOOT_ID_BYTES])
{
	auto_free char *text = NULL;
	int r = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", PROC_BOOT_ID_BYTES, &text,
			  NULL);

	if (r < 0)
		return r;
	text[strcspn(text, "\n")] = '\0';
	snprintf(ret, PROC_BOOT_ID_BYTES, "%s", text);
	return 0;
}

int proc_file_read(pid_t pid, const char *name, size_t max_bytes, char **ret_text,
		   size_t *ret_len_bytes)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return file_read(AT_FDCWD, path, max_bytes, ret_text, ret_len_bytes);
}

int proc_descriptor(pid_t pid, int number)
{
	auto_close int process = (int)syscall(SYS_pidfd_open, pid, 0);
	int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);

	return fd < 0 ? -errno : fd;
}

DIR *proc_dir_open(pid_t pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return dir_open(AT_FDCWD, path);
}

ssize_t proc_link_read(pid_t pid, const char *name, char *ret, size_t room)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	ssize_t n = readlink(path, ret, room - 1);
	ret[n > 0 ? n : 0] = '\0';
	return n;
}

int proc_next(DIR *proc, pid_t *ret)
{
	struct dirent *e;
	int r;

	while ((r = dir_next(proc, &e)) > 0 && (*ret = atoi(e->d_name)) <= 0)
		;
	return r;
}

static int open_dir(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", pid);
	int fd = pid > 0 ? RESERVE_TRY(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)) : -1;
	if (fd >= 0)
		return fd;
	return pid <= 0 || errno == ENOENT ? -ESRCH : -errno;
}

static int read_file(int dir_fd, const char *name, char **ret)
{
	int r = file_read(dir_fd, name, PROC_FILE_BYTES_MAX, ret, NULL);

	return r == -ENOENT ? -ESRCH : r;
}

/* ---- start times ----
 *
 * The kernel shows them by the boottime clock of the reader's time namespace, and CRIU restores each process into one of
 * its own. So that a command in a restored job means the same processes as those outside, they are taken back to the
 * machine's clock here. The kernel cuts them off at a whole tick after it has shifted them: one tick may be missing then.
 */
static pthread_mutex_t clock_lock = PTHREAD_MUTEX_INITIALIZER;
static bool clock_is_known;
static int64_t clock_shift_ns; /* what our clock is ahead */

/* Under the lock. Where it cannot be read, the next call tries again. */
static int read_clock_shift(void)
{
	auto_free char *text = NULL;
	long long s, ns;
	int r = file_read(AT_FDCWD, "/proc/self/timens_offsets", PROC_FILE_BYTES_MAX, &text, NULL);

	if (r < 0 && r != -ENOENT) /* a kernel without time namespaces has no such file */
		return r;
	const char *line = r == 0 ? strstr(text, "boottime") : NULL;
	if (line && sscanf(line, "boottime %lld %lld", &s, &ns) == 2)
		clock_shift_ns = s * (int64_t)NS_PER_S + ns;
	clock_is_known = true;
	return 0;
}

static int get_clock_shift(int64_t *ret_ns)
{
	pthread_mutex_lock(&clock_lock);
	int r = clock_is_known ? 0 : read_clock_shift();
	*ret_ns = clock_shift_ns;
	pthread_mutex_unlock(&clock_lock);
	return r;
}

static uint64_t machine_ticks(uint64_t shown, int64_t shift_ns)
{
	const int64_t tick_ns = (int64_t)NS_PER_S / sysconf(_SC_CLK_TCK);
	int64_t ns = (int64_t)shown * tick_ns - shift_ns;

	return shift_ns ? (uint64_t)(ns > 0 ? ns / tick_ns : 0) : shown;
}

bool proc_is_same(struct proc_id one, struct proc_id other)
{
	uint64_t apart = one.start_ticks > other.start_ticks ? one.start_ticks - other.start_ticks
							     : other.start_ticks - one.start_ticks;
	int64_t shift_ns;

	get_clock_shift(&shift_ns); /* that succeeded when the ids were read */
	return one.pid == other.pid && apart <= (shift_ns ? 1 : 0);
}

/* The name may hold anything, spaces and parentheses too: it ends at the last one. */
static int parse_stat(struct proc_info *info, const char *text)
{
	const char *open = strchr(text, '('), *close = strrchr(text, ')');
	unsigned long long start_ticks;
	unsigned flags;
	int64_t shift_ns;
	long rss_pages;

	if (!open || !close || close < open)
		return -EBADMSG;
	if (sscanf(text, "%d", &info->id.pid) != 1 ||
	    sscanf(close + 1,
		   " %c %d %d %d %d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu "
		   "%*u %ld",
		   &info->state, &info->ppid, &info->pgid, &info->sid, &info->tty_nr, &flags,
		   &info->n_threads, &start_ticks, &rss_pages) != 9)
		return -EBADMSG;

	snprintf(info->comm, sizeof(info->comm), "%.*s", (int)(close - open - 1), open + 1);
	for (char *c = info->comm; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
	int r = get_clock_shift(&shift_ns);
	if (r < 0)
		return r;
	info->id.start_ticks = machine_ticks(start_ticks, shift_ns);
	info->is_kernel = flags & PF_KTHREAD;
	info->is_fork = flags & PF_FORKNOEXEC;
	info->ends = info->state == 'X' ||
		     (info->n_threads <= 1 && (flags & PF_EXITING || info->state == 'Z'));
	info->rss_bytes =
		(uint64_t)(rss_pages > 0 ? rss_pages : 0) * (uint64_t)sysconf(_SC_PAGESIZE);
	return 0;
}

const char *proc_status_field(const char *text, const char *name)
{
	size_t len = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, len) && line[len] == ':')
			return line + len + 1;
	}
	return NULL;
}

int64_t proc_status_number(pid_t pid, const char *name)
{
	auto_free char *text = NULL;
	int r = proc_file_read(pid, "status", PROC_FILE_BYTES_MAX, &text, NULL);
	const char *field = r < 0 ? NULL : proc_status_field(text, name);

	return field ? strtoll(field, NULL, 10) : -1;
}

bool proc_mapping_parse(struct proc_mapping *ret, const char *line)
{
	int at = 0;

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*x %x:%x %" SCNu64 " %n", &ret->start,
		   &ret->end, ret->access, &ret->major, &ret->minor, &ret->inode, &at) != 6 ||
	    ret->start >= ret->end || strlen(ret->access) != 4)
		return false;
	ret->name = line + at;
	return true;
}

/* The name, field 2, may hold anything. */
const char *proc_stat_field(const char *text, int n)
{
	const char *field = strrchr(text, ')');

	for (int i = 2; field && i < n; i++)
		field = strchr(field + 1, ' ');
	return field ? field + 1 : NULL;
}

static long status_number(const char *text, const char *name)
{
	const char *field = proc_status_field(text, name);

	return field ? strtol(field, NULL, 10) : 0;
}

static void parse_ns_pids(struct proc_info *info, const char *text)
{
	const char *p = proc_status_field(text, "NSpid");
	char *end;

	info->inner_pid = info->id.pid;
	info->pid_ns_depth = 1;
	for (int depth = 0; p && *p != '\n'; p = end) {
		long pid = strtol(p, &end, 10);

		if (end == p)
			break;
		info->inner_pid = (pid_t)pid;
		info->pid_ns_depth = ++depth;
	}
}

static int read_info(struct proc_info *ret, pid_t *ret_tgid, int dir_fd)
{
	auto_free char *stat = NULL, *status = NULL;
	struct proc_info info = { 0 };
	int r = read_file(dir_fd, "stat", &stat);

	if (r >= 0)
		r = read_file(dir_fd, "status", &status);
	if (r >= 0)
		r = parse_stat(&info, stat);
	if (r < 0)
		return r;

	info.uid = (uid_t)status_number(status, "Uid");
	info.gid = (gid_t)status_number(status, "Gid");
	info.tracer_pid = (pid_t)status_number(status, "TracerPid");
	parse_ns_pids(&info, status);
	*ret_tgid = (pid_t)status_number(status, "Tgid");
	*ret = info;
	return 0;
}

int proc_read(struct proc_info *ret, pid_t pid, struct brumate_error *err)
{
	struct proc_info info;
	pid_t tgid;
	auto_close int dir_fd = open_dir(pid);
	int r = dir_fd < 0 ? dir_fd : read_info(&info, &tgid, dir_fd);

	if (r == -ESRCH)
		return brumate_fail(err, ESRCH, "no process %d", pid);
	if (r < 0)
		return brumate_fail(err, -r, "process %d: cannot read its state: %m", pid);
	if (tgid != pid) {
		brumate_fail(err, EINVAL, "%d is a thread of process %d, not a process", pid, tgid);
		brumate_hint(err, "use --pid %d", tgid);
		return -EINVAL;
	}
	*ret = info;
	return 0;
}

int proc_reread(struct proc_info *ret, const struct proc_info *known)
{
	auto_free char *text = NULL;
	struct proc_info info = *known;
	int r = proc_file_read(known->id.pid, "stat", PROC_FILE_BYTES_MAX, &text, NULL);

	if (r >= 0)
		r = parse_stat(&info, text);
	if (r < 0)
		return r == -ENOENT ? -ESRCH : r;
	if (!proc_is_same(info.id, known->id))
		return -ESRCH;
	*ret = info;
	return 0;
}

int proc_identify(struct proc_id *ret, pid_t pid, struct brumate_error *err)
{
	struct proc_info info;
	int r = proc_read(&info, pid, err);

	if (r < 0)
		return r;
	if (info.state == 'Z' || info.state == 'X')
		return brumate_fail(err, ESRCH, "process %d (%s) has ended", pid, info.comm);
	*ret = info.id;
	return 0;
}

/* What its stat says: 0; -ESRCH where exactly this process is gone for certain; else -errno. */
static int read_exactly(struct proc_info *ret, struct proc_id id)
{
	auto_free char *stat = NULL;
	int r = id.pid > 0 ? proc_file_read(id.pid, "stat", PROC_FILE_BYTES_MAX, &stat, NULL)
			   : -ESRCH;

	*ret = (struct proc_info){ 0 };
	if (r >= 0)
		r = parse_stat(ret, stat);
	if (r < 0)
		return r == -ENOENT ? -ESRCH : r;
	return proc_is_same(ret->id, id)
		       ? 0
		       : -ESRCH; /* the number is another's by now, or a thread's */
}

enum proc_life proc_look(struct proc_id id)
{
	struct proc_info info;
	int r = read_exactly(&info, id);

	if (r < 0)
		return r == -ESRCH ? PROC_GONE : PROC_UNKNOWN;
	return info.state == 'Z' || info.state == 'X' ? PROC_ZOMBIE : PROC_ALIVE;
}

bool proc_has_ended(struct proc_id id)
{
	enum proc_life life = proc_look(id);

	return life == PROC_GONE || life == PROC_ZOMBIE;
}

bool proc_is_gone(struct proc_id id)
{
	return proc_look(id) == PROC_GONE;
}

/* The state of a thread, as in /proc/PID/stat; 'X': it has ended; '\0': that cannot be read. */
static char thread_state(int task_fd, const char *tid)
{
	char name[32];
	auto_free char *text = NULL;
	struct proc_info info;

	snprintf(name, sizeof(name), "%.16s/stat", tid);
	int r = read_file(task_fd, name, &text);
	if (r == -ESRCH)
		return 'X';
	return r >= 0 && parse_stat(&info, text) >= 0 ? info.state : '\0';
}

/* Whether the state of one of its threads is, or is not, among @states: 1, 0, -ESRCH, -errno. */
static int has_thread(struct proc_id id, const char *states, bool among)
{
	auto_close int dir_fd = open_dir(id.pid);
	bool found = false;

	if (dir_fd < 0)
		return dir_fd;
	auto_closedir DIR *dir = dir_open(dir_fd, "task");
	if (!dir)
		return errno == ENOENT ? -ESRCH : -errno;
	/* Beneath a directory that was opened when the number was @id's. */
	struct proc_info info;
	int r = read_exactly(&info, id);
	struct dirent *e;
	while (r >= 0 && !found && (r = dir_next(dir, &e)) > 0) {
		const char state = thread_state(dirfd(dir), e->d_name);

		found = (state && strchr(states, state)) == among;
	}
	if (r < 0)
		return r == -ENOENT ? -ESRCH : r;
	return found;
}

int proc_has_stopped(struct proc_id id)
{
	/* One that has ended does nothing any more. */
	int r = has_thread(id, "TtZX", false);

	return r < 0 ? r : !r;
}

int proc_has_stopped_thread(struct proc_id id)
{
	return has_thread(id, "Tt", true);
}

static bool signal_waits(pid_t pid, int number)
{
	unsigned long long pending = 0;
	auto_close int dir_fd = open_dir(pid);
	auto_free char *text = NULL;
	const char *line = dir_fd < 0 || read_file(dir_fd, "status", &text) < 0
				   ? NULL
				   : strstr(text, "\nShdPnd:");

	return line && sscanf(line, "\nShdPnd: %llx", &pending) == 1 && pending >> (number - 1) & 1;
}

int proc_is_to_stop(struct proc_id id)
{
	/* A thread that takes the signal stops in the same moment: so the signal is looked at first. */
	const bool waits = signal_waits(id.pid, SIGSTOP);
	int r = has_thread(id, "T", true);

	return r == 0 ? waits : r;
}

int proc_zombie_status(struct proc_id id, int *ret_status)
{
	auto_free char *text = NULL;
	struct proc_info info;
	int r = proc_file_read(id.pid, "stat", PROC_FILE_BYTES_MAX, &text, NULL);

	if (r >= 0)
		r = parse_stat(&info, text);
	if (r < 0)
		return r == -ENOENT ? -ESRCH : r;
	if (!proc_is_same(info.id, id))
		return -ESRCH;
	if (info.state != 'Z')
		return -EAGAIN;
	const char *last = strrchr(text, ' '); /* exit_code is the last field */
	*ret_status = last ? atoi(last) : 0;
	return 0;
}

int proc_open(struct proc_id id)
{
	if (id.pid <= 0)
		return -ESRCH;

	auto_close int fd = RESERVE_TRY((int)syscall(SYS_pidfd_open, id.pid, 0));
	if (fd < 0)
		return errno == EINVAL ? -ESRCH : -errno;
	/* Only now the number cannot be given away unseen: if it still is @id, so is the pidfd. */
	struct proc_info info;
	int r = read_exactly(&info, id);
	return r < 0 ? r : take_fd(&fd);
}

bool proc_has_number(int pidfd)
{
	/* Of one that has ended and is not reaped too, as no signal is sent. */
	return syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0 || errno == EPERM;
}

int proc_signal_as(struct proc_id id, int signal, uid_t uid)
{
	auto_close int fd = proc_open(id);
	auto_(user_signals_leave) struct user_signals user = USER_SIGNALS_NONE;

	if (fd < 0)
		return fd;
	int r = user_signals_enter(&user, uid);
	if (r < 0)
		return r;
	return syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) < 0 ? -errno : 0;
}

int proc_signal(struct proc_id id, int signal)
{
	return proc_signal_as(id, signal, 0);
}

int proc_wait_gone(struct proc_id id, uint64_t deadline_ns)
{
	auto_close int fd = proc_open(id);

	if (fd < 0)
		return fd == -ESRCH ? 0 : fd;
	return fd_wait(fd, POLLIN, deadline_ns);
}

int proc_work(pid_t pid, uint64_t *ret)
{
	auto_free char *stat = NULL, *status = NULL;
	unsigned long long user_ticks, system_ticks;
	int r = proc_file_read(pid, "stat", PROC_FILE_BYTES_MAX, &stat, NULL);

	if (r >= 0)
		r = proc_file_read(pid, "status", PROC_FILE_BYTES_MAX, &status, NULL);
	if (r < 0)
		return r;
	const char *ticks = proc_stat_field(stat, 14);
	if (!ticks || sscanf(ticks, "%llu %llu", &user_ticks, &system_ticks) != 2)
		return -EBADMSG;
	*ret = user_ticks + system_ticks +
	       (uint64_t)status_number(status, "voluntary_ctxt_switches") +
	       (uint64_t)status_number(status, "nonvoluntary_ctxt_switches");
	return 0;
}
