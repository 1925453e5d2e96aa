// SPDX-License-Identifier: MIT
/* What threads and kernel objects have that CRIU refuses when the job stands still already, refuses at the restore, or
 * forgets (CRIU 4.2). Only /proc is read, and the kernel is asked about what others see too. */
#include "process/scan-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "process/hugetlb.h"
#include "process/reaper.h"

enum {
	MOUNTINFO_BYTES_MAX = 16 << 20,
	SYSTEM_V_BYTES_MAX = 16 << 20,
	SMAPS_BYTES_MAX = 256 << 20,
	/* So many pipes, and so many named ones, CRIU 4.2 looks into. */
	CRIU_PIPES_MAX = 1024,
	SCHED_EXTENSIBLE = 7, /* SCHED_EXT; headers may be older */
};

void scan_found(struct scan *s, enum scan_level level, const struct proc_info *p, const char *what,
		const char *hint, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	scan_vfound(s, level, SCAN_CRIU, p, what, hint, fmt, ap);
	va_end(ap);
}

/* ---- epoll: what it watches is an open file, which may have lost its number, or all of them ---- */

/* One of the files that an epoll watches. The kernel names it by the number that it had when it was added, and by how
 * many of that number come before it. */
struct watched {
	unsigned fd, before;
};

/* Like kcmp(2): 0 where @fd is it, above that where it is not; -1: unknown. */
static long compare_target(const struct scan_fd *epoll, struct watched t, int fd)
{
	const struct kcmp_epoll_slot slot = { .efd = (unsigned)epoll->fd,
					      .tfd = t.fd,
					      .toff = t.before };
	pid_t pid = epoll->process->id.pid;

	errno = 0;
	return syscall(SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, fd, &slot);
}

/* CRIU looks for it among the files of the process that has the epoll. Without kcmp(2) it would not get so far. */
static bool finds_target(const struct scan *s, const struct scan_fd *epoll, struct watched t)
{
	if (compare_target(epoll, t, (int)t.fd) == 0)
		return true;
	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i].process == epoll->process &&
		    (compare_target(epoll, t, s->fds[i].fd) == 0 || errno == ENOENT ||
		     errno == EPERM || errno == ENOSYS))
			return true;
	return false;
}

static bool is_same_file(const struct scan_fd *a, const struct scan_fd *b)
{
	return syscall(SYS_kcmp, a->process->id.pid, b->process->id.pid, KCMP_FILE, a->fd, b->fd) ==
	       0;
}

static bool is_epoll(const struct scan_fd *f)
{
	return !strcmp(f->target, "anon_inode:[eventpoll]");
}

/* CRIU saves it once, by the first process that has it. */
static bool is_seen_before(const struct scan *s, const struct scan_fd *epoll)
{
	for (const struct scan_fd *f = s->fds; f < epoll; f++)
		if (is_epoll(f) && is_same_file(f, epoll))
			return true;
	return false;
}

static void check_targets(struct scan *s, const struct scan_fd *epoll, const char *fdinfo)
{
	static const char word[] = "\ntfd:";
	unsigned *seen = NULL;
	size_t n = 0;

	for (const char *p = fdinfo; (p = strstr(p, word)); n++) {
		unsigned *more = array_room(seen, n, sizeof(*seen));

		if (!more) {
			s->r = -ENOMEM;
			break;
		}
		seen = more;
		p += strlen(word);
		struct watched t = { .fd = (unsigned)strtoul(p, NULL, 10) };
		for (size_t i = 0; i < n; i++)
			t.before += seen[i] == t.fd;
		seen[n] = t.fd;
		if (finds_target(s, epoll, t) || is_seen_before(s, epoll))
			continue;
		scan_found(s, SCAN_REFUSE, epoll->process, "epoll",
			   "take a file out of an epoll (EPOLL_CTL_DEL) before closing it; suspend "
			   "and resume work",
			   "has an epoll (fd %d) that watches a file which was its fd %u and is "
			   "open elsewhere only",
			   epoll->fd, t.fd);
		break;
	}
	free(seen);
}

static int read_fdinfo(char **ret, const struct scan_fd *f)
{
	char name[32];

	snprintf(name, sizeof(name), "fdinfo/%d", f->fd);
	return proc_file_read(f->process->id.pid, name, SCAN_FDINFO_BYTES_MAX, ret, NULL);
}

void scan_epolls(struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];
		auto_free char *text = NULL;

		if (is_epoll(f) && read_fdinfo(&text, f) >= 0)
			check_targets(s, f, text);
	}
}

/* ---- pipes ---- */

static bool is_pipe(const struct scan_fd *f)
{
	return S_ISFIFO(f->st.st_mode) && !strncmp(f->target, "pipe:", 5);
}

static int by_number(const void *a, const void *b)
{
	ino_t x = *(const ino_t *)a, y = *(const ino_t *)b;

	return x < y ? -1 : x > y;
}

/* How many pipes (@named: that have names) the tree may read from. */
static size_t count_pipes(struct scan *s, bool named)
{
	auto_free ino_t *numbers = calloc(s->n_fds + 1, sizeof(*numbers));
	size_t n = 0, n_different = 0;

	if (!numbers) {
		s->r = -ENOMEM;
		return 0;
	}
	for (size_t i = 0; i < s->n_fds; i++)
		if (S_ISFIFO(s->fds[i].st.st_mode) && is_pipe(&s->fds[i]) != named &&
		    !(s->fds[i].flags & O_WRONLY))
			numbers[n++] = s->fds[i].st.st_ino;
	qsort(numbers, n, sizeof(*numbers), by_number);
	for (size_t i = 0; i < n; i++)
		n_different += i == 0 || numbers[i] != numbers[i - 1];
	return n_different;
}

void scan_special_pipes(struct scan *s)
{
	for (int named = 0; named < 2 && s->tree->n; named++) {
		size_t n = count_pipes(s, named);

		if (n > CRIU_PIPES_MAX)
			scan_found(s, SCAN_REFUSE, &s->tree->items[0], "pipes",
				   "suspend and resume work; close some of them before the "
				   "checkpoint",
				   "and its children read from %zu pipes%s, CRIU saves %d", n,
				   named ? " that have names" : "", CRIU_PIPES_MAX);
	}
}

/* ---- files that no path leads to, and files of namespaces ---- */

/* The line of @mountinfo about mount @id; NULL where the process does not see it. */
static const char *find_mount(const char *mountinfo, int id)
{
	for (const char *line = mountinfo; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (*line && atoi(line) == id)
			return line;
	}
	return NULL;
}

/* Whether another mount lies upon the root of mount @id. */
static bool is_covered(const char *mountinfo, int id)
{
	char point[PATH_MAX + 1], other[PATH_MAX + 1];
	const char *line = find_mount(mountinfo, id);
	int parent;

	if (!line || sscanf(line, "%*d %*d %*s %*s %4096s", point) != 1)
		return false;
	for (line = mountinfo; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "%*d %d %*s %*s %4096s", &parent, other) == 2 && parent == id &&
		    !strcmp(point, other))
			return true;
	}
	return false;
}

static bool needs_mount(const struct scan_fd *f)
{
	return (S_ISREG(f->st.st_mode) || S_ISDIR(f->st.st_mode) ||
		(S_ISFIFO(f->st.st_mode) && !is_pipe(f))) &&
	       f->mount_id >= 0 && f->target[0] == '/' && strncmp(f->target, "/memfd:", 7) &&
	       strncmp(f->target, "/secretmem", strlen("/secretmem"));
}

static void check_mount(struct scan *s, const struct scan_fd *f, const char *mountinfo)
{
	if (!find_mount(mountinfo, f->mount_id))
		scan_found(s, SCAN_REFUSE, f->process, "file-without-path",
			   "close it before the checkpoint; suspend and resume work",
			   "has %.100s open (fd %d), which is on a file system that is not mounted",
			   f->target, f->fd);
	else if (is_covered(mountinfo, f->mount_id))
		scan_found(s, SCAN_REFUSE, f->process, "file-without-path",
			   "close it before the checkpoint; suspend and resume work",
			   "has %.100s open (fd %d), upon whose file system another is mounted",
			   f->target, f->fd);
}

/* A descriptor of a namespace. Its own namespaces each process of the tree has after a restore, too. */
static void check_namespace_file(struct scan *s, const struct scan_fd *f)
{
	char name[32], own[sizeof(name) + 32], link[64];
	const char *colon = strchr(f->target, ':');
	bool is_regular = S_ISREG(f->st.st_mode) || S_ISDIR(f->st.st_mode);

	if (!is_regular || f->target[0] == '/' || !colon)
		return;
	snprintf(name, sizeof(name), "%.*s", (int)(colon - f->target), f->target);
	snprintf(own, sizeof(own), "ns/%s", name);
	if (proc_link_read(f->process->id.pid, own, link, sizeof(link)) > 0 &&
	    !strcmp(link, f->target))
		return;
	scan_found(s, SCAN_REFUSE, f->process, "namespace-file",
		   "close it before the checkpoint; suspend and resume work",
		   "has %.100s open (fd %d), which is of none of its namespaces", f->target, f->fd);
}

void scan_paths(struct scan *s)
{
	const struct proc_info *of = NULL;
	auto_free char *mountinfo = NULL;

	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];

		check_namespace_file(s, f);
		if (!needs_mount(f))
			continue;
		if (of != f->process) {
			cleanup_free(&mountinfo);
			mountinfo = NULL;
			of = f->process;
			if (proc_file_read(of->id.pid, "mountinfo", MOUNTINFO_BYTES_MAX, &mountinfo,
					   NULL) < 0)
				mountinfo = NULL;
		}
		if (mountinfo)
			check_mount(s, f, mountinfo);
	}
}

bool scan_has_write_lease(const char *fdinfo)
{
	for (const char *line = strstr(fdinfo, "\nlock:"); line;
	     line = strstr(line + 1, "\nlock:")) {
		char kind[16], access[16];

		if (sscanf(line, " lock: %*d: %15s %*s %15s", kind, access) == 2 &&
		    !strcmp(kind, "LEASE") && !strcmp(access, "WRITE"))
			return true;
	}
	return false;
}

/* ---- files that have lost the name they were opened by, and have another ---- */

static bool is_linked(const char *target, const struct stat *st)
{
	static const char deleted[] = " (deleted)";
	size_t len = strlen(target);

	return S_ISREG(st->st_mode) && st->st_nlink && *target == '/' && len > strlen(deleted) &&
	       !strcmp(target + len - strlen(deleted), deleted) &&
	       strncmp(target, "/memfd:", 7) != 0;
}

/* Without CAP_CHECKPOINT_RESTORE the kernel does not tell; then CRIU's images do, once the job stands still. */
static void check_mapped(struct scan *s, const struct proc_info *p)
{
	auto_closedir DIR *dir = proc_dir_open(p->id.pid, "map_files");

	for (struct dirent *e; dir && (e = readdir(dir));) {
		char target[512];
		struct stat st;
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (n <= 0 || scan_stat_fd(dirfd(dir), e->d_name, &st) < 0 ||
		    !is_linked(target, &st))
			continue;
		scan_found(s, SCAN_NOTE, p, SCAN_LINKED,
			   "without --leave-running and --every it can be saved",
			   "has %.100s mapped, which has another name", target);
		return;
	}
}

void scan_linked(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++)
		if (s->tree->items[i].state != 'Z' &&
		    (s->mappings[i].r < 0 || s->mappings[i].has_removed))
			check_mapped(s, &s->tree->items[i]);
}

/* ---- threads ---- */

static void check_policy(struct scan *s, const struct proc_info *p, pid_t tid)
{
	int policy = sched_getscheduler(tid);
	const char *name;

	policy &= ~SCHED_RESET_ON_FORK;
	if (policy == SCHED_DEADLINE)
		name = "SCHED_DEADLINE";
	else if (policy == SCHED_EXTENSIBLE)
		name = "SCHED_EXT";
	else
		return;
	scan_found(
		s, SCAN_REFUSE, p, "scheduling",
		"give it another policy before the checkpoint: chrt --other --pid 0 TID; suspend "
		"and resume work",
		"has a thread (%d) with the scheduling policy %s, which CRIU does not bring back",
		tid, name);
}

static void check_process(struct scan *s, const struct proc_info *p)
{
	auto_closedir DIR *dir = proc_dir_open(p->id.pid, "task");

	if (p->state == 'Z')
		return;
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.')
			check_policy(s, p, (pid_t)atoi(e->d_name));
}

void scan_threads(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++)
		check_process(s, &s->tree->items[i]);
}

/* ---- what two processes have together ---- */

/* By an order of the kernel's own. */
static int by_object(const void *a, const void *b, void *arg)
{
	const enum kcmp_type type = *(const enum kcmp_type *)arg;
	const struct proc_info *p = *(const struct proc_info *const *)a;
	const struct proc_info *q = *(const struct proc_info *const *)b;

	switch (p == q ? 0 : syscall(SYS_kcmp, p->id.pid, q->id.pid, type, 0, 0)) {
	case 0:
		return 0;
	case 1:
		return -1;
	case 2:
		return 1;
	default: /* one has ended, or that may not be asked */
		return p->id.pid < q->id.pid ? -1 : 1;
	}
}

static void check_shared(struct scan *s, enum kcmp_type type, const char *what)
{
	auto_free const struct proc_info **sorted = calloc(s->tree->n + 1, sizeof(*sorted));
	size_t n = 0;

	if (!sorted) {
		s->r = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < s->tree->n; i++)
		if (s->tree->items[i].state != 'Z')
			sorted[n++] = &s->tree->items[i];
	qsort_r(sorted, n, sizeof(*sorted), by_object, &type);
	for (size_t i = 1; i < n; i++)
		if (by_object(&sorted[i - 1], &sorted[i], &type) == 0)
			scan_found(s, SCAN_REFUSE, sorted[i], "shared-process",
				   "suspend and resume work; clone(2) without that flag gives "
				   "each its own",
				   "shares its %s with process %d (%s), which CRIU does not save",
				   what, sorted[i - 1]->id.pid, sorted[i - 1]->comm);
}

void scan_shared(struct scan *s)
{
	check_shared(s, KCMP_FS, "working directory and umask (CLONE_FS)");
	check_shared(s, KCMP_SIGHAND, "handlers of signals (CLONE_SIGHAND)");
}

/* ---- limits ---- */

/* To read the limits of a process with other ids takes CAP_SYS_RESOURCE, which root lacks in some containers. A job of
 * another user has none such. */
void scan_limits(struct scan *s)
{
	struct rlimit limit;

	if (geteuid() != 0 || !s->tree->n || s->tree->items[0].uid != 0)
		return;
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		if (p->state != 'Z' && prlimit(p->id.pid, RLIMIT_CPU, NULL, &limit) < 0 &&
		    errno == EPERM)
			scan_found(s, SCAN_REFUSE, p, "limits",
				   "give brumate CAP_SYS_RESOURCE; suspend and resume work",
				   "has ids of another user, and without CAP_SYS_RESOURCE its "
				   "limits cannot be read");
	}
}

/* ---- ended processes that nobody has waited for ---- */

/* One that was restored with the rights of a user and ends by a signal in that moment, as it had before, the kernel takes for one
 * with secrets. */
void scan_ended(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		char link[64];

		if (p->state == 'Z' &&
		    proc_link_read(p->id.pid, "ns/user", link, sizeof(link)) < 0 && errno == EACCES)
			scan_found(
				s, SCAN_NOTE, p, SCAN_ENDED,
				"if its parent does not wait for it, or does not ask",
				"has ended, and the kernel does not tell how: after a restore its "
				"parent gets exit status 0");
	}
}

/* ---- descriptors of special kinds ---- */

static bool is_of_root(const struct scan *s)
{
	return !s->tree->n || s->tree->items[0].uid == 0;
}

static bool is_packet_pipe(const struct scan *s, const struct scan_fd *f)
{
	return is_pipe(f) && f->flags >= 0 && f->flags & O_DIRECT;
}

static bool is_leased(const struct scan *s, const struct scan_fd *f)
{
	return f->is_leased;
}

static bool is_linked_of_root(const struct scan *s, const struct scan_fd *f)
{
	return is_linked(f->target, &f->st) && is_of_root(s);
}

/* CRIU gives it a name next to the lost one, which takes root's rights, and which is gone again where the job goes on: its other
 * names are unknown. */
static bool is_linked_of_user(const struct scan *s, const struct scan_fd *f)
{
	return is_linked(f->target, &f->st) && !is_of_root(s);
}

/* What is watched CRIU opens by its number in the file system, which takes a capability that a user's CRIU has not. */
static bool watches_of_user(const struct scan *s, const struct scan_fd *f)
{
	auto_free char *text = NULL;

	return !is_of_root(s) && !strcmp(f->target, "anon_inode:inotify") &&
	       read_fdinfo(&text, f) >= 0 && strstr(text, "\ninotify wd:");
}

static bool wakes_machine(const struct scan *s, const struct scan_fd *f)
{
	return f->wakes && !strcmp(f->target, "anon_inode:[timerfd]");
}

/* What was written to such a file the kernel shows to nobody. It is opened again without, and looks as if there were an alarm all
 * the time. */
static bool waits_for_pressure(const struct scan *s, const struct scan_fd *f)
{
	static const char proc[] = "/proc/pressure/", group[] = "/sys/fs/cgroup/",
			  end[] = ".pressure";
	const size_t len = strlen(f->target);

	return f->flags >= 0 && (f->flags & O_ACCMODE) != O_RDONLY &&
	       (!strncmp(f->target, proc, strlen(proc)) ||
		(!strncmp(f->target, group, strlen(group)) && len > strlen(end) &&
		 !strcmp(f->target + len - strlen(end), end)));
}

/* CRIU takes such a file for what it is only where it has got a page of that size to look at. A plain one may have large blocks,
 * too. */
static bool is_huge_memfd(const struct scan *s, const struct scan_fd *f)
{
	struct stat st;

	if (!S_ISREG(f->st.st_mode) || strncmp(f->target, "/memfd:", 7) ||
	    f->st.st_blksize <= sysconf(_SC_PAGESIZE) ||
	    hugetlb_pool_pages((uint64_t)f->st.st_blksize))
		return false;
	auto_close int plain = memfd_create("brumate", MFD_CLOEXEC);
	return plain >= 0 && fstat(plain, &st) == 0 && f->st.st_dev != st.st_dev;
}

#define CLOSE_IT "close it before the checkpoint; suspend and resume work"

/* The text gets the number of the descriptor and its target. */
static const struct {
	bool (*is)(const struct scan *s, const struct scan_fd *f);
	enum scan_level level;
	const char *what, *hint, *text;
} special[] = {
	{ is_packet_pipe, SCAN_REFUSE, "pipe-packets", CLOSE_IT,
	  "has a pipe of packets (fd %d, O_DIRECT), which CRIU does not save" },
	/* To save what such a file holds it is opened, and so is it again where it is restored. */
	{ is_leased, SCAN_REFUSE, "write-lease",
	  "give the lease back before the checkpoint (fcntl F_SETLEASE, F_UNLCK); suspend and "
	  "resume work",
	  "holds a lease for writing of %2$.100s (fd %1$d), which ends once that is opened to be "
	  "saved" },
	{ is_linked_of_root, SCAN_NOTE, SCAN_LINKED,
	  "without --leave-running and --every it can be saved",
	  "has %2$.100s open (fd %1$d), which has another name" },
	{ is_linked_of_user, SCAN_REFUSE, SCAN_LINKED,
	  "close it, or give it its name back; suspend and resume work",
	  "has %2$.100s open (fd %1$d), which has another name" },
	{ watches_of_user, SCAN_REFUSE, "inotify",
	  "remove the watches before the checkpoint; suspend and resume work",
	  "watches files by inotify (fd %d), which takes CAP_DAC_READ_SEARCH to save" },
	{ wakes_machine, SCAN_REFUSE, "timer-that-wakes", CLOSE_IT,
	  "has a timer (fd %d) that wakes the machine (CLOCK_…_ALARM), which CRIU does not save" },
	{ waits_for_pressure, SCAN_SUSPECT, "pressure",
	  "end what watches it before the checkpoint; suspend and resume work",
	  "waits for the kernel to say that memory, CPU or I/O is short (%2$s, fd %1$d), which a "
	  "restore does not bring back" },
	{ is_huge_memfd, SCAN_REFUSE, "huge-memfd",
	  "close it before the checkpoint, or set huge pages of that size aside; suspend and "
	  "resume work",
	  "has a memfd of huge pages (fd %d), of which this machine has none" },
};

void scan_special(struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++)
		for (size_t k = 0; k < COUNT(special); k++)
			if (special[k].is(s, &s->fds[i]))
				scan_found(s, special[k].level, s->fds[i].process, special[k].what,
					   special[k].hint, special[k].text, s->fds[i].fd,
					   s->fds[i].target);
}

/* ---- memory that is sealed by mseal(2) ---- */

/* The kernel looks at each page of a process to tell. */
void scan_sealed(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_free char *smaps = NULL;
		size_t n = 0;

		if (p->state == 'Z' ||
		    proc_file_read(p->id.pid, "smaps", SMAPS_BYTES_MAX, &smaps, NULL) < 0)
			continue;
		for (const char *line = smaps; (line = strstr(line, "\nVmFlags:")); line++) {
			const char *seal = strstr(line, " sl"), *end = strchr(line + 1, '\n');

			n += seal && end && seal < end;
		}
		if (n)
			scan_found(s, SCAN_NOTE, p, "sealed-memory",
				   "nothing depends on it but protection against attacks",
				   "has %zu mapping%s sealed by mseal(2), which %s not after a "
				   "restore",
				   n, n == 1 ? "" : "s", n == 1 ? "is" : "are");
	}
}

/* ---- objects of System V: the kernel has them, not a process, and tells who used them last ---- */

static bool is_tree_process(const struct scan *s, pid_t pid, const struct proc_info **ret)
{
	for (size_t i = 0; i < s->tree->n && pid > 0; i++)
		if (s->tree->items[i].id.pid == pid) {
			*ret = &s->tree->items[i];
			return true;
		}
	return false;
}

static const char system_v_hint[] = "after a restore on another machine, or after a reboot, it is "
				    "gone; remove it first, or use "
				    "POSIX semaphores, sockets or files";

static void check_semaphores(struct scan *s, const char *line)
{
	const struct proc_info *p;
	int key, id;
	unsigned mode, n;

	if (sscanf(line, " %d %d %o %u", &key, &id, &mode, &n) != 4)
		return;
	for (unsigned i = 0; i < n; i++)
		if (is_tree_process(s, semctl(id, (int)i, GETPID), &p)) {
			scan_found(s, SCAN_SUSPECT, p, "sysv-semaphores", system_v_hint,
				   "uses System V semaphores (id %d), which are not saved", id);
			return;
		}
}

static void check_queue(struct scan *s, const char *line)
{
	const struct proc_info *p;
	int key, id, sender, receiver;

	if (sscanf(line, " %d %d %*o %*u %*u %d %d", &key, &id, &sender, &receiver) == 4 &&
	    (is_tree_process(s, sender, &p) || is_tree_process(s, receiver, &p)))
		scan_found(s, SCAN_SUSPECT, p, "sysv-queue", system_v_hint,
			   "uses a System V message queue (id %d), which is not saved", id);
}

/* That of a segment which is mapped is refused by its mapping. */
static void check_segment(struct scan *s, const char *line)
{
	const struct proc_info *p;
	int key, id, creator, last;
	unsigned n_attached;

	if (sscanf(line, " %d %d %*o %*u %d %d %u", &key, &id, &creator, &last, &n_attached) == 5 &&
	    !n_attached && (is_tree_process(s, creator, &p) || is_tree_process(s, last, &p)))
		scan_found(s, SCAN_SUSPECT, p, "sysv-memory", system_v_hint,
			   "uses System V shared memory (id %d), which is not saved", id);
}

void scan_system_v(struct scan *s)
{
	static const struct {
		const char *path;
		void (*check)(struct scan *s, const char *line);
	} tables[] = {
		{ "/proc/sysvipc/sem", check_semaphores },
		{ "/proc/sysvipc/msg", check_queue },
		{ "/proc/sysvipc/shm", check_segment },
	};

	for (size_t i = 0; i < COUNT(tables); i++) {
		auto_free char *text = NULL;

		if (file_read(AT_FDCWD, tables[i].path, SYSTEM_V_BYTES_MAX, &text, NULL) < 0)
			continue;
		for (const char *line = strchr(text, '\n'); line; line = strchr(line + 1, '\n'))
			tables[i].check(s, line);
	}
}

/* ---- Landlock: the kernel shows it to nobody, and CRIU does not bring it back ---- */

static bool kernel_has_landlock(void)
{
	enum { CREATE_RULESET = 444, ASK_VERSION = 1 }; /* on all machines */

	return syscall(CREATE_RULESET, NULL, 0, ASK_VERSION) > 0;
}

/*
 * The kernel lets a process without root confine itself only after it has given up gaining privileges by exec. A process
 * that gave them up by itself, and not for filters of system calls, had a reason; where the job began without them, or has
 * filters, that says little.
 */
void scan_sandboxes(struct scan *s)
{
	static const char gains_none[] = "NoNewPrivs", filters[] = "Seccomp";
	static const char hint[] = "if it is not, or need not be after a restore";
	bool began_so = s->tree->n && reaper_is(s->tree->items[0].id) &&
			proc_status_number(s->tree->items[0].id.pid, gains_none) == 1;

	if (!kernel_has_landlock())
		return;
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		if (p->state == 'Z' || proc_status_number(p->id.pid, gains_none) != 1)
			continue;
		scan_found(s,
			   began_so || proc_status_number(p->id.pid, filters) != 0 ? SCAN_NOTE
										   : SCAN_SUSPECT,
			   p, "landlock-sandbox", hint,
			   "can gain no privileges, and may be confined by Landlock, which nobody "
			   "can see and a restore does not bring back");
	}
}
