// SPDX-License-Identifier: MIT
/* Finding a method of io.brumate by name. */
#include "service/service.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *name;
	service_method_fn run;
} methods[] = {
#define X(name, fn) { #name, fn },
	SERVICE_METHODS(X)
#undef X
};

int service_call(const char *method, const struct service_call *call, json_t *parameters,
		 json_t **ret, struct brumate_error *err)
{
	auto_json json_t *given = parameters ? json_incref(parameters) : json_object();

	if (!given)
		return brumate_fail(err, ENOMEM, "%s: %m", method);
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		json_t *reply = NULL;

		if (strcmp(methods[i].name, method))
			continue;
		int r = methods[i].run(call, given, &reply, err);
		if (ret && r == 0)
			*ret = take_ptr(&reply);
		json_decref(reply);
		return r;
	}
	return brumate_fail(err, EOPNOTSUPP, "no method %s", method);
}
