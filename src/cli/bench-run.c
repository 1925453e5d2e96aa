// SPDX-License-Identifier: MIT
/* One job taken through the operations by one data path. */
#include "cli/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "cli/client.h"

void bench_fini(struct bench *b)
{
	for (size_t i = 0; i < b->n_results; i++)
		json_decref(b->results[i].summary);
	free(b->results);
	*b = (struct bench){ 0 };
}

static struct bench_result *add_result(struct bench *b)
{
	struct bench_result *grown = array_room(b->results, b->n_results, sizeof(*grown));

	if (!grown)
		return NULL;
	b->results = grown;
	grown[b->n_results] = (struct bench_result){ 0 };
	return &grown[b->n_results++];
}

static json_t *pack_operation(const struct bench *b, const char *operation, const char *what)
{
	if (!strcmp(operation, "Restore"))
		return json_pack("{s:s,s:s*}", "checkpoint", what, "dir", b->options.dir);
	const bool live = b->options.live, keep = b->options.keep_copy;
	if (!strcmp(operation, "Checkpoint"))
		return json_pack("{s:s,s:s*,s:b}", "job", what, "dir", b->options.dir, "live",
				 live);
	if (!strcmp(operation, "Suspend"))
		return json_pack("{s:s,s:b}", "job", what, "live", live);
	return json_pack("{s:s,s:b}", "job", what, "keep_copy", keep);
}

/* @ret is valid until the next result is added. */
static int operate(struct bench *b, const char *method, const char *name, const char *path,
		   unsigned round, const char *what, struct bench_result **ret,
		   struct brumate_error *err)
{
	auto_json json_t *p = pack_operation(b, method, what), *reply = NULL;
	uint64_t start_ns = clock_now_ns(), start_wall_ns = clock_wall_ns();
	int r = p ? client_ask(method, p, &reply, err) : brumate_fail(err, ENOMEM, "%m");
	double seconds = clock_since_s(start_ns);

	if (r < 0)
		return brumate_wrap(err, r, "%s by %s", name, path);
	struct bench_result *result = add_result(b);
	if (!result)
		return brumate_fail(err, ENOMEM, "%m");
	*result =
		(struct bench_result){ .operation = name,
				       .path = path,
				       .round = round,
				       .bytes = b->options.size_bytes,
				       .start_ns = start_ns,
				       .wall_ns = start_wall_ns,
				       .seconds = seconds,
				       .summary = json_incref(json_object_get(reply, "summary")) };
	*ret = result;
	return 0;
}

/* The job tells when it stood still: the gap that holds the moment when it was brought back. Others
 * come of a busy machine. */
static int see_gap(struct bench_job *j, struct bench_result *brought_back,
		   struct brumate_error *err)
{
	unsigned long long from, to;
	char line[128];

	do {
		int r = bench_job_line(j, "gap ", line, sizeof(line), err);
		if (r < 0)
			return r;
		if (sscanf(line, "%llu %llu", &from, &to) != 2)
			return brumate_fail(err, EPROTO, "bench-job: gap %s", line);
	} while (from > brought_back->wall_ns || to < brought_back->wall_ns);
	brought_back->standing = (double)(to - from) / 1e9;
	brought_back->until_beat = (double)(to - brought_back->wall_ns) / 1e9;
	return 0;
}

/* It runs, and the data it holds is right. */
static int see_it_run(struct bench *b, struct bench_job *j, struct bench_result *brought_back,
		      struct brumate_error *err)
{
	char line[128];
	int r = see_gap(j, brought_back, err);

	if (r < 0)
		return r;
	if ((r = bench_job_ask(j, SIGUSR1, "check ", line, sizeof(line), err)) < 0)
		return r;
	if (strcmp(line, "OK") != 0)
		return brumate_fail(err, EBADMSG, "the data is wrong after %s by %s",
				    brought_back->operation, brought_back->path);
	if (b->options.change)
		r = bench_job_ask(j, SIGUSR2, "changed ", line, sizeof(line), err);
	return r;
}

static int suspend_and_resume(struct bench *b, struct bench_job *j, const char *path,
			      unsigned round, struct brumate_error *err)
{
	struct bench_result *result;
	int r = operate(b, "Suspend", "suspend", path, round, j->id, &result, err);

	if (r == 0)
		r = operate(b, "Resume", "resume", path, round, j->id, &result, err);
	return r < 0 ? r : see_it_run(b, j, result, err);
}

static int checkpoint_and_restore(struct bench *b, struct bench_job *j, const char *path,
				  unsigned round, struct brumate_error *err)
{
	struct bench_result *result;
	char id[128];
	int r = operate(b, "Checkpoint", "checkpoint", path, round, j->id, &result, err);

	if (r < 0)
		return r;
	const char *saved = json_string_value(json_object_get(result->summary, "checkpoint"));
	snprintf(id, sizeof(id), "%s", saved ? saved : "");
	r = operate(b, "Restore", "restore", path, round, id, &result, err);
	if (r == 0)
		r = see_it_run(b, j, result, err);
	auto_json json_t *p = json_pack("{s:s,s:s*}", "checkpoint", id, "dir", b->options.dir);
	auto_json json_t *removed = NULL;
	if (p && client_ask("Remove", p, &removed, r < 0 ? NULL : err) < 0 && r == 0)
		r = -EIO;
	return r;
}

int bench_run_path(struct bench *b, const char *path, struct brumate_error *err)
{
	auto_(bench_job_fini) struct bench_job j = BENCH_JOB_EMPTY;
	bool first = !b->limits.d2h;
	int r = bench_job_start(&j, &b->options, path, first ? &b->limits : NULL, err);

	for (unsigned round = 1; r == 0 && round <= b->options.rounds; round++)
		r = suspend_and_resume(b, &j, path, round, err);
	for (unsigned round = 1; r == 0 && b->options.dir && round <= b->options.rounds; round++)
		r = checkpoint_and_restore(b, &j, path, round, err);
	return r;
}
