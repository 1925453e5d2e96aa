// SPDX-License-Identifier: MIT
/* A loop calls what has something, in order and once; sources may change under it; times, wake-ups and ends of tasks. */
#include "base/loop.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { LONG_MS = 30000, SOON_MS = 20 };

/* A source that counts its calls, and notes their order; and a pipe that it may watch. */
struct probe {
	struct loop_source source;
	char name;
	int calls, ends[2];
	struct probe *other; /* what its callback does something to */
	void (*act)(struct probe *other);
};

static char order[64];

static void count(void *arg)
{
	struct probe *p = arg;

	order[strlen(order)] = p->name;
	p->calls++;
	if (p->act)
		p->act(p->other);
}

static void add_probe(struct loop *l, struct probe *p, char name)
{
	*p = (struct probe){ .name = name };
	CHECK(pipe2(p->ends, O_CLOEXEC) == 0);
	loop_add(l, &p->source, count, p);
	loop_watch(&p->source, p->ends[0], POLLIN);
}

static void fill(struct probe *p)
{
	CHECK(write(p->ends[1], "x", 1) == 1);
}

static void fini_probe(struct probe *p)
{
	loop_remove(&p->source);
	loop_remove(&p->source); /* is in none by now */
	cleanup_close(&p->ends[0]);
	cleanup_close(&p->ends[1]);
}

static void with_three(struct loop *l, struct probe p[static 3])
{
	memset(order, 0, sizeof(order));
	CHECK(loop_init(l) == 0);
	for (int i = 0; i < 3; i++)
		add_probe(l, &p[i], (char)('a' + i));
}

static void fini_three(struct loop *l, struct probe p[static 3])
{
	for (int i = 0; i < 3; i++)
		fini_probe(&p[i]);
	loop_fini(l);
}

static void test_order(void)
{
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	CHECK(loop_turn(&l, 0) == 0 && p[0].calls + p[1].calls + p[2].calls == 0);
	fill(&p[2]);
	fill(&p[0]);
	CHECK(loop_turn(&l, LONG_MS) == 0);
	CHECK_STR(order, "ac");
	loop_watch(&p[0].source, -1, 0); /* still readable, but not watched */
	CHECK(loop_turn(&l, LONG_MS) == 0);
	CHECK_STR(order, "acc");
	cleanup_close(&p[1].ends[1]); /* a hang-up needs no event */
	loop_watch(&p[1].source, p[1].ends[0], 0);
	CHECK(loop_turn(&l, LONG_MS) == 0);
	CHECK_STR(order, "accbc");
	fini_three(&l, p);
}

static void remove_other(struct probe *other)
{
	loop_remove(&other->source);
}

/* The number of the descriptor is that of another file by the time its event would be dispatched. */
static void replace_descriptor(struct probe *other)
{
	int ends[2];

	CHECK(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[0], other->ends[0]) >= 0);
	close(ends[0]);
	cleanup_close(&other->ends[1]);
	other->ends[1] = ends[1];
	loop_watch(&other->source, other->ends[0], POLLIN);
}

static void check_act(void (*act)(struct probe *other), int by, int to, const char *want)
{
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	for (int i = 0; i < 3; i++)
		fill(&p[i]);
	p[by].act = act;
	p[by].other = &p[to];
	CHECK(loop_turn(&l, LONG_MS) == 0);
	CHECK_STR(order, want);
	fini_three(&l, p);
}

static void test_changes_while_dispatching(void)
{
	check_act(remove_other, 0, 1, "ac");
	check_act(remove_other, 0, 0, "abc");
	check_act(remove_other, 0, 2, "ab");
	check_act(remove_other, 2, 0, "abc");
	check_act(replace_descriptor, 0, 1, "ac");
}

static void add_again(struct probe *other)
{
	loop_remove(&other->source);
	loop_add(other->other->source.loop, &other->source, count, other);
	loop_watch(&other->source, other->ends[0], POLLIN);
}

static void test_added_while_dispatching(void)
{
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	fill(&p[0]);
	fill(&p[1]);
	p[0].act = add_again;
	p[0].other = &p[1];
	p[1].other = &p[0];
	CHECK(loop_turn(&l, LONG_MS) == 0); /* b has been there before, and waits for its turn */
	CHECK_STR(order, "a");
	p[0].act = NULL;
	CHECK(loop_turn(&l, LONG_MS) == 0);
	CHECK_STR(order, "aab");
	fini_three(&l, p);
}

static void test_times(void)
{
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	const uint64_t start_ns = clock_boot_ns();
	loop_after(&p[0].source, LONG_MS);
	loop_after(&p[1].source, SOON_MS);
	CHECK(loop_has_time(&p[1].source) && !loop_has_time(&p[2].source));
	while (!p[1].calls)
		CHECK(loop_turn(&l, -1) == 0);
	const uint64_t took_ns = clock_boot_ns() - start_ns;
	CHECK(took_ns >= SOON_MS * NS_PER_MS && took_ns < LONG_MS * NS_PER_MS);
	CHECK(!loop_has_time(&p[1].source) && loop_has_time(&p[0].source));
	CHECK(loop_turn(&l, SOON_MS) == 0); /* once, and not again */
	CHECK_STR(order, "b");
	loop_after(&p[0].source, 0); /* in the place of the earlier time */
	loop_after(&p[2].source, 0);
	loop_never(&p[2].source);
	CHECK(loop_turn(&l, -1) == 0);
	CHECK_STR(order, "ba");
	CHECK(loop_turn(&l, SOON_MS) == 0);
	CHECK_STR(order, "ba");
	fini_three(&l, p);
}

struct other_thread {
	struct loop *loop;
	struct loop_source *source;
};

static void *notify_soon(void *arg)
{
	const struct other_thread *o = arg;

	if (o->source)
		loop_notify(o->source);
	else
		loop_wake(o->loop);
	return NULL;
}

static void run_thread(struct loop *l, struct loop_source *source)
{
	struct other_thread o = { l, source };
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, notify_soon, &o) == 0);
	CHECK(loop_turn(l, -1) == 0); /* returns by it alone */
	CHECK(pthread_join(thread, NULL) == 0);
}

static void test_other_threads(void)
{
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	run_thread(&l, NULL);
	CHECK_STR(order, "");
	run_thread(&l, &p[1].source);
	CHECK(loop_turn(&l, 0) == 0 && loop_turn(&l, 0) == 0);
	CHECK_STR(order, "b");
	loop_wake(&l); /* before the turn, too */
	CHECK(loop_turn(&l, -1) == 0);
	fini_three(&l, p);
}

static void on_alarm(int signal)
{
	(void)signal;
}

static void test_signal(void)
{
	const struct sigaction action = { .sa_handler = on_alarm };
	/* Again and again, as the first may come before the wait. */
	const struct itimerval often = { { 0, SOON_MS * 1000 }, { 0, SOON_MS * 1000 } };
	const struct itimerval none = { 0 };
	struct loop l;
	struct probe p[3];

	with_three(&l, p);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	CHECK(loop_turn(&l, -1) == 0);
	CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
	CHECK_STR(order, "");
	fini_three(&l, p);
}

struct job {
	struct loop *loop;
	struct loop_task task;
	atomic_int worked;
	int ended, again; /* how often it is started by its own end */
};

static void work(void *arg)
{
	struct job *j = arg;

	j->worked++;
}

static void on_end(void *arg)
{
	struct job *j = arg;

	CHECK(!loop_task_works(&j->task) && j->worked == ++j->ended);
	if (j->again-- > 0)
		CHECK(loop_task_start(j->loop, &j->task, work, on_end, j) == 0);
}

static void test_tasks(void)
{
	struct loop l;
	struct job j = { .loop = &l, .again = 2 };

	CHECK(loop_init(&l) == 0);
	CHECK(loop_task_start(&l, &j.task, work, on_end, &j) == 0);
	CHECK(loop_task_works(&j.task));
	while (loop_task_works(&j.task))
		CHECK(loop_turn(&l, -1) == 0);
	CHECK(j.worked == 3 && j.ended == 3);
	CHECK(loop_task_start(&l, &j.task, work, on_end, &j) == 0);
	loop_join_tasks(&l);
	loop_join_tasks(&l);
	CHECK(j.worked == 4 && j.ended == 3 && !l.first);
	loop_fini(&l);
	loop_fini(&l);
}

int main(void)
{
	test_order();
	test_changes_while_dispatching();
	test_added_while_dispatching();
	test_times();
	test_other_threads();
	test_signal();
	test_tasks();
	return 0;
}
