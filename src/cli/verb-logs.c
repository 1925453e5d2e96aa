// SPDX-License-Identifier: MIT
/* `brumate logs`, `attach` and `wait`: what a job says, and how it ends. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/follow.h"
#include "cli/words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"

static const char *log_of(json_t *job)
{
	return json_string_value(json_object_get(job, "log"));
}

static int follow_quietly(json_t *job, struct brumate_error *err)
{
	auto_json json_t *ended = NULL;
	int r = follow_job(job, 0, FOLLOW_DETACHES, &ended, err);

	return r < 0 ? r : EXIT_OK;
}

int verb_logs(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = client_ask_about("Status", "job", in->operands[0], &reply, err);
	if (r < 0)
		return r;

	json_t *job = json_object_get(reply, "job");
	if (!log_of(job)) {
		brumate_fail(err, ENOENT, "job %s has no log", in->operands[0]);
		brumate_hint(err,
			     "it was taken in by its pid: its output goes where it always did");
		return -ENOENT;
	}
	return in->values[OPT_FOLLOW] ? follow_quietly(job, err) : show_log(log_of(job), err);
}

int verb_attach(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = client_ask_about("Status", "job", in->operands[0], &reply, err);
	if (r < 0)
		return r;

	json_t *job = json_object_get(reply, "job");
	return follow_to_end(job, log_size(log_of(job)), FOLLOW_DETACHES, err);
}

/* A fd that becomes readable after @timeout_ms. */
static int open_timer(uint64_t timeout_ms)
{
	struct itimerspec when = {
		.it_value = { (time_t)(timeout_ms / 1000), (long)(timeout_ms % 1000) * 1000000 },
	};
	auto_close int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

	if (!timeout_ms)
		when.it_value.tv_nsec = 1; /* 0 would disarm it */
	if (fd < 0 || timerfd_settime(fd, 0, &when, NULL) < 0)
		return -errno;
	return take_fd(&fd);
}

int verb_wait(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	auto_close int timer = -1;
	uint64_t timeout_ms;
	int r = add_string(parameters, "job", in->operands[0], err);

	if (r == 0 && in->values[OPT_TIMEOUT]) {
		r = parse_duration(&timeout_ms, "--timeout", in->values[OPT_TIMEOUT], err);
		if (r < 0)
			return r;
		timer = open_timer(timeout_ms);
		if (timer < 0)
			return brumate_fail(err, -timer, "timer: %m");
	}
	if (r == 0)
		r = client_call("Wait", parameters, NULL, NULL, timer, &reply, err);
	if (r == -ECANCELED)
		return brumate_fail(err, ETIMEDOUT, "job %s has not ended within %s",
				    in->operands[0], in->values[OPT_TIMEOUT]);
	return r < 0 ? r : job_exit_status(json_object_get(reply, "job"), err);
}
