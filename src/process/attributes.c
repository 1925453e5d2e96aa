// SPDX-License-Identifier: MIT
/* What CRIU does not bring back of processes and threads; see attributes.h. */
#include "process/attributes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/machine.h"

enum {
	BITS = 64,
	IO_PRIORITY_OF_PROCESS = 1, /* as ioprio_set(2) has it */
	SMALL_FILE_BYTES = 1 << 16,
	MAPS_BYTES_MAX = 256 << 20,
	POLICY_LINE_BYTES = 2048,
	/* Flags of the kernel that /proc/PID/stat shows. */
	HAS_ERROR_POLICY = 0x80,
	IS_TOLD_EARLY = 0x08000000,
	SET_WRITE_OR_RUN = 65, /* prctl(2), PR_SET_MDWE */
	/* Modes of set_mempolicy(2) that older headers lack. */
	MANY_PREFERRED = 5,
	WEIGHTED = 6,
	LOCK_ON_FAULT = 1, /* mlock2(2) */
	/* timer_settime(2), TIMER_ABSTIME: <time.h> does not go with <linux/sched/types.h>. */
	AT_A_TIME = 1,
};

/* A fact of the kernel: the number of the next watch. */
#define SET_NEXT_WATCH _IOW('I', 0, int32_t)

#define HEADING "brumate attributes 1\n"

void attributes_fini(struct attributes *a)
{
	for (size_t i = 0; i < a->n; i++) {
		free(a->items[i].threads);
		free(a->items[i].ranges);
		free(a->items[i].locked);
		free(a->items[i].watches);
		free(a->items[i].alarms);
		free(a->items[i].timers);
	}
	free(a->items);
	*a = ATTRIBUTES_EMPTY;
}

/* ---- lists of numbers: "0-3,8" ---- */

static bool has_bit(const uint64_t *mask, unsigned bit)
{
	return mask[bit / BITS] >> bit % BITS & 1;
}

/* Where the list does not fit, it is empty, which means all. */
static void mask_to_list(char ret[static ATTRIBUTES_LIST_BYTES], const uint64_t *mask, unsigned n)
{
	size_t used = 0;

	ret[0] = '\0';
	for (unsigned i = 0; i < n; i++) {
		unsigned last = i;

		if (!has_bit(mask, i))
			continue;
		while (last + 1 < n && has_bit(mask, last + 1))
			last++;
		int written = snprintf(ret + used, ATTRIBUTES_LIST_BYTES - used,
				       last > i ? "%s%u-%u" : "%s%u", used ? "," : "", i, last);
		used += (size_t)written;
		if (used >= ATTRIBUTES_LIST_BYTES) {
			ret[0] = '\0';
			return;
		}
		i = last;
	}
}

/* False: it is no such list. */
static bool list_to_mask(uint64_t *mask, unsigned n, const char *list)
{
	memset(mask, 0, n / 8);
	while (*list) {
		char *end;
		unsigned long first, last;

		if (!isdigit((unsigned char)*list))
			return false;
		first = last = strtoul(list, &end, 10);
		if (*end == '-' && isdigit((unsigned char)end[1]))
			last = strtoul(end + 1, &end, 10);
		if (first > last || last >= n || (*end && (*end != ',' || !end[1])))
			return false;
		for (unsigned long i = first; i <= last; i++)
			mask[i / BITS] |= 1ull << i % BITS;
		list = end + (*end == ',');
	}
	return true;
}

/* ---- CPUs ---- */

static int get_cpus(uint64_t *ret, pid_t tid)
{
	memset(ret, 0, ATTRIBUTES_CPUS / 8);
	return syscall(SYS_sched_getaffinity, tid, ATTRIBUTES_CPUS / 8, ret) < 0 ? -errno : 0;
}

static bool read_list(uint64_t *ret, const char *path)
{
	auto_free char *text = NULL;

	if (!path || file_read(AT_FDCWD, path, SMALL_FILE_BYTES, &text, NULL) < 0)
		return false;
	text[strcspn(text, "\n")] = '\0';
	return *text && list_to_mask(ret, ATTRIBUTES_CPUS, text);
}

/* The CPUs that a process has which asked for none: those of the nearest cgroup that says, or of the machine. */
static bool usual_cpus(uint64_t *ret, pid_t pid)
{
	auto_free char *cgroup = machine_cgroup(pid);

	while (cgroup) {
		char path[4096 + 64];

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpuset.cpus.effective", cgroup);
		if (read_list(ret, path))
			return true;
		if (!machine_cgroup_go_out(cgroup))
			break;
	}
	return read_list(ret, "/sys/devices/system/cpu/online");
}

/* ---- reading ---- */

static int get_scheduling(struct sched_attr *ret, pid_t tid)
{
	*ret = (struct sched_attr){ .size = sizeof(*ret) };
	return syscall(SYS_sched_getattr, tid, ret, sizeof(*ret), 0) < 0 ? -errno : 0;
}

static uint64_t read_number(pid_t pid, const char *name, int base, uint64_t otherwise)
{
	auto_free char *text = NULL;

	if (proc_file_read(pid, name, SMALL_FILE_BYTES, &text, NULL) < 0 || !*text)
		return otherwise;
	return strtoull(text, NULL, base);
}

static pid_t inner_tid(const struct proc_info *info, pid_t tid)
{
	char name[48];
	auto_free char *status = NULL;

	if (info->pid_ns_depth <= 1)
		return tid;
	snprintf(name, sizeof(name), "task/%d/status", tid);
	if (proc_file_read(info->id.pid, name, SMALL_FILE_BYTES, &status, NULL) < 0)
		return 0;
	const char *line = strstr(status, "\nNSpid:");
	if (!line)
		return tid;
	const char *end = strchr(line + 1, '\n');
	while (end && end > line && !isspace((unsigned char)end[-1]))
		end--;
	return end ? (pid_t)atoi(end) : 0;
}

/* "bind:0-1", "prefer (many)=static:0" of /proc/PID/numa_maps. The one word that has a blank in it loses it. */
static bool take_policy(char policy[static 32], char nodes[static ATTRIBUTES_LIST_BYTES],
			const char *text)
{
	static const char *const words[][2] = {
		{ "prefer (many)", "prefer-many" },
		{ "weighted interleave", "weighted-interleave" },
	};
	const char *begin = "";
	size_t skipped = 0;

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (!strncmp(text, words[i][0], strlen(words[i][0]))) {
			begin = words[i][1];
			skipped = strlen(words[i][0]);
		}
	const char *rest = text + skipped;
	size_t len = strcspn(rest, ": \n"), begin_len = strlen(begin);
	if (begin_len + len >= 32)
		return false;
	memcpy(policy, begin, begin_len);
	memcpy(policy + begin_len, rest, len);
	policy[begin_len + len] = '\0';
	const char *list = rest[len] == ':' ? rest + len + 1 : "";
	len = strcspn(list, " \n");
	if (len >= ATTRIBUTES_LIST_BYTES)
		return false;
	memcpy(nodes, list, len);
	nodes[len] = '\0';
	return true;
}

/* The policy of the thread for memory that has none of its own: that of the first line, which is about the program's beginning.
 * For the lines that are read the kernel looks at every page, so these are few. */
static bool read_policy_at(char policy[static 32], char nodes[static ATTRIBUTES_LIST_BYTES],
			   pid_t pid, const char *name)
{
	char path[64], line[POLICY_LINE_BYTES];
	size_t n = 0;
	ssize_t r;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	do {
		r = fd < 0 ? -1 : read(fd, line + n, n + 128 < sizeof(line) ? 128 : 0);
		n += r > 0 ? (size_t)r : 0;
	} while (r > 0 && !memchr(line, '\n', n));
	line[n] = '\0';
	const char *blank = strchr(line, ' ');
	return blank && strchr(line, '\n') && take_policy(policy, nodes, blank + 1);
}

static void read_thread_policy(struct attributes_thread *t, const struct attributes_process *p,
			       pid_t pid, pid_t tid)
{
	char name[48];

	snprintf(name, sizeof(name), "task/%d/numa_maps", tid);
	if (tid != pid && read_policy_at(t->memory_policy, t->memory_nodes, pid, name) &&
	    (strcmp(t->memory_policy, p->memory_policy) ||
	     strcmp(t->memory_nodes, p->memory_nodes)))
		return;
	t->memory_policy[0] = t->memory_nodes[0] = '\0';
}

static unsigned read_memory_errors(pid_t tid)
{
	auto_free char *text = NULL;
	const char *field = NULL;

	if (proc_file_read(tid, "stat", SMALL_FILE_BYTES, &text, NULL) == 0)
		field = proc_stat_field(text, 9);
	const unsigned long flags = field ? strtoul(field, NULL, 10) : 0;
	return !(flags & HAS_ERROR_POLICY) ? PR_MCE_KILL_DEFAULT
	       : flags & IS_TOLD_EARLY	   ? PR_MCE_KILL_EARLY
					   : PR_MCE_KILL_LATE;
}

static bool read_thread(struct attributes_thread *ret, const struct attributes_process *p,
			const struct proc_info *info, pid_t tid, const uint64_t *usual)
{
	uint64_t cpus[ATTRIBUTES_CPUS / BITS];
	struct sched_attr scheduling;
	long io_priority = syscall(SYS_ioprio_get, IO_PRIORITY_OF_PROCESS, tid);

	if (get_cpus(cpus, tid) < 0 || (ret->tid = inner_tid(info, tid)) <= 0)
		return false; /* it has ended */
	if (!usual || memcmp(cpus, usual, sizeof(cpus)))
		mask_to_list(ret->cpus, cpus, ATTRIBUTES_CPUS);
	ret->io_priority = io_priority > 0 ? (uint32_t)io_priority : 0;
	ret->timer_slack_ns = read_number(tid, "timerslack_ns", 10, ATTRIBUTES_NO_SLACK);
	ret->util_max = UINT32_MAX;
	if (get_scheduling(&scheduling, tid) == 0) {
		ret->resets_on_fork = scheduling.sched_flags & SCHED_FLAG_RESET_ON_FORK;
		if (scheduling.sched_util_max) {
			ret->util_min = scheduling.sched_util_min;
			ret->util_max = scheduling.sched_util_max;
		}
	}
	ret->memory_errors = read_memory_errors(tid);
	read_thread_policy(ret, p, info->id.pid, tid);
	return true;
}

/* The policy of the memory that has none of its own is that of the first thread. */
static void read_memory_policy(struct attributes_process *p, pid_t pid)
{
	if (read_policy_at(p->memory_policy, p->memory_nodes, pid, "numa_maps"))
		return;
	strcpy(p->memory_policy, "default");
	p->memory_nodes[0] = '\0';
}

/* ---- mappings with a policy of their own ---- */

static uint64_t mapping_end(const char *maps, uint64_t start)
{
	char text[24];
	unsigned long long from, to;

	snprintf(text, sizeof(text), "%08" PRIx64 "-", start);
	for (const char *p = maps; (p = strstr(p, text)); p++)
		if ((p == maps || p[-1] == '\n') && sscanf(p, "%llx-%llx", &from, &to) == 2 &&
		    from == start)
			return to;
	return 0;
}

/* What a thread sees of the process's memory: where a mapping has no policy, its own stands there. */
struct policy_view {
	char name[48]; /* below /proc/PID */
	char policy[32];
	char nodes[ATTRIBUTES_LIST_BYTES];
};

static bool is_policy(const struct attributes_range *range, const char *policy, const char *nodes)
{
	return !strcmp(range->policy, policy) && !strcmp(range->nodes, nodes);
}

static bool has_range(const struct attributes_process *p, uint64_t start)
{
	for (size_t i = 0; i < p->n_ranges; i++)
		if (p->ranges[i].start == start)
			return true;
	return false;
}

static int read_ranges_in(struct attributes_process *p, pid_t pid, const struct policy_view *view,
			  const char *maps)
{
	auto_free char *numa = NULL;
	int r = 0;

	if (proc_file_read(pid, view->name, MAPS_BYTES_MAX, &numa, NULL) < 0)
		return 0;
	for (const char *line = numa; line && *line && r == 0; line = strchr(line, '\n')) {
		struct attributes_range range = { 0 };
		int begin = 0;

		line += *line == '\n';
		if (sscanf(line, "%" SCNx64 " %n", &range.start, &begin) != 1 || !begin ||
		    !take_policy(range.policy, range.nodes, line + begin) ||
		    is_policy(&range, view->policy, view->nodes) || has_range(p, range.start))
			continue;
		uint64_t end = mapping_end(maps, range.start);
		range.len_bytes = end - range.start;
		if (end > range.start && p->n_ranges < ATTRIBUTES_RANGES_MAX)
			r = array_add(p->ranges, p->n_ranges, range);
	}
	return r;
}

/* That of a thread with another policy than the first: an agent has one. */
static bool find_other_view(struct policy_view *ret, const struct attributes_process *p, pid_t pid)
{
	auto_closedir DIR *tasks = proc_dir_open(pid, "task");
	struct attributes_range seen;
	pid_t tid;

	while (tasks && proc_next(tasks, &tid) > 0) {
		snprintf(ret->name, sizeof(ret->name), "task/%d/numa_maps", tid);
		if (!read_policy_at(seen.policy, seen.nodes, pid, ret->name) ||
		    is_policy(&seen, p->memory_policy, p->memory_nodes))
			continue;
		strcpy(ret->policy, seen.policy);
		strcpy(ret->nodes, seen.nodes);
		return true;
	}
	return false;
}

static int read_ranges(struct attributes_process *p, pid_t pid)
{
	struct policy_view view = { .name = "numa_maps" };
	auto_free char *maps = NULL;

	read_memory_policy(p, pid);
	if (proc_file_read(pid, "maps", MAPS_BYTES_MAX, &maps, NULL) < 0)
		return 0;
	strcpy(view.policy, p->memory_policy);
	strcpy(view.nodes, p->memory_nodes);
	int r = read_ranges_in(p, pid, &view, maps);
	/* What has the policy of the first thread is seen by another. */
	if (r == 0 && strcmp(p->memory_policy, "default") != 0 && find_other_view(&view, p, pid))
		r = read_ranges_in(p, pid, &view, maps);
	return r;
}

/* ---- mappings whose pages are locked as they come ---- */

static int read_locked(struct attributes_process *p, pid_t pid)
{
	struct attributes_locked range = { 0 };
	auto_free char *smaps = NULL;
	int r = 0;

	if (proc_status_number(pid, "VmLck") <= 0 ||
	    proc_file_read(pid, "smaps", MAPS_BYTES_MAX, &smaps, NULL) < 0)
		return 0;
	for (char *rest = smaps, *line; (line = strsep(&rest, "\n")) && r == 0;) {
		struct proc_mapping m;

		if (proc_mapping_parse(&m, line))
			range = (struct attributes_locked){ m.start, m.end - m.start };
		else if (!strncmp(line, "VmFlags:", 8) && strstr(line, " lo") &&
			 strstr(line, " lf") && p->n_locked < ATTRIBUTES_RANGES_MAX)
			r = array_add(p->locked, p->n_locked, range);
	}
	return r;
}

int attributes_read_ranges(struct attributes *ret, const struct proc_tree *tree)
{
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	int r = 0;

	a.items = calloc(tree->n + 1, sizeof(*a.items));
	if (!a.items)
		return -ENOMEM;
	for (size_t i = 0; i < tree->n && r == 0; i++) {
		a.items[a.n] = (struct attributes_process){ .pid = tree->items[i].inner_pid };
		r = read_ranges(&a.items[a.n++], tree->items[i].id.pid);
		if (r == 0)
			r = read_locked(&a.items[a.n - 1], tree->items[i].id.pid);
	}
	if (r < 0)
		return r;
	*ret = take_struct(a, ATTRIBUTES_EMPTY);
	return 0;
}

void attributes_take_ranges(struct attributes *to, struct attributes *from)
{
	for (size_t i = 0; i < to->n; i++)
		for (size_t k = 0; k < from->n; k++) {
			struct attributes_process *p = &to->items[i], *q = &from->items[k];

			if (q->pid != p->pid || p->ranges || p->locked)
				continue;
			p->ranges = take_ptr(&q->ranges);
			p->n_ranges = q->n_ranges;
			p->locked = take_ptr(&q->locked);
			p->n_locked = q->n_locked;
		}
}

/* ---- watches on files that are deleted ---- */

/* The number of a deleted file that the process has open; -1: it has not. */
static int find_deleted(DIR *fds, unsigned long inode, unsigned device)
{
	struct statx st;

	rewinddir(fds);
	for (struct dirent *e; (e = readdir(fds));)
		if (e->d_name[0] != '.' &&
		    statx(dirfd(fds), e->d_name, AT_STATX_DONT_SYNC, STATX_INO | STATX_NLINK,
			  &st) == 0 &&
		    st.stx_ino == inode && !st.stx_nlink && st.stx_dev_major == device >> 20 &&
		    st.stx_dev_minor == (device & 0xfffff))
			return atoi(e->d_name);
	return -1;
}

static int read_watches_of(struct attributes_process *p, pid_t pid, int fd)
{
	auto_free char *info = NULL;
	auto_closedir DIR *fds = proc_dir_open(pid, "fd");
	char name[32];
	int r = 0;

	snprintf(name, sizeof(name), "fdinfo/%d", fd);
	if (!fds || proc_file_read(pid, name, MAPS_BYTES_MAX, &info, NULL) < 0)
		return 0;
	for (const char *line = info; (line = strstr(line, "inotify wd:")) && r == 0; line++) {
		struct attributes_watch watch = { .fd = fd };
		unsigned long inode;
		unsigned device;

		if (sscanf(line, "inotify wd:%x ino:%lx sdev:%x mask:%x", &watch.number, &inode,
			   &device, &watch.mask) != 4)
			continue;
		watch.file_fd = find_deleted(fds, inode, device);
		if (watch.file_fd >= 0 && p->n_watches < ATTRIBUTES_WATCHES_MAX)
			r = array_add(p->watches, p->n_watches, watch);
	}
	return r;
}

static int read_watches(struct attributes_process *p, pid_t pid)
{
	auto_closedir DIR *fds = proc_dir_open(pid, "fd");
	int r = 0;

	for (struct dirent *e; fds && r == 0 && (e = readdir(fds));) {
		char target[64];
		ssize_t n = readlinkat(dirfd(fds), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (!strcmp(target, "anon_inode:inotify"))
			r = read_watches_of(p, pid, atoi(e->d_name));
	}
	return r;
}

/* The inotify of the process, where it is one still. */
static int take_inotify(pid_t pid, int fd)
{
	auto_close int own = proc_descriptor(pid, fd);
	char path[48], target[64];

	if (own < 0)
		return own;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", own);
	ssize_t n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	return strcmp(target, "anon_inode:inotify") ? -EBADF : take_fd(&own);
}

/* What has come meanwhile is of the restore itself. CRIU takes away what came before, too. */
static void drop_events(int fd)
{
	char buf[4096];
	int n = 0;

	while (ioctl(fd, FIONREAD, &n) == 0 && n > 0 && read(fd, buf, sizeof(buf)) > 0)
		;
}

static bool watch_again(const struct attributes_watch *w, pid_t pid)
{
	auto_close int fd = take_inotify(pid, w->fd);
	char path[48];

	if (fd < 0 || ioctl(fd, SET_NEXT_WATCH, w->number) < 0)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, w->file_fd);
	int number = inotify_add_watch(fd, path, w->mask & IN_ALL_EVENTS);
	drop_events(fd);
	return number == w->number;
}

/* ---- reading, while they stand still ---- */

static int read_process(struct attributes_process *ret, const struct proc_info *info)
{
	uint64_t usual[ATTRIBUTES_CPUS / BITS];
	bool has_usual = usual_cpus(usual, info->id.pid);
	auto_closedir DIR *dir = proc_dir_open(info->id.pid, "task");

	*ret = (struct attributes_process){ .pid = info->inner_pid };
	ret->coredump_filter =
		(uint32_t)read_number(info->id.pid, "coredump_filter", 16, UINT32_MAX);
	ret->personality = (uint32_t)read_number(info->id.pid, "personality", 16, UINT32_MAX);
	read_memory_policy(ret, info->id.pid);
	if (read_watches(ret, info->id.pid) < 0 ||
	    alarms_read(&ret->alarms, &ret->n_alarms, info->id.pid) < 0)
		return -ENOMEM;
	for (struct dirent *e; dir && (e = readdir(dir));) {
		struct attributes_thread *threads =
			array_room(ret->threads, ret->n_threads, sizeof(*threads));
		pid_t tid = (pid_t)atoi(e->d_name);

		if (!threads)
			return -ENOMEM;
		ret->threads = threads;
		threads[ret->n_threads] = (struct attributes_thread){ 0 };
		if (tid > 0)
			ret->n_threads += read_thread(&threads[ret->n_threads], ret, info, tid,
						      has_usual ? usual : NULL);
	}
	return 0;
}

int attributes_read(struct attributes *ret, const struct proc_tree *tree)
{
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	int r = 0;

	a.items = calloc(tree->n + 1, sizeof(*a.items));
	if (!a.items)
		return -ENOMEM;
	for (size_t i = 0; i < tree->n && r == 0; i++)
		if (tree->items[i].state != 'Z')
			r = read_process(&a.items[a.n++], &tree->items[i]);
	if (r < 0)
		return r;
	*ret = take_struct(a, ATTRIBUTES_EMPTY);
	return 0;
}

/* ---- what threads have told ---- */

/* @at is where the last one was found: they come in the same order. */
static const struct attributes_told *find_told(const struct attributes_told *told, size_t n,
					       size_t *at, pid_t pid, pid_t tid)
{
	for (size_t i = 0; i < n; i++) {
		const struct attributes_told *its = &told[(*at + i) % n];

		if (its->pid != pid || its->tid != tid)
			continue;
		*at = (size_t)(its - told);
		return its;
	}
	return NULL;
}

size_t attributes_add_told(struct attributes *a, const struct attributes_told *told, size_t n)
{
	size_t n_unknown = 0, at = 0;

	for (size_t i = 0; i < a->n; i++)
		for (size_t k = 0; k < a->items[i].n_threads; k++) {
			struct attributes_thread *t = &a->items[i].threads[k];
			const struct attributes_told *its =
				find_told(told, n, &at, a->items[i].pid, t->tid);

			if (its && its->timer_slack_ns)
				t->timer_slack_ns = its->timer_slack_ns;
			if (its) {
				t->keeps_capabilities = its->keeps_capabilities;
				a->items[i].write_or_run |= its->write_or_run;
			}
			n_unknown += t->timer_slack_ns == ATTRIBUTES_NO_SLACK;
		}
	return n_unknown;
}

int attributes_add_timer(struct attributes *a, pid_t pid, const struct alarm_timer *timer)
{
	for (size_t i = 0; i < a->n; i++)
		if (a->items[i].pid == pid)
			return array_add(a->items[i].timers, a->items[i].n_timers, *timer);
	return -ESRCH;
}

/* ---- as text ---- */

static const char *or_none(const char *text)
{
	return *text ? text : "-";
}

char *attributes_encode(const struct attributes *a, size_t *ret_len_bytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_len_bytes);

	if (!f)
		return NULL;
	fputs(HEADING, f);
	for (size_t i = 0; i < a->n; i++) {
		const struct attributes_process *p = &a->items[i];

		fprintf(f, "process %d %" PRIx32 " %" PRIx32 " %" PRIu32 " %s %s\n", p->pid,
			p->coredump_filter, p->personality, p->write_or_run,
			or_none(p->memory_policy), or_none(p->memory_nodes));
		for (size_t k = 0; k < p->n_threads; k++) {
			const struct attributes_thread *t = &p->threads[k];

			fprintf(f, "thread %d %s %" PRIu32 " %" PRIu64 " %" PRIu32 " %" PRIu32 "\n",
				t->tid, or_none(t->cpus), t->io_priority,
				t->timer_slack_ns == ATTRIBUTES_NO_SLACK ? 0 : t->timer_slack_ns,
				t->util_min, t->util_max);
			if (t->resets_on_fork || t->memory_errors != PR_MCE_KILL_DEFAULT)
				fprintf(f, "flags %d %d %u\n", t->tid, t->resets_on_fork,
					t->memory_errors);
			if (t->keeps_capabilities)
				fprintf(f, "keeps %d\n", t->tid);
			if (*t->memory_policy)
				fprintf(f, "policy %d %s %s\n", t->tid, t->memory_policy,
					or_none(t->memory_nodes));
		}
		for (size_t k = 0; k < p->n_locked; k++)
			fprintf(f, "locked %" PRIx64 " %" PRIx64 "\n", p->locked[k].start,
				p->locked[k].len_bytes);
		for (size_t k = 0; k < p->n_watches; k++)
			fprintf(f, "watch %d %d %" PRIx32 " %d\n", p->watches[k].fd,
				p->watches[k].number, p->watches[k].mask, p->watches[k].file_fd);
		for (size_t k = 0; k < p->n_alarms; k++)
			fprintf(f, "alarm %d %d %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
				p->alarms[k].fd, p->alarms[k].ends_with_clock, p->alarms[k].due_ns,
				p->alarms[k].interval_ns, p->alarms[k].ticks);
		for (size_t k = 0; k < p->n_timers; k++)
			fprintf(f, "timer %" PRId32 " %" PRIu64 " %" PRIu64 "\n", p->timers[k].id,
				p->timers[k].due_ns, p->timers[k].interval_ns);
		for (size_t k = 0; k < p->n_ranges; k++)
			fprintf(f, "memory %" PRIx64 " %" PRIx64 " %s %s\n", p->ranges[k].start,
				p->ranges[k].len_bytes, or_none(p->ranges[k].policy),
				or_none(p->ranges[k].nodes));
	}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

static void none_to_empty(char *text)
{
	if (!strcmp(text, "-"))
		*text = '\0';
}

static int add_process(struct attributes *a, const char *line)
{
	struct attributes_process p = { 0 };
	uint64_t nodes[ATTRIBUTES_NODES / BITS];
	int end = 0;

	if (sscanf(line, "process %d %" SCNx32 " %" SCNx32 " %" SCNu32 " %31s %1023s%n", &p.pid,
		   &p.coredump_filter, &p.personality, &p.write_or_run, p.memory_policy,
		   p.memory_nodes, &end) != 6 ||
	    line[end] || p.pid <= 0 || a->n >= ATTRIBUTES_PROCESSES_MAX)
		return -EBADMSG;
	none_to_empty(p.memory_policy);
	none_to_empty(p.memory_nodes);
	if (!list_to_mask(nodes, ATTRIBUTES_NODES, p.memory_nodes))
		return -EBADMSG;
	return array_add(a->items, a->n, p);
}

static int add_thread(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	struct attributes_thread t = { .memory_errors = PR_MCE_KILL_DEFAULT };
	uint64_t cpus[ATTRIBUTES_CPUS / BITS];
	int end = 0;

	if (!p ||
	    sscanf(line, "thread %d %1023s %" SCNu32 " %" SCNu64 " %" SCNu32 " %" SCNu32 "%n",
		   &t.tid, t.cpus, &t.io_priority, &t.timer_slack_ns, &t.util_min, &t.util_max,
		   &end) != 6 ||
	    line[end] || t.tid <= 0 || p->n_threads >= ATTRIBUTES_THREADS_MAX)
		return -EBADMSG;
	none_to_empty(t.cpus);
	if (!list_to_mask(cpus, ATTRIBUTES_CPUS, t.cpus))
		return -EBADMSG;
	return array_add(p->threads, p->n_threads, t);
}

/* The thread of the line before. */
static struct attributes_thread *last_thread(struct attributes *a, pid_t tid)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;

	return p && p->n_threads && p->threads[p->n_threads - 1].tid == tid
		       ? &p->threads[p->n_threads - 1]
		       : NULL;
}

static int decode_flags(struct attributes *a, const char *line)
{
	unsigned resets, errors;
	int tid, end = 0;

	if (sscanf(line, "flags %d %u %u%n", &tid, &resets, &errors, &end) != 3 || line[end] ||
	    resets > 1 || errors > PR_MCE_KILL_DEFAULT)
		return -EBADMSG;
	struct attributes_thread *t = last_thread(a, tid);
	if (!t)
		return -EBADMSG;
	t->resets_on_fork = resets;
	t->memory_errors = errors;
	return 0;
}

static int decode_keeps(struct attributes *a, const char *line)
{
	int tid, end = 0;

	if (sscanf(line, "keeps %d%n", &tid, &end) != 1 || line[end])
		return -EBADMSG;
	struct attributes_thread *t = last_thread(a, tid);
	if (!t)
		return -EBADMSG;
	t->keeps_capabilities = true;
	return 0;
}

static int decode_policy(struct attributes *a, const char *line)
{
	char policy[32], nodes[ATTRIBUTES_LIST_BYTES];
	uint64_t mask[ATTRIBUTES_NODES / BITS];
	int tid, end = 0;

	if (sscanf(line, "policy %d %31s %1023s%n", &tid, policy, nodes, &end) != 3 || line[end])
		return -EBADMSG;
	struct attributes_thread *t = last_thread(a, tid);
	none_to_empty(nodes);
	if (!t || !list_to_mask(mask, ATTRIBUTES_NODES, nodes))
		return -EBADMSG;
	strcpy(t->memory_policy, policy);
	strcpy(t->memory_nodes, nodes);
	return 0;
}

static int decode_locked(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	struct attributes_locked l;
	int end = 0;

	if (!p ||
	    sscanf(line, "locked %" SCNx64 " %" SCNx64 "%n", &l.start, &l.len_bytes, &end) != 2 ||
	    line[end] || p->n_locked >= ATTRIBUTES_RANGES_MAX)
		return -EBADMSG;
	return array_add(p->locked, p->n_locked, l);
}

static int decode_range(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	struct attributes_range range = { 0 };
	uint64_t nodes[ATTRIBUTES_NODES / BITS];
	int end = 0;

	if (!p ||
	    sscanf(line, "memory %" SCNx64 " %" SCNx64 " %31s %1023s%n", &range.start,
		   &range.len_bytes, range.policy, range.nodes, &end) != 4 ||
	    line[end] || p->n_ranges >= ATTRIBUTES_RANGES_MAX)
		return -EBADMSG;
	none_to_empty(range.policy);
	none_to_empty(range.nodes);
	return list_to_mask(nodes, ATTRIBUTES_NODES, range.nodes)
		       ? array_add(p->ranges, p->n_ranges, range)
		       : -EBADMSG;
}

static int decode_watch(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	struct attributes_watch w = { 0 };
	int end = 0;

	if (!p ||
	    sscanf(line, "watch %d %d %" SCNx32 " %d%n", &w.fd, &w.number, &w.mask, &w.file_fd,
		   &end) != 4 ||
	    line[end] || w.fd < 0 || w.file_fd < 0 || w.number <= 0 ||
	    p->n_watches >= ATTRIBUTES_WATCHES_MAX)
		return -EBADMSG;
	return array_add(p->watches, p->n_watches, w);
}

static int decode_alarm(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	unsigned ends_with_clock;
	struct alarm alarm;
	int end = 0;

	if (!p ||
	    sscanf(line, "alarm %d %u %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &alarm.fd,
		   &ends_with_clock, &alarm.due_ns, &alarm.interval_ns, &alarm.ticks, &end) != 5 ||
	    line[end] || alarm.fd < 0 || ends_with_clock > 1 || alarm.due_ns > INT64_MAX ||
	    alarm.interval_ns > INT64_MAX || p->n_alarms >= ATTRIBUTES_ALARMS_MAX)
		return -EBADMSG;
	alarm.ends_with_clock = ends_with_clock;
	return array_add(p->alarms, p->n_alarms, alarm);
}

static int decode_timer(struct attributes *a, const char *line)
{
	struct attributes_process *p = a->n ? &a->items[a->n - 1] : NULL;
	struct alarm_timer t;
	int end = 0;

	if (!p ||
	    sscanf(line, "timer %" SCNd32 " %" SCNu64 " %" SCNu64 "%n", &t.id, &t.due_ns,
		   &t.interval_ns, &end) != 3 ||
	    line[end] || t.id < 0 || !t.due_ns || t.due_ns > INT64_MAX ||
	    t.interval_ns > INT64_MAX || p->n_timers >= ATTRIBUTES_ALARMS_MAX)
		return -EBADMSG;
	return array_add(p->timers, p->n_timers, t);
}

int attributes_decode(struct attributes *ret, const char *text, size_t len_bytes)
{
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	auto_free char *copy = strndup(text, len_bytes);
	int r = 0;

	if (!copy)
		return -ENOMEM;
	if (strlen(copy) != len_bytes || strncmp(copy, HEADING, strlen(HEADING)))
		return -EBADMSG;
	for (char *line = copy + strlen(HEADING), *next; *line && r == 0; line = next) {
		next = strchr(line, '\n');
		if (!next)
			return -EBADMSG;
		*next++ = '\0';
		r = !strncmp(line, "process ", 8)  ? add_process(&a, line)
		    : !strncmp(line, "thread ", 7) ? add_thread(&a, line)
		    : !strncmp(line, "memory ", 7) ? decode_range(&a, line)
		    : !strncmp(line, "watch ", 6)  ? decode_watch(&a, line)
		    : !strncmp(line, "alarm ", 6)  ? decode_alarm(&a, line)
		    : !strncmp(line, "timer ", 6)  ? decode_timer(&a, line)
		    : !strncmp(line, "flags ", 6)  ? decode_flags(&a, line)
		    : !strncmp(line, "keeps ", 6)  ? decode_keeps(&a, line)
		    : !strncmp(line, "policy ", 7) ? decode_policy(&a, line)
		    : !strncmp(line, "locked ", 7) ? decode_locked(&a, line)
						   : -EBADMSG;
	}
	if (r < 0)
		return r;
	*ret = take_struct(a, ATTRIBUTES_EMPTY);
	return 0;
}

/* ---- what a thread does for itself ---- */

/* The words of /proc/PID/numa_maps. -1: another one. */
static int policy_of(const char *text, unsigned *ret_flags)
{
	static const char *const names[] = {
		[MPOL_DEFAULT] = "default",
		[MPOL_PREFERRED] = "prefer",
		[MPOL_BIND] = "bind",
		[MPOL_INTERLEAVE] = "interleave",
		[MPOL_LOCAL] = "local",
		[MANY_PREFERRED] = "prefer-many",
		[WEIGHTED] = "weighted-interleave",
	};
	size_t len = strcspn(text, "=");

	*ret_flags = !strcmp(text + len, "=static")	? MPOL_F_STATIC_NODES
		     : !strcmp(text + len, "=relative") ? MPOL_F_RELATIVE_NODES
							: 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (strlen(names[i]) == len && !strncmp(text, names[i], len))
			return (int)i;
	return -1;
}

struct call_list {
	struct attributes_call *items;
	size_t n;
};

/* By the first thread alone: the memory is that of all. */
static int add_range_call(struct call_list *list, const struct attributes_process *p,
			  const struct attributes_range *range)
{
	unsigned flags;
	int mode = policy_of(range->policy, &flags);
	struct attributes_call call = { .pid = p->pid,
					.tid = p->pid,
					.number = SYS_mbind,
					.arguments = { range->start, range->len_bytes,
						       (uint64_t)mode | flags } };

	if (mode < 0 || !list_to_mask(call.mask, ATTRIBUTES_NODES, range->nodes))
		return 0;
	call.mask_argument = *range->nodes ? 3 : 0;
	call.arguments[4] = *range->nodes ? ATTRIBUTES_NODES + 1 : 0;
	return array_add(list->items, list->n, call);
}

/* @tid 0: each thread. */
static int add_policy_call(struct call_list *list, pid_t pid, pid_t tid, const char *policy,
			   const char *nodes)
{
	struct attributes_call call = { .pid = pid, .tid = tid, .number = SYS_set_mempolicy };
	unsigned flags;
	int mode = policy_of(policy, &flags);

	if (mode < 0 || (!tid && mode == MPOL_DEFAULT) ||
	    !list_to_mask(call.mask, ATTRIBUTES_NODES, nodes))
		return 0;
	call.arguments[0] = (uint64_t)mode | flags;
	call.mask_argument = *nodes ? 1 : 0;
	call.arguments[2] = *nodes ? ATTRIBUTES_NODES + 1 : 0;
	return array_add(list->items, list->n, call);
}

static int add_thread_calls(struct call_list *list, pid_t pid, const struct attributes_thread *t)
{
	const struct attributes_call slack = { .pid = pid,
					       .tid = t->tid,
					       .number = SYS_prctl,
					       .arguments = { PR_SET_TIMERSLACK,
							      t->timer_slack_ns } };
	const struct attributes_call errors = { .pid = pid,
						.tid = t->tid,
						.number = SYS_prctl,
						.arguments = { PR_MCE_KILL, PR_MCE_KILL_SET,
							       t->memory_errors } };
	const struct attributes_call keeps = {
		.pid = pid, .tid = t->tid, .number = SYS_prctl, .arguments = { PR_SET_KEEPCAPS, 1 }
	};
	/* CRIU's processes have that of the thread that starts it. */
	const uint64_t usual_ns = (uint64_t)prctl(PR_GET_TIMERSLACK);
	int r = 0;

	if (t->timer_slack_ns && t->timer_slack_ns != usual_ns &&
	    t->timer_slack_ns != ATTRIBUTES_NO_SLACK)
		r = array_add(list->items, list->n, slack);
	if (r == 0 && t->keeps_capabilities)
		r = array_add(list->items, list->n, keeps);
	if (r == 0 && t->memory_errors != PR_MCE_KILL_DEFAULT)
		r = array_add(list->items, list->n, errors);
	if (r == 0 && *t->memory_policy)
		r = add_policy_call(list, pid, t->tid, t->memory_policy, t->memory_nodes);
	return r;
}

/* What should have come meanwhile comes at once; of one that repeats the kernel counts how often, as ever. */
static int add_timer_call(struct call_list *list, pid_t pid, const struct alarm_timer *t)
{
	struct attributes_call call = { .pid = pid,
					.tid = pid,
					.number = SYS_timer_settime,
					.arguments = { (uint64_t)t->id, AT_A_TIME },
					.mask_argument = 2 };

	alarm_timer_words(call.mask, t);
	return array_add(list->items, list->n, call);
}

static int add_calls(struct call_list *list, const struct attributes_process *p)
{
	const struct attributes_call personality = { .pid = p->pid,
						     .number = SYS_personality,
						     .arguments = { p->personality } };
	const struct attributes_call write_or_run = { .pid = p->pid,
						      .tid = p->pid,
						      .number = SYS_prctl,
						      .arguments = { SET_WRITE_OR_RUN,
								     p->write_or_run } };
	int r = p->write_or_run ? array_add(list->items, list->n, write_or_run) : 0;

	if (r == 0)
		r = add_policy_call(list, p->pid, 0, p->memory_policy, p->memory_nodes);
	if (r == 0 && p->personality && p->personality != UINT32_MAX)
		r = array_add(list->items, list->n, personality);
	for (size_t i = 0; i < p->n_ranges && r == 0; i++)
		r = add_range_call(list, p, &p->ranges[i]);
	for (size_t i = 0; i < p->n_locked && r == 0; i++) {
		const struct attributes_call lock = {
			.pid = p->pid,
			.tid = p->pid,
			.number = SYS_mlock2,
			.arguments = { p->locked[i].start, p->locked[i].len_bytes, LOCK_ON_FAULT }
		};

		r = array_add(list->items, list->n, lock);
	}
	for (size_t i = 0; i < p->n_threads && r == 0; i++)
		r = add_thread_calls(list, p->pid, &p->threads[i]);
	for (size_t i = 0; i < p->n_timers && r == 0; i++)
		r = add_timer_call(list, p->pid, &p->timers[i]);
	return r;
}

int attributes_calls(struct attributes_call **ret, size_t *ret_n, const struct attributes *a)
{
	struct call_list list = { 0 };
	int r = 0;

	for (size_t i = 0; i < a->n && r == 0; i++)
		r = add_calls(&list, &a->items[i]);
	if (r < 0) {
		free(list.items);
		return r;
	}
	*ret = list.items;
	*ret_n = list.n;
	return 0;
}

/* ---- giving back ---- */

struct giving {
	attributes_note_fn note;
	void *arg;
	const struct proc_info *process;
};

static void tell(const struct giving *g, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void tell(const struct giving *g, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	int n = snprintf(text, sizeof(text), "process %d (%s): ", g->process->id.pid,
			 g->process->comm);

	va_start(ap, fmt);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	g->note(g->arg, text);
}

/* CPUs that are not here the kernel leaves out, unless none is left. Returns whether the thread runs where it is to. */
static bool give_cpus(const struct attributes_thread *t, pid_t tid)
{
	uint64_t cpus[ATTRIBUTES_CPUS / BITS], now[ATTRIBUTES_CPUS / BITS];

	if (!*t->cpus)
		memset(cpus, 0xff, sizeof(cpus));
	else if (!list_to_mask(cpus, ATTRIBUTES_CPUS, t->cpus))
		return false;
	if (syscall(SYS_sched_setaffinity, tid, sizeof(cpus), cpus) < 0)
		return errno == ESRCH || !*t->cpus;
	return !*t->cpus || (get_cpus(now, tid) == 0 && !memcmp(cpus, now, sizeof(cpus)));
}

static bool give_io_priority(const struct attributes_thread *t, pid_t tid)
{
	long now = syscall(SYS_ioprio_get, IO_PRIORITY_OF_PROCESS, tid);

	return now == (long)t->io_priority ||
	       syscall(SYS_ioprio_set, IO_PRIORITY_OF_PROCESS, tid, t->io_priority) == 0 ||
	       errno == ESRCH;
}

/* The flag is set only together with a policy, which stays what it is. */
static bool give_scheduling(const struct attributes_thread *t, pid_t tid)
{
	enum { UTIL = 0x20 | 0x40 }; /* flags of sched_setattr(2) for both limits */
	const bool has_limits = t->util_max != UINT32_MAX;
	struct sched_attr now, wanted;

	if (get_scheduling(&now, tid) < 0 ||
	    ((!has_limits ||
	      (now.sched_util_min == t->util_min && now.sched_util_max == t->util_max)) &&
	     !(now.sched_flags & SCHED_FLAG_RESET_ON_FORK) == !t->resets_on_fork))
		return true;
	wanted = now;
	wanted.sched_flags = (t->resets_on_fork ? SCHED_FLAG_RESET_ON_FORK : 0u) |
			     (has_limits ? (unsigned)UTIL : 0u);
	wanted.sched_util_min = t->util_min;
	wanted.sched_util_max = t->util_max;
	return syscall(SYS_sched_setattr, tid, &wanted, 0) == 0;
}

static const struct attributes_thread *find_thread(const struct attributes_process *p, pid_t inner)
{
	for (size_t i = 0; i < p->n_threads; i++)
		if (p->threads[i].tid == inner)
			return &p->threads[i];
	return NULL;
}

/* How many threads have not what they are to have. */
struct missed {
	size_t cpus, io_priority, slack, scheduling, policy, memory_errors;
	const char *cpu_list;
};

/* Of what the thread was to do for itself. */
static void check_thread(struct missed *m, const struct attributes_process *p,
			 const struct attributes_thread *t, pid_t pid, pid_t tid)
{
	struct attributes_thread now = { 0 };

	m->slack += t->timer_slack_ns && t->timer_slack_ns != ATTRIBUTES_NO_SLACK &&
		    read_number(tid, "timerslack_ns", 10, t->timer_slack_ns) != t->timer_slack_ns;
	m->memory_errors += read_memory_errors(tid) != t->memory_errors;
	read_thread_policy(&now, p, pid, tid);
	m->policy += *t->memory_policy && (strcmp(now.memory_policy, t->memory_policy) ||
					   strcmp(now.memory_nodes, t->memory_nodes));
}

static void give_thread(struct missed *m, const struct attributes_thread *t, pid_t tid)
{
	if (!give_cpus(t, tid)) {
		m->cpus++;
		m->cpu_list = t->cpus;
	}
	m->io_priority += !give_io_priority(t, tid);
	m->scheduling += !give_scheduling(t, tid);
}

static void tell_missed(const struct giving *g, const struct missed *m)
{
	if (m->cpus)
		tell(g,
		     "%zu thread%s bound to the CPUs %s, which are not all to be had here: bound "
		     "to "
		     "those that are, or to none",
		     m->cpus, m->cpus == 1 ? " was" : "s were", m->cpu_list);
	if (m->io_priority)
		tell(g, "%zu thread%s could not be given the I/O priority that it had",
		     m->io_priority, m->io_priority == 1 ? "" : "s");
	if (m->scheduling)
		tell(g,
		     "%zu thread%s could not be given the utilization limits, or the flag "
		     "SCHED_RESET_ON_FORK, that it had",
		     m->scheduling, m->scheduling == 1 ? "" : "s");
	if (m->policy)
		tell(g, "%zu thread%s could not be given the memory policy that it had", m->policy,
		     m->policy == 1 ? "" : "s");
	if (m->memory_errors)
		tell(g, "%zu thread%s could not be given the policy for memory errors that it had",
		     m->memory_errors, m->memory_errors == 1 ? "" : "s");
	if (m->slack)
		tell(g, "%zu thread%s could not be given the timer slack that it had", m->slack,
		     m->slack == 1 ? "" : "s");
}

static void give_coredump_filter(const struct giving *g, const struct attributes_process *p)
{
	pid_t pid = g->process->id.pid;
	char path[64], text[16];

	if (p->coredump_filter == UINT32_MAX ||
	    read_number(pid, "coredump_filter", 16, p->coredump_filter) == p->coredump_filter)
		return;
	snprintf(path, sizeof(path), "/proc/%d/coredump_filter", pid);
	int n = snprintf(text, sizeof(text), "0x%" PRIx32, p->coredump_filter);
	auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, (size_t)n) != n)
		tell(g, "could not be given the filter of core dumps that it had");
}

/* Of what the process was to do for itself. */
static void check_own_calls(const struct giving *g, const struct attributes_process *p)
{
	struct attributes_process now = { 0 };
	pid_t pid = g->process->id.pid;

	if (p->personality != UINT32_MAX &&
	    read_number(pid, "personality", 16, p->personality) != p->personality)
		tell(g, "could not be given the personality that it had (%" PRIx32 ")",
		     p->personality);
	read_memory_policy(&now, pid);
	if (*p->memory_policy && (strcmp(now.memory_policy, p->memory_policy) ||
				  strcmp(now.memory_nodes, p->memory_nodes)))
		tell(g, "could not be given the memory policy that it had (%s%s%s)",
		     p->memory_policy, *p->memory_nodes ? ":" : "", p->memory_nodes);
}

static void give_process(const struct giving *g, const struct attributes_process *p)
{
	auto_closedir DIR *dir = proc_dir_open(g->process->id.pid, "task");
	struct missed missed = { 0 };

	for (struct dirent *e; dir && (e = readdir(dir));) {
		pid_t tid = (pid_t)atoi(e->d_name);
		const struct attributes_thread *t =
			tid > 0 ? find_thread(p, inner_tid(g->process, tid)) : NULL;

		if (!t)
			continue;
		give_thread(&missed, t, tid);
		check_thread(&missed, p, t, g->process->id.pid, tid);
	}
	tell_missed(g, &missed);
	give_coredump_filter(g, p);
	check_own_calls(g, p);
}

void attributes_apply(const struct attributes *a, const struct proc_tree *tree,
		      attributes_note_fn note, void *arg)
{
	for (size_t i = 0; i < tree->n; i++) {
		const struct giving g = { note, arg, &tree->items[i] };

		for (size_t k = 0; k < a->n; k++)
			if (a->items[k].pid == tree->items[i].inner_pid)
				give_process(&g, &a->items[k]);
	}
}

static void watch_process(const struct giving *g, const struct attributes_process *p)
{
	const pid_t pid = g->process->id.pid;
	size_t n_watches = 0, n_alarms = 0; /* that were missed */

	for (size_t i = 0; i < p->n_watches; i++)
		n_watches += !watch_again(&p->watches[i], pid);
	for (size_t i = 0; i < p->n_alarms; i++)
		n_alarms += !alarm_set(&p->alarms[i], pid);
	if (n_watches)
		tell(g, "%zu watch%s of inotify on deleted files could not be set again", n_watches,
		     n_watches == 1 ? "" : "es");
	if (n_alarms)
		tell(g,
		     "%zu timer%s could not be set to the time of day that they had: what was "
		     "left is counted from now on",
		     n_alarms, n_alarms == 1 ? "" : "s");
}

void attributes_watch(const struct attributes *a, const struct proc_tree *tree,
		      attributes_note_fn note, void *arg)
{
	for (size_t i = 0; i < tree->n; i++) {
		const struct giving g = { note, arg, &tree->items[i] };

		for (size_t k = 0; k < a->n; k++)
			if (a->items[k].pid == tree->items[i].inner_pid)
				watch_process(&g, &a->items[k]);
	}
}
