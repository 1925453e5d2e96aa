// SPDX-License-Identifier: MIT
/* How the end of a job gets into its record: at once, or when the operation under way gives it back. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "shim-of.h"

/* A child that has ended and been reaped: a root that is gone. */
static struct proc_id gone(void)
{
	struct proc_id id;
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	CHECK(pid > 0 && proc_identify(&id, pid, NULL) == 0);
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	return id;
}

static void with_root(struct shim *s, const char *name)
{
	shim_of(s, name, JOB_RUNNING);
	s->job.root = gone();
	shim_life_begins(s);
}

static bool is_life_over(const struct shim *s)
{
	return s->life_fds[0] < 0 && s->life_fds[1] < 0;
}

static void test_exit(void)
{
	auto_(job_fini) struct job seen = JOB_EMPTY;
	struct shim s;

	with_root(&s, "exits");
	shim_note_exit(&s, s.job.root.pid, 3);
	CHECK(s.job.state == JOB_EXITED && s.job.exit_code == 3 && !s.job.root.pid);
	CHECK(is_life_over(&s));
	CHECK(job_load(&seen, s.job.id, NULL) == 0 && seen.state == JOB_EXITED);
	CHECK(seen.exit_code == 3);
	shim_of_fini(&s);
}

static void test_unseen_exit(void)
{
	struct shim s;

	with_root(&s, "lost");
	shim_note_exit(&s, s.job.root.pid, JOB_EXIT_UNKNOWN);
	CHECK(s.job.state == JOB_LOST && s.job.exit_code == JOB_EXIT_UNKNOWN);
	shim_of_fini(&s);
}

/* The end of another process says nothing of the root. */
static void test_other_exit(void)
{
	struct shim s;

	with_root(&s, "other");
	shim_note_exit(&s, s.job.root.pid + 1, 3);
	CHECK(s.job.state == JOB_RUNNING && !is_life_over(&s));
	shim_of_fini(&s);
}

static void test_exit_meanwhile(void)
{
	struct shim s;

	with_root(&s, "busy");
	CHECK(shim_begin(&s, "suspend", 1u << JOB_RUNNING, NULL) == 0);
	shim_note_exit(&s, s.job.root.pid, 4);
	CHECK(s.job.state == JOB_RUNNING); /* the record is the operation's */
	shim_end(&s);
	CHECK(s.job.state == JOB_EXITED && s.job.exit_code == 4 && is_life_over(&s));
	shim_of_fini(&s);
}

/* More ends than there is room for: the latest are known. */
static void test_many_exits(void)
{
	struct shim s;

	with_root(&s, "many");
	CHECK(shim_begin(&s, "suspend", 0, NULL) == 0);
	shim_note_exit(&s, s.job.root.pid, 1);
	for (int i = 0; i < SHIM_EXITS - 1; i++)
		shim_note_exit(&s, 1 << 22, 9);
	shim_end(&s);
	CHECK(s.job.state == JOB_EXITED && s.job.exit_code == 1);
	shim_of_fini(&s);
}

static void test_begin(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct shim s;
	uint64_t start_ns = clock_now_ns();

	shim_of(&s, "begin", JOB_SUSPENDED);
	CHECK(shim_begin(&s, "suspend", 1u << JOB_RUNNING, &err) == -EBUSY);
	CHECK(strstr(err.text, "is suspended") && !s.busy);
	CHECK(shim_begin(&s, "resume", 1u << JOB_SUSPENDED, &err) == 0);
	CHECK(shim_begin(&s, "kill", 0, &err) == -EBUSY);
	CHECK(clock_since_s(start_ns) >= 0.25); /* an end just then is waited for */
	shim_end(&s);
	CHECK(shim_begin(&s, "kill", 0, &err) == 0);
	shim_end(&s);
	shim_of_fini(&s);
}

int main(void)
{
	new_scratch();
	test_exit();
	test_unseen_exit();
	test_other_exit();
	test_exit_meanwhile();
	test_many_exits();
	test_begin();
	remove_scratch();
	return 0;
}
