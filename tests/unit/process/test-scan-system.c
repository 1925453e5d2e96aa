// SPDX-License-Identifier: MIT
/* What CRIU refuses late, refuses at the restore, or forgets: each in a little process that has it, and what is like it
 * and is saved. */
#include "little.h"
#include "base/fd.h"
#include "process/scan.h"
#include "sanitized.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>

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

static void show(void)
{
	for (size_t i = 0; i < report.n; i++)
		fprintf(stderr, "  %s: %s\n", report.items[i].what, report.items[i].text);
}

static void expect(enum scan_level level, const char *what, const char *text)
{
	const struct scan_finding *f = find(what);

	if (f && f->level == level && f->scope == SCAN_CRIU && strstr(f->text, text) && f->hint[0])
		return;
	fprintf(stderr, "expected %s \"%s\", got:\n", what, text);
	show();
	exit(1);
}

/* The ready pipe of little.h is a pipe to outside. */
static void expect_nothing(const char *name)
{
	for (size_t i = 0; i < report.n; i++)
		if (strcmp(report.items[i].what, "pipe")) {
			fprintf(stderr, "%s: unexpected:\n", name);
			show();
			exit(1);
		}
}

static void without_files(void)
{
	int null = open("/dev/null", O_RDWR);

	for (int fd = 0; fd < 3; fd++)
		CHECK(dup2(null, fd) == fd);
	for (int fd = 3; fd < 64; fd++)
		if (fd != little_out)
			close(fd);
}

/* ---- epoll ---- */

static int watching(int target)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0);

	CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, target, &event) == 0);
	return epoll;
}

static bool epoll_of_what_has_a_number(void)
{
	int target = eventfd(0, 0), other = eventfd(0, 0);

	watching(target);
	watching(other);
	CHECK(dup2(other, target) == target); /* its number is another's now, and it has one more */
	return true;
}

static bool epoll_of_what_was_renumbered(void)
{
	int target = eventfd(0, 0), epoll = watching(target);

	CHECK(fcntl(target, F_DUPFD, 40) >= 40 && close(target) == 0);
	CHECK(dup(epoll) >= 0);
	return true;
}

/* A child has it alone: the parent's epoll watches it still. */
static bool epoll_of_what_a_child_has(void)
{
	int target = eventfd(0, 0), done[2];
	int epoll = watching(target);
	char c;

	CHECK(pipe(done) == 0);
	if (fork() == 0) {
		close(epoll);
		CHECK(write(done[1], "d", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(done[0], &c, 1) == 1 && close(target) == 0);
	return true;
}

/* ---- pipes ---- */

static bool thousand_pipes(int n)
{
	struct rlimit limit;
	int ends[2];

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_max < (rlim_t)n * 2 + 64)
		return false;
	for (int i = 0; i < n; i++)
		CHECK(pipe(ends) == 0 && dup(ends[0]) >= 0);
	return true;
}

static bool as_many_pipes_as_criu_saves(void)
{
	return thousand_pipes(1024);
}

static bool more_pipes_than_criu_saves(void)
{
	return thousand_pipes(1025);
}

static bool pipe_of_packets(void)
{
	int ends[2];

	return pipe2(ends, O_DIRECT) == 0;
}

/* ---- files ---- */

static bool file_of_no_mount(void)
{
	int fs = (int)syscall(SYS_fsopen, "tmpfs", 0);

	if (fs < 0 || syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) < 0)
		return false;
	int mount = (int)syscall(SYS_fsmount, fs, 0, 0);
	CHECK(mount >= 0 && openat(mount, "file", O_CREAT | O_RDWR, 0600) >= 0);
	return close(fs) == 0 && close(mount) == 0;
}

static bool queue_of_posix(void)
{
	char name[32];

	snprintf(name, sizeof(name), "brumate-scan-%d", getpid());
	int fd = (int)syscall(SYS_mq_open, name, O_CREAT | O_RDWR, 0600, NULL);
	return fd >= 0 && syscall(SYS_mq_unlink, name) == 0;
}

static bool own_namespace(void)
{
	return open("/proc/self/ns/net", O_RDONLY) >= 0;
}

static bool foreign_namespace(void)
{
	int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	if (unshare(CLONE_NEWNET) < 0)
		return false;
	CHECK(open("/proc/self/ns/net", O_RDONLY) >= 0 && setns(own, CLONE_NEWNET) == 0);
	return close(own) == 0;
}

static bool tunnel(void)
{
	return open("/dev/net/tun", O_RDWR) >= 0;
}

static bool thread_of_a_pidfd(void)
{
	return syscall(SYS_pidfd_open, getpid(), O_EXCL) >= 0;
}

/* ---- threads ---- */

static bool deadline(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = { .size = sizeof(attr),
		   .policy = SCHED_DEADLINE,
		   .runtime = 1000000,
		   .deadline = 100000000,
		   .period = 100000000 };

	return syscall(SYS_sched_setattr, 0, &attr, 0) == 0;
}

static bool realtime(void)
{
	struct sched_param param = { .sched_priority = 1 };

	return sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) == 0;
}

/* ---- sandboxes ---- */

static bool gains_no_privileges(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       syscall(444 /* landlock_create_ruleset(2) */, NULL, 0, 1) > 0;
}

static bool has_filters(void)
{
	struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	const struct sock_fprog program = { 1, all };

	return gains_no_privileges() &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* ---- System V ---- */

static int system_v_id = -1;

static bool semaphores(void)
{
	return system_v_id >= 0 && semctl(system_v_id, 1, SETVAL, 5) == 0;
}

static bool semaphores_of_others(void)
{
	return system_v_id >= 0 && semctl(system_v_id, 0, GETVAL) >= 0;
}

static bool queue(void)
{
	const struct {
		long type;
		char text[8];
	} message = { 1, "hello" };

	return system_v_id >= 0 && msgsnd(system_v_id, &message, sizeof(message.text), 0) == 0;
}

static bool detached_memory(void)
{
	void *p = shmat(system_v_id, NULL, 0);

	return system_v_id >= 0 && p != (void *)-1 && shmdt(p) == 0;
}

/* ---- sockets ---- */

static bool multipath(void)
{
	return socket(AF_INET, SOCK_STREAM, 262) >= 0;
}

static bool machine_socket(void)
{
	return socket(AF_VSOCK, SOCK_STREAM, 0) >= 0;
}

static bool known_sockets(void)
{
	socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	socket(AF_PACKET, SOCK_RAW, 0);
	return socket(AF_INET, SOCK_STREAM, 0) >= 0 && socket(AF_INET6, SOCK_DGRAM, 0) >= 0 &&
	       socket(AF_UNIX, SOCK_SEQPACKET, 0) >= 0 && socket(AF_UNIX, SOCK_DGRAM, 0) >= 0 &&
	       socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) >= 0;
}

static bool unread_netlink(void)
{
	const struct {
		struct nlmsghdr header;
		struct rtgenmsg body;
	} message = { { .nlmsg_len = sizeof(message),
			.nlmsg_type = RTM_GETLINK,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		      { AF_UNSPEC } };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	return fd >= 0 && send(fd, &message, sizeof(message), 0) == sizeof(message);
}

static bool unread_datagram(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(bind(fd, (void *)&a, len) == 0 && getsockname(fd, (void *)&a, &len) == 0);
	return sendto(fd, "data", 4, 0, (void *)&a, len) == 4;
}

static int listener(struct sockaddr_un *ret)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1, "brumate-scan-%d", getpid());
	CHECK(bind(fd, (void *)ret, sizeof(*ret)) == 0 && listen(fd, 4) == 0);
	return fd;
}

static int client_of(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(connect(fd, (const void *)address, sizeof(*address)) == 0);
	return fd;
}

static bool not_accepted(void)
{
	struct sockaddr_un address;

	listener(&address);
	client_of(&address);
	return true;
}

static bool not_accepted_with_data(void)
{
	struct sockaddr_un address;

	listener(&address);
	return write(client_of(&address), "data", 4) == 4;
}

static bool not_accepted_and_closed(void)
{
	struct sockaddr_un address;

	listener(&address);
	return close(client_of(&address)) == 0;
}

static atomic_int n_accepted;

static void *accept_late(void *arg)
{
	const struct timespec late = { .tv_nsec = 30000000 };

	for (int *fd = arg;;) {
		nanosleep(&late, NULL);
		close(accept(*fd, NULL, NULL));
		atomic_fetch_add(&n_accepted, 1);
	}
	return NULL;
}

/* One connection after the other, none of which waits for long. */
static void *send_all_the_time(void *arg)
{
	char c;

	for (const struct sockaddr_un *address = arg;;) {
		int fd = client_of(address);

		if (write(fd, "data", 4) < 0 || read(fd, &c, 1) > 0)
			_exit(1);
		close(fd);
	}
	return NULL;
}

static bool always_accepts_late(void)
{
	static struct sockaddr_un address;
	static int fd;
	pthread_t late, all_the_time;

	fd = listener(&address);
	if (pthread_create(&late, NULL, accept_late, &fd) ||
	    pthread_create(&all_the_time, NULL, send_all_the_time, &address))
		return false;
	while (!atomic_load(&n_accepted))
		sched_yield();
	return true;
}

static bool accepted_with_data(void)
{
	struct sockaddr_un address;
	int fd = listener(&address), client = client_of(&address);

	return accept(fd, NULL, NULL) >= 0 && write(client, "data", 4) == 4;
}

static bool sent_to_who_has_closed(void)
{
	struct sockaddr_un address;
	int fd = listener(&address), client = client_of(&address);

	CHECK(write(client, "data", 4) == 4);
	return close(accept(fd, NULL, NULL)) == 0;
}

static bool listens(void)
{
	struct sockaddr_un address;

	return listener(&address) >= 0;
}

/* ---- processes that share ---- */

static int rests(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return 0;
}

static bool shares(int flags)
{
	char *stack =
		mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(stack != MAP_FAILED);
	if (fork() == 0)
		rests(NULL);
	return clone(rests, stack + (1 << 16), flags | SIGCHLD, NULL) > 0;
}

static bool shares_its_directory(void)
{
	return shares(CLONE_FS);
}

/* The thread sanitizer's clone() has the new process read from the stack of its caller, who may have returned by then. */
static bool shares_its_handlers(void)
{
	return !SANITIZED_THREADS && shares(CLONE_VM | CLONE_SIGHAND);
}

static bool shares_its_files(void)
{
	return shares(CLONE_FILES);
}

/* ---- others ---- */

static bool alarm_timer(void)
{
	return timerfd_create(CLOCK_BOOTTIME_ALARM, 0) >= 0;
}

static bool usual_timer(void)
{
	return timerfd_create(CLOCK_BOOTTIME, 0) >= 0;
}

static bool alarm_of_pressure(void)
{
	static const char alarm[] = "some 500000 2000000"; /* us; what a user may ask for */
	int fd = open("/proc/pressure/memory", O_RDWR);

	return fd >= 0 && write(fd, alarm, sizeof(alarm)) == sizeof(alarm);
}

static bool reader_of_pressure(void)
{
	return open("/proc/pressure/memory", O_RDONLY) >= 0;
}

static bool huge_memfd(void)
{
	auto_free char *text = NULL;

	/* Where pages of a size are set aside, CRIU can tell such memory. */
	CHECK(file_read(AT_FDCWD, "/proc/sys/vm/nr_hugepages", 64, &text, NULL) >= 0);
	return atoi(text) == 0 && memfd_create("huge", MFD_HUGETLB) >= 0;
}

static bool other_ids(void)
{
	struct rlimit limit;
	pid_t pid = geteuid() == 0 ? fork() : -1;

	if (pid == 0) {
		CHECK(setresuid(12345, 12345, 12345) == 0);
		rests(NULL);
	}
	if (pid < 0 || prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE) == 1)
		return false; /* they may be read */
	while (prlimit(pid, RLIMIT_CPU, NULL, &limit) == 0)
		sched_yield();
	return errno == EPERM;
}

/* ---- all of them ---- */

static const struct one {
	const char *name;
	bool (*have)(void);
	enum scan_level level;
	const char *what, *text; /* NULL: there is nothing to find */
} all[] = {
#define NOTHING(have)                              \
	{                                          \
#have, have, SCAN_NOTE, NULL, NULL \
	}
#define REFUSED(have, what, text)                    \
	{                                            \
#have, have, SCAN_REFUSE, what, text \
	}
#define ASKED(have, what, text)                       \
	{                                             \
#have, have, SCAN_SUSPECT, what, text \
	}
	NOTHING(epoll_of_what_has_a_number),
	NOTHING(epoll_of_what_was_renumbered),
	REFUSED(epoll_of_what_a_child_has, "epoll", "watches a file which was its fd"),
	NOTHING(as_many_pipes_as_criu_saves),
	REFUSED(more_pipes_than_criu_saves, "pipes", "1025 pipes, CRIU saves 1024"),
	REFUSED(pipe_of_packets, "pipe-packets", "has a pipe of packets"),
	REFUSED(file_of_no_mount, "file-without-path", "a file system that is not mounted"),
	REFUSED(queue_of_posix, "file-without-path", "a file system that is not mounted"),
	NOTHING(own_namespace),
	REFUSED(foreign_namespace, "namespace-file", "is of none of its namespaces"),
	REFUSED(tunnel, "device", "has device /dev/net/tun open"),
	REFUSED(thread_of_a_pidfd, "pidfd", "of a thread"),
	REFUSED(deadline, "scheduling", "SCHED_DEADLINE"),
	NOTHING(realtime),
	ASKED(gains_no_privileges, "landlock-sandbox", "may be confined by Landlock"),
	{ "has_filters", has_filters, SCAN_NOTE, "landlock-sandbox",
	  "may be confined by Landlock" },
	REFUSED(multipath, "socket", "protocol MPTCP"),
	REFUSED(machine_socket, "socket", "protocol vsock"),
	NOTHING(known_sockets),
	REFUSED(unread_netlink, "netlink-data", "has not read yet"),
	{ "unread_datagram", unread_datagram, SCAN_NOTE, "udp", "has not read datagrams" },
	REFUSED(shares_its_directory, "shared-process", "shares its working directory and umask"),
	REFUSED(shares_its_handlers, "shared-process", "shares its handlers of signals"),
	NOTHING(shares_its_files),
	REFUSED(alarm_timer, "timer-that-wakes", "that wakes the machine"),
	NOTHING(usual_timer),
	ASKED(alarm_of_pressure, "pressure", "(/proc/pressure/memory, fd "),
	NOTHING(reader_of_pressure),
	REFUSED(huge_memfd, "huge-memfd", "has a memfd of huge pages"),
	REFUSED(other_ids, "limits", "its limits cannot be read"),
	NOTHING(listens),
	NOTHING(not_accepted),
	REFUSED(not_accepted_with_data, "unix-in-flight", "nobody has accepted yet"),
	REFUSED(not_accepted_and_closed, "unix-in-flight", "that was closed again"),
	NOTHING(accepted_with_data),
	NOTHING(sent_to_who_has_closed),
};

static void has(void *arg)
{
	const struct one *one = arg;

	without_files();
	if (one->have())
		little_pause(NULL);
}

static void end(struct little *l)
{
	struct proc_id root = little_id(l);

	CHECK(proc_tree_kill(root, UINT64_MAX) == 0);
	little_end(l);
}

/* Returns whether it is to be had on this kernel, with our rights. */
static bool look_at(const struct one *one)
{
	struct little l = little_start(has, (void *)one);
	char c;
	bool is_there = read(l.ready_fd, &c, 1) == 1;

	if (is_there) {
		scan(l.pid);
		if (one->what)
			expect(one->level, one->what, one->text);
		else
			expect_nothing(one->name);
		end(&l);
	} else {
		printf("not here: %s\n", one->name);
		little_end(&l);
	}
	return is_there;
}

static void finds_what_is_not_carried(void)
{
	size_t n_seen = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		n_seen += look_at(&all[i]);
	CHECK(n_seen >= 12); /* epolls, pipes and unix sockets are everywhere */
}

/* It is known by who used it last. */
static void finds_objects_of_system_v(void)
{
	static const struct one used[] = {
		ASKED(semaphores, "sysv-semaphores", "uses System V semaphores (id "),
		ASKED(queue, "sysv-queue", "uses a System V message queue (id "),
		ASKED(detached_memory, "sysv-memory", "uses System V shared memory (id "),
	};
	static const struct one unused = NOTHING(semaphores_of_others);

	system_v_id = semget(IPC_PRIVATE, 2, 0600);
	CHECK(system_v_id >= 0 && semctl(system_v_id, 0, SETVAL, 1) == 0);
	CHECK(look_at(&unused) && look_at(&used[0]));
	CHECK(semctl(system_v_id, 0, IPC_RMID) == 0);
	system_v_id = msgget(IPC_PRIVATE, 0600);
	CHECK(system_v_id >= 0 && look_at(&used[1]) && msgctl(system_v_id, IPC_RMID, NULL) == 0);
	system_v_id = shmget(IPC_PRIVATE, 4096, 0600);
	CHECK(system_v_id >= 0 && look_at(&used[2]) && shmctl(system_v_id, IPC_RMID, NULL) == 0);
}

/* A client from outside: the job loses nothing, but the client does. */
static void notes_clients_that_wait(void)
{
	static const struct one one = NOTHING(listens);
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct little l = little_start(has, (void *)&one);

	little_wait_ready(&l);
	snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "brumate-scan-%d", l.pid);
	int fd = client_of(&address);
	scan(l.pid);
	expect(SCAN_NOTE, "unix-in-flight", "1 connection from outside the job");
	end(&l);
	close(fd);
}

static bool has_refusal(void)
{
	for (size_t i = 0; i < report.n; i++)
		if (report.items[i].level == SCAN_REFUSE)
			return true;
	return false;
}

/* A client that is made between two looks of one scan is noted as one from outside. */
static void waits_for_what_is_accepted_soon(void)
{
	static const struct one one = NOTHING(always_accepts_late);
	struct little l = little_start(has, (void *)&one);

	bool waits = true;

	little_wait_ready(&l);
	for (int i = 0; i < 10 && waits;
	     i++) { /* where the machine lets nobody accept for so long */
		scan(l.pid);
		waits = has_refusal();
	}
	CHECK(!waits);
	end(&l);
}

static bool sealed_memory(void)
{
	enum { MSEAL = 462 }; /* on all machines */
	void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return syscall(MSEAL, p, 4096, 0) == 0;
}

/* Who asks for it alone waits for the kernel to look at each page. */
static void notes_sealed_memory(void)
{
	static const struct one not_asked = NOTHING(sealed_memory);
	static const struct one asked = { "sealed_memory", sealed_memory, SCAN_NOTE,
					  "sealed-memory", "sealed by mseal(2)" };

	look_at(&not_asked);
	scopes |= SCAN_SLOW;
	look_at(&asked);
	scopes &= ~(unsigned)SCAN_SLOW;
}

static int outer_listener = -1;

static bool waits_outside(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "brumate-scan-%d", getppid());
	return client_of(&address) >= 0;
}

static void refuses_who_waits_outside(void)
{
	static const struct one one = REFUSED(waits_outside, "unix-in-flight",
					      "waits for a process outside the job to accept");
	struct sockaddr_un address;

	outer_listener = listener(&address);
	CHECK(look_at(&one));
	close(outer_listener);
}

int main(void)
{
	finds_what_is_not_carried();
	finds_objects_of_system_v();
	notes_clients_that_wait();
	waits_for_what_is_accepted_soon();
	notes_sealed_memory();
	refuses_who_waits_outside();
	scan_report_fini(&report);
	return 0;
}
