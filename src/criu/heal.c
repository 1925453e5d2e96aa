// SPDX-License-Identifier: MIT
/*
 * What a CRIU that was killed leaves behind, and how a tree it was dumping is made to run on. Seen with
 * 4.2.1 on Linux 6.18: the kernel detaches traced tasks and the code that CRIU injected takes itself out
 * when its socket closes; but TCP sockets stay in repair mode, in which reading and writing fail, and
 * the table that drops their packets stays too.
 *
 * So the tree must not run between CRIU's death and the repair. A process that learns of the death is never quick enough for
 * that; the kernel stops the tree itself. CRIU alone holds the writing end of a pipe.
 * Of the reading end each thread of the tree has an open file of its own here, which signals it
 * (fcntl(2), F_SETOWN_EX, F_SETSIG: SIGSTOP) when the other end closes; and a dying process closes what
 * it has open before it detaches those it traces (kernel/exit.c, do_exit(): exit_files() and
 * exit_task_work() come before exit_notify()).
 */
#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/user.h"
#include "criu/criu-private.h"
#include "process/aside.h"
#include "process/credentials.h"
#include "process/reap.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	LOCK_NAME_LEN = 26,
	GUARD_FD = 8192, /* CRIU opens some dozen, and as many again for each process */
	ESCORT_S = 10,
	ESCORT_SPARE_MS = 1000,
	SYSCALL_STOP = SIGTRAP | 0x80,
	PENDING_MAX = 16,
	MESSAGE_BYTES = 1024, /* to netfilter */
	ANSWER_TIMEOUT_S = 5,
	END_TIMEOUT_MS = 30000,
	REPAIR_TIMEOUT_MS = 5000,
	REPAIRS_AT_ONCE = 512,
	LOG_BYTES_MAX = 64 << 20,
	RUN_ID_LEN = 36,
	RUNS_MAX = 16,
	GHOSTS_MAX = 1 << 16,
	GHOSTS_TIMEOUT_MS = 5000,
};

/* ---- the tree and its guard ---- */

void heal_state_fini(struct heal_state *h)
{
	heal_disarm(h);
	free(h->stop_fds);
	cleanup_close(&h->reader_fd);
	for (size_t i = 0; h->pid_fds && i < h->before.n; i++)
		cleanup_close(&h->pid_fds[i]);
	free(h->pid_fds);
	proc_tree_fini(&h->before);
	*h = HEAL_STATE_EMPTY;
}

int heal_prepare(struct heal_state *ret, struct proc_id root, uid_t uid, struct brumate_error *err)
{
	auto_(heal_state_fini) struct heal_state h = HEAL_STATE_EMPTY;
	int r = proc_tree_read(&h.before, root, err);

	h.uid = uid;
	if (r < 0)
		return r;
	h.pid_fds = malloc(h.before.n * sizeof(*h.pid_fds));
	if (!h.pid_fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < h.before.n; i++)
		h.pid_fds[i] = proc_open(h.before.items[i].id);
	*ret = h;
	h = HEAL_STATE_EMPTY;
	return 0;
}

static const struct proc_info *find_process(const struct proc_tree *t, struct proc_id id)
{
	for (size_t i = 0; i < t->n; i++)
		if (proc_is_same(t->items[i].id, id))
			return &t->items[i];
	return NULL;
}

int heal_renew(struct heal_state *h, struct proc_id root, struct brumate_error *err)
{
	auto_(heal_state_fini) struct heal_state now = HEAL_STATE_EMPTY;
	int r = heal_prepare(&now, root, h->uid, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < now.before.n; i++) {
		const struct proc_info *then = find_process(&h->before, now.before.items[i].id);

		now.before.items[i].state = then ? then->state : 'S';
	}
	now.reader_fd = take_fd(&h->reader_fd);
	heal_state_fini(h);
	*h = now;
	now = HEAL_STATE_EMPTY;
	return 0;
}

void heal_signal(const struct heal_state *h, int signal)
{
	auto_(user_signals_leave) struct user_signals user = USER_SIGNALS_NONE;

	if (user_signals_enter(&user, h->uid) < 0)
		return;
	for (size_t i = 0; i < h->before.n; i++)
		if (h->pid_fds[i] >= 0 && h->before.items[i].state != 'T')
			syscall(SYS_pidfd_send_signal, h->pid_fds[i], signal, NULL, 0);
}

/* A process closes what it has open in the order of the numbers, and drops it in the reverse order (task_work_add() puts it
 * in front). This is above all that CRIU opens itself, but for the descriptors that it puts as high as its limit allows: the
 * code in the tasks must not see its socket close first. */
static int above_the_others(int fd)
{
	struct rlimit limit;
	rlim_t number = GUARD_FD;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= number)
		number = limit.rlim_cur - limit.rlim_cur / 8;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, (int)number);
	return copy < 0 ? -errno : copy;
}

int heal_arm(struct heal_state *h)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	auto_close int writer_fd = ends[1];
	h->reader_fd = ends[0];
	return above_the_others(writer_fd);
}

/* The kernel sends the signal with the rights that we have at this call. */
static int set_owner(int fd, pid_t tid, uid_t uid)
{
	struct f_owner_ex owner = { .type = F_OWNER_TID, .pid = tid };
	auto_(user_signals_leave) struct user_signals user = USER_SIGNALS_NONE;
	int r = user_signals_enter(&user, uid);

	if (r < 0)
		return r;
	return fcntl(fd, F_SETOWN_EX, &owner) < 0 ? -errno : 0;
}

/* Opens @path, the reading end of a pipe, once more, so that its last writer's end stops thread @tid. */
static int stop_at_end_of(const char *path, pid_t tid, uid_t uid)
{
	auto_close int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	int r = fd < 0 || fcntl(fd, F_SETSIG, SIGSTOP) < 0 ? -errno : set_owner(fd, tid, uid);

	if (r == 0 && fcntl(fd, F_SETFL, O_NONBLOCK | O_ASYNC) < 0)
		r = -errno;
	if (r < 0)
		return r;
	return take_fd(&fd);
}

/* Guards each thread, because one that is released before its process has stopped would run. */
static int guard_process(struct heal_state *h, const char *pipe_path, pid_t pid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "task");

	if (!dir)
		return 0; /* it has ended */
	for (struct dirent *e; (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		auto_close int fd = stop_at_end_of(pipe_path, atoi(e->d_name), h->uid);
		int r = fd >= 0 ? array_add(h->stop_fds, h->n_stop, fd) : fd;
		if (r < 0 && r != -ESRCH)
			return r;
		take_fd(&fd);
	}
	return 0;
}

int heal_guard(struct heal_state *h)
{
	char path[48];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", h->reader_fd);
	for (size_t i = 0; i < h->before.n && r == 0; i++) {
		const struct proc_info *p = &h->before.items[i];

		if (p->state != 'T' && !proc_has_ended(p->id))
			r = guard_process(h, path, p->id.pid);
	}
	return r;
}

void heal_disarm(struct heal_state *h)
{
	for (size_t i = 0; i < h->n_stop; i++)
		close(h->stop_fds[i]);
	h->n_stop = 0;
}

/* ---- sockets ---- */

/* Looks at the TCP socket @name of a process, or with NULL at what cannot be read. True ends the search. */
typedef bool (*socket_fn)(void *arg, int pid_fd, const char *name);

/*
 * Whether descriptor @name below @dir_fd is a TCP socket: 1, 0, -errno. What we open for it is no open file (O_PATH): by now
 * the process may have a file there whose file system does not answer when it is looked at or closed.
 */
static int is_tcp(int dir_fd, const char *name)
{
	auto_close int fd = RESERVE_TRY(openat(dir_fd, name, O_PATH | O_CLOEXEC));
	char path[48], text[64];

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, text, sizeof(text));
	if (n < 0)
		return -errno;
	if (strncmp(text, "socket:", strlen("socket:")) != 0)
		return 0;
	n = getxattr(path, "system.sockprotoname", text, sizeof(text));
	return n < 0 ? -errno : !strncmp(text, "TCP", strlen("TCP"));
}

static bool any_of_process(pid_t pid, int pid_fd, socket_fn fn, void *arg)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	bool found = false;

	if (pid_fd == -ESRCH || (!dir && errno == ENOENT)) /* it has ended */
		return false;
	if (pid_fd < 0 || !dir)
		return fn(arg, -1, NULL);
	for (struct dirent *e; !found && (e = readdir(dir));)
		if (e->d_name[0] != '.' && is_tcp(dirfd(dir), e->d_name))
			found = fn(arg, pid_fd, e->d_name);
	return found;
}

static bool any_tcp(const struct heal_state *h, socket_fn fn, void *arg)
{
	for (size_t i = 0; i < h->before.n; i++)
		if (any_of_process(h->before.items[i].id.pid, h->pid_fds[i], fn, arg))
			return true;
	return false;
}

static bool is_found(void *arg, int pid_fd, const char *name)
{
	(void)arg;
	(void)pid_fd;
	(void)name;
	return true;
}

bool heal_has_tcp(const struct heal_state *h)
{
	return any_tcp(h, is_found, NULL);
}

/* Sockets of one process that are to be taken out of repair. */
struct repairs {
	int pid_fd;
	size_t n;
	int numbers[REPAIRS_AT_ONCE];
};

static void end_repair_of(int pid_fd, int number)
{
	auto_close int fd = (int)syscall(SYS_pidfd_getfd, pid_fd, number, 0);
	int on = 0, off = 0;
	socklen_t len = sizeof(on);

	if (fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, &len) == 0 && on)
		setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off));
}

/* Has nothing of ours open, as it may never end. */
static _Noreturn void run_repairer(const struct repairs *r)
{
	prctl(PR_SET_NAME, "brumate-repair"); /* nobody is to take it for us */
	fd_close_others(r->pid_fd, r->pid_fd);
	for (size_t i = 0; i < r->n; i++)
		end_repair_of(r->pid_fd, r->numbers[i]);
	_exit(0);
}

/*
 * A child does it: since we looked at them, a process outside the tree that shares its descriptors (clone(2), CLONE_FILES)
 * may have put a file there whose file system does not answer, and the close(2) of a copy of it never returns.
 */
static void end_repairs(struct repairs *r)
{
	if (!r->n)
		return;
	fault_point("heal.repair");
	pid_t pid = reap_fork();
	if (pid == 0)
		run_repairer(r);
	if (pid > 0)
		reap_wait_for(pid, REPAIR_TIMEOUT_MS);
	r->n = 0;
}

static bool add_repair(void *arg, int pid_fd, const char *name)
{
	struct repairs *r = arg;

	if (!name)
		return false;
	if (r->n == REPAIRS_AT_ONCE || r->pid_fd != pid_fd)
		end_repairs(r);
	r->pid_fd = pid_fd;
	r->numbers[r->n++] = atoi(name);
	return false;
}

void heal_sockets(const struct heal_state *h)
{
	struct repairs r = { .pid_fd = -1 };

	any_tcp(h, add_repair, &r);
	end_repairs(&r);
}

/* ---- the lock of the network ---- */

/*
 * The lock of TCP connections during a dump. CRIU has three: iptables runs programs, which a small
 * machine does not have; "skip" lets the kernel answer a peer's packet with a reset between kill and
 * restore (seen: a client that talks meanwhile loses its connection); nftables drops those packets,
 * needs no program, and is what is used where the kernel has it. Its table goes when CRIU resumes or
 * restores the tree; when CRIU is killed, it is removed here, or the job would be cut off for ever.
 */

struct batch {
	_Alignas(struct nlmsghdr) char buf[MESSAGE_BYTES];
	size_t len;
};

static struct nlmsghdr *batch_add(struct batch *b, uint16_t type, uint16_t flags, uint8_t family,
				  uint16_t resource)
{
	struct nlmsghdr *h = (void *)(b->buf + b->len);
	struct nfgenmsg *g = NLMSG_DATA(h);

	memset(h, 0, NLMSG_SPACE(sizeof(*g)));
	h->nlmsg_len = NLMSG_LENGTH(sizeof(*g));
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	g->nfgen_family = family;
	g->version = NFNETLINK_V0;
	g->res_id = htons(resource);
	b->len += NLMSG_ALIGN(h->nlmsg_len);
	return h;
}

static void batch_add_name(struct batch *b, struct nlmsghdr *h, uint16_t type, const char *name)
{
	struct nlattr *a = (void *)(b->buf + b->len);
	size_t len = strlen(name) + 1;

	memset(a, 0, NLA_HDRLEN + NLA_ALIGN(len));
	a->nla_type = type;
	a->nla_len = (uint16_t)(NLA_HDRLEN + len);
	memcpy((char *)a + NLA_HDRLEN, name, len);
	b->len += NLA_ALIGN(a->nla_len);
	h->nlmsg_len += NLA_ALIGN(a->nla_len);
}

/* Sends, and returns what the kernel says first: 0 (an answer or an acknowledgement) or -errno. */
static int ask_netfilter(const struct batch *b)
{
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };
	_Alignas(struct nlmsghdr) char answer[8192];

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    send(fd, b->buf, b->len, 0) < 0)
		return -errno;

	ssize_t n = recv(fd, answer, sizeof(answer), 0);
	if (n < 0)
		return -errno;

	const struct nlmsghdr *h = (void *)answer;
	if (!NLMSG_OK(h, (size_t)n))
		return -EBADMSG;
	return h->nlmsg_type == NLMSG_ERROR ? ((struct nlmsgerr *)NLMSG_DATA(h))->error : 0;
}

bool heal_can_lock(void)
{
	struct batch b = { .len = 0 };

	batch_add(&b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, 0, AF_UNSPEC, 0);
	return ask_netfilter(&b) == 0;
}

/* Removes table inet @name, the lock that a killed CRIU left. */
static void remove_lock(const char *name)
{
	struct batch b = { .len = 0 };

	if (strlen(name) >= MESSAGE_BYTES / 2)
		return;
	batch_add(&b, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	struct nlmsghdr *h = batch_add(&b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE, NLM_F_ACK,
				       NFPROTO_INET, 0);
	batch_add_name(&b, h, NFTA_TABLE_NAME, name);
	batch_add(&b, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	ask_netfilter(&b);
}

/* ---- what its log names ---- */

/* Calls @fn for what follows the first @mark in a line, at most @lines_max times: the log may be a user's, and all that is
 * done for it takes time. */
static void visit_lines(const char *log, size_t len, const char *mark, unsigned lines_max,
			void (*fn)(void *arg, const char *text, size_t len), void *arg)
{
	const char *end = log + len, *eol;

	for (const char *p = log; lines_max--; p = eol) {
		p = memmem(p, (size_t)(end - p), mark, strlen(mark));
		if (!p)
			return;
		p += strlen(mark);
		eol = memchr(p, '\n', (size_t)(end - p));
		eol = eol ? eol : end;
		fn(arg, p, (size_t)(eol - p));
	}
}

/* CRIU names the table after its run, which has a random number (uuid(3)), and cuts the name where its buffer ends. A
 * shorter one could only be a forgery by guess. */
static void remove_lock_of_run(void *arg, const char *id, size_t len)
{
	char name[sizeof("CRIU-") + RUN_ID_LEN] = "CRIU-";
	size_t n = 0;

	while (n < len && n < RUN_ID_LEN && (isxdigit((unsigned char)id[n]) || id[n] == '-'))
		n++;
	(void)arg;
	if (n < RUN_ID_LEN)
		return;
	memcpy(name + strlen("CRIU-"), id, n);
	remove_lock(name);
	name[LOCK_NAME_LEN] = '\0';
	remove_lock(name);
}

/* CRIU names the run again once it knows its request, so there is more than one such line. */
static void remove_lock_named_in(const char *log, size_t len)
{
	visit_lines(log, len, "CRIU run id = ", RUNS_MAX, remove_lock_of_run, NULL);
}

struct paths {
	char **items;
	size_t n;
};

static void add_ghost(void *arg, const char *text, size_t len)
{
	struct paths *paths = arg;
	auto_free char *line = strndup(text, len);
	char *path = line ? strstr(line, " for ") : NULL;
	auto_free char *ghost = path ? path_format("/%s.cr.%lx.ghost", path + strlen(" for "),
						   strtoul(line, NULL, 16))
				     : NULL;

	if (ghost && array_add(paths->items, paths->n, ghost) == 0)
		ghost = NULL;
}

static int unlink_all(void *arg)
{
	const struct paths *paths = arg;

	for (size_t i = 0; i < paths->n; i++)
		unlink(paths->items[i]);
	return 0;
}

/* A restore creates deleted files again, under names of their own next to the old ones. */
static void remove_ghosts_named_in(const char *log, size_t len)
{
	struct paths paths = { 0 };

	visit_lines(log, len, "Opening ghost file 0x", GHOSTS_MAX, add_ghost, &paths);
	if (paths.n && aside_run(unlink_all, &paths, -1, GHOSTS_TIMEOUT_MS) == -ETIMEDOUT)
		log_warn("deleted files that a restore made anew are left: their file system does "
			 "not answer");
	for (size_t i = 0; i < paths.n; i++)
		free(paths.items[i]);
	free(paths.items);
}

/* The log may be a user's, who can cut it short at any moment: it is read, as a mapping of it would end us by SIGBUS. */
static void with_log(int log_fd, void (*fn)(const char *log, size_t len))
{
	struct stat st;

	if (log_fd < 0 || fstat(log_fd, &st) < 0 || st.st_size <= 0)
		return;
	size_t room = st.st_size < LOG_BYTES_MAX ? (size_t)st.st_size : LOG_BYTES_MAX;
	auto_free char *log = malloc(room);
	ssize_t n = log ? fd_read_at(log_fd, log, room, 0) : -1;
	if (n > 0)
		fn(log, (size_t)n);
}

/* ---- escort ---- */

/*
 * Tasks are seen out of the code that a killed CRIU left running in them. That code notices the end of its
 * socket and takes itself out, by rt_sigreturn(2) into what the task was doing. But where it was busy
 * with CRIU's pipe or answers on its socket, it gets SIGPIPE first, which is blocked there, stays pending
 * and would end the task at its return (seen with 4.2.1: vmsplice(2) in the middle of a dump). So each
 * such task is traced from its stop to that return, and this signal is taken from it.
 *
 * A CRIU that fails by itself leaves such tasks, too: where it waits for one of them to take its code out,
 * and another one is killed, it takes that for the answer (seen with 4.2.1). Before it waits it puts a
 * breakpoint in front of that return, which stays in the task and would end it by SIGTRAP, so it is taken out.
 *
 * Tracing is done by a process of its own: a tracer gets every stop from wait(2), and in the callers another thread waits.
 * It is forked from a program with threads and makes system calls only.
 */

#define BIT_OF(signal) (1ull << ((signal)-1))

static bool blocks(pid_t pid, uint64_t signals)
{
	uint64_t mask = 0;

	return ptrace(PTRACE_GETSIGMASK, pid, sizeof(mask), &mask) == 0 &&
	       (mask & signals) == signals;
}

/* CRIU's code runs with all signals blocked but these. */
static bool blocks_all(pid_t pid)
{
	return blocks(pid, ~(BIT_OF(SIGKILL) | BIT_OF(SIGSTOP) | BIT_OF(SIGTRAP)));
}

/* Waits for the next stop: what stopped it, 0 for none of its own signals; <0 if it has ended. */
static int wait_stop(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return -1;
	return status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
}

/* Takes out what CRIU set to stop its code by. */
static void clear_breakpoints(pid_t pid)
{
#if defined(__x86_64__)
	const size_t control = offsetof(struct user, u_debugreg) + 7 * sizeof(long);

	ptrace(PTRACE_POKEUSER, pid, control, 0);
#else
	(void)pid; /* the reaper alone outlives one */
#endif
}

/* Takes hold of a task; true if CRIU's code is in it. */
static bool seize_task(pid_t pid)
{
	int signal;

	if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACESYSGOOD) < 0)
		return false;
	ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
	if ((signal = wait_stop(pid)) < 0)
		return false;
	if (signal == SIGSTOP) /* ours */
		signal = 0;
	if (blocks_all(pid)) {
		clear_breakpoints(pid);
		return true;
	}
	ptrace(PTRACE_DETACH, pid, NULL, signal);
	return false;
}

static bool sigpipe_is_pending(pid_t pid)
{
	struct __ptrace_peeksiginfo_args args = { .nr = PENDING_MAX };
	siginfo_t pending[PENDING_MAX];
	long n = ptrace(PTRACE_PEEKSIGINFO, pid, &args, pending);

	for (long i = 0; i < n; i++)
		if (pending[i].si_signo == SIGPIPE)
			return true;
	return false;
}

/* Lets it run to the end of its rt_sigreturn(2), or until it has helped itself out, as brumate-reaper does. False if
 * it has ended. */
static bool run_to_return(pid_t pid)
{
	struct __ptrace_syscall_info call;
	bool returns = false;
	int signal = 0;

	for (;;) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, signal) < 0 || (signal = wait_stop(pid)) < 0)
			return false;
		if (signal != SYSCALL_STOP)
			continue;
		signal = 0;
		if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(call), &call) <= 0)
			return true;
		if (call.op == PTRACE_SYSCALL_INFO_EXIT && (returns || !blocks_all(pid)))
			return true;
		returns = call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_rt_sigreturn;
	}
}

static void see_task_out(pid_t pid)
{
	int signal = 0;

	if (!run_to_return(pid))
		return;
	/* To one that blocks it itself it does not come. */
	if (sigpipe_is_pending(pid) && !blocks(pid, BIT_OF(SIGPIPE))) {
		ptrace(PTRACE_CONT, pid, NULL, NULL);
		if ((signal = wait_stop(pid)) < 0)
			return;
	}
	ptrace(PTRACE_DETACH, pid, NULL, signal == SIGPIPE ? 0 : signal);
}

/* Whose rights the escort has, and so whom the kernel lets it trace. */
struct escort {
	bool becomes_user;
	uid_t uid;
	gid_t gid;
};

/* The members of a user's tree are in the groups of its root. Returns 0 or -errno. */
static int choose_rights(struct escort *ret, const struct heal_state *h)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	struct escort e = { .becomes_user = h->uid && geteuid() == 0, .uid = h->uid };
	int r = e.becomes_user ? credentials_read(&c, h->before.items[0].id.pid) : 0;

	if (e.becomes_user && r == 0)
		e.gid = c.gids[CREDENTIALS_EFFECTIVE];
	if (r == 0)
		*ret = e;
	return r;
}

static _Noreturn void run_escort(const struct heal_state *h, const struct escort *e, bool *is_held)
{
	sigset_t none;

	if (e->becomes_user && user_become(e->uid, e->gid, NULL, 0) < 0)
		_exit(1);

	/* Its end detaches all that it still traces. */
	signal(SIGALRM, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	alarm(ESCORT_S);
	for (size_t i = 0; i < h->before.n; i++)
		is_held[i] = h->pid_fds[i] >= 0 && h->before.items[i].state != 'T' &&
			     seize_task(h->before.items[i].id.pid);
	heal_signal(h, SIGCONT);
	for (size_t i = 0; i < h->before.n; i++)
		if (is_held[i])
			see_task_out(h->before.items[i].id.pid);
	_exit(0);
}

/* Makes a stopped tree run on, and sees those out of CRIU's code in which it was killed. Returns 0, or another number where
 * the tree may not have been made to run: its user can end the escort. */
static int escort_tree(const struct heal_state *h)
{
	auto_free bool *is_held = calloc(h->before.n + 1, sizeof(*is_held));
	struct escort e;
	int r = is_held ? choose_rights(&e, h) : -ENOMEM;

	if (r < 0)
		return r;
	pid_t pid = reap_fork();
	if (pid == 0)
		run_escort(h, &e, is_held);
	if (pid < 0)
		return pid;
	return reap_wait_for(pid, ESCORT_S * 1000 + ESCORT_SPARE_MS);
}

/* ---- all of it ---- */

static void let_go(struct heal_state *h, bool by_escort)
{
	heal_disarm(h);
	if (!by_escort || escort_tree(h) != 0)
		heal_signal(h, SIGCONT);
}

void heal_continue(struct heal_state *h)
{
	let_go(h, h->n_stop > 0);
}

void heal_tree(struct heal_state *h, int log_fd)
{
	heal_sockets(h);
	with_log(log_fd, remove_lock_named_in);
	let_go(h, true);
}

int criu_heal(struct proc_id root, struct proc_id criu, uid_t uid, int work_dir_fd,
	      const char *log_name, struct brumate_error *err)
{
	auto_close int log_fd =
		openat(work_dir_fd, log_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
	auto_(heal_state_fini) struct heal_state h = HEAL_STATE_EMPTY;
	int r = heal_prepare(&h, root, uid, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < h.before.n; i++)
		if (h.before.items[i].state == 'T') /* CRIU's end stopped it, as far as is known */
			h.before.items[i].state = 'S';
	heal_signal(&h, SIGSTOP);
	proc_signal(criu, SIGKILL);
	r = proc_wait_gone(criu, deadline_in_ms(END_TIMEOUT_MS));
	if (r < 0)
		return brumate_fail(err, -r, "CRIU, process %d, was killed and has not ended: %m",
				    criu.pid);
	heal_tree(&h, log_fd);
	return 0;
}

void heal_restore(int log_fd, const struct criu_user *user)
{
	auto_(user_files_leave) struct user_files entered = USER_FILES_NONE;

	/* The paths are the user's, and so may be what the log says. */
	if (user && user_files_enter(&entered, user->uid, user->gid, NULL) < 0)
		return;
	with_log(log_fd, remove_ghosts_named_in);
}

void criu_release_network(int work_dir_fd, const char *log_name)
{
	auto_close int fd =
		openat(work_dir_fd, log_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);

	with_log(fd, remove_lock_named_in);
}
