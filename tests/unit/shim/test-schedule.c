// SPDX-License-Identifier: MIT
/* When a checkpoint by schedule is due, and when one that is due is left out. */
#include <sys/timerfd.h>

#include "shim-of.h"

static void test_due_times(void)
{
	static const struct {
		uint64_t every_ms, next_ms, now_ms, want_ms;
	} cases[] = {
		{ 0, 0, 1000, 0 },    /* none */
		{ 0, 5000, 1000, 0 }, /* ended */
		{ 60000, 61000, 1000, 60000 },
		{ 60000, 1500, 1000, 500 },
		{ 60000, 1000, 1000, 1 },	/* now; 0 would disarm the timer */
		{ 60000, 10, 100000, 1 },	/* missed while no shim lived */
		{ 60000, 900000, 1000, 60000 }, /* the clock was set back */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct job_schedule s = { .every_ms = cases[i].every_ms,
						.next_ms = cases[i].next_ms };

		CHECK(schedule_left_ms(&s, cases[i].now_ms) == cases[i].want_ms);
	}
}

static uint64_t armed_ms(const struct shim *s)
{
	struct itimerspec when;

	CHECK(timerfd_gettime(s->timer.fd, &when) == 0);
	return (uint64_t)when.it_value.tv_sec * 1000 + (uint64_t)when.it_value.tv_nsec / 1000000;
}

/* The timer follows the record, but not while an operation has it. */
static void test_timer(void)
{
	struct shim s;

	shim_of(&s, "timer", JOB_RUNNING);
	schedule_init(&s);
	CHECK(armed_ms(&s) == 0);
	s.job.schedule.every_ms = 3600000;
	s.job.schedule.next_ms = clock_wall_ns() / NS_PER_MS + 3600000;
	schedule_update(&s);
	CHECK(armed_ms(&s) == 0); /* nobody said that it changed */
	s.timer.changed = true;
	s.busy = "suspend";
	schedule_update(&s);
	CHECK(armed_ms(&s) == 0 && s.timer.changed);
	s.busy = NULL;
	schedule_update(&s);
	CHECK(armed_ms(&s) > 3500000 && !s.timer.changed);
	schedule_fini(&s);
	shim_of_fini(&s);
}

/* Makes the timer run out now. */
static void run_out(struct shim *s)
{
	const struct itimerspec now = { .it_value = { 0, 1 } };

	CHECK(timerfd_settime(s->timer.fd, 0, &now, NULL) == 0);
	while (armed_ms(s))
		;
}

static void check_left_out(struct shim *s)
{
	const uint64_t next_ms = s->job.schedule.next_ms;
	const enum shim_task_state state = s->timer.task.state;

	run_out(s);
	schedule_due(s);
	CHECK(s->timer.task.state == state && s->job.schedule.next_ms == next_ms);
}

static void test_left_out(void)
{
	struct shim s;

	shim_of(&s, "out", JOB_SUSPENDED);
	schedule_init(&s);
	s.job.schedule = (struct job_schedule){ .every_ms = 3600000, .next_ms = 77 };
	check_left_out(&s); /* the job does not run */
	CHECK(!s.busy);

	s.job.state = JOB_RUNNING;
	s.busy = "suspend";
	check_left_out(&s); /* something else is under way */
	CHECK_STR(s.busy, "suspend");
	s.busy = NULL;

	s.timer.task.state = TASK_WORKING;
	check_left_out(&s); /* the last one still is */
	s.timer.task.state = TASK_NONE;

	s.job.schedule = (struct job_schedule){ 0 };
	check_left_out(&s); /* it was ended since */
	CHECK(!s.busy);
	schedule_fini(&s);
	shim_of_fini(&s);
}

/* The main loop has more to look after than an operation that is under way. On a busy machine one of many is quick. */
static void test_waits_for_nobody(void)
{
	uint64_t least_ns = UINT64_MAX;
	struct shim s;

	shim_of(&s, "waits", JOB_RUNNING);
	schedule_init(&s);
	s.job.schedule = (struct job_schedule){ .every_ms = 3600000, .next_ms = 77 };
	s.busy = "suspend";
	for (int i = 0; i < 20 && least_ns > 100 * NS_PER_MS; i++) {
		run_out(&s);
		uint64_t start_ns = clock_now_ns();
		schedule_due(&s);
		uint64_t took_ns = clock_now_ns() - start_ns;
		least_ns = took_ns < least_ns ? took_ns : least_ns;
	}
	CHECK(least_ns < 100 * NS_PER_MS);
	schedule_fini(&s);
	shim_of_fini(&s);
}

/* A checkpoint that fails is noted in the record, and the next one is due a period later. */
static void test_failure_is_noted(void)
{
	auto_(job_fini) struct job seen = JOB_EMPTY;
	struct shim s;

	shim_of(&s, "fails", JOB_RUNNING);
	schedule_init(&s);
	s.job.schedule = (struct job_schedule){ .every_ms = 3600000, .next_ms = 77 };
	snprintf(s.job.schedule.request.key_file, sizeof(s.job.schedule.request.key_file),
		 "%s/no-key", scratch);
	run_out(&s);
	schedule_due(&s);
	CHECK(s.timer.task.state != TASK_NONE && s.job.schedule.next_ms > 77);
	schedule_fini(&s); /* waits for it */
	CHECK(s.timer.task.state == TASK_NONE && !s.busy);
	CHECK(job_load(&seen, s.job.id, NULL) == 0);
	CHECK(strstr(seen.message, "scheduled checkpoint: ") == seen.message);
	CHECK(strstr(seen.message, "no-key"));
	CHECK(seen.state == JOB_RUNNING);
	shim_of_fini(&s);
}

int main(void)
{
	new_scratch();
	test_due_times();
	test_timer();
	test_left_out();
	test_waits_for_nobody();
	test_failure_is_noted();
	remove_scratch();
	return 0;
}
