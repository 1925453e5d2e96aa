// SPDX-License-Identifier: MIT
/* The synthetic job of `brumate bench`: started, asked and ended; its log is how it answers. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "cli/arguments.h"
#include "cli/client.h"

enum { ANSWER_TIMEOUT_MS = 300000, TAIL_BYTES = 4096 };

/* Another one for each job: what one path has stored must be of no use to the other. */
static uint64_t fresh_seed(void)
{
	uint64_t seed;

	return getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == sizeof(seed) ? seed
									     : clock_now_ns();
}

static json_t *pack_run(const struct bench_options *o, const char *program, const char *path,
			bool link)
{
	char mib[32], zero[16], change[16], seed[32];

	snprintf(mib, sizeof(mib), "%llu", (unsigned long long)(o->size_bytes >> 20));
	snprintf(zero, sizeof(zero), "%u", o->zero);
	snprintf(change, sizeof(change), "%u", o->change);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)fresh_seed());
	json_t *argv = json_pack("[s,s,s,s,s,s,s,s,s,s,s]", program, "--mib", mib, "--piece-kib",
				 o->pieces_kib, "--zero", zero, "--change", change, "--seed", seed);
	if (argv && link)
		json_array_append_new(argv, json_string("--link"));
	return json_pack("{s:o,s:o,s:s,s:s,s:s*}", "argv", argv, "env", pack_environment(), "cwd",
			 "/", "data_path", path, "gpu", o->gpu);
}

static int watch_log(struct bench_job *j, json_t *job, struct brumate_error *err)
{
	const char *log = json_string_value(json_object_get(job, "log"));

	j->log_fd = log ? open(log, O_RDONLY | O_CLOEXEC) : -1;
	j->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (j->log_fd < 0 || j->inotify_fd < 0 ||
	    inotify_add_watch(j->inotify_fd, log, IN_MODIFY) < 0)
		return brumate_fail(err, errno, "log %s: %m", log ? log : "of the job");
	return 0;
}

int bench_job_start(struct bench_job *ret, const struct bench_options *o, const char *path,
		    struct bench_limits *limits, struct brumate_error *err)
{
	auto_(bench_job_fini) struct bench_job j = BENCH_JOB_EMPTY;
	auto_free char *program = path_find_helper("bench-job");
	auto_json json_t *reply = NULL;
	char line[128];

	if (!program)
		return brumate_fail(err, ENOENT, "bench-job is not installed");
	auto_json json_t *run = pack_run(o, program, path, limits);
	int r = run ? client_ask("Run", run, &reply, err) : brumate_fail(err, ENOMEM, "%m");
	if (r < 0)
		return r;
	json_t *job = json_object_get(reply, "job");
	const char *id = json_string_value(json_object_get(job, "id"));
	snprintf(j.id, sizeof(j.id), "%s", id ? id : "");
	r = watch_log(&j, job, err);
	if (r == 0 && limits)
		r = bench_job_line(&j, "link ", line, sizeof(line), err);
	if (r == 0 && limits && sscanf(line, "d2h %lf h2d %lf", &limits->d2h, &limits->h2d) != 2)
		r = brumate_fail(err, EPROTO, "bench-job: %s", line);
	if (r == 0)
		r = bench_job_line(&j, "ready ", line, sizeof(line), err);
	if (r < 0)
		return r;
	*ret = j;
	j = BENCH_JOB_EMPTY;
	return 0;
}

/* Takes lines up to one that starts with @word. 1: it came; 0: not yet. */
static int take_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
		     struct brumate_error *err)
{
	char buf[TAIL_BYTES + 1];

	for (;;) {
		ssize_t n = pread(j->log_fd, buf, TAIL_BYTES, j->offset);
		if (n < 0)
			return brumate_fail(err, errno, "log of job %s: %m", j->id);
		buf[n] = '\0';
		char *end = strchr(buf, '\n');
		if (!end)
			return 0;
		*end = '\0';
		j->offset += end - buf + 1;
		if (!strncmp(buf, "ERR ", 4))
			return brumate_fail(err, EIO, "bench-job: %s", buf + 4);
		if (strncmp(buf, word, strlen(word)) != 0)
			continue;
		snprintf(ret, ret_bytes, "%s", buf + strlen(word));
		return 1;
	}
}

int bench_job_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
		   struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(ANSWER_TIMEOUT_MS);
	char events[4096];
	int r;

	while ((r = take_line(j, word, ret, ret_bytes, err)) == 0) {
		r = fd_wait(j->inotify_fd, POLLIN, deadline_ns);
		if (r < 0)
			return brumate_fail(err, -r, "job %s did not say \"%s\": %m", j->id, word);
		if (read(j->inotify_fd, events, sizeof(events)) < 0 && errno != EAGAIN)
			return brumate_fail(err, errno, "inotify: %m");
	}
	return r < 0 ? r : 0;
}

int bench_job_ask(struct bench_job *j, int signal, const char *word, char *ret, size_t ret_bytes,
		  struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s,s:i}", "job", j->id, "signal", signal);
	auto_json json_t *reply = NULL;
	int r = p ? client_ask("Kill", p, &reply, err) : brumate_fail(err, ENOMEM, "%m");

	return r < 0 ? r : bench_job_line(j, word, ret, ret_bytes, err);
}

void bench_job_fini(struct bench_job *j)
{
	auto_json json_t *kill = json_pack("{s:s,s:i}", "job", j->id, "signal", SIGKILL);
	auto_json json_t *job = json_pack("{s:s}", "job", j->id);
	auto_json json_t *killed = NULL, *waited = NULL, *removed = NULL;

	if (j->id[0] && client_ask("Kill", kill, &killed, NULL) == 0)
		client_ask("Wait", job, &waited, NULL);
	if (j->id[0])
		client_ask("Remove", job, &removed, NULL);
	cleanup_close(&j->log_fd);
	cleanup_close(&j->inotify_fd);
	*j = BENCH_JOB_EMPTY;
}
