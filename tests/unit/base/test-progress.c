// SPDX-License-Identifier: MIT
/* The progress of an operation: what stops it, what it measured, and what whoever watches is shown. */
#include "base/progress.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"

static atomic_bool wants_to_stop;
static atomic_int n_shown;
static struct progress_sample shown; /* the last, until n_shown is counted */

static bool is_stopped(void *arg)
{
	return wants_to_stop;
}

static void show(void *arg, const struct progress_sample *sample)
{
	shown = *sample;
	n_shown++;
}

static atomic_int n_failures, failed_with;

static void fail(void *arg, const struct brumate_error *why)
{
	failed_with = why->code;
	n_failures++;
}

static const struct progress_caller caller = { .show = show,
					       .is_cancelled = is_stopped,
					       .fail = fail };

static void test_stopped(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct progress p;

	progress_init(&p, &caller, 0);
	CHECK(progress_check(&p, &err) == 0 && !progress_is_over(&p));
	CHECK(progress_left_ms(&p, 7) == 7);
	wants_to_stop = true;
	CHECK(progress_check(&p, &err) == -ECANCELED && progress_is_over(&p));
	CHECK_STR(err.text, "cancelled");
	wants_to_stop = false;
	CHECK(progress_is_over(&p)); /* for good */
	progress_fini(&p);

	progress_init(&p, &caller, 1);
	poll(NULL, 0, 5);
	CHECK(progress_left_ms(&p, 7) == 0);
	CHECK(progress_check(&p, &err) == -ETIMEDOUT);
	CHECK_STR(err.text, "timed out after 1 ms");
	progress_step(&p, 0, "a", "the first");
	progress_step(&p, 1, "b", "nothing"); /* so it was the first */
	CHECK(progress_check(&p, &err) == -ETIMEDOUT);
	CHECK_STR(err.text, "timed out after 1 ms: it waited for the first");
	progress_wait_for(&p, "another");
	CHECK(progress_check(&p, &err) == -ETIMEDOUT);
	CHECK_STR(err.text, "timed out after 1 ms: it waited for another");
	progress_say_late(&p, &err); /* it says so */
	CHECK_STR(err.text, "timed out after 1 ms: it waited for another");
	brumate_fail(&err, EIO, "copy: broken");
	progress_say_late(&p, &err);
	CHECK_STR(err.text, "timed out after 1 ms: it waited for another: copy: broken");
	CHECK(err.code == EIO);
	brumate_fail(&err, ECANCELED, "data-out: copy: cancelled"); /* by the end of the time */
	progress_say_late(&p, &err);
	CHECK_STR(err.text, "timed out after 1 ms: it waited for another");
	progress_fini(&p);
}

static void test_phases(void)
{
	struct progress p;

	progress_init(&p, &caller, 0);
	progress_phase_at(&p, "early", p.start_ns - NS_PER_S, 2); /* began before the operation */
	CHECK(p.phases[0].start == 0 && p.phases[0].seconds == 2);
	for (int i = 0; i < PROGRESS_PHASES_MAX + 5; i++)
		progress_phase(
			&p,
			"a name that is longer than the room for names in a manifest, by far, so "
			"it is cut",
			clock_now_ns());
	CHECK(p.n_phases == PROGRESS_PHASES_MAX);
	CHECK(strlen(p.phases[1].name) == PROGRESS_NAME_BYTES - 1);
	progress_fini(&p);
}

static void test_notes(void)
{
	struct progress p;

	progress_note(NULL, "to nobody");
	progress_init(&p, &caller, 0);
	for (int i = 0; i < 20; i++)
		progress_note(&p, "note %d", i);
	CHECK(p.n_notes == 20);
	CHECK_STR(p.notes[19], "note 19");
	progress_fini(&p);
}

static uint64_t measure(void *arg)
{
	return *(uint64_t *)arg;
}

/* Waits until what is shown was sampled after this call. */
static void wait_shown(void)
{
	int seen = n_shown;

	while (n_shown < seen + 2)
		poll(NULL, 0, 10);
}

static void test_shown(void)
{
	uint64_t bytes = 4096;
	struct progress p;

	progress_init(&p, &caller, 0);
	progress_start(&p, 3);
	progress_step(&p, 1, "copy", "the disk");
	progress_measure(&p, measure, &bytes, 1000);
	wait_shown();
	progress_stop(&p);
	CHECK(shown.step == 2 && shown.n_steps == 3 && shown.seconds >= 0);
	CHECK(shown.bytes == 1000 && shown.total_bytes == 1000); /* never above the total */
	CHECK_STR(shown.phase, "copy");
	CHECK_STR(shown.waiting_for, "the disk");

	progress_start(&p, 3);
	progress_step(&p, 2, "sync", NULL);
	progress_done(&p, 10, 100);
	wait_shown();
	progress_stop(&p);
	CHECK(shown.step == 3 && shown.bytes == 10 && shown.total_bytes == 100);
	CHECK_STR(shown.waiting_for, "");
	progress_fini(&p);
}

/* The caller is told once, while the operation lasts. */
static void test_failed(void)
{
	const struct brumate_error first = { .code = EPIPE }, second = { .code = EIO };
	struct progress p;

	progress_init(&p, &caller, 0);
	progress_start(&p, 1);
	wait_shown();
	CHECK(n_failures == 0);
	progress_fail(&p, &first);
	while (!n_failures)
		poll(NULL, 0, 10);
	progress_fail(&p, &second);
	wait_shown();
	progress_stop(&p);
	CHECK(n_failures == 1 && failed_with == EPIPE);
	progress_fini(&p);
}

int main(void)
{
	test_stopped();
	test_phases();
	test_notes();
	test_shown();
	test_failed();
	return 0;
}
