// SPDX-License-Identifier: MIT
#include "base/loop.h"

#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"

int loop_init(struct loop *l)
{
	*l = LOOP_EMPTY;
	l->armed_ns = DEADLINE_NEVER;
	l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake_fd < 0)
		return -errno;
	/* Boot time, so that sleep of the machine does not put anything off. */
	l->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (l->timer_fd < 0) {
		int r = -errno;

		loop_fini(l);
		return r;
	}
	return 0;
}

void loop_fini(struct loop *l)
{
	cleanup_close(&l->timer_fd);
	cleanup_close(&l->wake_fd);
}

void loop_wake(struct loop *l)
{
	int saved = errno;

	eventfd_write(l->wake_fd, 1); /* fails only where it is readable already */
	errno = saved;
}

void loop_add(struct loop *l, struct loop_source *s, loop_fn fn, void *arg)
{
	struct loop_source **end = &l->first;

	assert(!s->loop);
	*s = (struct loop_source){
		.loop = l, .fn = fn, .arg = arg, .fd = -1, .due_ns = DEADLINE_NEVER
	};
	while (*end)
		end = &(*end)->next;
	*end = s;
}

void loop_remove(struct loop_source *s)
{
	if (!s->loop)
		return;
	struct loop_source **at = &s->loop->first;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (s->loop->cursor == s)
		s->loop->cursor = s->next;
	s->loop = NULL;
}

/* What poll(2) has seen of the previous descriptor is forgotten: another one may have its number by now. */
void loop_watch(struct loop_source *s, int fd, short events)
{
	s->fd = fd;
	s->events = events;
	s->happened = 0;
}

void loop_after(struct loop_source *s, uint64_t ms)
{
	s->due_ns = clock_boot_ns() + ms * NS_PER_MS;
}

void loop_never(struct loop_source *s)
{
	s->due_ns = DEADLINE_NEVER;
}

bool loop_has_time(const struct loop_source *s)
{
	return s->due_ns != DEADLINE_NEVER;
}

void loop_notify(struct loop_source *s)
{
	struct loop *l = s->loop; /* once it is notified, the loop's thread may remove it */

	s->notified = true;
	loop_wake(l);
}

/* Sets the timer to the first time that a source waits for. It counts from now, as that is what the sources did. */
static int arm(struct loop *l)
{
	uint64_t first_ns = DEADLINE_NEVER;
	struct itimerspec when = { .it_value = { 0, 0 } };

	for (const struct loop_source *s = l->first; s; s = s->next)
		if (s->due_ns < first_ns)
			first_ns = s->due_ns;
	if (first_ns == l->armed_ns)
		return 0;
	if (first_ns != DEADLINE_NEVER) {
		const uint64_t now_ns = clock_boot_ns();
		const uint64_t left_ns = first_ns > now_ns ? first_ns - now_ns : 1;

		when.it_value = (struct timespec){ (time_t)(left_ns / NS_PER_S),
						   (long)(left_ns % NS_PER_S) };
	}
	if (timerfd_settime(l->timer_fd, 0, &when, NULL) < 0)
		return -errno;
	l->armed_ns = first_ns;
	return 0;
}

static int wait_once(struct loop *l, int timeout_ms)
{
	struct pollfd fds[2 + LOOP_FDS_MAX] = { { .fd = l->wake_fd, .events = POLLIN },
						{ .fd = l->timer_fd, .events = POLLIN } };
	struct loop_source *of[2 + LOOP_FDS_MAX];
	nfds_t n = 2;
	eventfd_t wakes;

	for (struct loop_source *s = l->first; s; s = s->next) {
		s->happened = 0;
		if (s->fd < 0)
			continue;
		assert(n < 2 + LOOP_FDS_MAX);
		of[n] = s;
		fds[n++] = (struct pollfd){ .fd = s->fd, .events = s->events };
	}
	if (poll(fds, n, timeout_ms) < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[0].revents)
		eventfd_read(l->wake_fd, &wakes);
	if (fds[1].revents)
		l->armed_ns = 0; /* it has run out; it is set again before the next wait */
	for (nfds_t i = 2; i < n; i++)
		of[i]->happened = fds[i].revents;
	return 0;
}

int loop_turn(struct loop *l, int timeout_ms)
{
	int r = arm(l);

	if (r == 0)
		r = wait_once(l, timeout_ms);
	if (r < 0)
		return r;
	const uint64_t now_ns = clock_boot_ns();
	for (struct loop_source *s = l->first; s; s = l->cursor) {
		const bool due = s->due_ns <= now_ns;
		const bool has = atomic_exchange(&s->notified, false) || s->happened || due;

		l->cursor = s->next;
		if (due)
			s->due_ns = DEADLINE_NEVER;
		if (has && s->fn)
			s->fn(s->arg);
	}
	return 0;
}

/* ---- tasks ---- */

bool loop_task_works(const struct loop_task *t)
{
	return t->end.loop;
}

static void *run_task(void *arg)
{
	struct loop_task *t = arg;

	t->work(t->arg);
	loop_notify(&t->end);
	return NULL;
}

static void join_task(struct loop_task *t)
{
	pthread_join(t->thread, NULL);
	loop_remove(&t->end);
}

static void end_task(void *arg)
{
	struct loop_task *t = arg;

	join_task(t);
	if (t->ended)
		t->ended(t->arg);
}

int loop_task_start(struct loop *l, struct loop_task *t, void (*work)(void *arg), loop_fn ended,
		    void *arg)
{
	t->work = work;
	t->ended = ended;
	t->arg = arg;
	loop_add(l, &t->end, end_task, t);
	int r = thread_start(&t->thread, run_task, t);
	if (r < 0)
		loop_remove(&t->end);
	return r;
}

void loop_join_tasks(struct loop *l)
{
	for (struct loop_source *s = l->first, *next; s; s = next) {
		next = s->next;
		if (s->fn == end_task)
			join_task(s->arg);
	}
}
