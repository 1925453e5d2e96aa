// SPDX-License-Identifier: MIT
/* Trees of processes: with grandchildren, threads that fork, zombies, and one that forks all the time. */
#include "base/clock.h"
#include "little.h"
#include "process/reap.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void *fork_from_thread(void *arg)
{
	if (!fork()) /* a child in the list of a thread that is not the first */
		little_pause(NULL);
	pause();
	return NULL;
}

static void family(void *arg)
{
	pthread_t t;

	if (!fork()) {
		if (!fork())
			little_pause(NULL);
		little_pause(NULL);
	}
	if (!fork())
		_exit(3); /* stays a zombie */
	CHECK(pthread_create(&t, NULL, fork_from_thread, NULL) == 0);
	little_pause(NULL);
}

static int count_state(const struct proc_tree *t, char state)
{
	int n = 0;

	for (size_t i = 0; i < t->n; i++)
		n += t->items[i].state == state;
	return n;
}

static void parents_come_first(const struct proc_tree *t)
{
	for (size_t i = 1; i < t->n; i++) {
		bool found = false;

		for (size_t k = 0; k < i; k++)
			found |= t->items[k].id.pid == t->items[i].ppid;
		CHECK(found);
	}
}

static void reads_family(void)
{
	struct little l = little_start(family, NULL);
	struct proc_tree tree = PROC_TREE_EMPTY;

	for (int i = 0; i < 4; i++)
		little_wait_ready(&l);
	struct proc_id root = little_id(&l);

	do { /* until the kernel has made the zombie of the child that ended */
		proc_tree_fini(&tree);
		CHECK(proc_tree_read(&tree, root, NULL) == 0);
	} while (!count_state(&tree, 'Z'));
	CHECK(tree.n == 5);
	CHECK(tree.items[0].id.pid == root.pid);
	CHECK(count_state(&tree, 'Z') == 1);
	parents_come_first(&tree);

	CHECK(proc_tree_kill(root, deadline_in_ms(10000)) == 0);
	for (size_t i = 0; i < tree.n; i++)
		CHECK(proc_has_ended(tree.items[i].id));
	proc_tree_fini(&tree);
	CHECK(tree.items == NULL);
	little_end(&l);

	struct brumate_error err = BRUMATE_ERROR_NONE;
	CHECK(proc_tree_read(&tree, root, &err) == -ESRCH);
	CHECK(tree.items == NULL && err.code == ESRCH);
	CHECK(proc_tree_kill(root, deadline_in_ms(1000)) == 0);
}

static void wrong_start_is_not_killed(void)
{
	struct little l = little_start(little_pause, NULL);
	little_wait_ready(&l);
	struct proc_id id = little_id(&l), reused = { id.pid, id.start_ticks + 1 };

	CHECK(proc_tree_kill(reused, deadline_in_ms(1000)) == 0);
	CHECK(!proc_has_ended(id));
	little_end(&l);
}

/* Each generation leaves one child behind and goes on; nothing of it may survive. */
static void forks_all_the_time(void *arg)
{
	signal(SIGCHLD, SIG_IGN);
	little_ready();
	for (int i = 0;; i++) {
		pid_t pid = fork();

		if (pid == 0 && i % 2)
			for (;;)
				pause();
		if (pid == 0)
			_exit(0);
		if (i % 64 == 63)
			waitpid(-1, NULL, WNOHANG);
		if (i > 500)
			pause();
	}
}

static void *fork_and_go_on(void *arg)
{
	for (int i = 0;; i++) {
		if (!fork())
			for (;;)
				pause();
		if (i == 50)
			little_ready();
		if (i == 200)
			pause();
	}
	return arg;
}

/* A fork takes its time, and the thread that has stopped first is none of those that fork. */
static void threads_fork_all_the_time(void *arg)
{
	const size_t bytes = 64 << 20;
	char *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t t;

	CHECK(memory != MAP_FAILED);
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	memset(memory, 1, bytes);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t, NULL, fork_and_go_on, NULL) == 0);
	for (;;)
		pause();
}

static void *reaper(void *arg)
{
	const bool *stop = arg;

	while (!__atomic_load_n(stop, __ATOMIC_ACQUIRE))
		reap_orphans(NULL, NULL);
	return NULL;
}

static void kill_leaves_nobody(void (*run)(void *), int n_rounds)
{
	bool stop = false;
	pthread_t t;

	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	for (int round = 0; round < n_rounds; round++) {
		reap_lock();
		struct little l = little_start(run, NULL);
		reap_protect(l.pid);
		reap_unlock();
		little_wait_ready(&l);
		struct proc_id root = little_id(&l);

		stop = false;
		CHECK(pthread_create(&t, NULL, reaper, &stop) == 0);
		CHECK(proc_tree_kill(root, deadline_in_ms(20000)) == 0);
		int status;
		CHECK(reap_wait(l.pid, &status) == 0 && WIFSIGNALED(status));
		__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
		pthread_join(t, NULL);
		reap_orphans(NULL, NULL);

		pid_t *children = NULL;
		size_t n = 0;
		CHECK(proc_children(getpid(), &children, &n) == 0);
		CHECK(n == 0);
		free(children);
		close(l.ready_fd);
	}
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

enum { SOMEBODY = 12345 };

/* A process of a user, with a child that is root's and a grandchild that is the user's again. */
static void with_another_users(void *arg)
{
	if (!fork()) {
		if (!fork()) {
			CHECK(setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0);
			little_pause(NULL);
		}
		little_pause(NULL);
	}
	CHECK(setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0);
	little_pause(NULL);
}

static void another_users_are_left_alone(void)
{
	struct proc_tree tree = PROC_TREE_EMPTY;

	if (geteuid() != 0)
		return;
	struct little l = little_start(with_another_users, NULL);
	for (int i = 0; i < 3; i++)
		little_wait_ready(&l);
	const struct proc_members his = { .root = little_id(&l), .uid = SOMEBODY };
	CHECK(proc_tree_read(&tree, his.root, NULL) == 0 && tree.n == 3);
	const struct proc_id roots = tree.items[1].id, last = tree.items[2].id;
	uint64_t start_ns = clock_now_ns();

	CHECK(proc_members_kill(&his, deadline_in_ms(20000)) == 0);
	CHECK(clock_since_s(start_ns) < 10);
	CHECK(proc_has_ended(his.root) && proc_has_ended(last));
	CHECK(proc_has_stopped(roots) == 0); /* neither stopped nor killed */
	CHECK(proc_signal_as(roots, SIGTERM, SOMEBODY) == -EPERM);
	CHECK(proc_signal(roots, SIGKILL) == 0);
	proc_tree_fini(&tree);
	little_end(&l);
}

static void becomes_sleep(void *arg)
{
	execl("/bin/sleep", "sleep", "600", NULL);
}

/* A program of somebody else's that is a child of ours. The way back is closed when it is executed. */
static struct little start_sleep(bool protect)
{
	char c;

	reap_lock();
	struct little l = little_start(becomes_sleep, NULL);
	if (protect)
		reap_protect(l.pid);
	reap_unlock();
	CHECK(read(l.ready_fd, &c, 1) == 0);
	return l;
}

/* What this process has started for itself and waits for is no member of the job whose orphans come to it. */
static void own_children_are_no_orphans(void)
{
	struct little orphan = start_sleep(false), own = start_sleep(true);
	struct proc_members members = { .root = { 0 } };
	struct proc_tree tree;
	int status;

	CHECK(proc_identify(&members.reaper, getpid(), NULL) == 0);
	CHECK(proc_members_read(&tree, &members, NULL) == 0);
	CHECK(tree.n == 1 && tree.items[0].id.pid == orphan.pid);
	proc_tree_fini(&tree);
	struct proc_id id = little_id(&own), other = little_id(&orphan);
	CHECK(proc_members_kill(&members, deadline_in_ms(20000)) == 0);
	CHECK(proc_has_ended(other) && proc_has_stopped(id) == 0 && !proc_has_ended(id));
	kill(own.pid, SIGKILL);
	CHECK(reap_wait(own.pid, &status) == 0 && waitpid(orphan.pid, &status, 0) == orphan.pid);
	close(own.ready_fd);
	close(orphan.ready_fd);
}

/* The one starts the other in its own memory once it is told to, as vfork(2) does. */
static void starts_a_sharer(void *arg)
{
	const int *go = arg;
	char c;

	little_ready();
	CHECK(read(go[0], &c, 1) == 1);
	/* Without a stack of its own, as with vfork(2), whose parent does not run meanwhile. */
	if (syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		little_pause(NULL);
	}
}

/* What a member has started since the tree was read is of the job, and what has started a member is not. */
static void sharers_are_told_from_children(void)
{
	int go[2];
	CHECK(pipe(go) == 0);
	struct little l = little_start(starts_a_sharer, go);
	struct proc_tree before, all, child;
	struct proc_info found;

	little_wait_ready(&l);
	CHECK(proc_tree_read(&before, little_id(&l), NULL) == 0);
	CHECK(write(go[1], "x", 1) == 1);
	little_wait_ready(&l);
	CHECK(proc_tree_read(&all, little_id(&l), NULL) == 0 && all.n == 2 && before.n == 1);
	CHECK(proc_find_sharer(&found, &all) == 0);
	CHECK(proc_find_sharer(&found, &before) == 0);
	CHECK(proc_tree_read(&child, all.items[1].id, NULL) == 0);
	CHECK(proc_find_sharer(&found, &child) == 1 && found.id.pid == l.pid);
	CHECK(proc_tree_kill(little_id(&l), deadline_in_ms(20000)) == 0);
	CHECK(waitpid(l.pid, NULL, 0) == l.pid);
	proc_tree_fini(&before);
	proc_tree_fini(&all);
	proc_tree_fini(&child);
	close(l.ready_fd);
	close(go[0]);
	close(go[1]);
}

int main(void)
{
	another_users_are_left_alone();
	reads_family();
	own_children_are_no_orphans();
	sharers_are_told_from_children();
	wrong_start_is_not_killed();
	kill_leaves_nobody(forks_all_the_time, 5);
	kill_leaves_nobody(threads_fork_all_the_time, 3);
	return 0;
}
