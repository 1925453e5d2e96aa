// SPDX-License-Identifier: MIT
/*
 * Starts CRIU. The program that forks has threads, so what runs in the child before exec is
 * async-signal-safe. CRIU finds out who talks to it from the credentials of its socket and opens
 * directories as /proc/PEER/fd/N: the socket pair is therefore made by the CRIU process itself and
 * our end sent back, so that numbers mean its own descriptors, in any pid namespace.
 */
#include "criu/criu-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/packet.h"
#include "base/paths.h"
#include "base/start.h"
#include "base/user.h"
#include "criu-launch/launch.h"
#include "criu-plugin/hidden.h"
#include "process/reap.h"

enum { EXIT_TIMEOUT_MS = 10000, START_TIMEOUT_MS = 30000, LOOK_MS = 200 };

void criu_fds_fini(struct criu_fds *f)
{
	for (size_t i = 0; i < f->n; i++)
		close(f->items[i]);
	f->n = 0;
}

int criu_fds_take(struct criu_fds *f, int fd, const char *what, struct brumate_error *err)
{
	if (fd < 0)
		return brumate_fail(err, -fd, "CRIU: descriptor of %s: %m", what);
	if (f->n == CRIU_FDS_MAX) {
		close(fd);
		return brumate_fail(err, E2BIG, "CRIU: more than %d descriptors to pass",
				    CRIU_FDS_MAX);
	}
	f->items[f->n++] = fd;
	return fd;
}

int criu_fds_add(struct criu_fds *f, int fd, const char *what, struct brumate_error *err)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	return criu_fds_take(f, copy < 0 ? -errno : copy, what, err);
}

/* Made before the fork: the child only uses it. */
struct spawning {
	const char *path;
	char *const *argv;
	char *const *envp;
	const struct criu_fds *fds;
	int socket_fd; /* a number kept free for CRIU's end of its socket */
	int back_fd;   /* the child's end of the way back to us */
	int null_fd;
	int ns_fd; /* pidfd of a process in the namespaces to enter; -1: stay in ours */
	int ns_flags;
	bool repairs_tcp;
	bool is_in_user_ns; /* one of them is of ours alone: it has no more capabilities there than a user's CRIU here */
	const struct criu_user *user;	    /* whose rights it gets; NULL: ours */
	const struct criu_options *options; /* whose tick says whether to wait on */
};

/* One of these comes back: what failed, or nothing wrong and CRIU's socket with it. */
struct report {
	int code;
	char what[16];
};

static _Noreturn void child_fail(const struct spawning *p, const char *what)
{
	struct report report = { .code = errno };

	for (size_t i = 0; what[i] && i < sizeof(report.what) - 1; i++)
		report.what[i] = what[i];
	if (send(p->back_fd, &report, sizeof(report), MSG_NOSIGNAL) < 0)
		_exit(126);
	_exit(127);
}

static int send_back(int back_fd, int fd)
{
	struct report report = { 0 };
	ssize_t n = packet_send(back_fd, &report, sizeof(report), &fd, 1, DEADLINE_NEVER);

	return n < 0 ? (int)n : 0;
}

/*
 * Capabilities that let nobody do anything of weight, and which a user's own CRIU (criu-launch/) has not: so that a user,
 * who may trace what has no more rights than the user's programs can get, may trace no CRIU of root's (ptrace(2), "Ptrace
 * access mode checking"). More than one, as a service manager may give users one of them: CAP_WAKE_ALARM goes to sessions.
 */
static uint64_t shielding_capabilities(const struct __user_cap_data_struct own[static 2])
{
	const uint64_t harmless = 1ull << CAP_WAKE_ALARM | 1ull << CAP_BLOCK_SUSPEND;

	return harmless & (own[0].permitted | (uint64_t)own[1].permitted << 32);
}

/* What it has left goes through execve(2) as ambient capabilities. */
static int keep_capabilities(bool net_admin)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { 0 };

	if (syscall(SYS_capget, &header, caps) < 0)
		return -1;
	const uint64_t kept = 1ull << CAP_CHECKPOINT_RESTORE | shielding_capabilities(caps) |
			      (net_admin ? 1ull << CAP_NET_ADMIN : 0);
	for (int i = 0; i < 2; i++)
		caps[i].permitted = caps[i].effective = caps[i].inheritable =
			(uint32_t)(kept >> 32 * i);
	if (syscall(SYS_capset, &header, caps) < 0)
		return -1;
	for (int i = 0; i < 64; i++)
		if (kept >> i & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0) < 0)
			return -1;
	return 0;
}

static void child_become(const struct spawning *p)
{
	const struct criu_user *u = p->user;

	if (prctl(PR_SET_KEEPCAPS, 1) < 0 ||
	    user_become(u->uid, u->gid, u->groups, u->n_groups) < 0 ||
	    keep_capabilities(u->net_admin) < 0)
		child_fail(p, "become a user");
}

static _Noreturn void child_exec(const struct spawning *p)
{
	int pair[2];

	fault_point("criu.child");
	signals_reset();
	/* A file size limit is how a dump is cancelled: to CRIU it is to look like a full disk. */
	signal(SIGXFSZ, SIG_IGN);
	setsid();
	for (int fd = 0; fd < 3; fd++)
		if (dup2(p->null_fd, fd) < 0)
			child_fail(p, "dup2");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		child_fail(p, "socketpair");
	if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
		child_fail(p, "close_range");
	for (size_t i = 0; i < p->fds->n; i++)
		if (fcntl(p->fds->items[i], F_SETFD, 0) < 0)
			child_fail(p, "fcntl");
	if (dup2(pair[1], p->socket_fd) < 0)
		child_fail(p, "dup2");
	if (send_back(p->back_fd, pair[0]) < 0)
		child_fail(p, "sendmsg");
	if (p->user)
		child_become(p);
	else if (p->is_in_user_ns && keep_capabilities(p->repairs_tcp) < 0)
		child_fail(p, "capset");
	execve(p->path, p->argv, p->envp);
	child_fail(p, "execve");
}

/* A pid namespace is entered by children only. This one is made a child of our parent, so that it is
 * waited for like a CRIU without namespaces. */
static _Noreturn void child_enter_ns(const struct spawning *p)
{
	if (setns(p->ns_fd, p->ns_flags) < 0)
		child_fail(p, "setns");

	long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
	if (pid < 0)
		child_fail(p, "clone");
	if (pid == 0)
		child_exec(p);
	_exit(0);
}

/* A child that was stopped says nothing. */
static int await_report(const struct spawning *p, int fd, struct brumate_error *err)
{
	const struct criu_options *o = p->options;
	uint64_t deadline_ns = deadline_in_ms(START_TIMEOUT_MS);
	int r;

	while ((r = fd_wait(fd, POLLIN, deadline_in_ms(LOOK_MS))) == -ETIMEDOUT) {
		if (o->on_tick && (r = o->on_tick(o->arg, err)) < 0)
			return r;
		if (deadline_left_ms(deadline_ns) == 0)
			return brumate_fail(err, ETIMEDOUT, "CRIU: it does not start: %m");
	}
	return r < 0 ? brumate_fail(err, -r, "CRIU: cannot start it: %m") : 0;
}

/* Returns 1; 0 where the child ended without a word; -errno. */
static int receive_report(const struct spawning *p, int fd, struct report *report, int *ret_socket,
			  struct brumate_error *err)
{
	struct packet_fds fds = { ret_socket, 1 };
	int r = await_report(p, fd, err);

	if (r < 0)
		return r;
	r = fault_point("criu.report");
	ssize_t n = r < 0 ? r : packet_receive(fd, report, sizeof(*report), &fds, DEADLINE_NEVER);

	if (n == -EPIPE)
		return 0;
	if (n < 0)
		return brumate_fail(err, (int)-n, "CRIU: cannot start it: %m");
	return n == (ssize_t)sizeof(*report)
		       ? 1
		       : brumate_fail(err, EBADMSG, "CRIU: cannot start it: %m");
}

static int fail_spawn(const struct spawning *p, const struct report *report,
		      struct brumate_error *err)
{
	if (!report->code)
		return brumate_fail(err, EPIPE, "%s: ended before it could start", p->path);
	return brumate_fail(err, report->code, "%s: %.15s: %m", p->path, report->what);
}

/* The socket was made by CRIU's process, so its credentials are CRIU's pid, in our numbering. */
static int identify_child(struct criu_child *child, struct brumate_error *err)
{
	struct ucred peer;
	int r = fault_point("criu.identify");

	if (r == 0)
		r = fd_peer(child->socket_fd, &peer);
	if (r < 0)
		return brumate_fail(err, -r, "CRIU: cannot tell its process id: %m");
	return proc_identify(&child->id, peer.pid, err);
}

/* Forks and protects; both happen under the lock of reaping. */
static int fork_child(const struct spawning *p, int way_back_fd, pid_t *ret_first,
		      struct criu_child *child, struct brumate_error *err)
{
	struct report report = { 0 };
	pid_t first = fork();

	if (first < 0)
		return brumate_fail(err, errno, "CRIU: cannot fork: %m");
	if (first == 0) {
		if (p->ns_fd >= 0)
			child_enter_ns(p);
		child_exec(p);
	}
	reap_protect(first);
	*ret_first = first;
	close(p->back_fd);

	int r = receive_report(p, way_back_fd, &report, &child->socket_fd, err);
	if (r < 0)
		return r;
	if (child->socket_fd < 0)
		return fail_spawn(p, &report, err);
	r = identify_child(child, err);
	if (r >= 0 && child->id.pid != first)
		reap_protect(child->id.pid);
	return r;
}

/* One that was stopped does not end by itself. None of them has been reaped, so the numbers are theirs. */
static void end_stopped(pid_t first, const struct criu_child *child)
{
	if (child->id.pid)
		kill(child->id.pid, SIGKILL);
	if (first)
		kill(first, SIGKILL);
}

static int start_child(struct criu_child *ret, struct spawning *p, struct brumate_error *err)
{
	struct criu_child child = CRIU_CHILD_NONE;
	struct report report = { 0 };
	pid_t first = 0;
	int back[2], none = -1, status;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, back) < 0)
		return brumate_fail(err, errno, "CRIU: no socket: %m");
	auto_close int way_back_fd = back[0];
	p->back_fd = back[1];

	reap_lock();
	int r = fork_child(p, way_back_fd, &first, &child, err);
	reap_unlock();
	if (!first)
		close(p->back_fd);

	/* End of file is the success of execve: the way back closes itself. */
	if (r >= 0 && (r = receive_report(p, way_back_fd, &report, &none, err)) > 0)
		r = fail_spawn(p, &report, err);
	if (r <
	    0) { /* one that runs ends by it, or by the way back, on which its socket may be yet */
		cleanup_close(&child.socket_fd);
		cleanup_close(&way_back_fd);
		end_stopped(first, &child);
	}
	if (first && (p->ns_fd >= 0 || r < 0))
		reap_wait(first, &status);
	if (r < 0) {
		if (child.id.pid && child.id.pid != first)
			reap_wait(child.id.pid, &status);
		return r;
	}
	*ret = child;
	return 0;
}

static int open_ns(pid_t pid, struct brumate_error *err)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd >= 0)
		return fd;
	return brumate_fail(err, errno == EINVAL ? ESRCH : errno,
			    "cannot enter the namespaces of process %d: %m", pid);
}

char *criu_plugin_dir(void)
{
	return path_find_helper("criu-plugin");
}

int criu_spawn(struct criu_child *ret, const struct criu_program *program,
	       const struct criu_fds *fds, const struct criu_plugin_env *plugin,
	       const struct criu_options *o, struct brumate_error *err)
{
	const pid_t enter_ns_of = o->enter_ns_of;
	const struct criu_user *user = o->user;
	const bool has_user_ns = o->is_apart && geteuid() != 0;
	char number[16], plugins[4096], table[64], devices[1024], runtime[4096];
	auto_free char *vendor =
		path_format(HIDDEN_VENDOR_VARIABLE "=%s%s%s", plugin->vendor ? plugin->vendor : "",
			    plugin->gpu_map ? " " : "", plugin->gpu_map ? plugin->gpu_map : "");

	if (!vendor)
		return brumate_fail(err, ENOMEM, "%m");
	char *argv[] = { (char[]){ "criu" }, (char[]){ "swrk" }, number,
			 (char[]){ CRIU_WITHOUT_CONFIG }, NULL };
	char *envp[] = { (char[]){ "PATH=/usr/sbin:/usr/bin:/sbin:/bin" },
			 (char[]){ "LC_ALL=C" },
			 plugins,
			 devices,
			 vendor,
			 runtime,
			 plugin->table_fd >= 0 ? table : NULL,
			 NULL };
	auto_close int ns_fd = enter_ns_of ? open_ns(enter_ns_of, err) : -1;
	auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	int highest = 2;

	for (size_t i = 0; i < fds->n; i++)
		highest = fds->items[i] > highest ? fds->items[i] : highest;
	auto_close int socket_fd = null_fd < 0 ? -1 : fcntl(null_fd, F_DUPFD_CLOEXEC, highest + 1);

	if (enter_ns_of && ns_fd < 0)
		return ns_fd;
	if (socket_fd < 0)
		return brumate_fail(err, errno, "/dev/null: %m");
	snprintf(number, sizeof(number), "%d", socket_fd);
	/* A directory that the kernel makes, in which nobody can put a plugin. */
	snprintf(plugins, sizeof(plugins), "CRIU_LIBS_DIR=%s",
		 plugin->libdir ? plugin->libdir : "/proc/self/task");
	snprintf(devices, sizeof(devices), HIDDEN_DEV_VARIABLE "=%s",
		 plugin->devices ? plugin->devices : "");
	/* Where a CRIU that is not root's keeps what it found out of the kernel. */
	snprintf(runtime, sizeof(runtime), "XDG_RUNTIME_DIR=%s", path_runtime_dir());
	snprintf(table, sizeof(table), HIDDEN_FD_VARIABLE "=%d", plugin->table_fd);

	struct spawning spawning = {
		.path = program->path,
		.argv = argv,
		.envp = envp,
		.fds = fds,
		.socket_fd = socket_fd,
		.back_fd = -1,
		.null_fd = null_fd,
		.ns_fd = ns_fd,
		.ns_flags = CLONE_NEWPID | CLONE_NEWNS |
			    (o->is_apart ? CLONE_NEWNET | CLONE_NEWIPC : 0) |
			    (has_user_ns ? CLONE_NEWUSER : 0),
		.is_in_user_ns = has_user_ns,
		.repairs_tcp = has_user_ns && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET,
						    CAP_NET_ADMIN, 0, 0) == 1,
		.user = user,
		.options = o,
	};
	int r = start_child(ret, &spawning, err);
	if (r >= 0)
		ret->uid = user ? user->uid : 0;
	if (r >= 0)
		fault_register_peer("criu", ret->id.pid);
	return r;
}

void criu_kill_group(struct proc_id criu, uid_t uid)
{
	auto_(user_signals_leave) struct user_signals user = USER_SIGNALS_NONE;

	if (user_signals_enter(&user, uid) == 0)
		kill(-criu.pid, SIGKILL);
}

int criu_reap(struct criu_child *child)
{
	int status = 0;

	cleanup_close(&child->socket_fd);
	child->socket_fd = -1;
	if (proc_wait_gone(child->id, deadline_in_ms(EXIT_TIMEOUT_MS)) == -ETIMEDOUT) {
		proc_signal(child->id, SIGKILL);
		if (proc_wait_gone(child->id, deadline_in_ms(EXIT_TIMEOUT_MS)) == -ETIMEDOUT) {
			reap_release(child->id.pid);
			fault_register_peer("criu", 0);
			return -ETIMEDOUT;
		}
	}
	/* A CRIU that was killed leaves helpers waiting for it for ever. They are of its process group,
	 * whose number is its own until it is reaped; restored tasks that run have left it. */
	if (proc_zombie_status(child->id, &status) == 0 && WIFSIGNALED(status))
		criu_kill_group(child->id, child->uid);
	fault_register_peer("criu", 0);
	int r = reap_wait(child->id.pid, &status);
	return r < 0 ? r : status;
}

/* ---- the images' directory, where CRIU is another user's ---- */

typedef int (*image_fn)(int dir_fd, const char *name, const void *arg);

static int for_each_image(int dir_fd, image_fn fn, const void *arg)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	int r = 0;

	if (!dir)
		return -errno;
	for (struct dirent *e; r == 0 && (e = readdir(dir));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			r = fn(dir_fd, e->d_name, arg);
	return r;
}

static int lend_image(int dir_fd, const char *name, const void *arg)
{
	const struct criu_user *user = arg;

	return fchownat(dir_fd, name, user->uid, user->gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* A directory that is the user's by now may hold what the user has linked or moved there, which is not to be given away. */
int criu_lend_dir(int dir_fd, const struct criu_user *user)
{
	struct stat st;

	if (fstat(dir_fd, &st) < 0)
		return -errno;
	if (st.st_uid == user->uid)
		return 0;
	int r = for_each_image(dir_fd, lend_image, user);

	if (r == 0 && fchown(dir_fd, user->uid, user->gid) < 0)
		r = -errno;
	return r;
}

/* The mode, too, and with it the access list (acl(5)), was the user's to change. */
static int take_back(int fd, mode_t mode)
{
	return fchown(fd, geteuid(), getegid()) < 0 || fchmod(fd, mode) < 0 ? -errno : 0;
}

/* A link, or another's file that was moved here, would show as a part of the image, which the user gets back at a restore.
 *  */
static int take_back_image(int dir_fd, const char *name, const void *arg)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	const struct criu_user *user = arg;
	struct stat st;

	if (fd < 0)
		return errno == ELOOP || errno == ENXIO ? -EBADMSG : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_uid != user->uid)
		return -EBADMSG;
	return take_back(fd, 0600);
}

int criu_take_back_dir(int dir_fd, const struct criu_user *user)
{
	/* First the directory, so that nothing is put into it after it was looked at. */
	int r = take_back(dir_fd, 0700);

	return r < 0 ? r : for_each_image(dir_fd, take_back_image, user);
}

static int is_tcp_image(int dir_fd, const char *name, const void *arg)
{
	(void)dir_fd;
	(void)arg;
	return criu_image_is_tcp(name);
}

bool criu_images_have_tcp(int dir_fd)
{
	return for_each_image(dir_fd, is_tcp_image, NULL) > 0;
}
