// SPDX-License-Identifier: MIT
/* The gate by itself: nesting, closing while threads run in and out, deadlines, threads that end or
 * are exempt, and what the child of a fork finds. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "close-gate.h"
#include "interpose/core/gate.h"
#include "interpose/core/wake.h"
#include "threads.h"

enum { THREADS = 8, ROUNDS = 1000, FEW_ROUNDS = 50 };

/* Written inside by its thread, read by the closer: the gate is all that orders them. */
static struct {
	_Alignas(64) int inside;
	unsigned long entered;
} counters[THREADS];
static atomic_bool stop;
static atomic_ulong laps; /* orders nothing */

/* What the gate tells others. */
static atomic_uint asked, asked_again, forgotten, uses;
static _Atomic(const char *) asked_by;

void wake_ask(const char *call)
{
	asked_by = call;
	asked++;
}

void wake_ask_again(void)
{
	asked_again++;
}

void wake_forget(void)
{
	forgotten++;
}

void wake_note_use(void)
{
	uses++;
}

static void *hammer(void *arg)
{
	int *inside = arg;
	unsigned long *entered = &counters[(__typeof__(&counters[0]))arg - counters].entered;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		errno = 4711;
		gate_enter();
		(*inside)++;
		gate_enter(); /* a driver function that calls another */
		(*entered)++;
		gate_leave();
		(*inside)--;
		gate_leave();
		CHECK(errno == 4711);
		atomic_fetch_add_explicit(&laps, 1, memory_order_relaxed);
	}
	return NULL;
}

static unsigned long count_entered(void)
{
	unsigned long sum = 0;

	for (int i = 0; i < THREADS; i++) {
		CHECK(!counters[i].inside);
		sum += counters[i].entered;
	}
	return sum;
}

static void test_closed_means_nobody_inside(int rounds)
{
	unsigned long before, seen, waited = 0;
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, hammer, &counters[i].inside));
	for (int round = 0; round < rounds; round++) {
		CHECK(!close_gate(deadline_in_ms(60000)));
		CHECK(gate_is_closed());
		before = count_entered();
		for (int i = 0; i < 100; i++)
			waited += count_entered() != before;
		CHECK(!waited);
		seen = atomic_load_explicit(&laps, memory_order_relaxed);
		gate_open();
		CHECK(!gate_is_closed());
		await(atomic_load_explicit(&laps, memory_order_relaxed) > seen);
	}
	stop = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(count_entered());
}

struct visitor {
	pthread_t thread;
	atomic_bool inside, leave, done;
	atomic_int tid;
};

static void *visit(void *arg)
{
	struct visitor *v = arg;

	v->tid = gettid();
	gate_enter();
	v->inside = true;
	while (!v->leave)
		sched_yield();
	gate_leave();
	v->done = true;
	return NULL;
}

static void start(struct visitor *v)
{
	*v = (struct visitor){ .thread = 0 };
	CHECK(!pthread_create(&v->thread, NULL, visit, v));
}

static void test_deadline_opens_again(void)
{
	struct visitor v, second;

	start(&v);
	await(v.inside);
	CHECK(close_gate(deadline_in_ms(50)) == -ETIMEDOUT);
	CHECK(!gate_is_closed());
	start(&second);
	await(second.inside);
	second.leave = v.leave = true;
	CHECK(!pthread_join(v.thread, NULL));
	CHECK(!pthread_join(second.thread, NULL));
	CHECK(!close_gate(deadline_in_ms(60000)));
	CHECK(close_gate(deadline_in_ms(0)) == -EBUSY);
	gate_open();
}

static void test_who_comes_waits(void)
{
	struct visitor v;

	CHECK(!close_gate(DEADLINE_NEVER));
	start(&v);
	await_asleep(&v.tid);
	CHECK(!v.inside);
	gate_open();
	await(v.inside);
	v.leave = true;
	CHECK(!pthread_join(v.thread, NULL));
}

static const struct gate_call launch = { "launch", false }, query = { "query", true };

static void *look(void *arg)
{
	struct visitor *v = arg;

	v->tid = gettid();
	v->inside = gate_enter_call(&query);
	gate_leave();
	v->done = true;
	return NULL;
}

static void *launch_once(void *arg)
{
	struct visitor *v = arg;

	v->tid = gettid();
	CHECK(gate_enter_call(&launch));
	gate_leave();
	v->done = true;
	return NULL;
}

/* Who only looks waits until the GPU is idle for good, and is answered from then on; who uses it asks for it. */
static void test_looking_is_answered(void)
{
	struct visitor early = { .thread = 0 }, late = { .thread = 0 }, user = { .thread = 0 };

	uses = 0;
	CHECK(gate_enter_call(&query));
	gate_leave();
	CHECK(!close_gate(DEADLINE_NEVER));
	CHECK(!pthread_create(&early.thread, NULL, look, &early));
	await_asleep(&early.tid);
	CHECK(!early.done);
	gate_settle();
	CHECK(!pthread_join(early.thread, NULL));
	CHECK(early.done && !early.inside);
	CHECK(!pthread_create(&late.thread, NULL, look, &late));
	CHECK(!pthread_join(late.thread, NULL));
	CHECK(!late.inside);
	CHECK(gate_is_empty() && !gate_holds_back() && !asked);
	gate_look_in();
	CHECK(!asked_again && !uses);

	CHECK(!pthread_create(&user.thread, NULL, launch_once, &user));
	await(asked);
	await_asleep(&user.tid);
	CHECK(!strcmp(asked_by, "launch") && !user.done);
	gate_look_in();
	CHECK(asked_again == 1);
	const unsigned int before = forgotten;
	gate_open();
	CHECK(forgotten == before + 1);
	CHECK(!pthread_join(user.thread, NULL));
}

/* A call that has waited since before that asks, too. */
static void test_who_waits_asks_once_settled(void)
{
	struct visitor user = { .thread = 0 };

	asked = 0;
	CHECK(!close_gate(DEADLINE_NEVER));
	CHECK(!pthread_create(&user.thread, NULL, launch_once, &user));
	await_asleep(&user.tid);
	CHECK(!asked);
	gate_settle();
	await(asked);
	gate_open();
	CHECK(!pthread_join(user.thread, NULL));
}

/* The first call after a look is noted, not one that only looks, and one that goes on all the time is in use. */
static void test_use_is_noted(void)
{
	struct visitor v;

	uses = 0;
	gate_look_in();
	CHECK(gate_enter_call(&query));
	gate_leave();
	CHECK(!uses);
	for (int i = 0; i < 3; i++) {
		CHECK(gate_enter_call(&launch));
		gate_leave();
	}
	CHECK(uses == 1);
	start(&v);
	await(v.inside);
	CHECK(uses == 1);
	gate_look_in();
	CHECK(uses == 2);
	v.leave = true;
	CHECK(!pthread_join(v.thread, NULL));
	gate_open();
}

static void *close_in_thread(void *arg)
{
	struct visitor *v = arg;

	v->tid = gettid();
	CHECK(!close_gate(DEADLINE_NEVER));
	v->done = true;
	return NULL;
}

/* Who leaves wakes the closer, as does a thread that ends without leaving. */
static void *end_inside(void *arg)
{
	struct visitor *v = arg;

	gate_enter();
	v->inside = true;
	while (!v->leave)
		sched_yield();
	pthread_exit(NULL);
}

static void test_the_last_one_wakes_the_closer(void *(*last)(void *))
{
	struct visitor v = { .thread = 0 }, closer = { .thread = 0 };

	CHECK(!pthread_create(&v.thread, NULL, last, &v));
	await(v.inside);
	CHECK(!pthread_create(&closer.thread, NULL, close_in_thread, &closer));
	await_asleep(&closer.tid);
	CHECK(!closer.done);
	v.leave = true;
	CHECK(!pthread_join(closer.thread, NULL));
	CHECK(!pthread_join(v.thread, NULL));
	gate_open();
}

static void *pass_exempt(void *arg)
{
	gate_exempt();
	gate_enter();
	gate_leave();
	gate_enter(); /* and is not waited for */
	CHECK(gate_is_closed());
	gate_open();
	CHECK(!close_gate(DEADLINE_NEVER));
	gate_leave();
	return NULL;
}

static void test_exempt_thread_passes(void)
{
	pthread_t thread;

	CHECK(!close_gate(DEADLINE_NEVER));
	CHECK(!pthread_create(&thread, NULL, pass_exempt, NULL));
	CHECK(!pthread_join(thread, NULL));
	gate_open();
}

/* More threads than records in one piece of memory, one after another and at once. */
static void test_many_threads(void)
{
	enum { MANY = 400 };
	static struct visitor v[MANY];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++)
			start(&v[i]);
		for (int i = 0; i < MANY; i++)
			await(v[i].inside);
		CHECK(close_gate(deadline_in_ms(0)) == -ETIMEDOUT);
		for (int i = 0; i < MANY; i++)
			v[i].leave = true;
		for (int i = 0; i < MANY; i++)
			CHECK(!pthread_join(v[i].thread, NULL));
		CHECK(!close_gate(deadline_in_ms(60000)));
		gate_open();
	}
}

/* The parent's gate is closed and a thread of it is inside: the child has neither. */
static void test_fork(void)
{
	struct visitor v;
	int status;
	pid_t pid;

	start(&v);
	await(v.inside);
	CHECK(close_gate(deadline_in_ms(0)) == -ETIMEDOUT);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		gate_enter();
		gate_leave();
		_exit(close_gate(deadline_in_ms(60000)) ? 1 : 0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	v.leave = true;
	CHECK(!pthread_join(v.thread, NULL));

	CHECK(!close_gate(DEADLINE_NEVER));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		gate_enter();
		gate_leave();
		_exit(gate_is_closed());
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK(gate_is_closed());
	gate_open();
}

static void print_cost(void)
{
	enum { CALLS = 1000000 };
	uint64_t start_ns = clock_now_ns();

	for (int i = 0; i < CALLS; i++) {
		gate_enter();
		gate_leave();
	}
	printf("gate_enter and gate_leave: %.1f ns\n", (double)(clock_now_ns() - start_ns) / CALLS);
}

/* A kernel or a container without membarrier, from here on. */
static void refuse_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(*code), .filter = code };

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		SKIP("no filters of system calls here: %m");
}

static void run_mode(const char *mode)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		execl("/proc/self/exe", "test-gate", mode, NULL);
		_exit(1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	CHECK(!WEXITSTATUS(status) || WEXITSTATUS(status) == 77);
}

/* Without membarrier whoever comes and goes makes the fences; what can be said of threads that came
 * before it went away, nobody knows: the first closing is refused. */
static int main_without_membarrier(const char *mode)
{
	if (!strcmp(mode, "never"))
		refuse_membarrier();
	gate_enter();
	gate_leave();
	if (!strcmp(mode, "lost")) {
		refuse_membarrier();
		CHECK(close_gate(DEADLINE_NEVER) == -EPERM && !gate_is_closed());
	}
	test_closed_means_nobody_inside(FEW_ROUNDS);
	test_the_last_one_wakes_the_closer(visit);
	test_who_comes_waits();
	return 0;
}

static void *call_twice(void *arg)
{
	struct visitor *v = arg;

	v->tid = gettid();
	gate_enter();
	v->inside = true;
	while (!v->leave)
		sched_yield();
	gate_leave();
	gate_enter();
	v->done = true;
	gate_leave();
	return NULL;
}

/* One call each time, of one thread; and one that nobody has used may be taken back. */
static void test_lets_one_call_through(void)
{
	struct visitor visitors[2] = { { .thread = 0 } };
	struct visitor *in, *out;

	CHECK(!close_gate(DEADLINE_NEVER));
	CHECK(!gate_holds_back());
	gate_let_through();
	CHECK(!gate_is_empty() && gate_take_back() && gate_is_empty() && !gate_take_back());
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&visitors[i].thread, NULL, call_twice, &visitors[i]));
		await_asleep(&visitors[i].tid);
	}
	CHECK(gate_holds_back() && gate_is_empty());
	gate_let_through();
	await(visitors[0].inside || visitors[1].inside);
	in = visitors[0].inside ? &visitors[0] : &visitors[1];
	out = &visitors[in == &visitors[0]];
	CHECK(!gate_is_empty() && !gate_take_back());
	in->leave = true;
	await(gate_is_empty());
	await_asleep(&in->tid);
	CHECK(!in->done && !out->inside);
	out->leave = true;
	gate_open();
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(visitors[i].thread, NULL));
	CHECK(!gate_holds_back() && in->done && out->done);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return main_without_membarrier(argv[1]);
	gate_enter(); /* this thread has a record and is not in the driver */
	gate_leave();
	test_closed_means_nobody_inside(ROUNDS);
	test_deadline_opens_again();
	test_who_comes_waits();
	test_looking_is_answered();
	test_who_waits_asks_once_settled();
	test_use_is_noted();
	test_the_last_one_wakes_the_closer(visit);
	test_the_last_one_wakes_the_closer(end_inside);
	test_exempt_thread_passes();
	test_many_threads();
	test_lets_one_call_through();
	test_fork();
	print_cost();
	run_mode("never");
	run_mode("lost");
	return 0;
}
