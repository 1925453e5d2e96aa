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
#include <signal.h>
#include <stdio.h>
#include <string.h>
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
#include "base/loop.h"
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

static const struct shim_part *const parts[] = { &schedule_part, &owner_part, &marks_part,
						 &prepare_part,	 &wake_part,  &listen_part, &need_part,
						 &hooks_part,	 &mend_part };
enum { N_PARTS = sizeof(parts) / sizeof(parts[0]) };

struct watch {
	struct shim *shim;
	struct wire_server *server;
	struct loop_source signals, calls, root_end, keeper_end;
	struct loop_source again; /* after a while, as a process could not be looked at */
	int signal_fd;
	int root_fd; /* pidfd of the root; -1: none */
	struct proc_id root;
	pid_t inner_pid; /* its number in the namespace it lives in */
	void *parts[N_PARTS];
};

/* The pidfd of a root that has ended stays readable. */
static void look_later(struct watch *w)
{
	loop_watch(&w->root_end, -1, 0);
	loop_after(&w->again, LOOK_AGAIN_MS);
}

static void follow_root(struct watch *w)
{
	const struct proc_id root = w->shim->view.members.root;

	if (proc_is_same(root, w->root))
		return;
	loop_watch(&w->root_end, -1, 0);
	cleanup_close(&w->root_fd);
	w->root = PROC_ID_NONE;
	struct proc_info info = { .inner_pid = root.pid };
	int fd = root.pid ? proc_open(root) : -ESRCH;
	int r = fd >= 0 ? proc_read(&info, root.pid, NULL) : fd;
	if (r < 0 && fd >= 0)
		close(fd);
	if (r < 0 && r != -ESRCH) { /* it cannot be looked at yet */
		look_later(w);
		return;
	}
	w->root = root;
	w->inner_pid = info.inner_pid;
	w->root_fd = r < 0 ? -1 : fd;
	loop_watch(&w->root_end, w->root_fd, POLLIN);
	if (w->root_fd < 0) {
		shim_settle(w->shim);
		shim_look(w->shim);
	}
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
		look_later(w);
}

static void root_gone(void *arg)
{
	struct watch *w = arg;
	int code = JOB_EXIT_UNKNOWN;

	reap(w);
	if (!shim_knows_exit(w->shim, w->root.pid)) {
		if (loop_has_time(&w->again) || foreign_exit_code(w, &code) < 0) {
			look_later(w);
			return;
		}
		shim_note_exit(w->shim, w->root.pid, code);
	}
	loop_watch(&w->root_end, -1, 0);
	cleanup_close(&w->root_fd);
}

/* What could not be looked at: children that have ended, and the end of the root. */
static void look_again(void *arg)
{
	struct watch *w = arg;

	loop_watch(&w->root_end, w->root_fd, POLLIN);
	reap(w);
}

static void take_signal(void *arg)
{
	struct watch *w = arg;
	struct signalfd_siginfo info;

	if (read(w->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGCHLD)
		reap(w);
	else
		w->shim->stopping =
			true; /* the job goes on; the next command starts another shim */
}

static void take_call(void *arg)
{
	struct watch *w = arg;

	wire_server_accept(w->server);
}

static bool parts_need_shim(const struct watch *w)
{
	for (size_t i = 0; i < N_PARTS; i++)
		if (parts[i]->needs_shim && parts[i]->needs_shim(w->parts[i]))
			return true;
	return false;
}

static bool is_needed(struct watch *w, int *ret_wait_ms)
{
	const struct shim_view *v = &w->shim->view;
	const bool stopping = w->shim->stopping;
	uint64_t last_end_ns;
	size_t n = wire_server_connections(w->server, &last_end_ns);

	/* A connection ends in its own thread, which ends no turn. So this one looks again after a while, when
	 * nothing else may. */
	*ret_wait_ms = w->root.pid ? -1 : IDLE_MS;
	if (v->use == SHIM_LEFT)
		return false;
	if (v->use == SHIM_BUSY || n ||
	    (!stopping && (v->members.root.pid || v->unsaved || parts_need_shim(w))))
		return true;
	if (stopping)
		return false;
	*ret_wait_ms = deadline_left_ms(last_end_ns + IDLE_MS * NS_PER_MS);
	return *ret_wait_ms > 0;
}

static void update(struct watch *w)
{
	shim_look(w->shim);
	follow_root(w);
	loop_watch(&w->keeper_end, w->shim->view.keeper_fd, POLLRDHUP);
	for (size_t i = 0; i < N_PARTS; i++)
		if (parts[i]->update)
			parts[i]->update(w->parts[i]);
}

static void run_loop(struct watch *w)
{
	struct loop *l = w->shim->loop;
	int wait_ms;

	for (update(w); is_needed(w, &wait_ms); update(w)) {
		if (loop_turn(l, wait_ms) < 0)
			log_error("nothing can be waited for: reason=\"%m\"");
		reserve_fill();
		fault_point("shim.turn");
	}
}

/* They are called in this order: what has ended is gathered before the end of the root is looked at. */
static int start_parts(struct watch *w)
{
	struct loop *l = w->shim->loop;

	loop_add(l, &w->again, look_again, w);
	loop_add(l, &w->signals, take_signal, w);
	loop_add(l, &w->root_end, root_gone, w);
	loop_add(l, &w->calls, take_call, w);
	loop_add(l, &w->keeper_end, NULL, NULL); /* shim_look() sees it */
	loop_watch(&w->signals, w->signal_fd, POLLIN);
	loop_watch(&w->calls, wire_server_fd(w->server), POLLIN);
	for (size_t i = 0; i < N_PARTS; i++) {
		w->parts[i] = calloc(1, parts[i]->size_bytes);
		if (!w->parts[i])
			return -ENOMEM;
		parts[i]->start(w->parts[i], w->shim);
	}
	return 0;
}

static void stop_parts(struct watch *w)
{
	w->shim->stopping = true;
	loop_join_tasks(w->shim->loop);
	for (size_t i = N_PARTS; i-- > 0;) {
		if (w->parts[i] && parts[i]->stop)
			parts[i]->stop(w->parts[i]);
		free(w->parts[i]);
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
	shim_settle(s);
}

static int serve(struct shim *s, int signal_fd, int *ready_fd, struct brumate_error *err)
{
	struct watch w = { .shim = s, .signal_fd = signal_fd, .root_fd = -1 };
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
	r = start_parts(&w);
	if (r == 0)
		run_loop(&w);
	fault_point("shim.leave");
	/* By its directory and not by its path, at which a new job of this id may be by now. */
	unlinkat(dir_fd, "shim.sock", 0);
	wire_server_free(w.server);
	stop_parts(&w);
	vault_fini(&s->vault); /* the keeper goes on */
	cleanup_close(&w.root_fd);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
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
		.hooks = { .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER },
		.vault = VAULT_EMPTY,
		.held = { .unknown = true },
		.life_fds = { -1, -1 },
		.lock_fd = -1,
		.need_fd = -1,
	};
	struct loop loop;
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
	if (signal_fd < 0)
		return brumate_fail(err, errno, "signalfd: %m");
	r = loop_init(&loop);
	if (r < 0)
		return brumate_fail(err, -r, "eventfd, timerfd: %m");
	s.loop = &loop;
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
