// SPDX-License-Identifier: MIT
/*
 * One call being served: finding its method, org.varlink.service, replies and errors. Whatever the
 * caller sends, it gets an answer or its connection closed; a oneway call gets no answer at all.
 */
#include "wire/private.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static const char service_interface[] = "org.varlink.service";
static const char service_description[] =
	"# What every varlink service offers\n"
	"interface org.varlink.service\n"
	"method GetInfo() -> (vendor: string, product: string, version: string, url: string, "
	"interfaces: []string)\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"error InterfaceNotFound (interface: string)\n"
	"error MethodNotFound (method: string)\n"
	"error MethodNotImplemented (method: string)\n"
	"error InvalidParameter (parameter: string)\n"
	"error PermissionDenied ()\n"
	"error ExpectedMore ()\n";

/* Takes @reply. */
static int send_reply(struct wire_call_context *call, json_t *reply, const int *fds, size_t n_fds)
{
	auto_json json_t *owned = reply;

	if (!owned)
		return -ENOMEM;
	if (call->oneway)
		return 0;
	if (call->broken == 0)
		call->broken = wire_send(call->wire, owned, fds, n_fds,
					 deadline_in_ms(WIRE_REPLY_TIMEOUT_MS), NULL);
	return call->broken;
}

int wire_reply_fds(struct wire_call_context *call, json_t *parameters, const int *fds, size_t n_fds)
{
	json_t *reply = parameters ? json_pack("{s:O}", "parameters", parameters)
				   : json_pack("{s:{}}", "parameters");

	call->replied = true;
	return send_reply(call, reply, fds, n_fds);
}

int wire_reply(struct wire_call_context *call, json_t *parameters)
{
	return wire_reply_fds(call, parameters, NULL, 0);
}

void wire_reply_more(struct wire_call_context *call, json_t *parameters)
{
	struct pollfd p = { .fd = call->wire->fd, .events = POLLOUT };

	if (!call->more || call->replied || poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT))
		return;
	send_reply(call, json_pack("{s:O, s:b}", "parameters", parameters, "continues", 1), NULL,
		   0);
}

bool wire_call_is_cancelled(const struct wire_call_context *call)
{
	return (call->stopping && atomic_load(call->stopping)) || wire_is_hung_up(call->wire);
}

int wire_call_fd(const struct wire_call_context *call)
{
	return call->wire->fd;
}

void wire_call_peer(const struct wire_call_context *call, uid_t *ret_uid, gid_t *ret_gid,
		    pid_t *ret_pid)
{
	struct ucred cred = { .pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1 };

	fd_peer(call->wire->fd, &cred);
	*ret_uid = cred.uid;
	*ret_gid = cred.gid;
	*ret_pid = cred.pid;
}

int wire_call_take_fd(struct wire_call_context *call, size_t i)
{
	return i < call->message->n_fds ? take_fd(&call->message->fds[i]) : -1;
}

/* Takes @parameters. */
static void reply_error(struct wire_call_context *call, const char *interface, const char *name,
			json_t *parameters)
{
	char full[128];

	snprintf(full, sizeof(full), "%s.%s", interface, name);
	call->replied = true;
	send_reply(call, json_pack("{s:s, s:o}", "error", full, "parameters", parameters), NULL, 0);
}

static void reply_failed(struct wire_call_context *call, const struct brumate_error *err)
{
	if (err->parameter[0])
		reply_error(call, service_interface, "InvalidParameter",
			    json_pack("{s:o, s:o}", "parameter", wire_string(err->parameter),
				      "text", wire_string(err->text)));
	else
		reply_error(call, call->service->interface_name, "Failed", wire_error_to_json(err));
}

static int get_info(struct wire_call_context *call)
{
	auto_json json_t *info =
		json_pack("{s:s, s:s, s:s, s:s, s:[s, s]}", "vendor", "brumate", "product",
			  "brumate", "version", BRUMATE_VERSION, "url", "", "interfaces",
			  service_interface, call->service->interface_name);

	return info ? wire_reply(call, info) : -ENOMEM;
}

static int get_description(struct wire_call_context *call, json_t *parameters,
			   struct brumate_error *err)
{
	const char *name, *text = NULL;
	int r = wire_need_string(parameters, "interface", &name, err);

	if (r < 0)
		return r;
	if (!strcmp(name, service_interface))
		text = service_description;
	else if (!strcmp(name, call->service->interface_name))
		text = call->service->description;
	if (!text) {
		reply_error(call, service_interface, "InterfaceNotFound",
			    json_pack("{s:s}", "interface", name));
		return 0;
	}
	auto_json json_t *reply = json_pack("{s:s}", "description", text);
	return reply ? wire_reply(call, reply) : -ENOMEM;
}

static void reply_not_found(struct wire_call_context *call, const char *name)
{
	const char *dot = strrchr(name, '.');
	size_t len = dot ? (size_t)(dot - name) : 0;
	const char *known[] = { service_interface, call->service->interface_name };

	for (size_t i = 0; i < 2; i++) {
		if (strlen(known[i]) != len || strncmp(known[i], name, len))
			continue;
		reply_error(call, service_interface, "MethodNotFound",
			    json_pack("{s:s}", "method", name));
		return;
	}
	reply_error(call, service_interface, "InterfaceNotFound",
		    json_pack("{s:s%}", "interface", name, len));
}

static int dispatch(struct wire_call_context *call, const char *name, json_t *parameters,
		    struct brumate_error *err)
{
	if (!strcmp(name, "org.varlink.service.GetInfo"))
		return get_info(call);
	if (!strcmp(name, "org.varlink.service.GetInterfaceDescription"))
		return get_description(call, parameters, err);

	const struct wire_service *s = call->service;
	for (size_t i = 0; i < s->n_methods; i++)
		if (!strcmp(name, s->methods[i].name))
			return s->methods[i].run(s->arg, call, parameters, err);
	reply_not_found(call, name);
	return 0;
}

int wire_serve(struct wire *w, const struct wire_service *service, const atomic_bool *stopping,
	       struct wire_message *m)
{
	const char *name = json_string_value(json_object_get(m->json, "method"));
	json_t *given = json_object_get(m->json, "parameters");
	struct wire_call_context call = {
		.wire = w,
		.service = service,
		.stopping = stopping,
		.message = m,
		.more = json_is_true(json_object_get(m->json, "more")),
		.oneway = json_is_true(json_object_get(m->json, "oneway")),
	};

	if (!name)
		return -EBADMSG;
	if (given && !json_is_object(given) && !json_is_null(given)) {
		reply_error(&call, service_interface, "InvalidParameter",
			    json_pack("{s:s}", "parameter", "parameters"));
		return call.broken;
	}

	auto_json json_t *parameters = json_is_object(given) ? json_incref(given) : json_object();
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = parameters ? dispatch(&call, name, parameters, &err) : -ENOMEM;

	if (call.replied)
		return call.broken;
	if (r < 0 && !err.code)
		brumate_fail(&err, -r, "%m");
	if (r < 0)
		reply_failed(&call, &err);
	else
		wire_reply(&call, NULL);
	return call.broken;
}
