// SPDX-License-Identifier: MIT
/* Calls that are refused before any shim or broker hears of them. */
#include <errno.h>

#include "job/job.h"
#include "job/scratch.h"
#include "service/service.h"

static char job_id[32];

static void check(const char *method, const char *parameters, int want, const char *text)
{
	const struct service_call call = { .cancel = CANCEL_NEVER };
	auto_json json_t *p = json_loads(parameters, 0, NULL), *reply = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(p);
	int r = service_call(method, &call, p, &reply, &err);
	if (r != want || !strstr(err.text, text))
		fprintf(stderr, "%s %s: %d \"%s\"\n", method, parameters, r, err.text);
	CHECK(r == want && strstr(err.text, text) && !reply);
}

static void test_parameters(void)
{
	static const struct {
		const char *method, *parameters, *text;
	} cases[] = {
		{ "List", "{\"counts\": 1}", "'counts': must be true or false" },
		{ "Suspend", "{}", "expected one of job, pid and container" },
		{ "Suspend", "{\"job\": \"j\", \"pid\": 5}",
		  "expected one of job, pid and container" },
		{ "Suspend", "{\"job\": \"j\", \"force\": 1}", "'force': must be true or false" },
		{ "Suspend", "{\"job\": \"j\", \"timeout_ms\": 2147483648}", "'timeout_ms'" },
		{ "Suspend", "{\"job\": \"j\", \"gpu\": \"quantum\"}", "'gpu'" },
		{ "Resume", "{\"job\": \"j\", \"gpu_map\": \"0=1\"}",
		  "'gpu_map': must be an array" },
		{ "Resume", "{\"job\": \"j\", \"keep_copy\": 0}", "'keep_copy'" },
		{ "Checkpoint", "{\"job\": \"j\", \"dir\": \"relative\"}", "not an absolute path" },
		{ "Checkpoint", "{\"job\": \"j\", \"compress\": \"best\"}",
		  "expected auto, none, lz4 or zstd" },
		{ "Checkpoint", "{\"job\": \"j\", \"name\": \"../up\"}",
		  "cannot be the name of a checkpoint" },
		{ "Checkpoint", "{\"job\": \"j\", \"name\": \".hidden\"}",
		  "cannot be the name of a checkpoint" },
		{ "Restore", "{}", "'checkpoint': is missing" },
		{ "Restore", "{\"checkpoint\": \"a\", \"kind\": \"tree\"}",
		  "expected job or checkpoint" },
		{ "Restore", "{\"url\": \"s3://b/c\"}", "'remote': is missing" },
		{ "Kill", "{\"job\": \"j\", \"grace_ms\": -1}", "'grace_ms'" },
		{ "Remove", "{}", "expected one of job, checkpoint and what" },
		{ "Remove", "{\"job\": \"a\", \"what\": \"b\"}",
		  "expected one of job, checkpoint and what" },
		{ "Schedule", "{\"job\": \"j\"}", "'every_ms': is missing" },
		{ "Schedule", "{\"job\": \"j\", \"every_ms\": -1}", "'every_ms'" },
		{ "Prune", "{}", "expected this or keep_within_ms" },
		{ "Prune", "{\"keep_last\": 0}", "'keep_last'" },
		{ "Doctor", "{\"job\": \"a\", \"pid\": 1}", "expected job or pid, not both" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check(cases[i].method, cases[i].parameters, -EINVAL, cases[i].text);
	check("Explode", "{}", -EOPNOTSUPP, "no method Explode");
}

static void make_job(void)
{
	static const char *const argv[] = { "true", NULL };
	const struct job_spec spec = {
		.name = "j", .argv = (char *const *)argv, .cwd = "/", .uid = 1000, .gid = 1000
	};
	auto_(job_fini) struct job j = JOB_EMPTY;

	CHECK(job_create(&j, &spec, NULL) == 0);
	j.state = JOB_EXITED;
	CHECK(job_save(&j, NULL) == 0);
	snprintf(job_id, sizeof(job_id), "%s", j.id);
}

static void test_over(void)
{
	char parameters[128], text[128];

	snprintf(parameters, sizeof(parameters), "{\"job\": \"%s\"}", job_id);
	snprintf(text, sizeof(text), "job %s is not running (exited)", job_id);
	check("Kill", parameters, -ESRCH, text);
	check("Doctor", parameters, -ESRCH, text);
}

int main(void)
{
	new_scratch();
	make_job();
	test_parameters();
	test_over();
	remove_scratch();
	return 0;
}
