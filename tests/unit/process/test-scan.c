// SPDX-License-Identifier: MIT
/* Each thing that will not checkpoint, in a little process that has it; and one that has none of it. */
#include "gpu/vendor.h"
#include "little.h"
#include "process/scan.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>

static struct scan_report report = SCAN_REPORT_EMPTY;
static unsigned scopes = SCAN_GPU | SCAN_CRIU;

static void scan(pid_t pid)
{
	struct proc_tree tree = PROC_TREE_EMPTY;
	struct proc_id id;

	CHECK(proc_identify(&id, pid, NULL) == 0);
	CHECK(proc_tree_read(&tree, id, NULL) == 0);
	scan_report_fini(&report);
	CHECK(scan_tree(&report, &tree, scopes, NULL) == 0);
	proc_tree_fini(&tree);
}

static const struct scan_finding *find(const char *what)
{
	for (size_t i = 0; i < report.n; i++)
		if (!strcmp(report.items[i].what, what))
			return &report.items[i];
	return NULL;
}

static void expect(enum scan_level level, unsigned scope, const char *what, const char *text)
{
	const struct scan_finding *f = find(what);

	if (!f || f->level != level || f->scope != scope || !strstr(f->text, text) || !f->hint[0]) {
		fprintf(stderr, "expected %s \"%s\", got: %s\n", what, text,
			f ? f->text : "nothing");
		for (size_t i = 0; i < report.n; i++)
			fprintf(stderr, "  %s: %s\n", report.items[i].what, report.items[i].text);
		exit(1);
	}
}

/* The ready pipe of little.h is a pipe to outside, so it is always noted and says nothing here. */
static void expect_nothing_else(void)
{
	for (size_t i = 0; i < report.n; i++)
		if (strcmp(report.items[i].what, "pipe")) {
			fprintf(stderr, "unexpected: %s\n", report.items[i].text);
			exit(1);
		}
}

static void without_stdio(void)
{
	int null = open("/dev/null", O_RDWR);

	for (int fd = 0; fd < 3; fd++)
		CHECK(dup2(null, fd) == fd);
	for (int fd = 3; fd < 64; fd++)
		if (fd != little_out)
			close(fd);
}

static void holds_what_criu_saves(void *arg)
{
	int pair[2], pipes[2];
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	sigset_t none;

	without_stdio();
	sigemptyset(&none);
	CHECK(eventfd(0, 0) >= 0 && epoll_create1(0) >= 0 &&
	      timerfd_create(CLOCK_MONOTONIC, 0) >= 0);
	CHECK(signalfd(-1, &none, 0) >= 0 && inotify_init() >= 0 && memfd_create("x", 0) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipes) == 0);
	CHECK(syscall(SYS_pidfd_open, getpid(), 0) >= 0);
	CHECK(open("/dev/zero", O_RDONLY) >= 0 && open("/dev/urandom", O_RDONLY) >= 0 &&
	      open("/dev/full", O_RDWR) >= 0);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (void *)&a, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (void *)&a, &len) == 0);
	CHECK(connect(client, (void *)&a, len) == 0 && accept(listener, NULL, NULL) >= 0);
	little_pause(NULL);
}

static void finds_nothing_where_nothing_is(void)
{
	struct little l = little_start(holds_what_criu_saves, NULL);
	little_wait_ready(&l);
	scan(l.pid);
	expect_nothing_else();
	CHECK(!scan_uses_gpu(l.pid));
	little_end(&l);
}

static int shm_id;
static void has_sysv(void *arg)
{
	without_stdio();
	shm_id = shmget(IPC_PRIVATE, 4096, 0600 | IPC_CREAT);
	CHECK(shmat(shm_id, NULL, 0) != (void *)-1 && shmctl(shm_id, IPC_RMID, NULL) == 0);
	little_pause(NULL);
}

static void has_fd(void *arg)
{
	int (*open_it)(void) = *(int (**)(void))arg;

	without_stdio();
	if (open_it() < 0)
		_exit(0); /* not here: the test sees the end of file */
	little_pause(NULL);
}

static int open_io_uring(void)
{
	char params[120] = "";

	return (int)syscall(SYS_io_uring_setup, 8, params);
}

static int open_perf(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE,
					.size = sizeof(attr),
					.config = PERF_COUNT_SW_CPU_CLOCK };

	return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

static int open_userfaultfd(void)
{
	return (int)syscall(SYS_userfaultfd, O_CLOEXEC);
}

static int open_landlock(void)
{
	uint64_t handled = 1;

	return (int)syscall(444, &handled, sizeof(handled), 0);
}

static int open_secret(void)
{
	return (int)syscall(447, 0);
}

static int open_init(void)
{
	return (int)syscall(SYS_pidfd_open, 1, 0);
}

static int open_fuse(void)
{
	return open("/dev/fuse", O_RDWR);
}

static int open_large_deleted(void)
{
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR, 0600);

	return fd >= 0 && ftruncate(fd, 5ll << 30) == 0 ? fd : -1;
}

static int open_leased(void)
{
	char path[] = "/var/tmp/brumate-lease-XXXXXX";
	int fd = mkstemp(path);

	CHECK(unlink(path) == 0);
	return fcntl(fd, F_SETLEASE, F_WRLCK) == 0 ? fd : -1;
}

static void finds_kernel_objects(void)
{
	static const struct {
		int (*open)(void);
		const char *what, *text;
	} cases[] = {
		{ open_io_uring, "io_uring", "has an io_uring (fd" },
		{ open_perf, "perf_event", "has a perf event (fd" },
		{ open_userfaultfd, "userfaultfd", "has a userfaultfd (fd" },
		{ open_landlock, "landlock", "has a landlock ruleset (fd" },
		{ open_secret, "memfd_secret", "has a memfd_secret (fd" },
		{ open_init, "pidfd", "of process 1, which is not of the job" },
		{ open_fuse, "device", "has device /dev/fuse open (fd" },
		{ open_large_deleted, "deleted-file", "has a deleted file of 5368709120 bytes" },
		{ open_leased, "write-lease",
		  "holds a lease for writing of /var/tmp/brumate-lease-" },
	};
	size_t n_seen = 0;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int (*open_it)(void) = cases[i].open;
		struct little l = little_start(has_fd, &open_it);
		char c;

		if (read(l.ready_fd, &c, 1) == 1) {
			scan(l.pid);
			expect(SCAN_REFUSE, SCAN_CRIU, cases[i].what, cases[i].text);
			n_seen++;
		} else {
			printf("not on this kernel: %s\n", cases[i].what);
		}
		little_end(&l);
	}
	CHECK(n_seen >= 2); /* pidfds and deleted files are everywhere */

	struct little l = little_start(has_sysv, NULL);
	little_wait_ready(&l);
	scan(l.pid);
	expect(SCAN_REFUSE, SCAN_CRIU, "sysv-shm", "has System V shared memory mapped");
	little_end(&l);
}

/* As a program on the simulated driver: the library mapped, and in the device's place what CRIU would not save. */
static void ends_at_once(void *arg)
{
	const char *library = arg;
	int fd = open(library, O_RDONLY | O_CLOEXEC);

	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	int landlock = open_landlock();
	if (landlock < 0)
		return;
	CHECK(fcntl(landlock, F_SETFL, GPU_SIMULATED_DEVICE_FLAG) == 0);
	little_ready();
	little_pause(NULL);
}

/* A process in exit(2) loses its mappings before its files. */
static void passes_over_what_ends(void)
{
	char dir[] = "/tmp/brumate-scan-test-XXXXXX", library[64];
	bool has_landlock = true;

	CHECK(mkdtemp(dir));
	snprintf(library, sizeof(library), "%s/libcuda.so.1", dir);
	int fd = open(library, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
	for (int i = 0; i < 150 && has_landlock; i++) {
		struct little l = little_start(ends_at_once, library);
		struct proc_tree tree = PROC_TREE_EMPTY;
		char c;

		has_landlock = read(l.ready_fd, &c, 1) == 1;
		CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0);
		CHECK(kill(l.pid, SIGKILL) == 0);
		while (proc_look(tree.items[0].id) == PROC_ALIVE) {
			scan_report_fini(&report);
			CHECK(scan_tree(&report, &tree, scopes, NULL) == 0);
			if (find("landlock"))
				expect_nothing_else();
		}
		proc_tree_fini(&tree);
		little_end(&l);
	}
	if (!has_landlock)
		printf("not on this kernel: landlock\n");
	close(fd);
	CHECK(unlink(library) == 0 && rmdir(dir) == 0);
}

struct ends {
	struct sockaddr_un local;
	struct sockaddr_in tcp;
};

static void connects(void *arg)
{
	const struct ends *to = arg;

	without_stdio();
	int local = socket(AF_UNIX, SOCK_STREAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(local, (void *)&to->local, sizeof(to->local)) == 0);
	CHECK(connect(tcp, (void *)&to->tcp, sizeof(to->tcp)) == 0);
	little_pause(NULL);
}

static void finds_connections(void)
{
	struct sockaddr_un u = { .sun_family = AF_UNIX };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
	    tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	char dir[] = "/tmp/brumate-scan-test-XXXXXX";
	CHECK(mkdtemp(dir));
	snprintf(u.sun_path, sizeof(u.sun_path), "%s/s", dir);
	CHECK(bind(local, (void *)&u, sizeof(u)) == 0 && listen(local, 1) == 0);
	CHECK(bind(tcp, (void *)&a, sizeof(a)) == 0 && listen(tcp, 1) == 0);
	CHECK(getsockname(tcp, (void *)&a, &len) == 0);

	struct little l = little_start(connects, &(struct ends){ u, a });
	little_wait_ready(&l);
	int ends[2] = { accept(local, NULL, NULL), accept(tcp, NULL, NULL) };
	CHECK(ends[0] >= 0 && ends[1] >= 0);
	scan(l.pid);
	expect(SCAN_REFUSE, SCAN_CRIU, "unix-socket",
	       "is connected to a process outside the job by a unix socket");
	expect(SCAN_NOTE, SCAN_CRIU, "tcp", "has a TCP connection to outside the job");
	expect(SCAN_NOTE, SCAN_CRIU, "pipe", "has a pipe to outside the job");
	scopes = SCAN_GPU;
	scan(l.pid);
	CHECK(!find("tcp") && !find("pipe"));
	scopes = SCAN_GPU | SCAN_CRIU;
	little_end(&l);
	close(ends[0]);
	close(ends[1]);
	close(local);
	close(tcp);
	unlink(u.sun_path);
	CHECK(rmdir(dir) == 0);
}

static void finds_states(void)
{
	struct little l = little_start(little_pause, NULL);
	little_wait_ready(&l);
	int status;

	CHECK(kill(l.pid, SIGSTOP) == 0 && waitpid(l.pid, &status, WUNTRACED) == l.pid);
	scan(l.pid);
	expect(SCAN_NOTE, SCAN_CRIU, "stopped", "is stopped");
	CHECK(kill(l.pid, SIGCONT) == 0);

	CHECK(ptrace(PTRACE_SEIZE, l.pid, 0, 0) == 0);
	scan(l.pid);
	expect(SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, "traced", "is traced by process");
	little_end(&l);
}

/* While a child by vfork(2) lives, its parent waits as for a disk; so it does for one that has memory of its own. The
 * child lives for a moment after it is told to end. */
static void *make_child(void *arg)
{
	const struct timespec moment = { .tv_nsec = 50000000 };
	int told_fd = *(int *)arg;
	char byte;

	little_ready();
	if (!syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0)) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (read(told_fd, &byte, 1) == 1)
			nanosleep(&moment, NULL);
		_exit(0);
	}
	return NULL;
}

static void waits_for_child(void *arg)
{
	int told_fd = dup2(*(int *)arg, little_out + 1);

	for (int fd = 0; fd < little_out; fd++)
		close(fd);
	make_child(&told_fd);
	little_pause(NULL);
}

static void waits_for_child_in_thread(void *arg)
{
	int told_fd = dup2(*(int *)arg, little_out + 1);
	pthread_t thread;

	for (int fd = 0; fd < little_out; fd++)
		close(fd);
	if (pthread_create(&thread, NULL, make_child, &told_fd) == 0)
		little_pause(NULL);
}

static bool one_thread_waits(pid_t pid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "task");
	bool found = false;

	for (struct dirent *e; dir && !found && (e = readdir(dir));) {
		auto_free char *text = NULL;
		char path[64];

		snprintf(path, sizeof(path), "task/%.20s/stat", e->d_name);
		found = proc_file_read(pid, path, 4096, &text, NULL) == 0 && strstr(text, ") D ");
	}
	return found;
}

static void scan_waiting(void (*fn)(void *arg), bool ends)
{
	int told[2];
	CHECK(pipe2(told, O_CLOEXEC) == 0);
	struct little l = little_start(fn, &told[0]);

	little_wait_ready(&l);
	while (!one_thread_waits(l.pid))
		sched_yield();
	if (ends)
		CHECK(write(told[1], "e", 1) == 1);
	scan(l.pid);
	little_end(&l);
	close(told[0]);
	close(told[1]);
}

static void finds_what_waits_for_long(void)
{
	scan_waiting(waits_for_child, true);
	CHECK(!find("vfork") && !find("uninterruptible"));
	scan_waiting(waits_for_child, false);
	expect(SCAN_REFUSE, SCAN_CRIU, "vfork", "vfork(2) or posix_spawn(3), and does not stop");
	scan_waiting(waits_for_child_in_thread, false);
	expect(SCAN_REFUSE, SCAN_CRIU, "vfork", "vfork(2) or posix_spawn(3), and does not stop");
}

static void in_namespace(void *arg)
{
	without_stdio();
	if (unshare(CLONE_NEWNS) < 0)
		_exit(0);
	little_pause(NULL);
}

static void finds_containers(void)
{
	struct little l = little_start(in_namespace, NULL);
	char c;

	if (read(l.ready_fd, &c, 1) == 1) {
		scan(l.pid);
		expect(SCAN_REFUSE, SCAN_CRIU, "namespace", "lives in another mnt namespace");
	} else {
		printf("no right to make a namespace: not seen here\n");
	}
	little_end(&l);
}

/* Maps a file of the driver's name, and memory as the simulated driver names its managed memory: that
 * is all that can be seen of a GPU program from outside. */
static void maps_driver(void *arg)
{
	char path[128];
	int managed = memfd_create("nvidia-uvm", MFD_CLOEXEC);

	CHECK(managed >= 0 && ftruncate(managed, 4096) == 0);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, managed, 0) != MAP_FAILED);
	close(managed);

	without_stdio();
	snprintf(path, sizeof(path), "%s/libcuda.so.1", (char *)arg);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	close(fd);
	if (!fork())
		little_pause(NULL);
	little_pause(NULL);
}

static void finds_gpu_processes(void)
{
	char dir[] = "/tmp/brumate-scan-test-XXXXXX", path[64];
	CHECK(mkdtemp(dir));
	struct little l = little_start(maps_driver, dir);
	little_wait_ready(&l);
	little_wait_ready(&l);
	scan(l.pid);
	CHECK(scan_uses_gpu(l.pid) == 1);
	expect(SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, "managed-memory", "has managed memory");

	struct proc_id root = little_id(&l);
	CHECK(proc_tree_kill(root, UINT64_MAX) == 0);
	little_end(&l);
	snprintf(path, sizeof(path), "%s/libcuda.so.1", dir);
	CHECK(unlink(path) == 0 && rmdir(dir) == 0);
}

/* ---- timers ---- */

static void *make_timer(void *arg)
{
	const bool signals_thread = arg;
	struct sigevent e = { .sigev_notify = signals_thread ? SIGEV_THREAD_ID : SIGEV_SIGNAL,
			      .sigev_signo = SIGUSR1 };
	timer_t t;

	e._sigev_un._tid = gettid();
	CHECK(timer_create(CLOCK_THREAD_CPUTIME_ID, &e, &t) == 0);
	little_pause(NULL);
	return NULL;
}

static void has_thread_timer(void *arg)
{
	struct sigevent e = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	clockid_t own;
	pthread_t thread;
	timer_t t;

	without_stdio();
	CHECK(pthread_getcpuclockid(pthread_self(), &own) == 0);
	CHECK(timer_create(own, &e, &t) == 0);
	CHECK(timer_create(CLOCK_PROCESS_CPUTIME_ID, &e, &t) == 0);
	CHECK(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
	CHECK(pthread_create(&thread, NULL, make_timer, arg) == 0);
	pthread_join(thread, NULL);
}

static void finds_timers_of_unknown_threads(void)
{
	for (intptr_t signals_thread = 0; signals_thread < 2; signals_thread++) {
		struct little l = little_start(has_thread_timer, (void *)signals_thread);

		little_wait_ready(&l);
		scan(l.pid);
		if (signals_thread)
			expect_nothing_else();
		else
			expect(SCAN_REFUSE, SCAN_CRIU, "thread-timer",
			       "has a timer that counts the CPU time of one of its threads");
		little_end(&l);
	}
}

static void has_timer_of_day(void *arg)
{
	struct sigevent event = { .sigev_notify = SIGEV_NONE };
	timer_t timer;

	without_stdio();
	CHECK(timer_create(arg ? CLOCK_REALTIME : CLOCK_MONOTONIC, &event, &timer) == 0);
	little_pause(NULL);
}

static void notes_timers_of_day(void)
{
	for (intptr_t of_day = 0; of_day < 2; of_day++) {
		struct little l = little_start(has_timer_of_day, (void *)of_day);

		little_wait_ready(&l);
		scan(l.pid);
		if (of_day && access("/proc/timer_list", R_OK) < 0)
			expect(SCAN_NOTE, SCAN_CRIU, "timer-of-day",
			       "has 1 timer (timer_create) of the time of day");
		else
			expect_nothing_else();
		little_end(&l);
	}
}

static void callers_may_add(void)
{
	struct scan_finding f = { .level = SCAN_REFUSE,
				  .scope = SCAN_GPU,
				  .what = "managed-memory" };

	scan_report_fini(&report);
	CHECK(scan_add(&report, &f) == 0 && report.n == 1);
	CHECK(find("managed-memory")->level == SCAN_REFUSE);
}

int main(void)
{
	finds_nothing_where_nothing_is();
	finds_kernel_objects();
	passes_over_what_ends();
	finds_connections();
	finds_states();
	finds_what_waits_for_long();
	finds_containers();
	finds_gpu_processes();
	finds_timers_of_unknown_threads();
	notes_timers_of_day();
	callers_may_add();
	scan_report_fini(&report);
	return 0;
}
