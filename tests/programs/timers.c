// SPDX-License-Identifier: MIT
/*
 * Timers of all kinds. A step is done once each that is to tick has ticked again, the others have not, and an
 * eventfd that is a semaphore has been taken from. Between the steps nobody reads them, so most have expired by the next.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum {
	PERIOD_NS = 20000000,
	CALENDAR_NS = 250000000,
	NEAR_NS = 5000000,
	ENDS_MS = 10000,
	AWHILE_MS = 300,
	COUNT = 5,
};
#define NS_PER_S 1000000000LL

static long long now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static struct timespec time_of(long long ns)
{
	return (struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S };
}

static const char *wrong;

static bool fails(const char *what)
{
	wrong = what;
	return false;
}

static void say_wrong(void *state)
{
	if (wrong)
		printf("%s: ", wrong);
}

/* ---- behind descriptors ---- */

static int often, often_absolute, seldom, once, gone, rising, semaphore;
static long long rises_ns;

static int make_descriptor(clockid_t clock, int flags, long long first_ns, long long period_ns)
{
	struct itimerspec when = { .it_value = time_of(first_ns),
				   .it_interval = time_of(period_ns) };
	int fd = timerfd_create(clock, TFD_NONBLOCK);

	if (fd < 0 || timerfd_settime(fd, flags, &when, NULL) < 0)
		die("a timer: %s", strerror(errno));
	return fd;
}

/* To rise at no whole second, so that one that is off by part of one shows. */
static void set_rising(void)
{
	struct itimerspec when = { 0 };

	rises_ns = now_ns(CLOCK_MONOTONIC) + AWHILE_MS * 1000000LL;
	when.it_value = time_of(rises_ns);
	if (timerfd_settime(rising, TFD_TIMER_ABSTIME, &when, NULL) < 0)
		die("a timer: %s", strerror(errno));
}

static uint64_t ticks_within(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t n = 0;

	while (poll(&p, 1, ms) < 0 && errno == EINTR)
		;
	return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void make_descriptors(void)
{
	often = make_descriptor(CLOCK_MONOTONIC, 0, PERIOD_NS, PERIOD_NS);
	often_absolute = make_descriptor(CLOCK_REALTIME, TFD_TIMER_ABSTIME,
					 now_ns(CLOCK_REALTIME) + PERIOD_NS, PERIOD_NS);
	seldom = make_descriptor(CLOCK_MONOTONIC, 0, 3600 * NS_PER_S, 3600 * NS_PER_S);
	once = make_descriptor(CLOCK_BOOTTIME, 0, PERIOD_NS, 0);
	gone = make_descriptor(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, 1, 0);
	rising = make_descriptor(CLOCK_MONOTONIC, 0, 0, 0);
	if (!ticks_within(gone, ENDS_MS))
		die("a timer of the past does not tick");
	set_rising();
	semaphore = eventfd(COUNT, EFD_SEMAPHORE | EFD_NONBLOCK);
	if (semaphore < 0)
		die("eventfd: %s", strerror(errno));
}

static bool descriptors_are_right(void)
{
	if (!ticks_within(often, ENDS_MS))
		return fails("a timer that repeats does not tick");
	if (!ticks_within(often_absolute, ENDS_MS))
		return fails("a timer that repeats from a certain time on does not tick");
	if (ticks_within(once, ENDS_MS) != 1)
		return fails("a timer that ticks once has not done so");
	const struct itimerspec again = { .it_value = time_of(PERIOD_NS) };
	timerfd_settime(once, 0, &again, NULL);
	if (ticks_within(gone, 0) || ticks_within(seldom, 0))
		return fails("a timer ticks that has no reason to");
	if (ticks_within(rising, ENDS_MS) != 1)
		return fails("a timer that ticks at a certain time does not");
	if (now_ns(CLOCK_MONOTONIC) < rises_ns)
		return fails("a timer that ticks at a certain time does so before it");
	set_rising();
	return true;
}

/* ---- at a time of day ---- */

static int dated, calendar;
static timer_t dated_timer;
static bool is_carried; /* where the kernel shows its queues */
static long long dated_ns, calendar_ns;

static void make_dated(void)
{
	const long long now = now_ns(CLOCK_REALTIME);

	dated_ns = now + 3600 * NS_PER_S;
	calendar_ns = now + CALENDAR_NS;
	dated = make_descriptor(CLOCK_REALTIME, TFD_TIMER_ABSTIME, dated_ns, 0);
	calendar = make_descriptor(CLOCK_REALTIME, TFD_TIMER_ABSTIME, calendar_ns, CALENDAR_NS);

	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMAX };
	const struct itimerspec at = { .it_value = time_of(dated_ns) };
	if (timer_create(CLOCK_REALTIME, &event, &dated_timer) < 0 ||
	    timer_settime(dated_timer, TIMER_ABSTIME, &at, NULL) < 0)
		die("timer_create: %s", strerror(errno));
	is_carried = access("/proc/timer_list", R_OK) == 0;
}

/* Whether what is left of it, asked for after @before_ns, is the time until then. */
static bool is_left(const struct itimerspec *when, long long before_ns, long long due_ns)
{
	const long long left = when->it_value.tv_sec * NS_PER_S + when->it_value.tv_nsec;

	return before_ns + left - NEAR_NS < due_ns &&
	       due_ns < now_ns(CLOCK_REALTIME) + left + NEAR_NS;
}

/* Whether it comes when it is due. */
static bool is_due(int fd, long long due_ns)
{
	struct itimerspec when;
	const long long before_ns = now_ns(CLOCK_REALTIME);

	return timerfd_gettime(fd, &when) == 0 && is_left(&when, before_ns, due_ns);
}

static bool timer_is_due(timer_t timer, long long due_ns)
{
	struct itimerspec when;
	const long long before_ns = now_ns(CLOCK_REALTIME);

	return timer_gettime(timer, &when) == 0 && is_left(&when, before_ns, due_ns);
}

/* It may tick between the calls. */
static bool calendar_is_right(void)
{
	for (int i = 0; i < COUNT; i++) {
		calendar_ns += CALENDAR_NS * (long long)ticks_within(calendar, 0);
		if (is_due(calendar, calendar_ns))
			return true;
	}
	return false;
}

static bool dates_are_right(void)
{
	if (!is_due(dated, dated_ns))
		return fails("a timer does not come at the time of day that it was set to");
	if (is_carried && !timer_is_due(dated_timer, dated_ns))
		return fails("a timer of the process does not come at the time of day that it was "
			     "set to");
	return calendar_is_right() || fails("a timer that repeats from a time of day on has "
					    "another count, or comes at other times");
}

static bool semaphore_is_right(void)
{
	uint64_t one = 0;

	for (unsigned int i = 0; i < COUNT; i++)
		if (read(semaphore, &one, sizeof(one)) != sizeof(one) || one != 1)
			return fails("an eventfd is no semaphore any more");
	if (read(semaphore, &one, sizeof(one)) >= 0 || errno != EAGAIN)
		return fails("an eventfd counts wrong");
	one = COUNT;
	return write(semaphore, &one, sizeof(one)) == sizeof(one) || fails("an eventfd is full");
}

/* ---- of a process ---- */

static timer_t of_dead, of_worker, of_process;
static atomic_ullong worker_ticks, process_ticks;
static atomic_bool may_end;

static void on_tick(int signal)
{
	atomic_fetch_add(signal == SIGUSR1 ? &worker_ticks : &process_ticks, 1);
}

static timer_t make_timer(clockid_t clock, int signal, pid_t tid)
{
	struct sigevent event = { .sigev_notify = tid ? SIGEV_THREAD_ID : SIGEV_SIGNAL,
				  .sigev_signo = signal };
	struct itimerspec when = { .it_value = time_of(PERIOD_NS),
				   .it_interval = time_of(PERIOD_NS) };
	timer_t timer;

	event._sigev_un._tid = tid;
	if (timer_create(clock, &event, &timer) < 0 || timer_settime(timer, 0, &when, NULL) < 0)
		die("timer_create: %s", strerror(errno));
	return timer;
}

static void *end_after_making_a_timer(void *arg)
{
	of_dead = make_timer(CLOCK_MONOTONIC, SIGRTMAX, gettid());
	return arg;
}

/* Uses the processor as the first thread does not. */
static void *work(void *arg)
{
	of_worker = make_timer(CLOCK_THREAD_CPUTIME_ID, SIGUSR1, gettid());
	while (!atomic_load(&may_end)) {
		for (long long end = now_ns(CLOCK_MONOTONIC) + PERIOD_NS / 4;
		     now_ns(CLOCK_MONOTONIC) < end;)
			;
		usleep(PERIOD_NS / 1000);
	}
	return arg;
}

static void make_timers(void)
{
	pthread_t thread;

	signal(SIGUSR1, on_tick);
	signal(SIGUSR2, on_tick);
	signal(SIGRTMAX, SIG_IGN);
	if (pthread_create(&thread, NULL, end_after_making_a_timer, NULL) ||
	    pthread_join(thread, NULL) || pthread_create(&thread, NULL, work, NULL))
		die("a thread");
	of_process = make_timer(CLOCK_MONOTONIC, SIGUSR2, 0);
}

static bool ticks(atomic_ullong *n)
{
	const unsigned long long before = atomic_load(n);
	const long long ends_ns = now_ns(CLOCK_MONOTONIC) + ENDS_MS * 1000000LL;

	while (atomic_load(n) == before && now_ns(CLOCK_MONOTONIC) < ends_ns)
		usleep(1000);
	return atomic_load(n) != before;
}

static bool timers_are_right(void)
{
	struct itimerspec when;

	if (!ticks(&worker_ticks))
		return fails("a timer of a thread's CPU time does not tick");
	if (!ticks(&process_ticks))
		return fails("a timer that signals the process does not tick");
	if (timer_gettime(of_dead, &when) < 0 || when.it_interval.tv_nsec != PERIOD_NS)
		return fails("the timer of a thread that has ended is not there");
	return true;
}

static bool step(void *state, uint64_t n)
{
	return descriptors_are_right() && dates_are_right() && semaphore_is_right() &&
	       timers_are_right();
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1, .interval_ms = 100 };

	options_parse(&options, argc, argv, "timers [--steps N] [--interval-ms N]");
	make_descriptors();
	make_dated();
	make_timers();
	steps_run(&options, step, say_wrong, NULL);
	atomic_store(&may_end, true);
	return 0;
}
