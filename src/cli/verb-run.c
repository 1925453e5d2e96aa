// SPDX-License-Identifier: MIT
/* `brumate run`: start a command as a job, and stay with it if asked to. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/follow.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"

static int add_command(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *argv = json_array();

	for (int i = 0; i < in->n_operands; i++)
		if (json_array_append_new(argv, json_string(in->operands[i])) < 0)
			return brumate_fail(err, EINVAL, "argument %d of the command is not UTF-8",
					    i);
	return json_object_set(parameters, "argv", argv) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

static int pack_run(json_t **ret, const struct invocation *in, struct brumate_error *err)
{
	auto_free char *cwd = getcwd(NULL, 0);
	auto_json json_t *p = json_pack("{s:o}", "env", pack_environment());
	int r = p ? 0 : brumate_fail(err, ENOMEM, "%m");

	if (r == 0 && !cwd)
		r = brumate_fail(err, errno, "working directory: %m");
	if (r == 0)
		r = add_command(p, in, err);
	if (r == 0)
		r = add_string(p, "cwd", cwd, err);
	if (r == 0)
		r = add_string(p, "name", in->values[OPT_NAME], err);
	if (r == 0)
		r = add_path(p, "log", in->values[OPT_LOG], err);
	if (r == 0)
		r = add_string(p, "data_path", in->values[OPT_DATA_PATH], err);
	if (r == 0)
		r = add_gpu(p, in, err);
	if (r < 0)
		return r;
	*ret = take_ptr(&p);
	return 0;
}

/* As env(1) and its like do it: what brumate itself failed at is told apart from the job's status. */
static void mark_as_ours(struct brumate_error *err)
{
	enum exit_code code = brumate_exit_code(err);

	if (code != EXIT_NOT_EXECUTABLE && code != EXIT_NO_COMMAND && code != EXIT_JOB_LOST)
		brumate_error_exit(err, EXIT_OURS);
}

int verb_run(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = NULL, *reply = NULL;
	bool attach = in->values[OPT_ATTACH];
	off_t offset = log_size(in->values[OPT_LOG]);
	int r = pack_run(&parameters, in, err);
	if (r < 0)
		return r;

	r = client_ask("Run", parameters, &reply, err);
	json_t *job = json_object_get(reply, "job");
	if (r == 0 && attach)
		r = follow_to_end(job, offset, FOLLOW_FORWARDS, err);
	else if (r == 0)
		puts(json_string_value(json_object_get(job, "id")));
	if (r < 0 && attach)
		mark_as_ours(err);
	return r;
}
