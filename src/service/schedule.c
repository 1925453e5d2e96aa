// SPDX-License-Identifier: MIT
/* Schedule: a job's shim is told to checkpoint it now and then. */
#include "service/access.h"
#include "service/jobs.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>

#include "job/request.h"

/* How often, and which checkpoints stay, from @parameters into @ret. */
static int get_rule(json_t *ret, json_t *parameters, struct brumate_error *err)
{
	static const struct {
		const char *key;
		int64_t min, max;
	} numbers[] = {
		{ "every_ms", 0, JOB_SCHEDULE_MS_MAX },
		{ "keep_last", 1, UINT_MAX },
		{ "keep_within_ms", 1, INT64_MAX },
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

/* How its checkpoints are made. What is not given is as configured when one is made. */
static int get_request(json_t **ret, const struct service_call *call, json_t *parameters,
		       struct brumate_error *err)
{
	int r = request_check(parameters, REQUEST_SCHEDULE, err);

	if (r < 0)
		return r;
	*ret = request_pick(parameters, REQUEST_SCHEDULE);
	if (!*ret)
		return brumate_fail(err, ENOMEM, "%m");
	if (json_object_get(*ret, "key_file") && call->uid != 0) {
		/* root would read it, again and again */
		brumate_fail(err, EACCES,
			     "only root may name a key file for checkpoints by schedule");
		brumate_hint(err, "ask for one in EncryptionKeyFile= of [Store], brumate.conf(5)");
		return -EACCES;
	}
	return 0;
}

int service_schedule(const struct service_call *call, json_t *parameters, json_t **ret,
		     struct brumate_error *err)
{
	auto_json json_t *passed = NULL;
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_free char *dir = NULL;
	const char *word;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = get_request(&passed, call, parameters, err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = get_rule(passed, parameters, err);
	if (r == 0)
		r = access_job(&j, call, word, err);
	if (r < 0)
		return r;
	if (json_object_set_new(passed, "dir", json_string(dir)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return shim_relay(call, &j, "Schedule", passed, ret, err);
}
