// SPDX-License-Identifier: MIT
/*
 * brumate-shim --ready-fd N JOBDIR lives as long as its job, or as a client is connected. The first command about a job
 * starts it. Where the shim of a job has died, the next command starts another, which takes the job over.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/start.h"
#include "process/pidns.h"
#include "process/reap.h"
#include "wire/wire.h"

enum { IDLE_MS = 5000, LOOK_AGAIN_MS = 100 };

/* A pidfd tells by it how a process ended that is not our child: kernel 6.15, include/uapi/linux/pidfd.h. */
struct pidfd_exit_info {
	uint64_t mask, cgroupid;
	uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
	int32_t exit_code;
	uint32_t coredump_mask, spare;
};
#define PIDFD_EXIT_INFO_EXIT (1ull << 3)
#define PIDFD_EXIT_INFO_GET  _IOWR(0xFF, 11, struct pidfd_exit_info)

static int exit_code_by_pidfd(int fd)
{
	struct pidfd_exit_info info = { .mask = PIDFD_EXIT_INFO_EXIT };

	if (ioctl(fd, PIDFD_EXIT_INFO_GET, &info) < 0 || !(info.mask & PIDFD_EXIT_INFO_EXIT))
		return JOB_EXIT_UNKNOWN;
	return spawn_exit_code(info.exit_code);
}

static void on_orphan(void *arg, pid_t pid, int status)
{
	shim_note_exit(arg, pid, spawn_exit_code(status));
}

/* ---- the main loop ---- */

struct watch {
	struct shim *shim;
	struct wire_server *server;
	int signal_fd;
	int root_fd; /* pidfd of the root; -1: none */
	struct proc_id root;
	pid_t inner_pid; /* its number in the namespace it lives in */
	bool stopping;
	bool look_again; /* a process could not be looked at: after a while */
	int keeper_fd;	 /* readable once the keeper has gone; -1: none, or an operation's */
};

static void follow_root(struct watch *w)
{
	pthread_mutex_lock(&w->shim->lock);
	struct proc_id root = w->shim->busy ? w->root : w->shim->job.root;
	pthread_mutex_unlock(&w->shim->lock);
	if (proc_is_same(root, w->root))
		return;
	cleanup_close(&w->root_fd);
	w->root = PROC_ID_NONE;
	struct proc_info info = { .inner_pid = root.pid };
	int fd = root.pid ? proc_open(root) : -ESRCH;
	int r = fd >= 0 ? proc_read(&info, root.pid, NULL) : fd;
	if (r < 0 && fd >= 0)
		close(fd);
	if (r < 0 && r != -ESRCH) { /* it cannot be looked at yet */
		w->look_again = true;
		return;
	}
	w->root = root;
	w->inner_pid = info.inner_pid;
	w->root_fd = r < 0 ? -1 : fd;
	if (w->root_fd < 0) {
		pthread_mutex_lock(&w->shim->lock);
		shim_settle(w->shim);
		pthread_mutex_unlock(&w->shim->lock);
	}
}

static bool was_reaped_here(struct watch *w)
{
	bool found = false;

	pthread_mutex_lock(&w->shim->lock);
	for (size_t i = 0; i < SHIM_EXITS; i++)
		found = found || w->shim->exits[i].pid == w->root.pid;
	pthread_mutex_unlock(&w->shim->lock);
	return found;
}

/* Tells how a root ended that is not our child. As long as it is a zombie, /proc says so. Later the init of its
 * namespace has noted it, or the kernel has. Returns 0, or -errno if it is not known yet. */
static int foreign_exit_code(struct watch *w, int *ret)
{
	auto_free char *path = path_format("%s/%s", w->shim->job.dir, JOB_NAMESPACE_STATUS);
	int status, r = proc_zombie_status(w->root, &status);

	if (!path)
		return -ENOMEM;
	if (r == -ESRCH)
		r = pidns_read_status(path, w->inner_pid, &status);
	if (r == 0)
		*ret = spawn_exit_code(status);
	if (r == -ENOENT)
		*ret = exit_code_by_pidfd(w->root_fd);
	return r == -ENOENT ? 0 : r;
}

static void reap(struct watch *w)
{
	if (reap_orphans(on_orphan, w->shim) < 0)
		w->look_again = true;
}

static void root_gone(struct watch *w)
{
	int code = JOB_EXIT_UNKNOWN;

	reap(w);
	if (!was_reaped_here(w)) {
		if (w->look_again || foreign_exit_code(w, &code) < 0) {
			w->look_again = true;
			return;
		}
		shim_note_exit(w->shim, w->root.pid, code);
	}
	cleanup_close(&w->root_fd);
}

static void take_signal(struct watch *w)
{
	struct signalfd_siginfo info;

	if (read(w->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGCHLD) {
		reap(w);
		return;
	}
	w->stopping = true; /* the job goes on; the next command starts another shim */
	w->shim->timer.stop = true;
}

static bool is_needed(struct watch *w, int *ret_wait_ms)
{
	uint64_t last_end_ns;
	size_t n = wire_server_connections(w->server, &last_end_ns);

	pthread_mutex_lock(&w->shim->lock);
	bool busy = w->shim->busy, left = w->shim->left;
	bool unsaved = w->shim->job.unsaved;
	bool alive = w->shim->job.root.pid != 0;
	pthread_mutex_unlock(&w->shim->lock);
	*ret_wait_ms = -1;
	if (left)
		return false;
	if (busy || ((alive || unsaved || owner_needs_shim(w->shim)) && !w->stopping) || n)
		return true;
	if (w->stopping)
		return false;
	int left_ms = deadline_left_ms(last_end_ns + IDLE_MS * NS_PER_MS);
	*ret_wait_ms = left_ms;
	return left_ms > 0;
}

/* The vault is useless once the job is over; until then the keeper is to hold its file descriptors too. */
static void look_after_vault(struct watch *w)
{
	struct shim *s = w->shim;

	pthread_mutex_lock(&s->lock);
	if (!s->busy) {

		if (!s->job.root.pid && s->vault.n_pieces)
			vault_clear(&s->vault, &s->job.target);
		/* One that has gone is replaced by mend.c, one that nobody needs ends when it is hung up on. */
		if (vault_is_alone(&s->vault))
			keeper_close(&s->vault.keeper);
		else if (!mend_wants_keeper(s))
			keeper_dismiss(&s->vault.keeper);
	}
	w->keeper_fd = s->busy ? -1 : s->vault.keeper.fd;
	pthread_mutex_unlock(&s->lock);
}

/* What could not be looked at: children that have ended, and the end of the root. */
static void look_again(struct watch *w)
{
	struct pollfd p = { .fd = w->root_fd, .events = POLLIN };

	w->look_again = false;
	reap(w);
	if (w->root_fd >= 0 && poll(&p, 1, 0) > 0)
		root_gone(w);
}

static void run_loop(struct watch *w)
{
	int wait_ms;

	follow_root(w);
	look_after_vault(w);
	mend_update(w->shim);
	while (is_needed(w, &wait_ms)) {
		struct pollfd fds[] = {
			{ .fd = w->signal_fd, .events = POLLIN },
			{ .fd = wire_server_fd(w->server), .events = POLLIN },
			{ .fd = w->shim->wake_fd, .events = POLLIN },
			{ .fd = w->root_fd, .events = POLLIN },
			{ .fd = w->shim->timer.fd, .events = POLLIN },
			{ .fd = w->keeper_fd, .events = POLLRDHUP },
			{ .fd = w->shim->mend.fd, .events = POLLIN },
			{ .fd = w->shim->owner.fd, .events = POLLIN },
			{ .fd = w->shim->marks.fd, .events = POLLIN },
			{ .fd = w->shim->prepare.fd, .events = POLLIN },
			{ .fd = prepare_fd(w->shim) },
			{ .fd = w->shim->prepare.room.task.state == TASK_WORKING
					? -1
					: w->shim->prepare.room.at.listen_fd,
			  .events = POLLIN },
			{ .fd = w->shim->wake.listen_fd, .events = POLLIN },
			{ .fd = w->shim->wake.timer_fd, .events = POLLIN },
			{ .fd = w->shim->need.task.state == TASK_WORKING
					? -1
					: w->shim->need.listen_fd,
			  .events = POLLIN },
		};
		uint64_t woken;

		/* A connection ends in its own thread, and nothing wakes this one. So it looks again
		 * after a while, when nothing else may wake it. */
		if (wait_ms < 0 && !w->root.pid)
			wait_ms = IDLE_MS;
		/* The pidfd of a root that has ended stays readable. */
		if (w->look_again) {
			fds[3].fd = -1;
			wait_ms = LOOK_AGAIN_MS;
		}
		if (poll(fds, sizeof(fds) / sizeof(fds[0]), wait_ms) < 0)
			continue;
		reserve_fill();
		if (w->look_again)
			look_again(w);
		if (fds[2].revents && read(w->shim->wake_fd, &woken, sizeof(woken)) < 0)
			log_debug("spurious wake");
		if (fds[0].revents)
			take_signal(w);
		if (fds[3].revents)
			root_gone(w);
		if (fds[1].revents)
			wire_server_accept(w->server);
		if (fds[4].revents)
			schedule_due(w->shim);
		if (fds[6].revents)
			mend_due(w->shim);
		if (fds[7].revents)
			owner_gone(w->shim);
		if (fds[8].revents)
			marks_due(w->shim);
		if (fds[10].revents)
			prepare_hung_up(w->shim);
		if (fds[9].revents)
			prepare_due(w->shim);
		if (fds[11].revents)
			room_asked(w->shim);
		if (fds[12].revents)
			wake_asked(w->shim);
		if (fds[13].revents)
			wake_due(w->shim);
		if (fds[14].revents)
			need_asked(w->shim);
		wake_update(w->shim);
		need_update(w->shim);
		prepare_update(w->shim);
		marks_update(w->shim);
		schedule_update(w->shim);
		fault_point("shim.turn");
		follow_root(w);
		look_after_vault(w);
		/* Last: of a keeper that is found gone above nothing is heard any more. */
		mend_update(w->shim);
	}
}

/* ---- coming up ---- */

static int take_lock(struct shim *s)
{
	auto_free char *path = path_format("%s/shim.lock", s->job.dir);

	if (!path)
		return -ENOMEM;
	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (s->lock_fd < 0)
		return -errno;
	return flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
}

static int watch_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void say_ready(int *fd)
{
	if (*fd >= 0 && write(*fd, "R", 1) < 0)
		log_warn("whoever started this shim is gone");
	cleanup_close(fd);
}

/* As the broker: the starter reads it, and may remove our log with the job. */
static void say_failed(int *fd, struct brumate_error *err)
{
	struct rlimit files;

	if (err->code == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
		brumate_hint(err,
			     "the limit of %llu open files is too low: raise it with `ulimit -Hn`",
			     (unsigned long long)files.rlim_max);
	log_error("%s%s%s", err->text, err->hint[0] ? "; " : "", err->hint);
	if (*fd >= 0)
		dprintf(*fd, "E%s\n%s", err->text, err->hint);
	cleanup_close(fd);
}

static void recover(struct shim *s)
{
	mend_job(s, "recover");
	asked_recover(&s->job);
	pthread_mutex_lock(&s->lock);
	shim_settle(s);
	pthread_mutex_unlock(&s->lock);
}

static int serve(struct shim *s, int signal_fd, int *ready_fd, struct brumate_error *err)
{
	struct watch w = { .shim = s, .signal_fd = signal_fd, .root_fd = -1, .keeper_fd = -1 };
	const struct wire_service service = {
		.interface_name = "io.brumate.job",
		.description = wire_interface_job,
		.methods = shim_methods,
		.n_methods = shim_n_methods,
		.arg = s,
		.drops_abandoned = true,
	};
	auto_free char *path = path_format("%s/shim.sock", s->job.dir);
	auto_close int dir_fd = open(s->job.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd = path ? wire_listen(path, 0600, err) : -ENOMEM;

	if (fd < 0)
		return fd;
	/* From now on callers may connect; they wait until the job has been put right. */
	say_ready(ready_fd);
	if (s->job.root.pid)
		shim_life_begins(s);
	recover(s);
	int r = wire_server_new(&w.server, &service, fd, err);
	if (r < 0)
		return r;
	schedule_init(s);
	mend_init(s);
	owner_init(s);
	marks_init(s);
	prepare_init(s);
	wake_init(s);
	need_init(s);
	prepare_update(s);
	wake_update(s);
	need_update(s);
	marks_update(s);
	run_loop(&w);
	fault_point("shim.leave");
	/* By its directory and not by its path, at which a new job of this id may be by now. */
	unlinkat(dir_fd, "shim.sock", 0);
	wire_server_free(w.server);
	need_fini(s);
	wake_fini(s);
	prepare_fini(s);
	marks_fini(s);
	schedule_fini(s);
	mend_fini(s);
	owner_fini(s);
	vault_fini(&s->vault); /* the keeper goes on */
	cleanup_close(&w.root_fd);
	return 0;
}

static int load(struct job *ret, const char *dir, struct brumate_error *err)
{
	const char *slash = strrchr(dir, '/');

	return job_load(ret, slash ? slash + 1 : dir, err);
}

static int run_shim(const char *dir, int *ready_fd, struct brumate_error *err)
{
	struct shim s = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.vault = VAULT_EMPTY,
		.held_unknown = true,
		.life_fds = { -1, -1 },
		.lock_fd = -1,
	};
	int r = load(&s.job, dir, err);

	if (r < 0)
		return r;
	condition_init(&s.freed);
	r = take_lock(&s);
	if (r == -EWOULDBLOCK) { /* the job has a shim already */
		say_ready(ready_fd);
		job_fini(&s.job);
		return 0;
	}
	if (r < 0)
		return brumate_fail(err, -r, "%s/shim.lock: %m", s.job.dir);
	if (digest_set_up() < 0)
		return brumate_fail(err, ENOMEM, "libcrypto: %m");

	file_sweep(s.job.dir);
	/* The record is read again under the lock, as another shim may have written it since. */
	job_fini(&s.job);
	if ((r = load(&s.job, dir, err)) < 0)
		return r;
	auto_close int signal_fd = watch_signals();
	s.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (signal_fd < 0 || s.wake_fd < 0)
		return brumate_fail(err, errno, "signalfd, eventfd: %m");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	fault_register_peer("job", job_command(&s.job).pid);
	fault_register_peer("reaper", s.job.root.pid);
	r = serve(&s, signal_fd, ready_fd, err);
	log_info("the shim of job %s ends", s.job.id);
	job_fini(&s.job);
	return r;
}

/* Prints the names of all steps, for tests that inject a fault at each. */
static int print_steps(void)
{
	for (const char *const *name = engine_step_names(); *name; name++)
		puts(*name);
	return fflush(stdout) == EOF ? EXIT_FAILED : EXIT_OK;
}

/* Makes what operations free go back to the system: their threads have buffers of megabytes, and the shim lives as
 * long as the job. */
static void keep_memory_small(void)
{
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 2);
	mallopt(M_MMAP_THRESHOLD, 256 << 10);
#endif
}

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	keep_memory_small();
	log_init("brumate-shim");
	children_wait_for_us();
	if (argc == 2 && !strcmp(argv[1], "--steps"))
		return print_steps();
	if (argc >= 2 && !strcmp(argv[1], "--keep"))
		return keep_run(argv[2], argc > 3 ? argv[3] : NULL);
	limits_raise_files();
	limits_lower_score();
	reserve_fill();
	if (argc != 4 || strcmp(argv[1], "--ready-fd")) {
		fprintf(stderr, "usage: brumate-shim --ready-fd FD JOBDIR (started by brumate)\n");
		return EXIT_USAGE;
	}
	int ready_fd = atoi(argv[2]);
	if (fcntl(ready_fd, F_SETFD, FD_CLOEXEC) < 0)
		ready_fd = -1;
	if (run_shim(argv[3], &ready_fd, &err) < 0) {
		say_failed(&ready_fd, &err);
		return (int)brumate_exit_code(&err);
	}
	return EXIT_OK;
}
