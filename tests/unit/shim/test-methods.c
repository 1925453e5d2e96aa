// SPDX-License-Identifier: MIT
/* What each method of a shim refuses, and in which state: over a socket, as a caller hears it. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "base/paths.h"
#include "shim-of.h"
#include "wire/wire.h"

/* ---- a caller ---- */

struct served {
	struct shim *shim;
	struct wire_server *server;
	pthread_t thread;
	int stop_fd;
	char path[PATH_MAX + 16];
	struct wire wire;
};

static void *accept_calls(void *arg)
{
	struct served *s = arg;
	struct pollfd fds[] = { { .fd = wire_server_fd(s->server), .events = POLLIN },
				{ .fd = s->stop_fd, .events = POLLIN } };

	while (poll(fds, 2, -1) >= 0 && !fds[1].revents)
		wire_server_accept(s->server);
	return NULL;
}

static void serve(struct served *s, struct shim *shim)
{
	const struct wire_service service = { .interface_name = "io.brumate.job",
					      .description = wire_interface_job,
					      .methods = shim_methods,
					      .n_methods = shim_n_methods,
					      .arg = shim };

	s->shim = shim;
	s->stop_fd = eventfd(0, EFD_CLOEXEC);
	snprintf(s->path, sizeof(s->path), "%s/shim.sock", scratch);
	int fd = wire_listen(s->path, 0600, NULL);
	CHECK(fd >= 0 && wire_server_new(&s->server, &service, fd, NULL) == 0);
	CHECK(pthread_create(&s->thread, NULL, accept_calls, s) == 0);
	CHECK(wire_connect(&s->wire, s->path, NULL) == 0);
}

static void serve_no_more(struct served *s)
{
	wire_fini(&s->wire);
	eventfd_write(s->stop_fd, 1);
	pthread_join(s->thread, NULL);
	wire_server_free(s->server);
	cleanup_close(&s->stop_fd);
}

static int call(struct served *s, const char *method, const char *parameters, json_t **ret,
		struct brumate_error *err)
{
	auto_json json_t *p = json_loads(parameters, 0, NULL);
	auto_free char *full = path_format("io.brumate.job.%s", method);

	CHECK(p && full);
	*err = BRUMATE_ERROR_NONE;
	return wire_call(&s->wire, full, p, NULL, 0, NULL, NULL, ret, deadline_in_ms(20000), err);
}

static void check_refused(struct served *s, const char *method, const char *parameters,
			  const char *text)
{
	struct brumate_error err;
	int r = call(s, method, parameters, NULL, &err);

	if (r >= 0 || !strstr(err.text, text))
		fprintf(stderr, "%s %s: %d \"%s\"\n", method, parameters, r, err.text);
	CHECK(r < 0 && strstr(err.text, text));
	CHECK(!s->shim->busy); /* nothing was begun, or it was ended */
}

/* ---- parameters ---- */

static void test_bad_parameters(struct served *s)
{
	static const struct {
		const char *method, *parameters, *text;
	} cases[] = {
		{ "Suspend", "{\"timeout_ms\": -1}", "'timeout_ms': -1 is not between" },
		{ "Suspend", "{\"park\": \"yes\"}", "'park': must be true or false" },
		{ "Resume", "{\"gpu_map\": 5}", "'gpu_map': must be an array" },
		{ "Resume", "{\"gpu_map\": [{\"from\": \"GPU-a\"}]}", "item 0: to is missing" },
		{ "Checkpoint", "{\"dir\": \"/s\"}", "'id': is missing" },
		{ "Checkpoint", "{\"id\": \"a\"}", "'dir': is missing" },
		{ "Checkpoint", "{\"id\": \"a\", \"dir\": \"/s\", \"compress\": \"best\"}",
		  "expected auto, none, lz4 or zstd" },
		{ "Checkpoint", "{\"id\": \"a\", \"dir\": \"/s\", \"key\": \"beef\"}",
		  "key given" },
		{ "Restore", "{}", "expected either path, or url and remote" },
		{ "Restore", "{\"path\": \"/p\", \"url\": \"s3://b/c\", \"remote\": {}}",
		  "expected either path, or url and remote" },
		{ "Restore", "{\"path\": \"/nowhere/at-all\"}", "/nowhere/at-all" },
		{ "Start", "{\"env\": [\"NOTHING\"]}", "expected strings NAME=VALUE" },
		{ "Start", "{\"env\": [1]}", "expected strings NAME=VALUE" },
		{ "Kill", "{\"signal\": 65}", "'signal': 65 is not between" },
		{ "Schedule", "{\"dir\": \"/s\"}", "expected a second or more" },
		{ "Schedule", "{\"every_ms\": 999, \"dir\": \"/s\"}", "expected a second or more" },
		{ "Schedule", "{\"every_ms\": 5000}", "'dir': is missing" },
		{ "Schedule", "{\"every_ms\": 5000, \"dir\": \"/s\", \"keep_last\": 0}",
		  "'keep_last': 0 is not between" },
		{ "Schedule", "{\"every_ms\": 5000, \"dir\": \"/s\", \"key_file\": \"/nowhere\"}",
		  "/nowhere" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_refused(s, cases[i].method, cases[i].parameters, cases[i].text);
}

static void test_long_dir(struct served *s)
{
	char parameters[JOB_SCHEDULE_DIR_BYTES + 64];

	snprintf(parameters, sizeof(parameters), "{\"every_ms\": 5000, \"dir\": \"/%0*d\"}",
		 JOB_SCHEDULE_DIR_BYTES, 0);
	check_refused(s, "Schedule", parameters, "'dir': is too long");
}

/* ---- states ---- */

#define IN(state) (1u << (state))

static void set_state(struct shim *shim, enum job_state state)
{
	shim->job.state = state;
	CHECK(job_save(&shim->job, NULL) == 0);
}

/* Each method begins in the states that docs/states.md has it in, and in no other. */
static void test_wrong_states(struct served *s)
{
	static const struct {
		const char *method, *parameters;
		unsigned
			states; /* where it is not tried here, as it would begin, or has nothing to do */
	} cases[] = {
		{ "Suspend", "{}", IN(JOB_RUNNING) | IN(JOB_SUSPENDED) },
		{ "Resume", "{}", IN(JOB_SUSPENDED) | IN(JOB_RUNNING) },
		{ "Checkpoint", "{\"id\": \"a\", \"dir\": \"/s\"}",
		  IN(JOB_RUNNING) | IN(JOB_SUSPENDED) },
		{ "Start", "{\"env\": []}", IN(JOB_CREATED) },
		{ "Adopt", "{}", IN(JOB_CREATED) },
		{ "Schedule", "{\"every_ms\": 5000, \"dir\": \"/s\"}",
		  IN(JOB_RUNNING) | IN(JOB_SUSPENDED) },
		{ "Scan", "{}", IN(JOB_RUNNING) | IN(JOB_SUSPENDED) },
		{ "Memory", "{}", IN(JOB_RUNNING) | IN(JOB_SUSPENDED) },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int state = 0; state < JOB_STATE__MAX; state++) {
			char text[64];

			if (cases[i].states & IN(state))
				continue;
			set_state(s->shim, (enum job_state)state);
			snprintf(text, sizeof(text), "job %s %s %s", s->shim->job.id,
				 state == JOB_EXITED ? "has" : "is",
				 job_state_name((enum job_state)state));
			check_refused(s, cases[i].method, cases[i].parameters, text);
		}
}

/* A job that is as it is to be: nothing is done, and that is said. */
static void test_already(struct served *s)
{
	static const struct {
		const char *method;
		enum job_state state;
	} cases[] = { { "Suspend", JOB_SUSPENDED }, { "Resume", JOB_RUNNING } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		auto_json json_t *reply = NULL;
		struct brumate_error err;

		set_state(s->shim, cases[i].state);
		CHECK(call(s, cases[i].method, "{}", &reply, &err) == 0);
		CHECK(json_is_true(json_object_get(json_object_get(reply, "summary"), "already")));
		CHECK(s->shim->job.state == cases[i].state && !s->shim->busy);
	}
}

static void test_busy(struct served *s)
{
	struct brumate_error err;

	set_state(s->shim, JOB_RUNNING);
	CHECK(shim_begin(s->shim, "checkpoint", 0, NULL) == 0);
	CHECK(call(s, "Suspend", "{}", NULL, &err) == -EBUSY);
	CHECK(strstr(err.text, "a checkpoint is in progress") && err.hint[0]);
	CHECK_STR(s->shim->busy, "checkpoint");
	shim_end(s->shim);
}

/* ---- what needs no process ---- */

static void test_status_and_wait(struct served *s)
{
	auto_json json_t *status = NULL, *waited = NULL;
	struct brumate_error err;

	set_state(s->shim, JOB_CHECKPOINTED);
	CHECK(call(s, "Status", "{}", &status, &err) == 0);
	CHECK_STR(json_string_value(json_object_get(json_object_get(status, "job"), "state")),
		  "checkpointed");
	CHECK(call(s, "Wait", "{}", &waited, &err) == 0); /* it is over: at once */
	CHECK(call(s, "Kill", "{}", NULL, &err) == -ESRCH);
}

static void test_schedule(struct served *s)
{
	auto_(job_fini) struct job seen = JOB_EMPTY;
	auto_json json_t *reply = NULL;
	struct brumate_error err;

	set_state(s->shim, JOB_SUSPENDED);
	CHECK(call(s, "Schedule",
		   "{\"every_ms\": 60000, \"dir\": \"/s\", \"keep_last\": 3, \"rehearse\": true, "
		   "\"compress\": \"lz4\", \"timeout_ms\": 9}",
		   &reply, &err) == 0);
	CHECK(job_load(&seen, s->shim->job.id, NULL) == 0);
	const struct job_schedule *schedule = &seen.schedule;
	CHECK(schedule->every_ms == 60000 && schedule->keep_last == 3);
	CHECK(schedule->request.rehearse && !schedule->request.force);
	CHECK(schedule->request.timeout_ms == 9);
	CHECK_STR(schedule->request.compress, "lz4");
	CHECK_STR(schedule->request.dir, "/s");
	CHECK(schedule->next_ms > clock_boot_ns() / NS_PER_MS);
	json_t *shown = json_object_get(json_object_get(reply, "job"), "schedule");
	CHECK(json_is_true(json_object_get(shown, "rehearse")));
	CHECK(json_is_null(json_object_get(shown, "key_file")));

	/* What is not given is not kept from before, and 0 ends it, whatever else is said. */
	auto_(job_fini) struct job after = JOB_EMPTY;
	set_state(s->shim, JOB_CHECKPOINTED);
	CHECK(call(s, "Schedule", "{\"every_ms\": 0, \"dir\": \"/s\", \"rehearse\": true}", NULL,
		   &err) == 0);
	CHECK(job_load(&after, s->shim->job.id, NULL) == 0);
	CHECK(!after.schedule.every_ms && !after.schedule.request.rehearse);
}

int main(void)
{
	struct shim shim;
	struct served s;

	new_scratch();
	shim_of(&shim, "a", JOB_RUNNING);
	serve(&s, &shim);
	test_bad_parameters(&s);
	test_long_dir(&s);
	test_wrong_states(&s);
	test_already(&s);
	test_busy(&s);
	test_status_and_wait(&s);
	test_schedule(&s);
	serve_no_more(&s);
	shim_of_fini(&shim);
	remove_scratch();
	return 0;
}
