// SPDX-License-Identifier: MIT
/*
 * One thread waits for the job's end, the main one copies the log as inotify tells of its growth. The
 * log is read to its end after the job has ended, so that nothing of it is missed.
 */
#include "cli/follow.h"
#include "cli/client.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

struct waiter {
	const char *id;
	int stop_fd, done_fd;
	json_t *reply;
	int r;
	struct brumate_error err;
};

struct follower {
	const char *id;
	enum follow_signals signals;
	int log_fd, inotify_fd, interrupt_fd;
	off_t offset;
	uint64_t last_interrupt_ns; /* 0: none yet */
};

static void *wait_for_end(void *arg)
{
	struct waiter *w = arg;
	auto_json json_t *parameters = json_pack("{s:s}", "job", w->id);

	w->r = client_call("Wait", parameters, NULL, NULL, w->stop_fd, &w->reply, &w->err);
	eventfd_write(w->done_fd, 1);
	return NULL;
}

static int copy_new(struct follower *f, struct brumate_error *err)
{
	char buf[65536];
	struct stat st;

	if (f->log_fd < 0)
		return 0;
	if (fstat(f->log_fd, &st) == 0 && st.st_size < f->offset)
		f->offset = 0; /* somebody truncated it */
	for (;;) {
		ssize_t n = pread(f->log_fd, buf, sizeof(buf), f->offset);

		if (n <= 0)
			return n < 0 ? brumate_fail(err, errno, "log: %m") : 0;
		f->offset += n;
		int r = fd_write_full(STDOUT_FILENO, buf, (size_t)n);
		if (r < 0)
			return brumate_fail(err, -r, "stdout: %m");
	}
}

/* Returns FOLLOW_DETACHED or 0. */
static int handle_interrupt(struct follower *f)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int number = interrupt_take();
	bool again = f->last_interrupt_ns && clock_since_s(f->last_interrupt_ns) < 1;

	if (!number)
		return 0;
	if (f->signals == FOLLOW_DETACHES || number == SIGHUP || (number == SIGINT && again)) {
		fprintf(stderr, "detached; job %s goes on\n", f->id);
		return FOLLOW_DETACHED;
	}
	if (number == SIGINT)
		f->last_interrupt_ns = clock_now_ns();

	auto_json json_t *kill = json_pack("{s:s,s:i}", "job", f->id, "signal", number);
	/* A job that ended meanwhile cannot be signalled: its end is about to be told. */
	if (client_ask("Kill", kill, NULL, &err) < 0 && err.code != ESRCH)
		fprintf(stderr, "brumate: %s\n", err.text);
	return 0;
}

/* Returns 0 once @done_fd is readable and all is copied; FOLLOW_DETACHED; <0. */
static int copy_until(struct follower *f, int done_fd, struct brumate_error *err)
{
	struct pollfd fds[] = {
		{ .fd = done_fd, .events = POLLIN },
		{ .fd = f->inotify_fd, .events = POLLIN },
		{ .fd = f->interrupt_fd, .events = POLLIN },
	};

	for (;;) {
		char events[4096];
		bool done = fds[0].revents;
		int r = copy_new(f, err);

		if (r < 0 || done)
			return r;
		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			return brumate_fail(err, errno, "poll: %m");
		if (fds[1].revents && read(f->inotify_fd, events, sizeof(events)) < 0 &&
		    errno != EAGAIN)
			return brumate_fail(err, errno, "inotify: %m");
		if (fds[2].revents && handle_interrupt(f) == FOLLOW_DETACHED)
			return FOLLOW_DETACHED;
	}
}

/* Only regular files grow in a way that can be followed; others are left alone. */
static int open_log(struct follower *f, const char *log, struct brumate_error *err)
{
	struct stat st;

	if (!log || stat(log, &st) < 0 || !S_ISREG(st.st_mode)) {
		fprintf(stderr, "job %s has no log that can be shown\n", f->id);
		return 0;
	}
	f->log_fd = open(log, O_RDONLY | O_CLOEXEC);
	if (f->log_fd < 0)
		return brumate_fail(err, errno, "%s: %m", log);
	f->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (f->inotify_fd < 0 || inotify_add_watch(f->inotify_fd, log, IN_MODIFY) < 0)
		return brumate_fail(err, errno, "watch %s: %m", log);
	return 0;
}

static int run_follower(struct follower *f, struct waiter *w, struct brumate_error *err)
{
	pthread_t thread;
	int r = pthread_create(&thread, NULL, wait_for_end, w);
	if (r)
		return brumate_fail(err, r, "thread: %m");

	r = copy_until(f, w->done_fd, err);
	eventfd_write(w->stop_fd, 1);
	pthread_join(thread, NULL);
	if (r == 0 && w->r < 0) {
		*err = w->err;
		return w->r;
	}
	return r;
}

int follow_job(json_t *job, off_t offset, enum follow_signals signals, json_t **ret_job,
	       struct brumate_error *err)
{
	const char *id = json_string_value(json_object_get(job, "id"));
	auto_close int stop_fd = eventfd(0, EFD_CLOEXEC), done_fd = eventfd(0, EFD_CLOEXEC);
	struct waiter w = { .id = id, .stop_fd = stop_fd, .done_fd = done_fd };
	struct follower f = { .id = id,
			      .signals = signals,
			      .log_fd = -1,
			      .inotify_fd = -1,
			      .interrupt_fd = interrupt_watch(false),
			      .offset = offset };

	if (!id)
		return brumate_fail(err, EPROTO, "the reply names no job");
	if (stop_fd < 0 || done_fd < 0 || f.interrupt_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");

	int r = open_log(&f, json_string_value(json_object_get(job, "log")), err);
	if (r == 0)
		r = run_follower(&f, &w, err);
	cleanup_close(&f.log_fd);
	cleanup_close(&f.inotify_fd);
	if (r == 0)
		*ret_job = json_incref(json_object_get(w.reply, "job"));
	json_decref(w.reply);
	return r;
}

int show_log(const char *log, struct brumate_error *err)
{
	struct follower f = { .log_fd = open(log, O_RDONLY | O_CLOEXEC) };

	if (f.log_fd < 0)
		return brumate_fail(err, errno, "%s: %m", log);
	int r = copy_new(&f, err);
	cleanup_close(&f.log_fd);
	return r;
}

off_t log_size(const char *path)
{
	struct stat st;

	return path && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : 0;
}

int job_exit_status(json_t *job, struct brumate_error *err)
{
	const char *id = json_string_value(json_object_get(job, "id"));
	const char *state = json_string_value(json_object_get(job, "state"));
	const char *message = json_string_value(json_object_get(job, "message"));
	json_t *code = json_object_get(job, "exit_code");

	id = id ? id : "?";
	if (state && !strcmp(state, "checkpointed")) {
		fprintf(stderr, "job %s was checkpointed; `brumate restore %s` brings it back\n",
			id, id);
		return EXIT_OK;
	}
	if (json_is_integer(code))
		return (int)(json_integer_value(code) & 0xff);

	brumate_fail(err, ECHILD, "job %s is %s: %s", id, state ? state : "gone",
		     message && *message ? message : "how it ended is not known");
	brumate_error_exit(err, state && !strcmp(state, "lost") ? EXIT_JOB_LOST : EXIT_FAILED);
	return -ECHILD;
}

int follow_to_end(json_t *job, off_t offset, enum follow_signals signals, struct brumate_error *err)
{
	auto_json json_t *ended = NULL;
	int r = follow_job(job, offset, signals, &ended, err);

	if (r == FOLLOW_DETACHED)
		return EXIT_OK;
	return r < 0 ? r : job_exit_status(ended, err);
}
