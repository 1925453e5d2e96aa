// SPDX-License-Identifier: MIT
/* The calling side of varlink: one call at a time on a connection, streamed replies on the way. */
#include "wire/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* One name for the errors of all our interfaces: io.brumate.Failed, io.brumate.broker.Failed ... */
static bool is_ours(const char *name)
{
	const char *last = strrchr(name, '.');

	return !strncmp(name, "io.brumate.", strlen("io.brumate.")) && !strcmp(last, ".Failed");
}

static int fail_as_told(const char *method, const char *name, json_t *parameters,
			struct brumate_error *err)
{
	if (is_ours(name)) {
		struct brumate_error told;

		wire_error_from_json(&told, parameters);
		if (err)
			*err = told;
		return -told.code;
	}
	if (!strcmp(name, "org.varlink.service.InvalidParameter")) {
		const char *text = json_string_value(json_object_get(parameters, "text"));
		const char *which = json_string_value(json_object_get(parameters, "parameter"));

		return brumate_fail(err, EINVAL, "%s: %s%s", method,
				    text ? "" : "invalid parameter ",
				    text    ? text
				    : which ? which
					    : "");
	}
	if (!strcmp(name, "org.varlink.service.MethodNotFound") ||
	    !strcmp(name, "org.varlink.service.MethodNotImplemented") ||
	    !strcmp(name, "org.varlink.service.InterfaceNotFound"))
		return brumate_fail(err, EOPNOTSUPP, "%s: the peer does not know this method",
				    method);
	return brumate_fail(err, EPROTO, "%s: %s", method, name);
}

static int send_call(struct wire *w, const char *method, json_t *parameters, const int *fds,
		     size_t n_fds, bool more, uint64_t deadline_ns, struct brumate_error *err)
{
	auto_json json_t *call =
		json_pack("{s:s, s:O*}", "method", method, "parameters", parameters);

	if (!call || (more && json_object_set_new(call, "more", json_true()) < 0))
		return brumate_fail(err, ENOMEM, "%s: %m", method);

	int r = wire_send(w, call, fds, n_fds, deadline_ns, err);
	return r < 0 ? brumate_wrap(err, r, "%s", method) : 0;
}

/* Returns 1 for a streamed reply, 0 for the final one with @ret_parameters (owned) or <0. */
static int receive_reply(struct wire *w, const char *method, bool more, json_t **ret_parameters,
			 bool *ret_is_answer, uint64_t deadline_ns, struct brumate_error *err)
{
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	int r = wire_receive(w, &m, deadline_ns, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", method);

	json_t *name = json_object_get(m.json, "error");
	json_t *parameters = json_object_get(m.json, "parameters");
	bool continues = json_is_true(json_object_get(m.json, "continues"));

	if ((name && !json_is_string(name)) ||
	    (parameters && !json_is_object(parameters) && !json_is_null(parameters)) ||
	    (continues && !more))
		return brumate_fail(err, EPROTO, "%s: the peer's reply is not varlink", method);
	if (name) {
		*ret_is_answer = true;
		return fail_as_told(method, json_string_value(name), parameters, err);
	}
	auto_json json_t *p = json_is_object(parameters) ? json_incref(parameters) : json_object();
	if (!p)
		return brumate_fail(err, ENOMEM, "%s: %m", method);
	*ret_parameters = take_ptr(&p);
	*ret_is_answer = true;
	return continues ? 1 : 0;
}

int wire_call(struct wire *w, const char *method, json_t *parameters, const int *fds, size_t n_fds,
	      wire_reply_fn on_reply, void *arg, json_t **ret_parameters, uint64_t deadline_ns,
	      struct brumate_error *err)
{
	int r = send_call(w, method, parameters, fds, n_fds, on_reply != NULL, deadline_ns, err);
	if (r < 0)
		return r;

	for (;;) {
		json_t *reply = NULL;
		bool is_answer = false;

		r = receive_reply(w, method, on_reply != NULL, &reply, &is_answer, deadline_ns,
				  err);
		if (r < 0 && !is_answer)
			shutdown(w->fd, SHUT_RDWR);
		if (r < 0)
			return r;
		if (r > 0) {
			on_reply(arg, reply);
			json_decref(reply);
			continue;
		}
		if (ret_parameters)
			*ret_parameters = reply;
		else
			json_decref(reply);
		return 0;
	}
}
