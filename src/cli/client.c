// SPDX-License-Identifier: MIT
/* Calling the service, here or in brumated; see client.h. */
#include "cli/client.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "service/relay.h"
#include "service/service.h"

static int fail_unreachable(const char *path, int code, struct brumate_error *err)
{
	brumate_fail(err, EPERM, "brumate needs root (%s %s)",
		     code == EACCES ? "you may not connect to" : "nobody listens at", path);
	brumate_hint(err, "use sudo");
	return -EPERM;
}

static int call_daemon(const char *method, json_t *parameters, const int *fd,
		       wire_reply_fn on_reply, void *arg, const struct cancel *cancel, json_t **ret,
		       struct brumate_error *err)
{
	auto_free char *path = path_format("%s/brumated.sock", path_runtime_dir());
	auto_free char *full = path_format("io.brumate.%s", method);
	struct wire w;

	if (!path || !full)
		return brumate_fail(err, ENOMEM, "%m");
	int r = wire_connect(&w, path, err);
	if (r == -ENOENT || r == -ECONNREFUSED || r == -EACCES)
		return fail_unreachable(path, -r, err);
	if (r < 0)
		return r;

	r = relay_call_fds(&w, full, parameters, fd, fd ? 1 : 0, on_reply, arg, cancel, ret, err);
	wire_fini(&w);
	return r;
}

static int call(const char *method, json_t *parameters, const int *fd, wire_reply_fn on_reply,
		void *arg, int cancel_fd, json_t **ret, struct brumate_error *err)
{
	struct cancel cancel = {
		{ { .fd = cancel_fd, .events = POLLIN }, { .fd = -1 } },
	};
	struct service_call here = {
		.uid = getuid(),
		.gid = getgid(),
		.on_reply = on_reply,
		.arg = arg,
		.cancel = cancel,
		.fd = fd,
	};

	if (geteuid() == 0)
		return service_call(method, &here, parameters, ret, err);
	return call_daemon(method, parameters, fd, on_reply, arg, &cancel, ret, err);
}

int client_call(const char *method, json_t *parameters, wire_reply_fn on_reply, void *arg,
		int cancel_fd, json_t **ret, struct brumate_error *err)
{
	return call(method, parameters, NULL, on_reply, arg, cancel_fd, ret, err);
}

int client_call_fd(const char *method, json_t *parameters, int fd, wire_reply_fn on_reply,
		   void *arg, int cancel_fd, json_t **ret, struct brumate_error *err)
{
	return call(method, parameters, &fd, on_reply, arg, cancel_fd, ret, err);
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
