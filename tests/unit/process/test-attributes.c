// SPDX-License-Identifier: MIT
/* Attributes as text, there and back; and given to a little process, with what is not to be had here. */
#include "little.h"
#include "sanitized.h"
#include "process/attributes.h"

#include "base/clock.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

static char notes[4096];

static void note(void *arg, const char *text)
{
	(void)arg;
	snprintf(notes + strlen(notes), sizeof(notes) - strlen(notes), "%s\n", text);
}

static void read_of(struct attributes *ret, struct proc_tree *tree, const struct little *l)
{
	CHECK(proc_tree_read(tree, little_id(l), NULL) == 0);
	CHECK(attributes_read(ret, tree) == 0 && ret->n == 1);
	CHECK(ret->items[0].pid == l->pid);
	CHECK(ret->items[0].n_threads == 1 || SANITIZED_THREADS); /* which has one of its own */
}

static void there_and_back(const struct attributes *a)
{
	auto_(attributes_fini) struct attributes b = ATTRIBUTES_EMPTY;
	size_t len = 0, len_again = 0;
	auto_free char *text = attributes_encode(a, &len);

	CHECK(text && attributes_decode(&b, text, len) == 0);
	auto_free char *again = attributes_encode(&b, &len_again);
	CHECK(len_again == len && !memcmp(text, again, len));
	for (size_t cut = 0; cut < len; cut++) {
		auto_(attributes_fini) struct attributes c = ATTRIBUTES_EMPTY;

		if (text[cut - (cut > 0)] != '\n')
			CHECK(attributes_decode(&c, text, cut) == -EBADMSG);
	}
}

static void what_is_wrong_is_refused(void)
{
	static const char *const wrong[] = {
		"",
		"brumate attributes 2\n",
		"brumate attributes 1\nthread 1 - 0 0 0 0\n",
		"brumate attributes 1\nprocess 0 0 0 0 - -\n",
		"brumate attributes 1\nprocess 1 0 0 0 bind 3-1\n",
		"brumate attributes 1\nprocess 1 0 0 0 bind 1,\n",
		"brumate attributes 1\nprocess 1 0 0 0 bind 1024\n",
		"brumate attributes 1\nprocess 1 0 0 0 bind 1 more\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 8192 0 0 0 0\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 x 0 0 0 0\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nmemory 1000 x bind 0\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nother\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nflags 1 0 2\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 - 0 0 0 0\nflags 1 2 2\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 - 0 0 0 0\nflags 1 0 3\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 - 0 0 0 0\nkeeps 2\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 - 0 0 0 0\npolicy 2 bind 0\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nthread 1 - 0 0 0 0\npolicy 1 bind x\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -\nlocked 1000\n",
		"brumate attributes 1\nprocess 1 0 0 0 - -",
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct attributes a = ATTRIBUTES_EMPTY;

		CHECK(attributes_decode(&a, wrong[i], strlen(wrong[i])) == -EBADMSG);
	}
}

static const struct attributes_call *find_call(const struct attributes_call *calls, size_t n,
					       uint64_t number)
{
	for (size_t i = 0; i < n; i++)
		if (calls[i].number == number)
			return &calls[i];
	return NULL;
}

static void asks_for_what_differs_from_the_usual(void)
{
	static const char text[] = "brumate attributes 1\n"
				   "process 7 33 40000 0 bind=static 0,64-65\n"
				   "thread 7 0-1 0 50000 0 1024\n"
				   "thread 8 - 0 777 0 1024\n"
				   "flags 8 1 1\n"
				   "keeps 8\n"
				   "policy 8 prefer-many 1\n"
				   "locked 20000 3000\n"
				   "memory 10000 2000 interleave 1\n"
				   "process 9 33 0 0 default -\n"
				   "thread 9 - 0 50000 0 1024\n";
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	auto_free struct attributes_call *calls = NULL;
	size_t n = 0;

	CHECK(attributes_decode(&a, text, strlen(text)) == 0);
	there_and_back(&a);
	CHECK(attributes_calls(&calls, &n, &a) == 0 && n == 8);
	const struct attributes_call *policy = find_call(calls, n, SYS_set_mempolicy);
	CHECK(policy && policy->pid == 7 && !policy->tid && policy->mask_argument == 1);
	CHECK(policy->arguments[0] == (2 | 1 << 15) && policy->mask[0] == 1 &&
	      policy->mask[1] == 3);
	const struct attributes_call *range = find_call(calls, n, SYS_mbind);
	CHECK(range && range->tid == 7 && range->arguments[0] == 0x10000 &&
	      range->arguments[1] == 0x2000 && range->arguments[2] == 3 && range->mask[0] == 2);
	const struct attributes_call *personality = find_call(calls, n, SYS_personality);
	CHECK(personality && personality->arguments[0] == 0x40000);
	const struct attributes_call *slack = find_call(calls, n, SYS_prctl);
	CHECK(slack && slack->tid == 8 && slack->arguments[1] == 777);
	CHECK(slack[1].tid == 8 && slack[1].arguments[0] == PR_SET_KEEPCAPS &&
	      slack[1].arguments[1] == 1);
	CHECK(slack[2].tid == 8 && slack[2].arguments[0] == PR_MCE_KILL &&
	      slack[2].arguments[2] == PR_MCE_KILL_EARLY);
	CHECK(slack[3].number == SYS_set_mempolicy && slack[3].tid == 8 &&
	      slack[3].arguments[0] == 5 && slack[3].mask[0] == 2);
	const struct attributes_call *lock = find_call(calls, n, SYS_mlock2);
	CHECK(lock && lock->tid == 7 && lock->arguments[0] == 0x20000 &&
	      lock->arguments[1] == 0x3000 && lock->arguments[2] == MLOCK_ONFAULT);
}

static void adds_what_threads_told(void)
{
	static const char text[] = "brumate attributes 1\n"
				   "process 7 33 0 0 default -\n"
				   "thread 7 - 0 60000 0 1024\n"
				   "thread 8 - 0 0 0 1024\n"
				   "thread 9 - 0 0 0 1024\n";
	static const struct attributes_told told[] = {
		{ .pid = 7, .tid = 9, .timer_slack_ns = 90, .keeps_capabilities = true },
		{ .pid = 8, .tid = 8, .timer_slack_ns = 80 },
		{ .pid = 7, .tid = 7, .write_or_run = 1 },
	};
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;

	CHECK(attributes_decode(&a, text, strlen(text)) == 0);
	struct attributes_thread *threads = a.items[0].threads;
	threads[1].timer_slack_ns = threads[2].timer_slack_ns = ATTRIBUTES_NO_SLACK;
	CHECK(attributes_add_told(&a, told, sizeof(told) / sizeof(*told)) == 1);
	CHECK(threads[0].timer_slack_ns == 60000 && a.items[0].write_or_run == 1);
	CHECK(threads[1].timer_slack_ns == ATTRIBUTES_NO_SLACK && !threads[1].keeps_capabilities);
	CHECK(threads[2].timer_slack_ns == 90 && threads[2].keeps_capabilities);
	there_and_back(&a);
	CHECK(attributes_add_told(&a, NULL, 0) == 1);
}

static void *has_policies_of_its_own(void *arg)
{
	unsigned long nodes = 1;
	const struct sched_param param = { 0 };

	(void)arg;
	CHECK(syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 64) == 0 || errno == ENOSYS);
	CHECK(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0) == 0);
	CHECK(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &param) == 0);
	void *p = mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED && mlock2(p, 1 << 16, MLOCK_ONFAULT) == 0);
	little_pause(NULL);
	return NULL;
}

static void with_a_thread(void *arg)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, has_policies_of_its_own, arg) == 0);
	pthread_join(thread, NULL);
}

static const struct attributes_thread *other_thread(const struct attributes_process *p)
{
	for (size_t i = 0; i < p->n_threads; i++)
		if (p->threads[i].resets_on_fork)
			return &p->threads[i];
	return NULL;
}

static void reads_what_is_of_one_thread(void)
{
	struct little l = little_start(with_a_thread, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY, ranges = ATTRIBUTES_EMPTY;

	little_wait_ready(&l);
	CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0);
	CHECK(attributes_read(&a, &tree) == 0 && attributes_read_ranges(&ranges, &tree) == 0);
	attributes_take_ranges(&a, &ranges);
	const struct attributes_thread *t = other_thread(&a.items[0]);
	CHECK(t && t->tid != l.pid && t->memory_errors == PR_MCE_KILL_LATE);
	CHECK(access("/proc/self/numa_maps", F_OK) < 0 ||
	      (!strcmp(t->memory_policy, "bind") && !strcmp(t->memory_nodes, "0")));
	CHECK(!strcmp(a.items[0].memory_policy, "default"));
	CHECK(a.items[0].n_locked == 1 && a.items[0].locked[0].len_bytes == 1 << 16);
	there_and_back(&a);

	*notes = '\0';
	attributes_apply(&a, &tree, note, NULL);
	CHECK(!*notes);
	/* Only the thread itself could have that back. */
	((struct attributes_thread *)t)->memory_errors = PR_MCE_KILL_EARLY;
	strcpy(((struct attributes_thread *)t)->memory_policy, "interleave");
	attributes_apply(&a, &tree, note, NULL);
	CHECK(strstr(notes, "1 thread could not be given the policy for memory errors"));
	CHECK(strstr(notes, "1 thread could not be given the memory policy") ||
	      access("/proc/self/numa_maps", F_OK) < 0);
	little_end(&l);
}

/* A CPU that no machine of ours has. */
static void says_what_is_not_here(void)
{
	struct little l = little_start(little_pause, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	cpu_set_t cpus;

	little_wait_ready(&l);
	read_of(&a, &tree, &l);
	there_and_back(&a);
	attributes_apply(&a, &tree, note, NULL);
	CHECK(!*notes);

	CHECK(sched_getaffinity(0, sizeof(cpus), &cpus) == 0);
	strcpy(a.items[0].threads[0].cpus, "8000");
	attributes_apply(&a, &tree, note, NULL);
	CHECK(strstr(notes, "bound to the CPUs 8000, which are not all to be had here"));
	*notes = '\0';

	int first = 0;
	while (!CPU_ISSET(first, &cpus))
		first++;
	sprintf(a.items[0].threads[0].cpus, "%d", first);
	a.items[0].threads[0].io_priority = 2 << 13 | 7;
	a.items[0].coredump_filter = 0x7f;
	attributes_apply(&a, &tree, note, NULL);
	CHECK(!*notes);
	CHECK(sched_getaffinity(l.pid, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) == 1);
	CHECK(syscall(SYS_ioprio_get, 1, l.pid) == (2 << 13 | 7));

	a.items[0].personality ^= 0x40000;
	strcpy(a.items[0].memory_policy, "bind");
	strcpy(a.items[0].memory_nodes, "0");
	attributes_apply(&a, &tree, note, NULL);
	CHECK(strstr(notes, "could not be given the personality"));
	CHECK(strstr(notes, "could not be given the memory policy that it had (bind:0)") ||
	      access("/proc/self/numa_maps", F_OK) < 0);
	little_end(&l);
}

/* The watch is the second, as the first was removed; and another file has a name still. */
static void watches_deleted(void *arg)
{
	char path[] = "/tmp/brumate-attributes-XXXXXX";
	int watcher = inotify_init1(IN_NONBLOCK), file = mkstemp(path);

	(void)arg;
	CHECK(inotify_rm_watch(watcher, inotify_add_watch(watcher, "/tmp", IN_CREATE)) == 0);
	CHECK(inotify_add_watch(watcher, path, IN_MODIFY) == 2 && unlink(path) == 0);
	CHECK(inotify_add_watch(watcher, "/", IN_CREATE) == 3 && file >= 0);
	little_pause(NULL);
}

/* One that has ticked, and ends with a change of the clock; one that is to come once; and one that is not of a time of day. */
static void sets_alarms(void *arg)
{
	const struct itimerspec past = { .it_value.tv_sec = 1, .it_interval.tv_sec = 100 },
				future = { .it_value.tv_sec = 1ll << 33 },
				span = { .it_value.tv_sec = 1000 };
	int first = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK),
	    second = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK),
	    third = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);

	(void)arg;
	CHECK(timerfd_settime(first, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &past, NULL) ==
	      0);
	CHECK(timerfd_settime(second, TFD_TIMER_ABSTIME, &future, NULL) == 0);
	CHECK(timerfd_settime(third, 0, &span, NULL) == 0);
	little_pause(NULL);
}

static uint64_t ticks_of(pid_t pid, int number)
{
	auto_close int process = (int)syscall(SYS_pidfd_open, pid, 0);
	auto_close int fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
	uint64_t n = 0;

	return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void alarms_are_set_again(void)
{
	struct little l = little_start(sets_alarms, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;

	*notes = '\0';
	little_wait_ready(&l);
	read_of(&a, &tree, &l);
	there_and_back(&a);
	struct alarm *alarms = a.items[0].alarms;
	CHECK(a.items[0].n_alarms == 2);
	struct alarm *first = &alarms[alarms[0].interval_ns == 0],
		     *second = &alarms[alarms[0].interval_ns != 0];
	CHECK(first->ends_with_clock && first->interval_ns == 100 * NS_PER_S && first->ticks > 1e7);
	CHECK(!second->ends_with_clock && !second->interval_ns && !second->ticks);
	CHECK((first->due_ns + NS_PER_S / 2) / NS_PER_S % 100 == 1);
	CHECK((second->due_ns + NS_PER_S / 2) / NS_PER_S == 1ull << 33);

	/* As if 1000 s had passed, and the time of the second. */
	const uint64_t ticks = first->ticks;
	first->due_ns -= 1000 * NS_PER_S;
	second->due_ns = 1;
	attributes_watch(&a, &tree, note, NULL);
	CHECK(!*notes);
	uint64_t now = ticks_of(l.pid, first->fd);
	CHECK(now == ticks + 10 || now == ticks + 11);
	while (!ticks_of(l.pid, second->fd))
		usleep(1000);

	second->fd = 1000;
	attributes_watch(&a, &tree, note, NULL);
	CHECK(strstr(notes, "1 timer could not be set to the time of day"));
	little_end(&l);
}

/* Of a text of the kernel's: two queues, and what waits in them. */
static void queues_tell_how_a_timer_was_set(void)
{
	static const char queues[] =
		"cpu: 0\n clock 0:\n  .index:      0\nactive timers:\n"
		" #0: <0>, hrtimer_wakeup, S:01\n"
		" # expires at 100-100 nsecs [in 7000000000 to 7000000000 nsecs]\n"
		" #1: <0>, posix_timer_fn, S:01\n"
		" # expires at 100-100 nsecs [in 2000000000 to 2000000000 nsecs]\n"
		" clock 1:\n  .index:      1\nactive timers:\n"
		" #0: <0>, posix_timer_fn, S:01\n"
		" # expires at 777-777 nsecs [in 5000000000 to 5000000000 nsecs]\n"
		" #1: <0>, posix_timer_fn, S:01\n"
		" # expires at 778-778 nsecs [in -1000000000 to -1000000000 nsecs]\n"
		"cpu: 1\n clock 5:\n  .index:      5\nactive timers:\n"
		" #0: <0>, posix_timer_fn, S:01\n"
		" # expires at 779-779 nsecs [in 5300000000 to 5300000000 nsecs]\n";
	const uint64_t s = NS_PER_S;
	uint64_t due_ns = 0;

	CHECK(alarm_judge(queues, 5 * s, s / 5, &due_ns) == ALARM_OF_DAY && due_ns == 777);
	CHECK(alarm_judge(queues, 51 * s / 10, s / 5, &due_ns) == ALARM_OF_DAY && due_ns == 777);
	CHECK(alarm_judge(queues, 54 * s / 10, s / 5, &due_ns) == ALARM_OF_DAY && due_ns == 779);
	CHECK(alarm_judge(queues, s / 10, 2 * s, &due_ns) == ALARM_OF_DAY && due_ns == 778);
	due_ns = 1;
	CHECK(alarm_judge(queues, 21 * s / 10, s / 5, &due_ns) == ALARM_OF_SPAN && due_ns == 1);
	/* In none, in two of them, and two in one. */
	CHECK(alarm_judge(queues, 7 * s, s / 5, &due_ns) == ALARM_UNKNOWN);
	CHECK(alarm_judge(queues, 5 * s, 4 * s, &due_ns) == ALARM_UNKNOWN);
	CHECK(alarm_judge(queues, 54 * s / 10, s, &due_ns) == ALARM_UNKNOWN);
	CHECK(alarm_judge("", s, s, &due_ns) == ALARM_UNKNOWN && due_ns == 1);
}

static void timers_of_processes_are_set_by_themselves(void)
{
	const struct alarm_timer timer = { 3, 5 * NS_PER_S + 7, 2 * NS_PER_S + 1 };
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;
	auto_free struct attributes_call *calls = NULL;
	size_t n = 0;

	a.items = calloc(1, sizeof(*a.items));
	a.items[a.n++] = (struct attributes_process){ .pid = 12, .personality = UINT32_MAX };
	CHECK(attributes_add_timer(&a, 13, &timer) == -ESRCH);
	CHECK(attributes_add_timer(&a, 12, &timer) == 0);
	there_and_back(&a);
	CHECK(a.items[0].n_timers == 1 && a.items[0].timers[0].id == 3);
	CHECK(attributes_calls(&calls, &n, &a) == 0 && n == 1);
	CHECK(calls->pid == 12 && calls->tid == 12 && calls->number == SYS_timer_settime);
	CHECK(calls->arguments[0] == 3 && calls->arguments[1] == TIMER_ABSTIME);
	CHECK(calls->mask_argument == 2 && calls->mask[0] == 2 && calls->mask[1] == 1 &&
	      calls->mask[2] == 5 && calls->mask[3] == 7);
}

static void watches_are_set_again(void)
{
	struct little l = little_start(watches_deleted, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY;

	*notes = '\0';
	little_wait_ready(&l);
	read_of(&a, &tree, &l);
	CHECK(a.items[0].n_watches == 1 && a.items[0].watches[0].number == 2 &&
	      a.items[0].watches[0].mask & IN_MODIFY);
	there_and_back(&a);
	attributes_watch(&a, &tree, note, NULL);
	CHECK(!*notes);
	a.items[0].watches[0].fd = a.items[0].watches[0].file_fd;
	attributes_watch(&a, &tree, note, NULL);
	CHECK(strstr(notes, "1 watch of inotify on deleted files could not be set again"));
	little_end(&l);
}

int main(void)
{
	what_is_wrong_is_refused();
	asks_for_what_differs_from_the_usual();
	adds_what_threads_told();
	says_what_is_not_here();
	reads_what_is_of_one_thread();
	watches_are_set_again();
	alarms_are_set_again();
	queues_tell_how_a_timer_was_set();
	timers_of_processes_are_set_by_themselves();
	return 0;
}
