// SPDX-License-Identifier: MIT
/* Groups: all or none, and the same after the death of the leader at any of its calls. */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "check.h"
#include "job/group.h"
#include "scratch.h"

enum { STEPS = 5, CALLS_MAX = 64 };

/* What the steps have done, in memory that outlives a leader. */
static struct world {
	_Atomic int done[STEPS], n_calls;
	int dies_at;  /* call; -1: none */
	int fails_at; /* step; -1: none */
	bool undo_fails;
	_Atomic int after_turn; /* steps that were told of the failure of another */
} * world;

static void fresh_world(int dies_at, int fails_at)
{
	memset(world, 0, sizeof(*world));
	world->dies_at = dies_at;
	world->fails_at = fails_at;
}

static int n_done(void)
{
	int n = 0;

	for (int i = 0; i < STEPS; i++)
		n += world->done[i];
	return n;
}

static void make_group(struct group *g)
{
	for (unsigned i = 0; i < STEPS; i++) {
		char job[JOB_ID_BYTES];

		snprintf(job, sizeof(job), "0000000%u", i);
		struct group_step *s = group_add(g, job);
		CHECK(s && group_act_set(&s->act, "Act", NULL) == 0);
		CHECK(group_act_set(&s->undo, "Undo", NULL) == 0);
	}
	CHECK(group_begin(g, NULL) == 0);
}

static int run_step(const struct group_call *call, struct brumate_error *err)
{
	const int at = call->step->job[7] - '0';

	CHECK_STR(call->act->method, call->is_undo ? "Undo" : "Act");
	if (world->n_calls++ == world->dies_at)
		raise(SIGKILL);
	if (call->is_undo && world->undo_fails)
		return brumate_fail(err, EIO, "undo of %d", at);
	if (!call->is_undo && at == world->fails_at)
		return brumate_fail(err, ENOSPC, "no room for %d", at);
	world->done[at] = !call->is_undo;
	return 0;
}

static bool is_left(void)
{
	return group_find_job("00000000");
}

static void test_all(void)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;

	fresh_world(-1, -1);
	make_group(&g);
	CHECK(group_find_job("00000003") && !group_find_job("00000009"));
	CHECK(group_run(&g, run_step, NULL, NULL) == 0);
	CHECK(n_done() == STEPS && !is_left());
}

static void test_none(void)
{
	for (int i = 0; i < STEPS; i++) {
		auto_(group_fini) struct group g = GROUP_EMPTY;
		struct brumate_error err = BRUMATE_ERROR_NONE;

		fresh_world(-1, i);
		make_group(&g);
		CHECK(group_run(&g, run_step, NULL, &err) == -ENOSPC);
		CHECK(strstr(err.text, "no room for"));
		CHECK(n_done() == 0 && !is_left());
	}
}

static void take_one(void *arg, struct group *g, const char *dir, const struct brumate_error *why)
{
	int *n = arg;

	CHECK(g && dir && !why);
	CHECK(g->way != GROUP_FORWARD);
	world->dies_at = -1;
	CHECK(group_run(g, run_step, NULL, NULL) == (world->undo_fails ? -EIO : 0));
	++*n;
}

static int take_over_all(void)
{
	int n = 0;

	CHECK(group_take_over(take_one, &n, NULL) == 0);
	return n;
}

/* A leader that dies at its @dies_at-th call. Whether it did. */
static bool dies(int dies_at, int fails_at)
{
	fresh_world(dies_at, fails_at);
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		auto_(group_fini) struct group g = GROUP_EMPTY;

		make_group(&g);
		group_run(&g, run_step, NULL, NULL);
		_exit(1);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 1);
	return WIFSIGNALED(status);
}

static void test_leader_dies(void)
{
	for (int fails_at = -1; fails_at < STEPS; fails_at++) {
		int at = 0;

		while (dies(at, fails_at)) {
			CHECK(is_left());
			CHECK(take_over_all() == 1);
			CHECK(n_done() == 0);
			CHECK(!is_left() && take_over_all() == 0);
			CHECK(++at < CALLS_MAX);
		}
		CHECK(at >= 1 && n_done() == (fails_at < 0 ? STEPS : 0));
	}
}

static void test_leader_lives(void)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;

	fresh_world(-1, -1);
	make_group(&g);
	CHECK(take_over_all() == 0 && is_left());
	CHECK(group_run(&g, run_step, NULL, NULL) == 0);
}

/* What cannot be undone now stays to be undone. */
static void test_undo_fails(void)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	fresh_world(-1, 3);
	world->undo_fails = true;
	make_group(&g);
	CHECK(group_run(&g, run_step, NULL, &err) == -ENOSPC);
	CHECK(strstr(err.text, "not all of it is undone") && g.dir);
	group_fini(&g);
	CHECK(is_left() && take_over_all() == 1 && is_left());
	world->undo_fails = false;
	CHECK(take_over_all() == 1 && !is_left() && n_done() == 0);
}

/* A step that waits is told when another has failed. */
static int wait_for_turn(const struct group_call *call, struct brumate_error *err)
{
	if (call->is_undo)
		return 0;
	if (call->step->job[7] == '0')
		return brumate_fail(err, ENOSPC, "no room");
	CHECK(fd_wait(call->turn_fd, POLLIN, DEADLINE_NEVER) == 0);
	world->after_turn++;
	return brumate_fail(err, ECANCELED, "cancelled");
}

static void test_turn(void)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	fresh_world(-1, -1);
	make_group(&g);
	CHECK(group_run(&g, wait_for_turn, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "no room");
	CHECK(world->after_turn == STEPS - 1 && !is_left());
}

static void test_round_trip(void)
{
	auto_(group_fini) struct group g = GROUP_EMPTY, again = GROUP_EMPTY;

	make_group(&g);
	json_auto_t *p = json_pack("{s:i}", "timeout_ms", 5);
	CHECK(group_act_set(&g.steps[1].act, "Other", p) == 0);
	auto_free char *text = group_encode(&g);
	CHECK(text && group_decode(&again, text, strlen(text), NULL) == 0);
	auto_free char *second = group_encode(&again);
	CHECK_STR(second, text);
	CHECK_STR(again.steps[1].act.parameters, "{\"timeout_ms\":5}");
	CHECK(!again.steps[0].act.parameters);
	for (size_t n = 0; n + 1 < strlen(text); n++) {
		auto_(group_fini) struct group none = GROUP_EMPTY;

		CHECK(group_decode(&none, text, n, NULL) == -EBADMSG);
	}
	remove_tree(AT_FDCWD, g.dir);
}

/* Directories of groups that ended halfway through, and what is no group. */
static void test_leftovers(void)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/state/groups/0123abcd", scratch);
	CHECK(mkdir(path, 0700) == 0);
	CHECK(take_over_all() == 0 && !is_there(path));

	/* Of an older version: with members that are none any more, and committed. */
	static const char older[] =
		"{\"version\": 1, \"id\": \"0123abcd\", \"kind\": \"swap\", \"created\": \"\", "
		"\"way\": "
		"\"finish\", \"reason\": \"\", \"steps\": [{\"node\": \"\", \"job\": \"00000000\", "
		"\"stage\": 0, "
		"\"after\": false, \"act\": \"Act\", \"act_parameters\": null, \"undo\": \"Undo\", "
		"\"undo_parameters\": null, \"state\": \"done\"}]}";
	char file[PATH_MAX + 80];

	CHECK(mkdir(path, 0700) == 0);
	snprintf(file, sizeof(file), "%s/lock", path);
	CHECK(file_swap(AT_FDCWD, file, "", 0, 0600) == 0);
	snprintf(file, sizeof(file), "%s/group.json", path);
	CHECK(file_swap(AT_FDCWD, file, older, strlen(older), 0600) == 0);
	CHECK(is_left() && take_over_all() == 0 && !is_there(path));
}

int main(void)
{
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	CHECK(world != MAP_FAILED);
	new_scratch();
	CHECK(take_over_all() == 0);
	test_all();
	test_none();
	test_leader_dies();
	test_leader_lives();
	test_undo_fails();
	test_turn();
	test_round_trip();
	test_leftovers();
	remove_scratch();
	return 0;
}
