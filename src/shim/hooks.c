// SPDX-License-Identifier: MIT
/*
 * Programs that an operator has run around operations: [Hooks] of the configuration, and the job's own (run --hook). One before a
 * suspend can forbid it; those after it, and of failures, only learn of it. A hook has the rights of the job's user, also
 * if this shim is root's, no terminal, no descriptor but its output and little environment, and ends with all that it
 * started: brumate-reaper is its root. It is no member of the job.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/thread.h"
#include "job/events.h"
#include "process/reap.h"

enum {
	OUTPUT_BYTES = 2048, /* of the beginning of what it prints, which its event keeps */
	KILL_MS = 5000,
	TIMEOUT_MS_MAX = 3600 * 1000,
	ENVIRONMENT_MAX = 24,
	PASSWD_BYTES = 16384,
	FAILURES_MAX = 8, /* hooks of failures that run at once: each has a thread and a child */
};

static const char *const hook_names[] = {
	[HOOK_BEFORE_SUSPEND] = "before-suspend",
	[HOOK_AFTER_RESUME] = "after-resume",
	[HOOK_AFTER_RESTORE] = "after-restore",
	[HOOK_FAILURE] = "failure",
};

struct hook_run {
	const struct job *job;
	enum hook hook;
	const char *program, *operation, *reason; /* the last one: of a failure; else NULL */
	uint32_t timeout_ms;
	uint64_t deadline_ns; /* once it is begun */
	char output[OUTPUT_BYTES];
	size_t n_output; /* as much as was kept */
	uint64_t printed_bytes;
};

/* ---- its environment ---- */

static int add_variable(char **env, size_t *n, const char *name, const char *value)
{
	if (!value || *n + 1 >= ENVIRONMENT_MAX)
		return 0;
	env[*n] = path_format("%s=%s", name, value);
	return env[*n] ? (++*n, 0) : -ENOMEM;
}

/* The job's user finds its files by them; another user gets none of ours. */
static int add_own(char **env, size_t *n)
{
	static const char *const names[] = { "BRUMATE_RUNTIME_DIR", "BRUMATE_STATE_DIR",
					     "BRUMATE_LOG_DIR",	    "BRUMATE_CONFIG",
					     "BRUMATE_GPU",	    "XDG_RUNTIME_DIR" };
	int r = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && r == 0; i++)
		r = add_variable(env, n, names[i], getenv(names[i]));
	return r;
}

static int add_user(char **env, size_t *n, uid_t uid)
{
	char buffer[PASSWD_BYTES];
	struct passwd entry, *found = NULL;
	int r;

	if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) != 0 || !found)
		return add_variable(env, n, "HOME", "/");
	if ((r = add_variable(env, n, "HOME", found->pw_dir)) < 0 ||
	    (r = add_variable(env, n, "USER", found->pw_name)) < 0)
		return r;
	return add_variable(env, n, "LOGNAME", found->pw_name);
}

static int make_environment(char **env, const struct hook_run *h)
{
	size_t n = 0;
	int r;

	if ((r = add_variable(env, &n, "PATH",
			      "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
			      "/sbin:/bin")) < 0 ||
	    (r = add_user(env, &n, h->job->uid)) < 0 ||
	    (r = h->job->uid == geteuid() ? add_own(env, &n) : 0) < 0 ||
	    (r = add_variable(env, &n, "BRUMATE_HOOK", hook_names[h->hook])) < 0 ||
	    (r = add_variable(env, &n, "BRUMATE_JOB", h->job->id)) < 0 ||
	    (r = add_variable(env, &n, "BRUMATE_JOB_NAME", h->job->name)) < 0 ||
	    (r = add_variable(env, &n, "BRUMATE_OPERATION", h->operation)) < 0)
		return r;
	return add_variable(env, &n, "BRUMATE_REASON", h->reason);
}

static void free_environment(char **env)
{
	for (size_t i = 0; env[i]; i++)
		free(env[i]);
}

/* ---- its life ---- */

/* Takes in what it prints, keeping the beginning, until nothing of it is left that could. */
static int read_output(struct hook_run *h, int fd, uint64_t deadline_ns)
{
	char rest[4096];

	for (;;) {
		const size_t room = sizeof(h->output) - 1 - h->n_output;
		int r = fd_wait(fd, POLLIN, deadline_ns);
		ssize_t n = r < 0 ? 0
				  : read(fd, room ? h->output + h->n_output : rest,
					 room ? room : sizeof(rest));

		/* It can read from the pipe as well, so that nothing is left of what there was. */
		if (r < 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
			return r < 0 ? r : -errno;
		if (n == 0)
			return 0;
		if (n > 0 && room)
			h->n_output += (size_t)n;
		h->printed_bytes += n > 0 ? (uint64_t)n : 0;
		if (deadline_left_ms(deadline_ns) ==
		    0) /* one that prints for ever is always ready */
			return -ETIMEDOUT;
	}
}

/* A hook may end its reaper, and what it has started then comes to us, where it would be taken for part of the job. */
static void end_orphans(pid_t session)
{
	auto_free pid_t *children = NULL;
	size_t n = 0;

	if (proc_children(getpid(), &children, &n) < 0)
		return;
	for (size_t i = 0; i < n; i++) {
		struct proc_info info;

		if (proc_read(&info, children[i], NULL) == 0 && info.sid == session)
			proc_tree_kill(info.id, deadline_in_ms(KILL_MS));
	}
}

/* Waits until all of it has ended, or ends it. Returns what was wrong with that. */
static int await_end(struct hook_run *h, struct proc_id id, int fd, struct brumate_error *err)
{
	int r = read_output(h, fd, h->deadline_ns);

	if (r == 0)
		r = proc_wait_gone(id, h->deadline_ns);
	if (r == 0 || r == -ESRCH)
		return 0;
	proc_tree_kill(id, deadline_in_ms(KILL_MS));
	return r == -ETIMEDOUT ? brumate_fail(err, ETIMEDOUT,
					      "it, or what it started, has not ended within %g s",
					      (double)h->timeout_ms / 1e3)
			       : brumate_fail(err, -r, "%m");
}

/* 0, or what is wrong with how it ended; @ret_code: -1 where that is not known. */
static int await(struct hook_run *h, pid_t pid, int fd, int *ret_code, struct brumate_error *err)
{
	struct proc_id id = PROC_ID_NONE;
	int status = 0, r = proc_identify(&id, pid, err);

	*ret_code = -1;
	if (r == 0)
		r = await_end(h, id, fd, err);
	else if (r == -ESRCH) /* what it has printed is there */
		read_output(h, fd, h->deadline_ns);
	else
		kill(pid, SIGKILL);
	/* A process of another user, as of sudo(8), cannot be killed, and is not waited for. */
	if (r < 0 && r != -ESRCH && proc_wait_gone(id, deadline_in_ms(KILL_MS)) == -ETIMEDOUT) {
		reap_release(pid);
		return r;
	}
	if (reap_wait(pid, &status) < 0)
		return brumate_fail(err, ECHILD, "nobody knows how it ended");
	if (r < 0 && r != -ESRCH)
		return r;
	*ret_code = spawn_exit_code(status);
	return *ret_code ? brumate_fail(err, EPERM, "exit status %d", *ret_code) : 0;
}

static int run_program(struct hook_run *h, int *ret_code, struct brumate_error *err)
{
	char *env[ENVIRONMENT_MAX] = { NULL };
	char *argv[] = { (char *)h->program, (char *)hook_names[h->hook], (char *)h->job->id,
			 NULL };
	int out[2], r = make_environment(env, h);
	pid_t pid = 0;

	*ret_code = -1;
	if (r == 0 && pipe2(out, O_CLOEXEC) < 0)
		r = -errno;
	if (r < 0) {
		free_environment(env);
		return brumate_fail(err, -r, "%m");
	}
	auto_close int in = out[0];
	h->deadline_ns = deadline_in_ms(h->timeout_ms);
	fcntl(in, F_SETFL, O_NONBLOCK);
	r = spawn_hook(&pid, h->job, argv, env, out[1], h->deadline_ns, err);
	close(out[1]);
	free_environment(env);
	if (r < 0)
		return r;
	r = await(h, pid, in, ret_code, err);
	end_orphans(pid);
	return r;
}

/* ---- what is told of it ---- */

static const char *first_line(struct hook_run *h)
{
	h->output[h->n_output] = '\0';
	h->output[strcspn(h->output, "\r\n")] = '\0';
	return h->output;
}

static void tell_event(const struct hook_run *h, int code, double seconds,
		       const struct brumate_error *why)
{
	json_t *o = json_pack("{s:s,s:s,s:s,s:f,s:I}", "hook", hook_names[h->hook], "operation",
			      h->operation, "program", h->program, "seconds", seconds,
			      "output_bytes", (json_int_t)h->printed_bytes);

	if (o && code >= 0)
		json_object_set_new(o, "exit_code", json_integer(code));
	if (o && code != 0)
		json_object_set_new(o, "reason", wire_string(why->text));
	if (o && h->n_output)
		json_object_set_new(o, "output", wire_string(h->output));
	event_add(&h->job->target, "hook", o);
}

static int run_one(struct hook_run *h, struct brumate_error *err)
{
	const uint64_t start_ns = clock_now_ns();
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int code, r = run_program(h, &code, &why);

	h->output[h->n_output] = '\0';
	tell_event(h, code, clock_since_s(start_ns), &why);
	if (r == 0)
		return 0;
	log_warn("the hook %s of job %s failed: program=%s reason=\"%s\"", hook_names[h->hook],
		 h->job->id, h->program, why.text);
	const char *said = first_line(h);
	brumate_fail(err, EOPNOTSUPP, "the hook %s (%s): %s%s%.200s", hook_names[h->hook],
		     h->program, why.text, *said ? ": " : "", said);
	return -EOPNOTSUPP;
}

static const char *configured(const struct brumate_conf *conf, enum hook hook)
{
	const char *const programs[] = {
		[HOOK_BEFORE_SUSPEND] = conf->hook_before_suspend,
		[HOOK_AFTER_RESUME] = conf->hook_after_resume,
		[HOOK_AFTER_RESTORE] = conf->hook_after_restore,
		[HOOK_FAILURE] = conf->hook_on_failure,
	};

	return programs[hook];
}

/* Operations wait for hooks, so none may last for ever. */
static uint32_t limited(uint64_t ms)
{
	return ms && ms <= TIMEOUT_MS_MAX ? (uint32_t)ms : TIMEOUT_MS_MAX;
}

/* The machine's, then the job's own. The first that fails is the last. */
static int run_all(const struct job *job, const struct brumate_conf *conf, enum hook hook,
		   const char *operation, const char *reason, struct brumate_error *err)
{
	const char *const programs[] = { configured(conf, hook), job->attributes.hook };
	int r = 0;

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]) && r == 0; i++) {
		struct hook_run h = { .job = job,
				      .hook = hook,
				      .program = programs[i],
				      .operation = operation,
				      .reason = reason,
				      .timeout_ms = limited(conf->hook_timeout_ms) };

		if (programs[i] && *programs[i])
			r = run_one(&h, err);
	}
	return r;
}

int hooks_before(struct shim *s, const struct brumate_conf *conf, const char *operation,
		 struct brumate_error *err)
{
	int r = strcmp(operation, "suspend")
			? 0
			: run_all(&s->job, conf, HOOK_BEFORE_SUSPEND, operation, NULL, err);

	if (r < 0)
		brumate_hint(err,
			     "nothing was done to the job; `brumate events %s` has what the "
			     "hook printed",
			     s->job.id);
	return r;
}

void hooks_after(struct shim *s, const struct brumate_conf *conf, struct op *op)
{
	const bool restored = !strcmp(op->kind, "restore");
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!restored && strcmp(op->kind, "resume"))
		return;
	if (run_all(&s->job, conf, restored ? HOOK_AFTER_RESTORE : HOOK_AFTER_RESUME, op->kind,
		    NULL, &why) < 0)
		progress_note(&op->progress, "%s", why.text);
}

/* ---- failures: nobody waits for what is run then ---- */

struct failure {
	struct shim *shim;
	struct job job; /* as far as a hook needs it: id, name, user, its own hook */
	struct brumate_conf conf;
	char *operation, *reason;
};

static void failure_free(struct failure *f)
{
	if (!f)
		return;
	conf_fini(&f->conf);
	free(f->operation);
	free(f->reason);
	free(f);
}

static bool too_many_run(struct shim *s)
{
	pthread_mutex_lock(&s->hooks.lock);
	const bool is = s->hooks.n >= FAILURES_MAX;
	pthread_mutex_unlock(&s->hooks.lock);
	return is;
}

/* Adds @more to those that run. */
static void count_running(struct shim *s, int more)
{
	pthread_mutex_lock(&s->hooks.lock);
	s->hooks.n += (unsigned)more;
	pthread_cond_broadcast(&s->hooks.ended);
	shim_wake(s); /* under the lock: after it, the shim may end */
	pthread_mutex_unlock(&s->hooks.lock);
}

static void *tell_failure(void *arg)
{
	struct failure *f = arg;
	struct shim *s = f->shim;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	run_all(&f->job, &f->conf, HOOK_FAILURE, f->operation, f->reason, &why);
	failure_free(f);
	count_running(s, -1);
	return NULL;
}

static struct failure *make_failure(struct shim *s, const char *operation, const char *reason)
{
	struct failure *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->shim = s;
	f->conf = BRUMATE_CONF_DEFAULT;
	f->job =
		(struct job){ .owned_by = &job_target_owner, .uid = s->job.uid, .gid = s->job.gid };
	memcpy(f->job.id, s->job.id, sizeof(f->job.id));
	memcpy(f->job.name, s->job.name, sizeof(f->job.name));
	f->job.attributes = s->job.attributes;
	f->operation = strdup(operation);
	f->reason = strdup(reason);
	if (f->operation && f->reason && conf_load(&f->conf, NULL) == 0 &&
	    (f->conf.hook_on_failure || *f->job.attributes.hook))
		return f;
	failure_free(f);
	return NULL;
}

void hooks_failed(struct shim *s, const char *operation, const char *reason)
{
	struct failure *f = make_failure(s, operation, reason);
	pthread_t thread;

	event_add_failure(&s->job.target, operation, reason);
	if (!f)
		return;
	if (too_many_run(s)) {
		log_warn("the hook of a failure is left out, since %d run already: job=%s",
			 FAILURES_MAX, s->job.id);
		failure_free(f);
		return;
	}
	count_running(s, 1);
	if (thread_start(&thread, tell_failure, f) == 0) {
		pthread_detach(thread);
		return;
	}
	log_warn("no thread for the hook of a failure: job=%s", s->job.id);
	failure_free(f);
	count_running(s, -1);
}

struct hooks {
	struct shim *shim;
};

static void hooks_start(void *part, struct shim *s)
{
	((struct hooks *)part)->shim = s;
}

static bool hooks_run(const void *part)
{
	struct shim *s = ((const struct hooks *)part)->shim;

	pthread_mutex_lock(&s->hooks.lock);
	bool run = s->hooks.n;
	pthread_mutex_unlock(&s->hooks.lock);
	return run;
}

/* Their deadline limits it. */
static void hooks_stop(void *part)
{
	struct shim *s = ((struct hooks *)part)->shim;

	pthread_mutex_lock(&s->hooks.lock);
	while (s->hooks.n)
		pthread_cond_wait(&s->hooks.ended, &s->hooks.lock);
	pthread_mutex_unlock(&s->hooks.lock);
}

const struct shim_part hooks_part = {
	.size_bytes = sizeof(struct hooks),
	.start = hooks_start,
	.needs_shim = hooks_run,
	.stop = hooks_stop,
};
