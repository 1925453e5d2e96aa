// SPDX-License-Identifier: MIT
/* Schedule: a job's shim is told to checkpoint it now and then. */
#include "service/access.h"
#include "service/jobs.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>

static int get_numbers(json_t *ret, json_t *parameters, struct brumate_error *err)
{
	static const struct {
		const char *key;
		int64_t min, max;
	} numbers[] = {
		{ "every_ms", 0, JOB_SCHEDULE_MS_MAX },
		{ "keep_last", 1, UINT_MAX },
		{ "keep_within_ms", 1, INT64_MAX },
		{ "timeout_ms", 0, INT_MAX },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		int64_t value = -1;
		int r = wire_get_int(parameters, numbers[i].key, numbers[i].min, numbers[i].max,
				     &value, err);

		if (r < 0)
			return r;
		if (value >= 0 && json_object_set_new(ret, numbers[i].key, json_integer(value)) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	}
	return json_object_get(ret, "every_ms")
		       ? 0
		       : wire_fail_parameter(err, "every_ms", "is missing");
}

int service_schedule(const struct service_call *call, json_t *parameters, json_t **ret,
		     struct brumate_error *err)
{
	auto_json json_t *passed = json_object();
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_free char *dir = NULL;
	const char *word, *given_dir;
	bool force = false;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_string(parameters, "dir", &given_dir, err);
	if (r == 0)
		r = wire_get_bool(parameters, "force", &force, err);
	if (r == 0)
		r = access_store(&dir, call, given_dir, err);
	if (r == 0)
		r = get_numbers(passed, parameters, err);
	if (r == 0)
		r = access_job(&j, call, word, err);
	if (r < 0)
		return r;
	if (json_object_set_new(passed, "dir", json_string(dir)) < 0 ||
	    json_object_set_new(passed, "force", json_boolean(force)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return shim_relay(call, &j, "Schedule", passed, ret, err);
}
