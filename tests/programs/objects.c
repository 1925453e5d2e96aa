// SPDX-License-Identifier: MIT
/* Its reports, and what all kinds share. objects --seed N --dir DIR KIND...; DIR/look with a number N asks for DIR/report.N. */
#include "objects.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <linux/keyctl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

#ifndef PR_GET_MDWE
#define PR_GET_MDWE 66
#endif

enum { OBJECTS_MAX = 1024, LABEL_BYTES = 64, TEXT_BYTES = 1 << 16, GPU_MIB = 2, POLL_NS = 5000000 };

const struct kind *kind;
static const char *dir;
static uint64_t random_state;
static FILE *report;
static char prefix[LABEL_BYTES * 2 + 16];

enum what { FD, MEMORY, CHILD, PATH, BY };
static struct object {
	enum what what;
	char label[LABEL_BYTES];
	int fd;
	pid_t pid;
	void *p;
	size_t len;
	const char *path;
	void (*looks)(void *arg);
} objects[OBJECTS_MAX];
static size_t n_objects;

unsigned chance(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((random_state >> 33) % n);
}

const char *new_path(const char *suffix)
{
	static int n;
	char *path;

	if (asprintf(&path, "%s/%s-%d%s", dir, kind->name, n++, suffix) < 0)
		die("ERR memory");
	return path;
}

void pattern(void *p, size_t len)
{
	unsigned char *bytes = p;

	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char)chance(256);
}

static struct object *add(enum what what, const char *label)
{
	struct object *o = &objects[n_objects++];

	if (n_objects > OBJECTS_MAX)
		die("too many objects");
	o->what = what;
	snprintf(o->label, sizeof(o->label), "%s.%s", kind->name, label);
	return o;
}

bool look_at_fd(int fd, const char *label)
{
	if (fd < 0)
		return false;
	add(FD, label)->fd = fd;
	return true;
}

bool look_at_memory(void *p, size_t len, const char *label)
{
	if (p == (void *)-1 || !p)
		return false;
	struct object *o = add(MEMORY, label);
	o->p = p;
	o->len = len;
	return true;
}

bool look_at_child(pid_t pid, const char *label)
{
	if (pid < 0)
		return false;
	add(CHILD, label)->pid = pid;
	return true;
}

bool look_at_path(const char *path, const char *label)
{
	add(PATH, label)->path = path;
	return true;
}

bool look_by(void (*looks)(void *arg), void *arg)
{
	struct object *o = add(BY, "own");

	o->looks = looks;
	o->p = arg;
	return true;
}

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread const char *own_prefix; /* of a thread that looks at itself */

void fact(const char *key, const char *fmt, ...)
{
	char text[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *c = text; *c; c++)
		if (*c == '\n' || *c == '\t')
			*c = ' ';
	pthread_mutex_lock(&report_lock);
	fprintf(report, "%s.%s\t%s\n", own_prefix ? own_prefix : prefix, key, text);
	pthread_mutex_unlock(&report_lock);
}

static void fact_result(const char *key, long r)
{
	if (r < 0)
		fact(key, "errno %d", errno);
	else
		fact(key, "%ld", r);
}

static uint64_t digest(const void *p, size_t len)
{
	const unsigned char *bytes = p;
	uint64_t h = 14695981039346656037u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ bytes[i]) * 1099511628211u;
	return h;
}

static size_t read_text(const char *path, char *ret, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n;

	while (fd >= 0 && len + 1 < room && (n = read(fd, ret + len, room - 1 - len)) > 0)
		len += (size_t)n;
	if (fd >= 0)
		close(fd);
	ret[len] = '\0';
	return len;
}

/* ---- descriptors ---- */

/* What is another number after a restore, and means nothing: the objects behind it are compared. */
static void fact_of_line(char *line, int n)
{
	static const char *const left_out[] = { "mnt_id:", "ino:",     "eventfd-id:", "it_value:",
						"pos:",	   "scm_fds:", "ticks:" };
	char key[32];
	char *cut;

	for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if (!strncmp(line, left_out[i], strlen(left_out[i])))
			return;
	/* epoll: "tfd: 5 events: 19 data: 5 pos:0 ino:… sdev:…"; inotify: "inotify wd:1 ino:… sdev:… mask:…", fanotify, lock */
	if (sscanf(line, "tfd: %d", &n) == 1 && (cut = strstr(line, "pos:")))
		*cut = '\0'; /* in any order: the number of the line is that of the descriptor */
	if ((cut = strstr(line, " ino:"))) {
		char *mask = strstr(cut, "mask:");

		memmove(cut + 1, mask ? mask : "", strlen(mask ? mask : "") + 1);
		if ((cut = strstr(line, "fhandle")))
			*cut = '\0';
	}
	if (!strncmp(line, "lock:", 5) && (cut = strchr(line, ':')))
		for (char *c = line; (c = strchr(c, ':')); c++) /* "08:01:1234" of the file */
			if (c > line + 5 && strspn(c - 2, "0123456789abcdef") == 2 && c[3] == ':')
				memset(c - 2, 'x', 6);
	snprintf(key, sizeof(key), "fdinfo%d", n);
	fact(key, "%s", line);
}

static void look_at_fdinfo(int fd)
{
	char path[64], text[8192];
	int n = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	read_text(path, text, sizeof(text));
	for (char *save, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		fact_of_line(line, n++);
}

static void look_at_name(int fd, const char *key, int (*get)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_storage address = { 0 };
	socklen_t len = sizeof(address);
	char text[300] = "";

	if (get(fd, (struct sockaddr *)&address, &len) < 0) {
		fact(key, "errno %d", errno);
		return;
	}
	for (socklen_t i = 0; i < len && i < 130; i++)
		snprintf(text + 2 * i, 3, "%02x", ((unsigned char *)&address)[i]);
	fact(key, "%s", text);
}

static void look_at_options(int fd, int level, const char *name, int most, const char *left_out)
{
	for (int option = 1; option <= most; option++) {
		unsigned char value[256] = { 0 };
		socklen_t len = sizeof(value);
		char key[32], text[80] = "", number[8];

		snprintf(number, sizeof(number), " %d ", option);
		if (strstr(left_out, number))
			continue;
		if (getsockopt(fd, level, option, value, &len) < 0)
			continue;
		for (socklen_t i = 0; i < len && i < 32; i++)
			snprintf(text + 2 * i, 3, "%02x", value[i]);
		snprintf(key, sizeof(key), "%s%d", name, option);
		fact(key, "%s", text);
	}
}

static void look_at_socket(int fd)
{
	unsigned char bytes[8192];
	int domain = 0, type = 0, protocol = 0;
	socklen_t len = sizeof(int);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len);
	getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len);
	look_at_name(fd, "name", getsockname);
	look_at_name(fd, "peer", getpeername);
	/* Not: an error, which reading clears; the processor that a packet came on; cookies; memory in use; pidfds. */
	look_at_options(fd, SOL_SOCKET, "so", 83, " 4 17 49 55 56 57 77 ");
	if (domain == AF_INET || domain == AF_INET6) {
		look_at_options(fd, IPPROTO_IP, "ip", 52, " 9 14 ");
		if (domain == AF_INET6)
			look_at_options(fd, IPPROTO_IPV6, "ipv6-", 80, " 24 34 59 61 ");
	}
	if (protocol == IPPROTO_UDP)
		look_at_options(fd, IPPROTO_UDP, "udp", 104, " ");
	if (type == SOCK_STREAM && (domain == AF_INET || domain == AF_INET6)) {
		struct tcp_info info = { 0 };

		len = sizeof(info);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
			fact("tcp-state", "%d", info.tcpi_state);
		/* Not: what the kernel measures, or counts. */
		look_at_options(fd, IPPROTO_TCP, "tcp", 40,
				" 2 11 12 14 15 20 21 24 26 28 32 35 36 37 ");
	}
	if (type == SOCK_STREAM || type == SOCK_DGRAM || type == SOCK_SEQPACKET) {
		ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);

		if (n < 0)
			fact("received", "errno %d", errno);
		else
			fact("received", "%zd %016llx", n,
			     (unsigned long long)digest(bytes, (size_t)n));
	}
}

static void look_at_terminal(int fd)
{
	struct termios t;
	struct winsize size;

	if (tcgetattr(fd, &t) < 0)
		return;
	fact("termios", "%x %x %x %x %016llx", t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag,
	     (unsigned long long)digest(t.c_cc, sizeof(t.c_cc)));
	if (ioctl(fd, TIOCGWINSZ, &size) == 0)
		fact("winsize", "%d %d", size.ws_row, size.ws_col);
	fact_result("foreground", tcgetpgrp(fd));
}

static void look_at_file(int fd)
{
	struct f_owner_ex owner;
	struct stat st;
	int waiting, domain = 0;
	socklen_t len = sizeof(domain);

	if (fstat(fd, &st) < 0) {
		fact("stat", "errno %d", errno);
		return;
	}
	fact("stat", "mode %o links %ld uid %d gid %d", st.st_mode,
	     S_ISDIR(st.st_mode) ? 0L : (long)st.st_nlink, (int)st.st_uid, (int)st.st_gid);
	if (S_ISREG(st.st_mode)) {
		fact("size", "%lld", (long long)st.st_size);
		fact_result("pos", lseek(fd, 0, SEEK_CUR));
	}
	fact_result("fl", fcntl(fd, F_GETFL));
	fact_result("fd", fcntl(fd, F_GETFD));
	if (fcntl(fd, F_GETOWN_EX, &owner) == 0)
		fact("owner", "%d %d", owner.type, owner.pid);
	fact_result("sig", fcntl(fd, F_GETSIG));
	fact_result("seals", fcntl(fd, F_GET_SEALS));
	fact_result("pipe-size", fcntl(fd, F_GETPIPE_SZ));
	fact_result("lease", fcntl(fd, F_GETLEASE));
	/* Packets come by themselves. */
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 || domain != AF_PACKET)
		domain = 0;
	if (!domain && !S_ISCHR(st.st_mode) && ioctl(fd, FIONREAD, &waiting) == 0 &&
	    !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		fact("waiting", "%d", waiting);
	if (S_ISCHR(st.st_mode))
		look_at_terminal(fd);
	if (S_ISSOCK(st.st_mode))
		look_at_socket(fd);
	look_at_fdinfo(fd);
}

/* ---- memory ---- */

static void look_at_area(const struct object *o)
{
	static char text[1 << 20];
	unsigned long begin = (unsigned long)o->p, end = begin + o->len, from, to, offset;
	char perms[8], path[512], *line = text;
	int n = 0;
	bool inside = false, readable = true;

	read_text("/proc/self/smaps", text, sizeof(text));
	for (char *save, *l = strtok_r(line, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char key[32];

		*path = '\0';
		if (sscanf(l, "%lx-%lx %7s %lx %*s %*s %511[^\n]", &from, &to, perms, &offset,
			   path) >= 4) {
			inside = from < end && to > begin;
			if (!inside)
				continue;
			snprintf(key, sizeof(key), "map%d", n++);
			/* What lies beside it may be merged with it. */
			fact(key, "%lx %lx %s %lx %s", from > begin ? from : begin,
			     to < end ? to : end, perms, *path == '/' ? offset : 0, path);
			readable &= perms[0] == 'r';
		} else if (inside && !strncmp(l, "VmFlags:", 8)) {
			char flags[256] = "";

			for (char *s2, *f = strtok_r(l + 8, " ", &s2); f;
			     f = strtok_r(NULL, " ", &s2))
				/* Not: that there may be guards, which a mapping beside it may have. */
				if (strcmp(f, "sd") && strcmp(f, "gu") && strlen(flags) < 240) {
					strcat(flags, f);
					strcat(flags, " ");
				}
			snprintf(key, sizeof(key), "flags%d", n - 1);
			fact(key, "%s", flags);
		}
	}
	if (!n)
		fact("map0", "not there");
	else if (readable)
		fact("bytes", "%016llx", (unsigned long long)digest(o->p, o->len));
}

/* ---- tasks ---- */

static void look_at_status(const char *path, const char *const *keys, size_t n_keys)
{
	char text[16384];

	read_text(path, text, sizeof(text));
	for (char *save, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < n_keys; i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				fact(keys[i], "%s", line + strlen(keys[i]));
}

static const char *const status_keys[] = {
	"Name:",
	"Umask:",
	"Tgid:",
	"Uid:",
	"Gid:",
	"Groups:",
	"NStgid:",
	"NSpgid:",
	"NSsid:",
	"SigPnd:",
	"ShdPnd:",
	"SigBlk:",
	"SigIgn:",
	"SigCgt:",
	"CapInh:",
	"CapPrm:",
	"CapEff:",
	"CapBnd:",
	"CapAmb:",
	"NoNewPrivs:",
	"Seccomp:",
	"Seccomp_filters:",
	"Speculation_Store_Bypass:",
	"SpeculationIndirectBranch:",
	"Cpus_allowed:",
	"Mems_allowed:",
	"THP_enabled:",
	"untag_mask:",
	"CoreDumping:",
	"x86_Thread_features:",
};
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static void look_at_child_of(pid_t pid)
{
	char path[64], text[1024], state = '?';
	int ppid = 0, pgrp = 0, sid = 0, tty = 0, tpgid = 0;
	siginfo_t info = { 0 };

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	read_text(path, text, sizeof(text));
	char *rest = strrchr(text, ')');
	if (!rest ||
	    sscanf(rest, ") %c %d %d %d %d %d", &state, &ppid, &pgrp, &sid, &tty, &tpgid) != 6) {
		fact("stat", "gone");
		return;
	}
	fact("stat", "%c parent %d group %d session %d tty %d %d",
	     state == 'R' || state == 'D' ? 'S' : state, ppid, pgrp, sid, !!tty, tpgid);
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	look_at_status(path, status_keys, N_OF(status_keys));
	if (ppid == getpid() &&
	    waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
	    info.si_pid)
		fact("wait", "code %d status %d", info.si_code, info.si_status);
	static const char *const files[] = { "oom_score_adj", "coredump_filter",
					     "timerslack_ns", "personality",
					     "comm",	      "cmdline",
					     "timers" };
	for (size_t i = 0; i < N_OF(files); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
		size_t len = read_text(path, text, sizeof(text));
		fact(files[i], "%zu %016llx", len, (unsigned long long)digest(text, len));
	}
	static const char *const links[] = { "exe", "cwd", "root" };
	for (size_t i = 0; i < N_OF(links); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, links[i]);
		ssize_t n = readlink(path, text, sizeof(text) - 1);
		text[n > 0 ? n : 0] = '\0';
		fact(links[i], "%s", text);
	}
	fact_result("ioprio", syscall(SYS_ioprio_get, 1, pid));
	fact_result("scheduler", sched_getscheduler(pid));
	fact_result("nice", getpriority(PRIO_PROCESS, (id_t)pid));
}

/* What a thread has of its own. */
static void look_at_self(void)
{
	static const struct {
		const char *name;
		int op;
	} plain[] = {
		{ "keepcaps", PR_GET_KEEPCAPS },	 { "timing", PR_GET_TIMING },
		{ "securebits", PR_GET_SECUREBITS },	 { "timerslack", PR_GET_TIMERSLACK },
		{ "no-new-privs", PR_GET_NO_NEW_PRIVS }, { "io-flusher", PR_GET_IO_FLUSHER },
		{ "thp", PR_GET_THP_DISABLE },		 { "mdwe", PR_GET_MDWE },
		{ "dumpable", PR_GET_DUMPABLE },	 { "mce", PR_MCE_KILL_GET },
	};
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
		uint32_t util_min, util_max;
	} attributes = { 0 };
	char path[64];
	unsigned long nodes[16] = { 0 };
	int mode = 0, value = 0;
	void *head;
	size_t len;
	stack_t stack;
	cpu_set_t cpus;
	sigset_t set;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)gettid());
	look_at_status(path, status_keys, N_OF(status_keys));
	for (size_t i = 0; i < N_OF(plain); i++)
		fact_result(plain[i].name, prctl(plain[i].op, 0, 0, 0, 0));
	if (prctl(PR_GET_PDEATHSIG, &value) == 0)
		fact("pdeathsig", "%d", value);
	if (prctl(PR_GET_CHILD_SUBREAPER, &value) == 0)
		fact("subreaper", "%d", value);
	if (prctl(PR_GET_TSC, &value) == 0)
		fact("tsc", "%d", value);
	if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) == 0)
		fact("sched",
		     "policy %u flags %llx nice %d priority %u runtime %llu %llu %llu util %u %u",
		     attributes.policy, (unsigned long long)attributes.flags, attributes.nice,
		     attributes.priority,
		     (unsigned long long)(attributes.policy == 6 ? attributes.runtime : 0),
		     (unsigned long long)attributes.deadline, (unsigned long long)attributes.period,
		     attributes.util_min, attributes.util_max);
	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	fact("affinity", "%016llx", (unsigned long long)digest(&cpus, sizeof(cpus)));
	fact_result("ioprio", syscall(SYS_ioprio_get, 1, 0));
	if (syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, NULL, 0) == 0)
		fact("mempolicy", "%d %lx", mode, nodes[0]);
	if (sigaltstack(NULL, &stack) == 0)
		fact("altstack", "%p %x %zu", stack.ss_sp, stack.ss_flags, stack.ss_size);
	if (syscall(SYS_get_robust_list, 0, &head, &len) == 0)
		fact("robust-list", "%d", head != NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	fact("sigmask", "%016llx", (unsigned long long)digest(&set, 8));
	sigpending(&set);
	fact("pending", "%016llx", (unsigned long long)digest(&set, 8));
	long key = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3 /* of the session */, 0);
	char description[256] = "";
	if (key > 0 &&
	    syscall(SYS_keyctl, KEYCTL_DESCRIBE, key, description, sizeof(description)) > 0)
		fact("session-keyring", "%s", description);
	fact("fsids", "%d %d", setfsuid((uid_t)-1), setfsgid((gid_t)-1));
}

static void look_at_process(void)
{
	static const char *const files[] = { "cmdline",		"environ", "oom_score_adj",
					     "coredump_filter", "timers",  "auxv",
					     "loginuid",	"cgroup",  "personality",
					     "uid_map" };
	static const char *const links[] = { "exe", "cwd", "root", "ns/uts", "ns/user" };
	char path[64], text[65536];

	for (int i = 0; i < RLIM_NLIMITS; i++) {
		struct rlimit limit;
		char key[32];

		snprintf(key, sizeof(key), "rlimit%d", i);
		if (getrlimit((__rlimit_resource_t)i, &limit) == 0)
			fact(key, "%llx %llx", (unsigned long long)limit.rlim_cur,
			     (unsigned long long)limit.rlim_max);
	}
	for (int i = 1; i <= 64; i++) {
		/* The kernel's own words: a C library hides two signals. */
		struct {
			void *handler;
			unsigned long flags;
			void *restorer;
			uint64_t mask;
		} action = { 0 };
		char key[32];

		snprintf(key, sizeof(key), "sigaction%d", i);
		if (syscall(SYS_rt_sigaction, i, NULL, &action, 8) == 0)
			fact(key, "%p %lx %p %llx", action.handler, action.flags, action.restorer,
			     (unsigned long long)action.mask);
	}
	for (int i = 0; i < 3; i++) {
		struct itimerval timer;
		char key[32];

		snprintf(key, sizeof(key), "itimer%d", i);
		if (getitimer((__itimer_which_t)i, &timer) == 0)
			fact(key, "%ld.%06ld %s", (long)timer.it_interval.tv_sec,
			     (long)timer.it_interval.tv_usec,
			     timer.it_value.tv_sec || timer.it_value.tv_usec ? "armed" : "off");
	}
	for (size_t i = 0; i < N_OF(files); i++) {
		snprintf(path, sizeof(path), "/proc/self/%s", files[i]);
		size_t len = read_text(path, text, sizeof(text));
		fact(files[i], "%zu %016llx", len, (unsigned long long)digest(text, len));
	}
	for (size_t i = 0; i < N_OF(links); i++) {
		snprintf(path, sizeof(path), "/proc/self/%s", links[i]);
		ssize_t n = readlink(path, text, sizeof(text) - 1);
		text[n > 0 ? n : 0] = '\0';
		fact(links[i], "%s", text);
	}
	fact("ids", "pid %d parent %d group %d session %d", (int)getpid(), (int)getppid(),
	     (int)getpgrp(), (int)getsid(0));
	fact_result("nice", getpriority(PRIO_PROCESS, 0));
	fact("brk", "%p", sbrk(0));
}

/* ---- threads that look at themselves ---- */

struct looker {
	char label[LABEL_BYTES];
	bool (*set)(void);
	bool ready, works;
	unsigned done;
};
static pthread_mutex_t looker_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t looker_called = PTHREAD_COND_INITIALIZER,
		      looker_answered = PTHREAD_COND_INITIALIZER;
static unsigned n_lookers, wanted;

static void *be_looked_at(void *arg)
{
	struct looker *l = arg;
	bool works = !l->set || l->set();

	own_prefix = l->label;
	pthread_mutex_lock(&looker_lock);
	l->works = works;
	l->ready = true;
	l->done = wanted;
	pthread_cond_broadcast(&looker_answered);
	while (works) {
		while (l->done == wanted)
			pthread_cond_wait(&looker_called, &looker_lock);
		look_at_self();
		l->done = wanted;
		pthread_cond_broadcast(&looker_answered);
	}
	pthread_mutex_unlock(&looker_lock);
	return NULL;
}

static struct looker lookers[64];

bool look_at_thread(bool (*set)(void), const char *label)
{
	struct looker *l = &lookers[n_lookers];
	pthread_t thread;

	if (n_lookers == N_OF(lookers))
		return false;
	*l = (struct looker){ .set = set };
	snprintf(l->label, sizeof(l->label), "%s.%s", kind->name, label);
	if (pthread_create(&thread, NULL, be_looked_at, l))
		return false;
	pthread_mutex_lock(&looker_lock);
	while (!l->ready)
		pthread_cond_wait(&looker_answered, &looker_lock);
	n_lookers += l->works;
	pthread_mutex_unlock(&looker_lock);
	if (!l->works)
		pthread_join(thread, NULL);
	return l->works;
}

static void call_lookers(void)
{
	pthread_mutex_lock(&looker_lock);
	wanted++;
	pthread_cond_broadcast(&looker_called);
	for (unsigned i = 0; i < n_lookers; i++)
		while (lookers[i].done != wanted)
			pthread_cond_wait(&looker_answered, &looker_lock);
	pthread_mutex_unlock(&looker_lock);
}

pid_t idle_child(bool (*set)(void))
{
	int ends[2];
	char byte = 0;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[0]);
		byte = !set || set();
		if (write(ends[1], &byte, 1) < 0 || !byte)
			_exit(1);
		close(ends[1]);
		for (;;)
			pause();
	}
	close(ends[1]);
	if (pid > 0 && (read(ends[0], &byte, 1) != 1 || !byte)) {
		waitid(P_PID, (id_t)pid, NULL, WEXITED);
		pid = -1;
	}
	close(ends[0]);
	return pid;
}

bool is_readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do /* other objects signal */
		n = poll(&p, 1, ms);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

bool passes(int from, int to)
{
	char bytes[64], got[64];

	pattern(bytes, sizeof(bytes));
	return write(from, bytes, sizeof(bytes)) == sizeof(bytes) && is_readable(to, 1000) &&
	       read(to, got, sizeof(got)) == sizeof(got) && !memcmp(bytes, got, sizeof(got));
}

/* ---- the program ---- */

static const struct kind *chosen[OBJECTS_MAX];
static size_t n_chosen;
static struct gpu gpu;
static struct array gpu_memory;

static const struct kind *find_kind(const char *name)
{
	static const struct kind *const all[] = { kinds_of_files, kinds_of_sockets, kinds_of_memory,
						  kinds_of_tasks };

	for (size_t i = 0; i < N_OF(all); i++)
		for (const struct kind *k = all[i]; k->name; k++)
			if (!name)
				puts(k->name);
			else if (!strcmp(k->name, name))
				return k;
	return NULL;
}

static void use_all(void)
{
	for (size_t i = 0; i < n_chosen; i++) {
		kind = chosen[i];
		const char *wrong = kind->use ? kind->use() : NULL;
		snprintf(prefix, sizeof(prefix), "%s", kind->name);
		fact("use", "%s", wrong ? wrong : "works");
	}
}

static void look_at(const struct object *o)
{
	struct stat st;

	snprintf(prefix, sizeof(prefix), "%s", o->label);
	switch (o->what) {
	case FD:
		look_at_file(o->fd);
		break;
	case MEMORY:
		look_at_area(o);
		break;
	case CHILD:
		look_at_child_of(o->pid);
		break;
	case PATH:
		if (lstat(o->path, &st) < 0)
			fact("path", "errno %d", errno);
		else
			fact("path", "mode %o size %lld links %ld uid %d", st.st_mode,
			     S_ISREG(st.st_mode) ? (long long)st.st_size : 0LL,
			     S_ISDIR(st.st_mode) ? 0L : (long)st.st_nlink, (int)st.st_uid);
		break;
	case BY:
		o->looks(o->p);
	}
}

/* Uses them once before the first report: some get a name by it, or the like. */
static void warm_up(void)
{
	report = fopen("/dev/null", "we");
	use_all();
	fclose(report);
}

static void write_report(unsigned number)
{
	char path[4096], made[4096];

	snprintf(made, sizeof(made), "%s/report.new", dir);
	snprintf(path, sizeof(path), "%s/report.%u", dir, number);
	report = fopen(made, "we");
	if (!report)
		die("%s: %m", made);
	snprintf(prefix, sizeof(prefix), "process");
	look_at_process();
	snprintf(prefix, sizeof(prefix), "main");
	look_at_self();
	for (size_t i = 0; i < n_objects; i++)
		look_at(&objects[i]);
	call_lookers();
	use_all();
	array_add(&gpu_memory, NULL);
	snprintf(prefix, sizeof(prefix), "gpu");
	fact("memory", "%s", array_check(&gpu_memory, NULL) ? "right" : "WRONG");
	if (fclose(report) || rename(made, path) < 0)
		die("%s: %m", path);
}

static unsigned asked(void)
{
	char path[4096], text[32];

	snprintf(path, sizeof(path), "%s/look", dir);
	read_text(path, text, sizeof(text));
	return (unsigned)atoi(text);
}

int main(int argc, char **argv)
{
	const struct timespec pause_time = { .tv_nsec = POLL_NS };
	unsigned done = 0;

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		find_kind(NULL);
		return 0;
	}
	if (argc < 3) {
		fprintf(stderr, "usage: objects SEED DIR KIND..., objects --list\n");
		return 2;
	}
	sigset_t kept; /* pending in any thread alike: before there are others */

	sigemptyset(&kept);
	sigaddset(&kept, SIGRTMAX - 2);
	sigprocmask(SIG_BLOCK, &kept, NULL);
	dir = argv[2];
	gpu_open(&gpu, 0);
	array_alloc(&gpu_memory, &gpu, 1, (size_t)GPU_MIB << 20);
	for (int i = 3; i < argc; i++) {
		random_state = strtoull(argv[1], NULL, 0) + (uint64_t)i;
		kind = find_kind(argv[i]);
		if (!kind)
			die("%s: no such kind", argv[i]);
		chance(2);
		if (kind->make())
			chosen[n_chosen++] = kind;
		else
			say("left out %s: %m", kind->name);
	}
	warm_up();
	say("ready pid %d", (int)getpid());
	for (;;) {
		unsigned number = asked();

		if (number == done) {
			nanosleep(&pause_time, NULL);
			continue;
		}
		write_report(number);
		done = number;
		say("step %u OK", number);
	}
}
