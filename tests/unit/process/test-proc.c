// SPDX-License-Identifier: MIT
/* Identity of processes: against reuse of numbers, thread ids, odd names and zombies. */
#include "base/clock.h"
#include "base/fd.h"
#include "little.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void identity_is_number_and_start(void)
{
	struct little l = little_start(little_pause, NULL);
	little_wait_ready(&l);
	struct proc_id id = little_id(&l);
	struct proc_id reused = { id.pid, id.start_ticks - 1 };

	CHECK(id.pid == l.pid && id.start_ticks > 0);
	CHECK(!proc_has_ended(id) && !proc_is_gone(id));
	CHECK(proc_has_ended(reused) && proc_is_gone(reused));
	CHECK(proc_open(reused) == -ESRCH);
	CHECK(proc_signal(reused, SIGKILL) == -ESRCH);
	CHECK(proc_wait_gone(reused, DEADLINE_NEVER) == 0);
	CHECK(!proc_has_ended(id));

	int fd = proc_open(id);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	close(fd);
	CHECK(proc_wait_gone(id, deadline_in_ms(20)) == -ETIMEDOUT);
	CHECK(proc_signal(id, SIGKILL) == 0);
	CHECK(proc_wait_gone(id, DEADLINE_NEVER) == 0);

	struct brumate_error err = BRUMATE_ERROR_NONE;
	CHECK(!proc_is_gone(id) && proc_has_ended(id)); /* a zombie */
	CHECK(proc_identify(&id, l.pid, &err) == -ESRCH);
	CHECK(strstr(err.text, "has ended"));
	little_end(&l);
	CHECK(proc_is_gone(id));
	CHECK(proc_open(id) == -ESRCH);
}

static void set_limit(rlim_t files)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = files;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* Without descriptors nobody can look: that is not an end of anybody. */
static void not_to_be_seen_is_no_end(void)
{
	struct little l = little_start(little_pause, NULL);
	little_wait_ready(&l);
	struct proc_id id = little_id(&l);
	struct proc_tree tree = PROC_TREE_EMPTY;
	pid_t *children = NULL;
	size_t n = 0;
	int status;

	set_limit(0);
	CHECK(proc_look(id) == PROC_UNKNOWN);
	CHECK(!proc_has_ended(id) && !proc_is_gone(id));
	CHECK(proc_open(id) == -EMFILE && proc_signal(id, SIGKILL) == -EMFILE);
	CHECK(proc_wait_gone(id, deadline_in_ms(20)) == -EMFILE);
	CHECK(proc_has_stopped(id) == -EMFILE);
	CHECK(proc_zombie_status(id, &status) == -EMFILE);
	CHECK(proc_tree_read(&tree, id, NULL) == -EMFILE);
	CHECK(proc_children(getpid(), &children, &n) == -EMFILE);
	CHECK(proc_tree_kill(id, deadline_in_ms(20)) == -EMFILE);
	set_limit(1024);
	CHECK(proc_look(id) == PROC_ALIVE);
	little_end(&l);
	CHECK(proc_look(id) == PROC_GONE);
}

static pid_t thread_tid;
static pthread_barrier_t barrier;

static void *thread(void *arg)
{
	thread_tid = (pid_t)syscall(SYS_gettid);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return NULL;
}

static void thread_id_is_refused(void)
{
	struct proc_id id = PROC_ID_NONE;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char want[128];
	pthread_t t;

	pthread_barrier_init(&barrier, NULL, 2);
	CHECK(pthread_create(&t, NULL, thread, NULL) == 0);
	pthread_barrier_wait(&barrier);
	snprintf(want, sizeof(want), "%d is a thread of process %d, not a process", thread_tid,
		 getpid());
	CHECK(proc_identify(&id, thread_tid, &err) == -EINVAL);
	CHECK_STR(err.text, want);
	CHECK(err.hint[0]);
	CHECK(id.pid == 0);
	pthread_barrier_wait(&barrier);
	pthread_join(t, NULL);
}

static void bad_numbers_are_refused(void)
{
	struct proc_id id;
	pid_t bad[] = { 0, -1, 0x7fffffff };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct brumate_error err = BRUMATE_ERROR_NONE;
		CHECK(proc_identify(&id, bad[i], &err) == -ESRCH);
		CHECK(err.code == ESRCH && strstr(err.text, "no process"));
	}
}

static void odd_name(void *arg)
{
	prctl(PR_SET_NAME, "a) R (b 7\n");
	little_pause(arg);
}

static void reads_info(void)
{
	struct little l = little_start(odd_name, NULL);
	struct proc_info info;
	little_wait_ready(&l);

	CHECK(proc_read(&info, l.pid, NULL) == 0);
	CHECK_STR(info.comm, "a) R (b 7?");
	CHECK(info.id.pid == l.pid && info.ppid == getpid());
	CHECK(info.pgid == l.pid && info.sid == l.pid);
	CHECK(info.uid == geteuid() && info.gid == getegid());
	CHECK(info.tracer_pid == 0 && info.n_threads >= 1 && info.tty_nr == 0);
	CHECK(info.inner_pid == l.pid && info.pid_ns_depth == 1);
	CHECK(info.rss_bytes > 4096);
	CHECK(strchr("RS", info.state));
	little_end(&l);
	CHECK(proc_read(&info, l.pid, NULL) == -ESRCH);
}

static void boot_id(void)
{
	char a[PROC_BOOT_ID_BYTES], b[PROC_BOOT_ID_BYTES];

	CHECK(proc_boot_id(a) == 0 && proc_boot_id(b) == 0);
	CHECK_STR(a, b);
	CHECK(strlen(a) == 36);
}

/* One that waits does nothing, as long as it does. */
static void tells_of_work(void)
{
	uint64_t before, after;
	int way[2], way_back[2];
	char c = 0;

	CHECK(pipe(way) == 0 && pipe(way_back) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		while (read(way[0], &c, 1) == 1 && write(way_back[1], &c, 1) == 1)
			;
		_exit(0);
	}
	while (proc_work(pid, &before) == 0 && proc_work(pid, &after) == 0 && before != after)
		usleep(1000);
	for (int i = 0; i < 3; i++)
		CHECK(write(way[1], &c, 1) == 1 && read(way_back[0], &c, 1) == 1);
	CHECK(proc_work(pid, &after) == 0 && after > before);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(proc_work(pid, &after) < 0);
}

static void number_until_it_is_reaped(void)
{
	struct little l = little_start(little_pause, NULL);
	little_wait_ready(&l);
	auto_close int fd = proc_open(little_id(&l));

	CHECK(fd >= 0 && proc_has_number(fd));
	CHECK(kill(l.pid, SIGKILL) == 0 && fd_wait(fd, POLLIN, DEADLINE_NEVER) == 0);
	CHECK(proc_has_number(fd)); /* a zombie */
	CHECK(waitpid(l.pid, NULL, 0) == l.pid);
	CHECK(!proc_has_number(fd));
	close(l.ready_fd);
}

/* A signal that stops it waits until its child has ended. Of vfork(2) the thread sanitizer makes a fork(2). */
static void wait_for_vfork(void *arg)
{
	if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, NULL, NULL, NULL, NULL) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		little_ready();
		for (;;)
			pause();
	}
}

static void stop_signals_that_wait(void)
{
	struct little busy = little_start(wait_for_vfork, NULL);
	struct little idle = little_start(little_pause, NULL);
	int status;

	little_wait_ready(&busy);
	little_wait_ready(&idle);
	CHECK(proc_is_to_stop(little_id(&busy)) == 0 && proc_is_to_stop(little_id(&idle)) == 0);
	CHECK(kill(busy.pid, SIGSTOP) == 0 && kill(idle.pid, SIGSTOP) == 0);
	CHECK(waitpid(idle.pid, &status, WUNTRACED) == idle.pid && WIFSTOPPED(status));
	CHECK(proc_is_to_stop(little_id(&idle)) == 1);
	CHECK(proc_has_stopped_thread(little_id(&idle)) == 1);
	CHECK(proc_has_stopped_thread(little_id(&busy)) == 0);
	CHECK(proc_has_stopped(little_id(&busy)) == 0 && proc_is_to_stop(little_id(&busy)) == 1);
	CHECK(kill(busy.pid, SIGCONT) == 0 && proc_is_to_stop(little_id(&busy)) == 0);
	little_end(&busy);
	little_end(&idle);
}

int main(void)
{
	identity_is_number_and_start();
	number_until_it_is_reaped();
	not_to_be_seen_is_no_end();
	thread_id_is_refused();
	bad_numbers_are_refused();
	reads_info();
	boot_id();
	tells_of_work();
	stop_signals_that_wait();
	return 0;
}
