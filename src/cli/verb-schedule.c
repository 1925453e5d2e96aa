// SPDX-License-Identifier: MIT
/* `brumate checkpoint --every`: checkpoints that the job's shim makes by itself. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/words.h"

#include <errno.h>
#include <stdio.h>

#include "job/request.h"

static int check_options(const struct invocation *in, struct brumate_error *err)
{
	static const struct {
		enum option_id id;
		const char *name;
	} others[] = { { OPT_NAME, "--name" }, { OPT_PID, "--pid" }, { OPT_FORMAT, "--format" } };

	if (!in->values[OPT_EVERY])
		return brumate_fail(err, EINVAL,
				    "checkpoint: --keep-last and --keep-within go with --every");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (in->values[others[i].id])
			return brumate_fail(err, EINVAL, "checkpoint: %s does not go with --every",
					    others[i].name);
	return 0;
}

static void print_schedule(json_t *job)
{
	json_t *schedule = json_object_get(job, "schedule");
	const char *id = json_string_value(json_object_get(job, "id"));
	const char *next = json_string_value(json_object_get(schedule, "next"));

	if (next)
		fprintf(stderr, "job %s: the next checkpoint is made at %s\n", id, next);
	else
		fprintf(stderr, "job %s: no more checkpoints are made by themselves\n", id);
	puts(id ? id : "");
}

int schedule_checkpoints(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	uint64_t every_ms = 0;
	int r = check_options(in, err);

	if (r == 0)
		r = add_target(p, in, err);
	if (r == 0)
		r = parse_duration(&every_ms, "--every", in->values[OPT_EVERY], err);
	if (r == 0 && every_ms && every_ms < 1000)
		r = brumate_fail(err, EINVAL, "--every: want a second or more, or 0 for no more");
	if (r == 0)
		r = add_retention(p, in, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_SCHEDULE, err);
	if (r < 0)
		return r;
	if (json_object_set_new(p, "every_ms", json_integer((json_int_t)every_ms)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = client_ask("Schedule", p, &reply, err);
	if (r == 0)
		print_schedule(json_object_get(reply, "job"));
	return r;
}
