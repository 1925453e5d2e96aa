// SPDX-License-Identifier: MIT
/* When a checkpoint by schedule is due, and when one that is due is left out. */
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

/* A shim with this part alone. */
static void start(struct shim *s, void **part, const char *name, enum job_state state)
{
	shim_of(s, name, state);
	*part = calloc(1, schedule_part.size_bytes);
	CHECK(*part);
	schedule_part.start(*part, s);
}

static void stop(struct shim *s, void *part)
{
	s->stopping = true;
	loop_join_tasks(s->loop);
	free(part);
	shim_of_fini(s);
}

static void update(struct shim *s, void *part)
{
	shim_look(s);
	schedule_part.update(part);
}

/* The timer, which is the first of the part's sources. */
static struct loop_source *timer(const struct shim *s)
{
	return s->loop->first;
}

static uint64_t armed_ms(const struct shim *s)
{
	const uint64_t now_ns = clock_boot_ns();

	if (!loop_has_time(timer(s)))
		return 0;
	return timer(s)->due_ns > now_ns ? (timer(s)->due_ns - now_ns) / NS_PER_MS : 1;
}

static bool is_at_work(const struct shim *s)
{
	return s->loop->first->next;
}

/* The timer follows the record, but not while an operation has it. */
static void test_timer(void)
{
	struct shim s;
	void *part;

	start(&s, &part, "timer", JOB_RUNNING);
	update(&s, part);
	CHECK(armed_ms(&s) == 0);
	s.job.schedule.every_ms = 3600000;
	s.job.schedule.next_ms = clock_wall_ns() / NS_PER_MS + 3600000;
	s.busy = "suspend";
	update(&s, part);
	CHECK(armed_ms(&s) == 0);
	s.busy = NULL;
	update(&s, part);
	CHECK(armed_ms(&s) > 3500000);
	loop_after(timer(&s), 1000);
	update(&s, part);
	CHECK(armed_ms(&s) <= 1000); /* nothing has changed */
	s.job.schedule = (struct job_schedule){ 0 };
	update(&s, part);
	CHECK(armed_ms(&s) == 0);
	stop(&s, part);
}

/* Makes the timer run out now. */
static void run_out(struct shim *s)
{
	loop_after(timer(s), 0);
	CHECK(loop_turn(s->loop, 0) == 0);
}

static void check_left_out(struct shim *s)
{
	const uint64_t next_ms = s->job.schedule.next_ms;
	const bool at_work = is_at_work(s);

	run_out(s);
	/* What was at work may have ended meanwhile. */
	if (is_at_work(s) != at_work)
		CHECK(at_work && s->job.schedule.next_ms >= next_ms);
	else
		CHECK(s->job.schedule.next_ms == next_ms);
}

static void set_schedule(struct shim *s, void *part)
{
	s->job.schedule = (struct job_schedule){ .every_ms = 3600000, .next_ms = 77 };
	update(s, part);
}

static void test_left_out(void)
{
	struct shim s;
	void *part;

	start(&s, &part, "out", JOB_SUSPENDED);
	set_schedule(&s, part);
	check_left_out(&s); /* the job does not run */
	CHECK(!s.busy && armed_ms(&s) > 3500000);

	s.job.state = JOB_RUNNING;
	s.busy = "suspend";
	check_left_out(&s); /* something else is under way */
	CHECK_STR(s.busy, "suspend");
	s.busy = NULL;

	s.job.schedule = (struct job_schedule){ 0 };
	check_left_out(&s); /* it was ended since */
	CHECK(!s.busy);
	stop(&s, part);
}

/* The loop has more to look after than an operation that is under way. On a busy machine one of many is quick. */
static void test_waits_for_nobody(void)
{
	uint64_t least_ns = UINT64_MAX;
	struct shim s;
	void *part;

	start(&s, &part, "waits", JOB_RUNNING);
	set_schedule(&s, part);
	s.busy = "suspend";
	for (int i = 0; i < 20 && least_ns > 100 * NS_PER_MS; i++) {
		uint64_t start_ns = clock_now_ns();
		run_out(&s);
		uint64_t took_ns = clock_now_ns() - start_ns;
		least_ns = took_ns < least_ns ? took_ns : least_ns;
	}
	CHECK(least_ns < 100 * NS_PER_MS);
	stop(&s, part);
}

/* A checkpoint that fails is noted in the record, and the next one is due a period later. One that is due before its
 * end has been seen is left out. */
static void test_failure_is_noted(void)
{
	auto_(job_fini) struct job seen = JOB_EMPTY;
	struct shim s;
	void *part;

	start(&s, &part, "fails", JOB_RUNNING);
	set_schedule(&s, part);
	snprintf(s.job.schedule.request.key_file, sizeof(s.job.schedule.request.key_file),
		 "%s/no-key", scratch);
	run_out(&s);
	CHECK(is_at_work(&s));
	check_left_out(&s);
	while (is_at_work(&s))
		CHECK(loop_turn(s.loop, -1) == 0);
	CHECK(!s.busy && s.job.schedule.next_ms > 77);
	update(&s, part);
	CHECK(armed_ms(&s) > 3500000);
	CHECK(job_load(&seen, s.job.id, NULL) == 0);
	CHECK(strstr(seen.message, "scheduled checkpoint: ") == seen.message);
	CHECK(strstr(seen.message, "no-key"));
	CHECK(seen.state == JOB_RUNNING);
	stop(&s, part);
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
