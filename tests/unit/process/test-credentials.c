// SPDX-License-Identifier: MIT
/* What rights a thread has is taken from the kernel, and whoever is more than a user is not a member of that user's job. */
#include "check.h"
#include "sanitized.h"
#include "base/clock.h"
#include "process/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { USER = 65534, OTHER = 65533 };

#define CAPABILITIES                                                                        \
	"CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n" \
	"CapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000000\n"
#define STATUS                                                                       \
	"Name:\tUid: 0 0 0 0\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t9\t8\nGroups:\t30 4 24 " \
	"\n" CAPABILITIES "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"

static void parses(void)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY, other = CREDENTIALS_EMPTY;

	CHECK(credentials_parse(&c, STATUS) == 0);
	CHECK(c.uids[CREDENTIALS_REAL] == 7 && c.uids[CREDENTIALS_FILES] == 7);
	CHECK(c.gids[CREDENTIALS_EFFECTIVE] == 8 && c.gids[CREDENTIALS_SAVED] == 9);
	CHECK(c.n_groups == 3 && c.groups[0] == 4 && c.groups[2] == 30);
	CHECK(c.capabilities[CREDENTIALS_BOUNDING] == 0x1fffeffffff);
	CHECK(c.no_new_privs && c.seccomp == 2);
	CHECK(credentials_are_of_user(&c, 7) && !credentials_are_of_user(&c, 0));
	CHECK(credentials_parse(&other, STATUS) == 0 && credentials_are_same(&c, &other));
	CHECK(credentials_set_groups(&other, (const gid_t[]){ 30, 24, 5 }, 3) == 0);
	CHECK(other.groups[0] == 5 && other.groups[2] == 30);
	CHECK(!credentials_are_same(&c, &other));
	CHECK(credentials_parse(&other, "Uid:\t1\t1\n") == -EBADMSG);
	CHECK(credentials_parse(&other, "") == -EBADMSG);
}

/* ---- children of other rights ---- */

static void set_ids(uid_t real, uid_t effective, uid_t saved)
{
	if (setgroups(0, NULL) < 0 || setresgid(USER, USER, USER) < 0 ||
	    setresuid(real, effective, saved) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
		_exit(1);
}

static bool is_state(pid_t pid, char state)
{
	struct proc_info info;

	return proc_read(&info, pid, NULL) == 0 && info.state == state;
}

static uint64_t start_of(pid_t pid)
{
	struct proc_info info;

	CHECK(proc_read(&info, pid, NULL) == 0);
	return info.id.start_ticks;
}

static void plain(void)
{
	set_ids(USER, USER, USER);
}

static void setuid_program(void)
{
	set_ids(USER, 0, 0);
}

static void saved_id(void)
{
	set_ids(USER, USER, OTHER);
}

static void capable(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct some[2] = { { .permitted = 1u << CAP_KILL } };

	if (prctl(PR_SET_KEEPCAPS, 1) < 0)
		_exit(1);
	set_ids(USER, USER, USER);
	if (syscall(SYS_capset, &header, some) < 0)
		_exit(1);
}

static void not_dumpable(void)
{
	set_ids(USER, USER, USER);
	if (prctl(PR_SET_DUMPABLE, 0) < 0)
		_exit(1);
}

static void *wait_for_ever(void *ready)
{
	int fd = *(int *)ready;

	/* This thread alone stays root: the system call, not the library's for all of them. */
	if (write(fd, "1", 1) < 0)
		_exit(1);
	for (;;)
		pause();
	return NULL;
}

static int thread_ready_fd = -1;

static void one_thread_is_root(void)
{
	int ends[2];
	pthread_t thread;
	char c;

	if (pipe(ends) < 0 || (thread_ready_fd = ends[1]) < 0 ||
	    pthread_create(&thread, NULL, wait_for_ever, &thread_ready_fd) ||
	    read(ends[0], &c, 1) != 1 || syscall(SYS_setgroups, 0, NULL) < 0 ||
	    syscall(SYS_setresgid, USER, USER, USER) < 0 ||
	    syscall(SYS_setresuid, USER, USER, USER) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
		_exit(1);
}

static pid_t start(void (*become)(void))
{
	int ends[2];
	char c;

	CHECK(pipe(ends) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		become();
		if (write(ends[1], "1", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ends[1]);
	CHECK(read(ends[0], &c, 1) == 1);
	close(ends[0]);
	return pid;
}

static int check(void (*become)(void), struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	pid_t pid = start(become);
	struct proc_id id;

	*err = BRUMATE_ERROR_NONE;
	CHECK(proc_identify(&id, pid, err) == 0 && proc_tree_read(&tree, id, err) == 0);
	int r = credentials_check_tree(&tree, USER, err);
	CHECK(credentials_check_tree(&tree, 0, NULL) == 0);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
	return r;
}

static void must_refuse(void (*become)(void), const char *why)
{
	struct brumate_error err;

	CHECK(check(become, &err) == -EPERM);
	CHECK(strstr(err.text, why));
	CHECK(strstr(err.text, "the job is of uid 65534"));
}

static void refuses(void)
{
	struct brumate_error err;

	CHECK(check(plain, &err) == 0);
	must_refuse(setuid_program, "has the rights of uid 0");
	must_refuse(saved_id, "has the rights of uid 65533");
	must_refuse(capable, "has capabilities (20)");
	must_refuse(not_dumpable, "does not let its memory be read");
	must_refuse(one_thread_is_root, "has the rights of uid 0");
}

/* A process that is all the time in exit(2) or about to be there, and one whose first thread has ended. */
static void ends_again_and_again(void)
{
	plain();
	if (fork() == 0)
		for (;;) {
			pid_t pid = fork();

			if (pid == 0)
				_exit(0);
			waitpid(pid, NULL, 0);
		}
}

static void *wait_longer(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void *write_late(void *arg)
{
	const int fd = (int)(intptr_t)arg; /* by value: the first thread's stack is gone by then */

	/* Once the first thread is a zombie. */
	while (!is_state(getpid(), 'Z'))
		usleep(1000);
	if (write(fd, "1", 1) != 1)
		_exit(1);
	return wait_longer(NULL);
}

static int check_tree_of(pid_t pid)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_id id;

	CHECK(proc_identify(&id, pid, &err) == 0 && proc_tree_read(&tree, id, &err) == 0);
	int r = credentials_check_tree(&tree, USER, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.text);
	return r;
}

static void takes_no_end_for_a_secret(void)
{
	pid_t pid = start(ends_again_and_again);

	for (int i = 0; i < (SANITIZED ? 100 : 2000); i++)
		CHECK(check_tree_of(pid) == 0);
	CHECK(proc_tree_kill((struct proc_id){ pid, start_of(pid) }, deadline_in_ms(10000)) == 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

/* The memory is that of the others, who decide. */
static void first_thread_has_ended(bool dumpable)
{
	int ends[2];
	char c;

	CHECK(pipe(ends) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		pthread_t thread;

		plain();
		if (prctl(PR_SET_DUMPABLE, dumpable) < 0 ||
		    pthread_create(&thread, NULL, write_late, (void *)(intptr_t)ends[1]))
			_exit(1);
		pthread_exit(NULL);
	}
	CHECK(read(ends[0], &c, 1) == 1);
	struct proc_info info;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	CHECK(proc_read(&info, pid, NULL) == 0);
	struct proc_tree tree = { &info, 1 };
	int r = credentials_check_tree(&tree, USER, &err);
	CHECK(r == (dumpable ? 0 : -EPERM));
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(ends[0]);
	close(ends[1]);
}

static void lists(void)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(credentials_of_tree_fini) struct credentials_of_tree t = CREDENTIALS_OF_TREE_EMPTY;
	pid_t pid = start(one_thread_is_root);
	struct proc_id id;

	CHECK(proc_identify(&id, pid, NULL) == 0 && proc_tree_read(&tree, id, NULL) == 0);
	CHECK(credentials_of_tree(&t, &tree, NULL) == 0);
	CHECK(t.n == 1 && t.items[0].info.inner_pid == pid && t.items[0].n == 2);
	CHECK(t.items[0].items[0].uids[CREDENTIALS_REAL] == USER);
	CHECK(t.items[0].items[1].uids[CREDENTIALS_REAL] == 0);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

int main(void)
{
	parses();
	if (geteuid() != 0) {
		puts("skipped: only root can start processes of others");
		return 77;
	}
	refuses();
	takes_no_end_for_a_secret();
	first_thread_has_ended(true);
	first_thread_has_ended(false);
	lists();
	return 0;
}
