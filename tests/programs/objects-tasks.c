// SPDX-License-Identifier: MIT
/* Kinds of processes, threads and what they have: attributes, timers, signals, rights. */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/ioprio.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 1000 };

/* ---- of threads ---- */

static bool set_name(void)
{
	return prctl(PR_SET_NAME, "a thread's name") == 0;
}

static bool set_mask(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (int i = 0; i < 6; i++)
		sigaddset(&set, 1 + (int)chance(30));
	return pthread_sigmask(SIG_BLOCK, &set, NULL) == 0;
}

static bool set_altstack(void)
{
	stack_t stack = { .ss_size = 16384 };

	stack.ss_sp = malloc(stack.ss_size);
	return sigaltstack(&stack, NULL) == 0;
}

static bool set_pending(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	union sigval value = { .sival_int = 42 };
	return pthread_sigqueue(pthread_self(), SIGRTMIN + 1, value) == 0 &&
	       pthread_kill(pthread_self(), SIGUSR2) == 0;
}

static bool set_policy(void)
{
	struct sched_param param = { .sched_priority =
					     kind->detail == SCHED_FIFO || kind->detail == SCHED_RR
						     ? 1 + (int)chance(20)
						     : 0 };

	return sched_setscheduler(0, kind->detail, &param) == 0;
}

static bool set_reset_on_fork(void)
{
	struct sched_param param = { 0 };

	return sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &param) == 0;
}

static bool set_deadline(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} a = { .size = 48,
		.policy = 6,
		.runtime = 1000000,
		.deadline = 100000000,
		.period = 100000000 };

	return syscall(SYS_sched_setattr, 0, &a, 0) == 0;
}

static bool set_nice(void)
{
	return setpriority(PRIO_PROCESS, 0, 3 + (int)chance(10)) == 0;
}

static bool set_affinity(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((int)chance((unsigned)sysconf(_SC_NPROCESSORS_ONLN)), &set);
	return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static bool set_ioprio(void)
{
	return syscall(SYS_ioprio_set, 1, 0,
		       IOPRIO_PRIO_VALUE(kind->detail, kind->detail == IOPRIO_CLASS_IDLE
							       ? 0
							       : 1 + (int)chance(6))) == 0;
}

static bool set_slack(void)
{
	return prctl(PR_SET_TIMERSLACK, 60000 + chance(100000)) == 0;
}

static bool set_mempolicy_of(void)
{
	unsigned long node = 1;

	return syscall(SYS_set_mempolicy, kind->detail,
		       kind->detail == MPOL_DEFAULT || kind->detail == MPOL_LOCAL ? NULL : &node,
		       64) == 0;
}

static bool set_no_new_privs(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

static bool set_seccomp(void)
{
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 1, code };

	return set_no_new_privs() && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The calling thread alone, without libcap. */
static bool drop_capability(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data) < 0)
		return false;
	for (int i = 0; i < 2; i++) {
		data[i].effective &= ~(1u << chance(20));
		data[i].inheritable = data[i].permitted;
	}
	return syscall(SYS_capset, &header, data) == 0;
}

static bool drop_bound(void)
{
	return prctl(PR_CAPBSET_DROP, 25 /* setting clocks */, 0, 0, 0) == 0;
}

static bool raise_ambient(void)
{
	return drop_capability() &&
	       prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0 /* chown */, 0, 0) == 0;
}

static bool set_ids(void)
{
	static const gid_t groups[] = { 7, 8, 1000 };

	/* The calling thread alone. */
	return syscall(SYS_setgroups, 3, groups) == 0 && syscall(SYS_setresgid, 10, 11, 12) == 0;
}

static bool set_securebits(void)
{
	return prctl(PR_SET_SECUREBITS, 1 << 2 /* no fix-up by setuid */) == 0;
}

static bool set_keepcaps(void)
{
	return prctl(PR_SET_KEEPCAPS, 1) == 0;
}

static bool set_pdeathsig(void)
{
	return prctl(PR_SET_PDEATHSIG, SIGTERM) == 0;
}

static bool set_io_flusher(void)
{
	return prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0;
}

static bool set_speculation(void)
{
	return prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0) == 0;
}

static bool set_mce(void)
{
	return prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0) == 0;
}

static bool set_utilization(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
		uint32_t util_min, util_max;
	} a = { .size = 56, .flags = 0x20 | 0x40 | 0x08 | 0x10, .util_min = 100, .util_max = 800 };

	return syscall(SYS_sched_setattr, 0, &a, 0) == 0;
}

static bool set_landlock(void)
{
	struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK };
	int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);

	return fd >= 0 && set_no_new_privs() && syscall(SYS_landlock_restrict_self, fd, 0) == 0 &&
	       close(fd) == 0;
}

static bool set_session_keyring(void)
{
	return syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "objects") > 0;
}

#define THREAD(title, function)                            \
	static bool thread_##function(void)                \
	{                                                  \
		return look_at_thread(function, "thread"); \
	}
#define CHILD(title, function)                                       \
	static bool child_##function(void)                           \
	{                                                            \
		return look_at_child(idle_child(function), "child"); \
	}

THREAD(, set_name)
THREAD(, set_mask)
THREAD(, set_altstack)
THREAD(, set_pending)
THREAD(, set_policy)
THREAD(, set_reset_on_fork)
THREAD(, set_deadline)
THREAD(, set_nice)
THREAD(, set_affinity)
THREAD(, set_ioprio)
THREAD(, set_slack)
THREAD(, set_mempolicy_of)
THREAD(, set_no_new_privs)
THREAD(, set_seccomp)
THREAD(, drop_capability)
THREAD(, drop_bound)
THREAD(, raise_ambient)
THREAD(, set_ids)
THREAD(, set_securebits)
THREAD(, set_keepcaps)
THREAD(, set_pdeathsig)
THREAD(, set_speculation)
THREAD(, set_mce)
THREAD(, set_utilization)
CHILD(, set_landlock)
CHILD(, set_nice)
CHILD(, set_affinity)
CHILD(, set_ioprio)
CHILD(, set_ids)
CHILD(, set_seccomp)
CHILD(, set_policy)
CHILD(, set_session_keyring)
CHILD(, set_pdeathsig)

/* ---- of the process ---- */

static bool make_io_flusher(void)
{
	return set_io_flusher();
}

static bool make_limit(void)
{
	struct rlimit limit;

	getrlimit((__rlimit_resource_t)kind->detail, &limit);
	limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? 123456789 : limit.rlim_max - chance(10);
	return setrlimit((__rlimit_resource_t)kind->detail, &limit) == 0;
}

static bool make_umask(void)
{
	umask(027);
	return true;
}

static bool make_cwd(void)
{
	const char *path = new_path("");

	return mkdir(path, 0700) == 0 && chdir(path) == 0 && (!kind->detail || rmdir(path) == 0);
}

static bool make_personality(void)
{
	return personality(ADDR_NO_RANDOMIZE | SHORT_INODE) >= 0;
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) > 0;

	if (fd >= 0)
		close(fd);
	return done;
}

static bool make_oom(void)
{
	return write_text("/proc/self/oom_score_adj", "321");
}

static bool make_coredump_filter(void)
{
	return write_text("/proc/self/coredump_filter", "0x7f");
}

static bool make_subreaper(void)
{
	return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

static bool make_undumpable(void)
{
	return prctl(PR_SET_DUMPABLE, 0) == 0;
}

static bool make_thp(void)
{
	return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0;
}

static bool make_mdwe(void)
{
	return prctl(65 /* set MDWE */, 1, 0, 0, 0) == 0;
}

static bool make_tsc(void)
{
	return look_at_child(
		idle_child(NULL),
		"child"); /* forbidding it ends most programs: only the default is looked at */
}

static bool make_argv_changed(void)
{
	char name[16];

	snprintf(name, sizeof(name), "changed %u", chance(1000));
	return prctl(PR_SET_NAME, name) == 0;
}

/* ---- signals ---- */

static volatile sig_atomic_t caught;

static void catch (int signal)
{
	caught++;
}

static bool make_actions(void)
{
	for (int i = 0; i < 8; i++) {
		struct sigaction action = { .sa_handler = chance(3) ? catch : SIG_IGN };
		static const int flags[] = { SA_RESTART, SA_NODEFER, SA_ONSTACK, SA_NOCLDSTOP };

		for (int k = 0; k < 4; k++)
			action.sa_flags |= chance(2) ? flags[k] : 0;
		sigaddset(&action.sa_mask, 1 + (int)chance(20));
		if (sigaction(SIGRTMIN + 5 + (int)chance(20), &action, NULL) < 0)
			return false;
	}
	return true;
}

static bool make_ignored(void)
{
	return signal(SIGPIPE, SIG_IGN) != SIG_ERR && signal(SIGHUP, SIG_IGN) != SIG_ERR;
}

/* Of the process, in order and with values. */
static bool make_queued(void)
{
	for (int i = 0; i < 5; i++) { /* main() blocked it */
		union sigval value = { .sival_int = 100 + i };

		if (sigqueue(getpid(), SIGRTMAX - 2, value) < 0)
			return false;
	}
	return true;
}

static const char *use_queued(void)
{
	const struct timespec at_once = { 0 };
	sigset_t set;
	siginfo_t info;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMAX - 2);
	for (int i = 0; i < 5; i++)
		if (sigtimedwait(&set, &info, &at_once) < 0 || info.si_value.sival_int != 100 + i ||
		    info.si_pid != getpid())
			return "other signals, or in another order";
	return make_queued() ? NULL : "cannot be queued";
}

/* ---- timers ---- */

static bool make_itimer(void)
{
	struct itimerval timer = { { 2000, 0 }, { 3000, 0 } };

	return setitimer((__itimer_which_t)kind->detail, &timer, NULL) == 0;
}

enum { TIMERS = 32 };
static timer_t posix_timers[TIMERS];
static volatile sig_atomic_t ticks[TIMERS];

static void tick(int number, siginfo_t *info, void *context)
{
	ticks[info->si_value.sival_int]++;
}

static bool make_ticking(clockid_t clock, int how, pid_t tid, int slot)
{
	struct sigaction action = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct sigevent event = { .sigev_notify = how,
				  .sigev_signo = SIGRTMIN + 2,
				  .sigev_value.sival_int = slot };
	struct itimerspec spec = { { 0, 20000000 }, { 0, 20000000 } };

	event._sigev_un._tid = tid;
	return sigaction(SIGRTMIN + 2, &action, NULL) == 0 &&
	       timer_create(clock, &event, &posix_timers[slot]) == 0 &&
	       timer_settime(posix_timers[slot], 0, &spec, NULL) == 0;
}

static bool make_posix_timer(void)
{
	static const clockid_t clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME,
					    CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID };
	int how = kind->detail >> 4;

	return make_ticking(clocks[kind->detail & 7], how, gettid(), kind->detail & 31);
}

static const char *use_posix_timer(void)
{
	int slot = kind->detail & 31, before = ticks[slot];
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do /* busy: some of the clocks are of the processor's time */
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (ticks[slot] < before + 2 &&
	       (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 <
		       3 * WAIT_MS);
	return ticks[slot] >= before + 2 ? NULL : "does not tick";
}

static bool make_timer_none(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_NONE };
	struct itimerspec spec = { { 5, 0 }, { 50000, 0 } };

	return timer_create(CLOCK_MONOTONIC, &event, &posix_timers[30]) == 0 &&
	       timer_settime(posix_timers[30], 0, &spec, NULL) == 0;
}

static const char *use_timer_none(void)
{
	struct itimerspec spec;

	return timer_gettime(posix_timers[30], &spec) == 0 && spec.it_interval.tv_sec == 5 &&
			       spec.it_value.tv_sec > 40000
		       ? NULL
		       : "is another";
}

static void *end_at_once(void *arg)
{
	*(pid_t *)arg = gettid();
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 2 };
	event._sigev_un._tid = gettid();
	timer_create(CLOCK_MONOTONIC, &event, &posix_timers[31]);
	return NULL;
}

static bool make_timer_of_the_dead(void)
{
	pthread_t thread;
	pid_t tid;

	return pthread_create(&thread, NULL, end_at_once, &tid) == 0 &&
	       pthread_join(thread, NULL) == 0;
}

/* ---- processes ---- */

static bool make_child(void)
{
	return look_at_child(idle_child(NULL), "child");
}

static bool set_session(void)
{
	return setsid() > 0;
}

static bool set_group(void)
{
	return setpgid(0, 0) == 0;
}

CHILD(, set_session)
CHILD(, set_group)

static bool make_zombie(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		if (kind->detail)
			raise(kind->detail);
		_exit(7);
	}
	return pid > 0 && waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT) == 0 &&
	       look_at_child(pid, "child");
}

static pid_t stopped_pid;

static bool make_stopped(void)
{
	stopped_pid = idle_child(NULL);
	return stopped_pid > 0 && kill(stopped_pid, SIGSTOP) == 0 &&
	       waitid(P_PID, (id_t)stopped_pid, NULL, WSTOPPED | WNOWAIT) == 0 &&
	       look_at_child(stopped_pid, "child");
}

static bool grandchild_too(void)
{
	return idle_child(NULL) > 0;
}
CHILD(, grandchild_too)

/* Its parent has ended. */
static bool make_orphan(void)
{
	int ends[2];
	pid_t pid = -1;

	if (pipe(ends) < 0)
		return false;
	pid_t middle = fork();
	if (middle == 0) {
		pid = idle_child(NULL);
		_exit(write(ends[1], &pid, sizeof(pid)) != sizeof(pid));
	}
	waitpid(middle, NULL, 0);
	bool came = read(ends[0], &pid, sizeof(pid)) == sizeof(pid);
	close(ends[0]);
	close(ends[1]);
	return came && look_at_child(pid, "child");
}

/* A program from memory, or one that is gone since. */
static bool make_program(void)
{
	int ends[2];
	const char *path = new_path("-program");
	int fd = kind->detail ? memfd_create("program", MFD_CLOEXEC)
			      : open(path, O_RDWR | O_CREAT, 0700);
	char buffer[65536], byte;
	ssize_t n;

	int from = open("/bin/sleep", O_RDONLY | O_CLOEXEC);
	while ((n = read(from, buffer, sizeof(buffer))) > 0)
		if (write(fd, buffer, (size_t)n) != n)
			return false;
	close(from);
	if (pipe2(ends, O_CLOEXEC) < 0)
		return false;
	if (!kind->detail) {
		close(fd);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	pid_t pid = fork();
	if (pid == 0) {
		char *argv[] = { "sleep", "100000", NULL }, *envp[] = { NULL };

		fexecve(fd, argv, envp);
		_exit(1);
	}
	close(ends[1]);
	(void)!read(ends[0], &byte, 1); /* ends with the exec */
	close(ends[0]);
	close(fd);
	if (!kind->detail)
		unlink(path);
	return pid > 0 && look_at_child(pid, "child");
}

static bool set_chroot(void)
{
	return chroot("/usr") == 0 && chdir("/") == 0;
}
CHILD(, set_chroot)

static bool set_hostname_apart(void)
{
	return unshare(CLONE_NEWUTS) == 0;
}
CHILD(, set_hostname_apart)

/* Shares its table of descriptors, and what else. */
static int run_shared(void *arg)
{
	while (pause() < 0)
		;
	return 0;
}

static bool make_clone(void)
{
	char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return look_at_child(clone(run_shared, stack + 65536, kind->detail | SIGCHLD, NULL),
			     "child");
}

static pthread_mutex_t *robust;

static bool make_robust(void)
{
	pthread_mutexattr_t attributes;

	robust = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	return pthread_mutex_init(robust, &attributes) == 0;
}

/* One who dies with it leaves it to others. */
static const char *use_robust(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		pthread_mutex_lock(robust);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	int r = pthread_mutex_lock(robust);
	if (r == EOWNERDEAD)
		pthread_mutex_consistent(robust);
	pthread_mutex_unlock(robust);
	return r == EOWNERDEAD ? NULL : "does not tell that its owner is dead";
}

/* ---- calls that wait ---- */

struct sleeper {
	int result, error;
};

static void *sleep_long(void *arg)
{
	struct timespec limit = { .tv_sec = 100000 }, rest;
	int what = *(int *)arg, r, pipe_of_nobody[2];
	struct sleeper *told = malloc(sizeof(*told));
	sigset_t all; /* of other objects */

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	if (what == 0)
		r = nanosleep(&limit, &rest);
	else if (what == 1)
		r = clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, &rest);
	else if (what == 2)
		r = pipe(pipe_of_nobody) < 0 ? -1 : (int)is_readable(pipe_of_nobody[0], 100000000);
	else if (what == 3)
		r = (int)syscall(SYS_futex, arg, 0 /* FUTEX_WAIT */, what, &limit, NULL, 0);
	else
		r = pipe(pipe_of_nobody) < 0 ? -1 : (int)read(pipe_of_nobody[0], &r, 1);
	told->result = r;
	told->error = errno;
	return told;
}

static struct {
	int what;
	pthread_t thread;
} waiters[8];

static bool make_waiter(void)
{
	waiters[kind->detail].what = kind->detail;
	return pthread_create(&waiters[kind->detail].thread, NULL, sleep_long,
			      &waiters[kind->detail].what) == 0;
}

static const char *use_waiter(void)
{
	static char text[64];
	void *told;

	if (pthread_tryjoin_np(waiters[kind->detail].thread, &told) == EBUSY)
		return NULL;
	struct sleeper *s = told;
	snprintf(text, sizeof(text), "ended early: %d, errno %d", s->result, s->error);
	make_waiter();
	return text;
}

#define LIMIT(title, which)                                 \
	{                                                   \
		"limit-" title, make_limit, .detail = which \
	}
#define TIMER(title, clock)                                               \
	{ "timer-" title, make_posix_timer, use_posix_timer, clock },     \
	{                                                                 \
		"timer-thread-" title, make_posix_timer, use_posix_timer, \
			(SIGEV_THREAD_ID << 4) | clock | 8                \
	}

const struct kind kinds_of_tasks[] = {
	{ "thread-name", thread_set_name },
	{ "thread-mask", thread_set_mask },
	{ "thread-altstack", thread_set_altstack },
	{ "thread-pending", thread_set_pending },
	{ "thread-batch", thread_set_policy, .detail = SCHED_BATCH },
	{ "thread-idle", thread_set_policy, .detail = SCHED_IDLE },
	{ "thread-fifo", thread_set_policy, .detail = SCHED_FIFO },
	{ "thread-rr", thread_set_policy, .detail = SCHED_RR },
	{ "thread-reset-on-fork", thread_set_reset_on_fork },
	{ "thread-deadline", thread_set_deadline },
	{ "thread-nice", thread_set_nice },
	{ "thread-affinity", thread_set_affinity },
	{ "thread-ioprio", thread_set_ioprio, .detail = IOPRIO_CLASS_BE },
	{ "thread-ioprio-idle", thread_set_ioprio, .detail = IOPRIO_CLASS_IDLE },
	{ "thread-ioprio-rt", thread_set_ioprio, .detail = IOPRIO_CLASS_RT },
	{ "thread-timerslack", thread_set_slack },
	{ "thread-mempolicy-bind", thread_set_mempolicy_of, .detail = MPOL_BIND },
	{ "thread-mempolicy-interleave", thread_set_mempolicy_of, .detail = MPOL_INTERLEAVE },
	{ "thread-mempolicy-preferred", thread_set_mempolicy_of, .detail = MPOL_PREFERRED },
	{ "thread-mempolicy-local", thread_set_mempolicy_of, .detail = MPOL_LOCAL },
	{ "thread-no-new-privs", thread_set_no_new_privs },
	{ "thread-seccomp", thread_set_seccomp },
	{ "thread-capability", thread_drop_capability },
	{ "thread-bounding", thread_drop_bound },
	{ "thread-ambient", thread_raise_ambient },
	{ "thread-ids", thread_set_ids },
	{ "thread-securebits", thread_set_securebits },
	{ "thread-keepcaps", thread_set_keepcaps },
	{ "thread-pdeathsig", thread_set_pdeathsig },
	{ "thread-speculation", thread_set_speculation },
	{ "thread-mce", thread_set_mce },
	{ "thread-utilization", thread_set_utilization },
	{ "child", make_child },
	{ "child-session", child_set_session },
	{ "child-group", child_set_group },
	{ "child-landlock", child_set_landlock },
	{ "child-nice", child_set_nice },
	{ "child-affinity", child_set_affinity },
	{ "child-ioprio", child_set_ioprio, .detail = IOPRIO_CLASS_BE },
	{ "child-ids", child_set_ids },
	{ "child-seccomp", child_set_seccomp },
	{ "child-idle", child_set_policy, .detail = SCHED_IDLE },
	{ "child-keyring", child_set_session_keyring },
	{ "child-pdeathsig", child_set_pdeathsig },
	{ "child-with-child", child_grandchild_too },
	{ "child-chroot", child_set_chroot },
	{ "child-uts", child_set_hostname_apart },
	{ "child-files-shared", make_clone, .detail = CLONE_FILES },
	{ "child-fs-shared", make_clone, .detail = CLONE_FS },
	{ "child-stopped", make_stopped },
	{ "child-orphan", make_orphan },
	{ "child-program-deleted", make_program },
	{ "child-program-memfd", make_program, .detail = 1 },
	{ "zombie", make_zombie },
	{ "zombie-killed", make_zombie, .detail = SIGKILL },
	{ "io-flusher", make_io_flusher },
	LIMIT("stack", RLIMIT_STACK),
	LIMIT("files", RLIMIT_NOFILE),
	LIMIT("core", RLIMIT_CORE),
	LIMIT("processes", RLIMIT_NPROC),
	LIMIT("locked", RLIMIT_MEMLOCK),
	LIMIT("signals", RLIMIT_SIGPENDING),
	LIMIT("rttime", RLIMIT_RTTIME),
	{ "umask", make_umask },
	{ "cwd", make_cwd },
	{ "cwd-deleted", make_cwd, .detail = 1 },
	{ "personality", make_personality },
	{ "oom-score", make_oom },
	{ "coredump-filter", make_coredump_filter },
	{ "subreaper", make_subreaper },
	{ "undumpable", make_undumpable },
	{ "thp-disabled", make_thp },
	{ "mdwe", make_mdwe },
	{ "tsc", make_tsc },
	{ "process-name", make_argv_changed },
	{ "signal-actions", make_actions },
	{ "signal-ignored", make_ignored },
	{ "signal-queued", make_queued, use_queued },
	{ "itimer-real", make_itimer, .detail = ITIMER_REAL },
	{ "itimer-virtual", make_itimer, .detail = ITIMER_VIRTUAL },
	{ "itimer-prof", make_itimer, .detail = ITIMER_PROF },
	TIMER("realtime", 0),
	TIMER("monotonic", 1),
	TIMER("boottime", 2),
	TIMER("process", 3),
	TIMER("thread", 4),
	{ "timer-none", make_timer_none, use_timer_none },
	{ "timer-of-the-dead", make_timer_of_the_dead },
	{ "robust-mutex", make_robust, use_robust },
	{ "waits-nanosleep", make_waiter, use_waiter, 0 },
	{ "waits-clock-nanosleep", make_waiter, use_waiter, 1 },
	{ "waits-poll", make_waiter, use_waiter, 2 },
	{ "waits-futex", make_waiter, use_waiter, 3 },
	{ "waits-read", make_waiter, use_waiter, 4 },
	{ 0 },
};
