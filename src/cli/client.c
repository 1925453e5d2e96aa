// SPDX-License-Identifier: MIT
/*
 * Calling the service, and Ctrl-C meanwhile; see client.h. Handlers rather than blocked signals: a mask would be
 * inherited by the shims, and so the jobs, that a command starts.
 */
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "service/service.h"

/* ---- signals ---- */

static int ends[2] = { -1, -1 };
static volatile sig_atomic_t seen;
static volatile sig_atomic_t exit_on_second;

static void on_signal(int number)
{
	int saved = errno;
	unsigned char byte = (unsigned char)number;

	if (seen && exit_on_second)
		_exit(128 + number);
	seen = 1;
	/* If the pipe is full, there are signals enough in it. */
	if (write(ends[1], &byte, 1) < 0)
		errno = saved;
	errno = saved;
}

int interrupt_watch(bool second_exits)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	exit_on_second = second_exits;
	if (ends[0] >= 0)
		return ends[0];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct sigaction old;

		/* A signal that is ignored, as nohup(1) does it, stays so. */
		if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
	return ends[0];
}

bool interrupt_seen(void)
{
	return seen;
}

int interrupt_take(void)
{
	unsigned char byte;

	return ends[0] >= 0 && read(ends[0], &byte, 1) == 1 ? byte : 0;
}

/* ---- calls ---- */

static int call_service(const char *method, json_t *parameters, const int *fd,
			wire_reply_fn on_reply, void *arg, int cancel_fd, json_t **ret,
			struct brumate_error *err)
{
	const struct service_call here = {
		.uid = getuid(),
		.gid = getgid(),
		.pid = getpid(),
		.on_reply = on_reply,
		.arg = arg,
		.cancel = { { { .fd = cancel_fd, .events = POLLIN }, { .fd = -1 } } },
		.fd = fd,
	};

	return service_call(method, &here, parameters, ret, err);
}

int client_call(const char *method, json_t *parameters, wire_reply_fn on_reply, void *arg,
		int cancel_fd, json_t **ret, struct brumate_error *err)
{
	return call_service(method, parameters, NULL, on_reply, arg, cancel_fd, ret, err);
}

int client_ask(const char *method, json_t *parameters, json_t **ret, struct brumate_error *err)
{
	return client_call(method, parameters, NULL, NULL, -1, ret, err);
}

int client_ask_about(const char *method, const char *key, const char *value, json_t **ret,
		     struct brumate_error *err)
{
	auto_json json_t *parameters = json_pack("{s:s}", key, value);

	if (!parameters)
		return brumate_fail(err, EINVAL, "\"%s\" is not UTF-8", value);
	return client_ask(method, parameters, ret, err);
}

int client_call_shown(const char *method, const char *verb, json_t *parameters, const int *fd,
		      json_t **ret, struct brumate_error *err)
{
	struct progress_line line = { .verb = verb };
	int cancel_fd = interrupt_watch(true);

	if (cancel_fd < 0)
		return brumate_fail(err, -cancel_fd, "pipe: %m");
	int r = call_service(method, parameters, fd, progress_show, &line, cancel_fd, ret, err);
	progress_clear(&line);
	return r;
}
