// SPDX-License-Identifier: MIT
/* Running a plan: order, undo, cancellation, deadline, fault points, progress, and the summary. */
#include "engine/op.h"
#include "job/job.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/paths.h"
#include "job/scratch.h"

/* What the steps did, in order: "a" ran, "-a" was undone. */
static char trace[256];
static const char *failing;  /* the step that fails */
static bool cancel_in_first; /* the caller gives up while the first step runs */
static int first_takes_ms;
static atomic_bool wants_to_stop; /* the ticker asks too */

static void note(const char *what)
{
	strcat(trace, what);
	strcat(trace, " ");
}

static int run_named(const char *name, struct brumate_error *err)
{
	note(name);
	if (cancel_in_first)
		wants_to_stop = true;
	if (!strcmp(name, "a") && first_takes_ms)
		poll(NULL, 0, first_takes_ms);
	if (failing && !strcmp(failing, name))
		return brumate_fail(err, EBUSY, "%s is broken", name);
	return 0;
}

static int run_a(struct op *op, struct brumate_error *err)
{
	return run_named("a", err);
}

static int run_b(struct op *op, struct brumate_error *err)
{
	return run_named("b", err);
}

static int run_c(struct op *op, struct brumate_error *err)
{
	return run_named("c", err);
}

static void undo_a(struct op *op)
{
	note("-a");
}

static void undo_c(struct op *op)
{
	note("-c");
}

static const struct step abc[] = {
	{ "a", "the first", run_a, undo_a },
	{ "b", "the second", run_b, NULL },
	{ "c", "the third", run_c, undo_c },
};

static bool is_stopped(void *arg)
{
	return wants_to_stop;
}

static const struct progress_caller caller = { .is_cancelled = is_stopped };

static struct job job = { .owned_by = &job_target_owner, .id = "0123abcd", .name = "job" };

static struct request request;

static int run_plan(struct op *op, uint32_t timeout_ms, struct brumate_error *err)
{
	trace[0] = '\0';
	wants_to_stop = false;
	*err = BRUMATE_ERROR_NONE;
	request.timeout_ms = timeout_ms;
	op_init(op, "suspend", &job.target, &caller, &request);
	return plan_run(abc, 3, op, err);
}

static void check_phases(const struct op *op, const char *const *names, size_t n)
{
	CHECK(op->progress.n_phases == n);
	for (size_t i = 0; i < n; i++) {
		CHECK_STR(op->progress.phases[i].name, names[i]);
		CHECK(op->progress.phases[i].seconds >= 0);
	}
}

static void test_order(void)
{
	static const char *const names[] = { "a", "b", "c" };
	auto_(op_fini) struct op op;
	struct brumate_error err;

	CHECK(run_plan(&op, 0, &err) == 0);
	CHECK_STR(trace, "a b c ");
	CHECK(!err.code && op.progress.n_steps == 3);
	check_phases(&op, names, 3);
}

/* The failed step is undone too: it may have done half. */
static void test_failure(const char *step, const char *done, const char *text, size_t n_phases)
{
	static const char *const names[] = { "a", "b" };
	auto_(op_fini) struct op op;
	struct brumate_error err;

	failing = step;
	CHECK(run_plan(&op, 0, &err) == -EBUSY);
	failing = NULL;
	CHECK_STR(trace, done);
	CHECK_STR(err.text, text);
	CHECK(err.code == EBUSY);
	check_phases(&op, names, n_phases);
}

static void test_cancelled(void)
{
	auto_(op_fini) struct op op;
	struct brumate_error err;

	cancel_in_first = true;
	CHECK(run_plan(&op, 0, &err) == -ECANCELED);
	cancel_in_first = false;
	CHECK_STR(trace, "a -a ");
	CHECK_STR(err.text, "b: cancelled");
	CHECK(op.progress.cancelled);
}

static void test_deadline(void)
{
	auto_(op_fini) struct op op;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	trace[0] = '\0';
	wants_to_stop = false;
	request.timeout_ms = 20;
	op_init(&op, "suspend", &job.target, &caller, &request);
	CHECK(progress_check(&op.progress, &err) == 0 || err.code == ETIMEDOUT);
	for (int left; (left = deadline_left_ms(op.progress.deadline_ns)) > 0;)
		poll(NULL, 0, left);
	CHECK(plan_run(abc, 3, &op, &err) == -ETIMEDOUT);
	CHECK_STR(trace, "-a "); /* it was begun, so its undo is asked */
	CHECK_STR(err.text, "a: timed out after 20 ms");
	CHECK(brumate_exit_code(&err) == EXIT_TIMEOUT);
}

/* What took the time is the step before the one that was not begun any more. */
static void test_deadline_within(void)
{
	auto_(op_fini) struct op op;
	struct brumate_error err;

	first_takes_ms = 30;
	CHECK(run_plan(&op, 20, &err) == -ETIMEDOUT);
	first_takes_ms = 0;
	CHECK_STR(trace, "a -a ");
	CHECK_STR(err.text, "b: timed out after 20 ms: it waited for the first");
}

/* ---- fault points ---- */

static char fault_file[PATH_MAX + 16];

static void inject(const char *spec)
{
	CHECK(file_swap(AT_FDCWD, fault_file, spec, strlen(spec), 0600) == 0);
}

static void test_fault(const char *spec, int r, const char *done, const char *text)
{
	auto_(op_fini) struct op op;
	struct brumate_error err;

	inject(spec);
	CHECK(run_plan(&op, 0, &err) == r);
	CHECK_STR(trace, done);
	CHECK_STR(err.text, text);
	CHECK(is_there(fault_file) == (r == 0));
}

static void test_kill(void)
{
	auto_(op_fini) struct op op;
	struct brumate_error err;
	int ends[2], status;
	char told[sizeof(trace)] = "";

	inject("suspend.b.end kill\n");
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		run_plan(&op, 0, &err);
		_exit(write(ends[1], "lives", 5) != 5);
	}
	close(ends[1]);
	CHECK(read(ends[0], told, sizeof(told)) == 0);
	close(ends[0]);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(!is_there(fault_file));
	op_init(&op, "suspend", &job.target, &caller, NULL);
}

static void test_faults(void)
{
	snprintf(fault_file, sizeof(fault_file), "%s/fault", scratch);
	CHECK(setenv("BRUMATE_FAULT_FILE", fault_file, 1) == 0);
	test_fault("suspend.b.begin error:28\n", -ENOSPC, "a -a ",
		   "b: injected at suspend.b.begin: No space left on device");
	test_fault("suspend.c.end error:5\n", -EIO, "a b c -c -a ",
		   "c: injected at suspend.c.end: Input/output error");
	test_fault("suspend.a.begin error:16\n", -EBUSY, "-a ",
		   "a: injected at suspend.a.begin: Device or resource busy");
	test_fault("resume.b.begin error:28\n", 0, "a b c ", ""); /* of another operation */
	test_kill();
	CHECK(unsetenv("BRUMATE_FAULT_FILE") == 0);
}

/* ---- progress ---- */

static int seen_fd;
static json_t *first_progress;

static void see_progress(void *arg, const struct progress_sample *sample)
{
	uint64_t one = 1;

	CHECK(arg == &job);
	if (first_progress)
		return;
	first_progress = op_progress_to_json(sample);
	CHECK(write(seen_fd, &one, sizeof(one)) == sizeof(one));
}

static uint64_t measured(void *arg)
{
	return 4096;
}

/* As slow as it takes for somebody to look. */
static int run_slow(struct op *op, struct brumate_error *err)
{
	struct pollfd seen = { .fd = seen_fd, .events = POLLIN };

	progress_measure(&op->progress, measured, NULL, 1000);
	CHECK(poll(&seen, 1, 60000) == 1);
	return 0;
}

static void test_progress(void)
{
	static const struct step steps[] = { { "quick", NULL, run_a, NULL },
					     { "slow", "a look", run_slow, NULL } };
	static const struct progress_caller watcher = { .arg = &job, .show = see_progress };
	auto_(op_fini) struct op op;

	seen_fd = eventfd(0, EFD_CLOEXEC);
	CHECK(seen_fd >= 0);
	op_init(&op, "resume", &job.target, &watcher, NULL);
	CHECK(plan_run(steps, 2, &op, NULL) == 0);
	CHECK(json_integer_value(json_object_get(first_progress, "step")) == 2);
	CHECK(json_integer_value(json_object_get(first_progress, "steps")) == 2);
	CHECK(json_integer_value(json_object_get(first_progress, "bytes")) ==
	      1000); /* never above the total */
	CHECK(json_integer_value(json_object_get(first_progress, "total_bytes")) == 1000);
	CHECK_STR(json_string_value(json_object_get(first_progress, "phase")), "slow");
	CHECK_STR(json_string_value(json_object_get(first_progress, "waiting_for")), "a look");
	CHECK(json_real_value(json_object_get(first_progress, "seconds")) >= 0);
	json_decref(first_progress);
	close(seen_fd);
}

/* A step that waits sees the cancellation, because the ticker asks for it meanwhile. */
static int run_until_cancelled(struct op *op, struct brumate_error *err)
{
	uint64_t patience_ns = deadline_in_ms(60000);

	wants_to_stop = true;
	while (!op->progress.cancelled && deadline_left_ms(patience_ns) > 0)
		poll(NULL, 0, 10);
	return progress_check(&op->progress, err);
}

static void test_cancelled_in_a_step(void)
{
	static const struct step steps[] = { { "wait", "for ever", run_until_cancelled, undo_a } };
	auto_(op_fini) struct op op;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	trace[0] = '\0';
	wants_to_stop = false;
	op_init(&op, "resume", &job.target, &caller, NULL);
	CHECK(plan_run(steps, 1, &op, &err) == -ECANCELED);
	CHECK_STR(trace, "-a ");
	CHECK_STR(err.text, "wait: cancelled");
}

/* ---- the summary ---- */

static double real_of(json_t *o, const char *key)
{
	json_t *v = json_object_get(o, key);

	CHECK(json_is_real(v));
	return json_real_value(v);
}

static void fill(struct op *op)
{
	op_init(op, "checkpoint", &job.target, &caller, NULL);
	progress_note(&op->progress, "GPU %d is elsewhere", 1);
	progress_note(&op->progress, "not UTF-8: \xe9");
	progress_phase_at(&op->progress, "gpu-lock", clock_now_ns(), 0.25);
	op->gpu_bytes = 5000000000ull;
	op->image_bytes = 7000000000ull;
	op->progress.stopped_ns = 1000000000ull;
	op->progress.released_ns = 3500000000ull;
	op->progress.start_ns -= NS_PER_S;
}

static void test_summary(void)
{
	auto_(op_fini) struct op op;

	job.checkpoint = (char *)"job-1";
	job.checkpoint_path = (char *)"/data/\xff/job-1";
	fill(&op);
	auto_json json_t *o = op_summary(&op);
	auto_free char *text = o ? json_dumps(o, 0) : NULL;
	CHECK(text);
	CHECK_STR(json_string_value(json_object_get(o, "operation")), "checkpoint");
	CHECK_STR(json_string_value(json_object_get(o, "job")), "0123abcd");
	CHECK_STR(json_string_value(json_object_get(o, "checkpoint")), "job-1");
	CHECK_STR(json_string_value(json_object_get(o, "path")), "/data/?/job-1");
	CHECK(real_of(o, "downtime_s") == 2.5);
	CHECK(real_of(o, "seconds") >= 1.0);
	CHECK(real_of(o, "gbps") > 0 && real_of(o, "gbps") <= 7.0);
	CHECK(json_integer_value(json_object_get(o, "gpu_bytes")) == 5000000000ll);
	CHECK(json_integer_value(json_object_get(o, "image_bytes")) == 7000000000ll);
	json_t *phase = json_array_get(json_object_get(o, "phases"), 0);
	CHECK_STR(json_string_value(json_object_get(phase, "name")), "gpu-lock");
	CHECK(real_of(phase, "seconds") == 0.25);
	json_t *notes = json_object_get(o, "notes");
	CHECK(json_array_size(notes) == 2);
	CHECK_STR(json_string_value(json_array_get(notes, 0)), "GPU 1 is elsewhere");
	CHECK_STR(json_string_value(json_array_get(notes, 1)), "not UTF-8: ?");
}

static void test_finish(void)
{
	auto_(op_fini) struct op op;

	job.dir = scratch;
	fill(&op);
	op_finish(&op, 0);
	auto_json json_t *o = job_last_summary(&job);
	CHECK_STR(json_string_value(json_object_get(o, "operation")), "checkpoint");
	CHECK(json_array_size(json_object_get(o, "notes")) == 2);
	job.dir = NULL;
}

int main(void)
{
	new_scratch();
	test_order();
	test_failure("a", "a -a ", "a: a is broken", 0);
	test_failure("b", "a b -a ", "b: b is broken", 1);
	test_failure("c", "a b c -c -a ", "c: c is broken", 2);
	test_cancelled();
	test_deadline();
	test_deadline_within();
	test_faults();
	test_progress();
	test_cancelled_in_a_step();
	test_summary();
	test_finish();
	remove_scratch();
	return 0;
}
