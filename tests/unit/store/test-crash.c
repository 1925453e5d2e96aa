// SPDX-License-Identifier: MIT
/*
 * A writer or remover that fails or is killed at any of its calls: the old checkpoint stays whole, the
 * new one is complete or absent, and the next writer sweeps what is left.
 */
#include "scratch.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

static const char *const points[] = {
	"store.mkdir",		"store.sync-file", "store.sync-dir",
	"store.write-manifest", "store.rename",	   "store.sync-store",
};
enum { N_POINTS = sizeof(points) / sizeof(points[0]) };

static int run_child(int (*fn)(struct brumate_error *err))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(fn(NULL) < 0 ? 1 : 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static int write_new(struct brumate_error *err)
{
	return try_write("new", "job", "2026-01-02T00:00:00.000Z", err);
}

static int remove_new(struct brumate_error *err)
{
	return store_remove(dir, "new", err);
}

static void check_old(void)
{
	struct brumate_error err;

	CHECK(verify("old", &err) == 0);
}

/* Complete and right, or absent. Returns which. */
static bool new_is_complete(void)
{
	struct brumate_error err;
	int r = verify("new", &err);

	if (r != 0 && r != -ENOENT)
		fprintf(stderr, "half a checkpoint: %s\n", err.text);
	CHECK(r == 0 || r == -ENOENT);
	return r == 0;
}

static void test_killed_writer(void)
{
	for (int i = 0; i < N_POINTS; i++) {
		arm(points[i], "kill");
		int status = run_child(write_new);
		CHECK(was_hit() && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		check_old();

		bool complete = new_is_complete();
		CHECK(complete == !strcmp(points[i], "store.sync-store"));
		/* Before the first call there is nothing; after the rename nothing is hidden. */
		CHECK(count_hidden() == (complete || i == 0 ? 0 : 1));

		/* The next one sweeps and succeeds. */
		CHECK(write_new(NULL) == (complete ? -EEXIST : 0));
		CHECK(count_hidden() == 0 && new_is_complete());
		CHECK(store_remove(dir, "new", NULL) == 0);
	}
}

static const int codes[] = { ENOSPC, EIO, EDQUOT, EROFS };

static void test_failing_writer(void)
{
	for (int i = 0; i < N_POINTS; i++) {
		for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++) {
			struct brumate_error err = BRUMATE_ERROR_NONE;
			char action[32];
			int want = -codes[k];

			snprintf(action, sizeof(action), "error:%d", codes[k]);
			arm(points[i], action);
			int r = write_new(&err);
			if (r != want)
				fprintf(stderr, "%s %s: %d %s\n", points[i], action, r, err.text);
			CHECK(was_hit() && r == want && err.code == codes[k]);
			CHECK(strstr(err.text, strerror(codes[k])) && strstr(err.text, dir)
				      ? 1
				      : !strcmp(points[i], "store.sync-dir"));
			CHECK(err.hint[0] || !strcmp(points[i], "store.sync-dir"));
			check_old();
			CHECK(!new_is_complete() && count_hidden() == 0);
		}
	}
}

static void test_killed_remover(void)
{
	static const char *const steps[] = { "store.rename", "store.sync-store", "store.remove" };

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		CHECK(write_new(NULL) == 0);
		arm(steps[i], "kill");
		int status = run_child(remove_new);
		CHECK(was_hit() && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		check_old();
		CHECK(new_is_complete() == (i == 0));
		CHECK(count_hidden() == (i == 0 ? 0 : 1));
		CHECK(store_sweep(dir) == (i == 0 ? 0 : 1));
		CHECK(count_hidden() == 0);
		if (i == 0)
			CHECK(remove_new(NULL) == 0);
	}
}

/* What cannot be removed is out of sight all the same. */
static void test_failing_remover(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(write_new(NULL) == 0);
	arm("store.remove", "error:5");
	CHECK(remove_new(&err) == 1 && was_hit() && strstr(err.text, dir));
	CHECK(!new_is_complete() && count_hidden() == 1);
	CHECK(store_sweep(dir) == 1 && count_hidden() == 0);
}

/* A sweep that is killed itself leaves work for the next one, under a name that it knows. */
static void test_killed_sweep(void)
{
	arm("store.rename", "kill");
	CHECK(WIFSIGNALED(run_child(write_new)));
	arm("store.remove", "kill");
	CHECK(WIFSIGNALED(run_child(write_new)));
	CHECK(was_hit() && count_hidden() == 1);
	CHECK(store_sweep(dir) == 1 && count_hidden() == 0);
}

/* Writers of one id at a time: one of them wins, whole. */
static void test_racing_writers(void)
{
	enum { WRITERS = 8 };
	int won = 0, lost = 0, status;

	for (int i = 0; i < WRITERS; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			int r = write_new(NULL);
			_exit(r == 0 ? 0 : r == -EEXIST ? 1 : 2);
		}
	}
	for (int i = 0; i < WRITERS; i++) {
		CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) < 2);
		if (WEXITSTATUS(status) == 0)
			won++;
		else
			lost++;
	}
	CHECK(won == 1 && lost == WRITERS - 1);
	CHECK(new_is_complete() && count_hidden() == 0);
	CHECK(remove_new(NULL) == 0);
}

int main(void)
{
	new_scratch();
	begin_faults();
	write_checkpoint("old", "job", "2026-01-01T00:00:00.000Z");

	for (int i = 0; i < 2; i++) {
		hashes_ahead = i == 1;
		test_killed_writer();
		test_failing_writer();
	}
	test_killed_remover();
	test_failing_remover();
	test_killed_sweep();
	test_racing_writers();
	remove_scratch();
	return 0;
}
