// SPDX-License-Identifier: MIT
/*
 * `brumate logs` and `wait`: what a job says, and how it ends. One thread waits for the job's end, the
 * main one copies the log as inotify tells of its growth. The log is read to its end after the job has ended, so
 * that nothing of it is missed.
 */
#include "cli/verbs.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/thread.h"
#include "job/log.h"

enum { FOLLOW_DETACHED = 1 };

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
	off_t offset, end;	    /* @end: what is written behind it is not shown */
	uint64_t last_interrupt_ns; /* 0: none yet */
	const char *marks_path;	    /* lines are shown with times; NULL: without */
	struct log_mark *marks;	    /* owned */
	size_t n_marks;
	off_t unseen; /* what was there before we looked; later lines were written as they are shown */
	bool in_line; /* what comes next is not the beginning of a line */
	bool cut;     /* what comes next is the rest of a line whose beginning is gone */
};

/* ---- when lines were written ---- */

static void read_marks(struct follower *f)
{
	struct log_mark *marks;
	size_t n;

	if (!f->marks_path || log_marks_read(&marks, &n, f->marks_path) < 0)
		return;
	free(f->marks);
	f->marks = marks;
	f->n_marks = n;
}

/* The first mark after what stands at @offset; @n_marks: none. */
static size_t mark_after(const struct log_mark *marks, size_t n_marks, off_t offset)
{
	size_t low = 0, high = n_marks;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (marks[middle].size_bytes > (uint64_t)offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static void print_stamp(const struct follower *f, off_t offset)
{
	const size_t i = mark_after(f->marks, f->n_marks, offset);
	uint64_t ms = i < f->n_marks ? f->marks[i].ms : 0;
	char stamp[CLOCK_STAMP_BYTES] = "-";

	if (i == f->n_marks && offset >= f->unseen)
		ms = clock_wall_ns() / NS_PER_MS;
	if (ms)
		clock_stamp_of(stamp, ms);
	printf("%-*s ", (int)CLOCK_STAMP_BYTES - 1, stamp);
}

/* @bytes stand in the log at @offset. */
static int print_stamped(struct follower *f, const char *bytes, size_t n, off_t offset)
{
	for (size_t done = 0; done < n;) {
		const char *end = memchr(bytes + done, '\n', n - done);
		const size_t part = end ? (size_t)(end - bytes) + 1 - done : n - done;

		if (!f->in_line)
			print_stamp(f, offset + (off_t)done);
		fwrite(bytes + done, 1, part, stdout);
		f->in_line = !end;
		done += part;
	}
	return fflush(stdout) == EOF ? -errno : 0;
}

static void *wait_for_end(void *arg)
{
	struct waiter *w = arg;
	auto_json json_t *parameters = json_pack("{s:s}", "job", w->id);

	w->r = client_call("Wait", parameters, NULL, NULL, w->stop_fd, &w->reply, &w->err);
	eventfd_write(w->done_fd, 1);
	return NULL;
}

/* Passes over what was taken from the beginning of a log that had grown large; false where nothing was, or that is
 * unknown, or there is nothing more. */
static bool skip_hole(struct follower *f)
{
	const off_t data = lseek(f->log_fd, f->offset, SEEK_DATA);
	char gone[WORD_BYTES];

	if (data <= f->offset)
		return false;
	format_bytes(gone, (uint64_t)(data - f->offset));
	print_styled(stderr, STYLE_YELLOW, "note: ");
	fprintf(stderr, "%s of the log are gone (LogKeep=)\n", gone);
	f->offset = data;
	f->cut = true;
	return true;
}

/* How much of the @n bytes belongs to a line whose beginning is gone. */
static size_t cut_bytes(struct follower *f, const char *bytes, size_t n)
{
	const char *end = f->cut ? memchr(bytes, '\n', n) : NULL;

	if (!f->cut)
		return 0;
	f->cut = !end;
	return end ? (size_t)(end - bytes) + 1 : n;
}

static int copy_new(struct follower *f, struct brumate_error *err)
{
	char buf[65536];
	struct stat st;

	if (f->log_fd < 0)
		return 0;
	read_marks(f);
	if (fstat(f->log_fd, &st) == 0 && st.st_size < f->offset)
		f->offset = 0; /* it was truncated */
	for (;;) {
		skip_hole(f);
		const off_t room = f->end > f->offset ? f->end - f->offset : 0;
		const size_t most = room < (off_t)sizeof(buf) ? (size_t)room : sizeof(buf);
		ssize_t n = pread(f->log_fd, buf, most, f->offset);

		if (n <= 0)
			return n < 0 ? brumate_fail(err, errno, "log: %m") : 0;
		if (skip_hole(f)) /* it may have been taken before it was read */
			continue;
		const size_t cut = cut_bytes(f, buf, (size_t)n), left = (size_t)n - cut;
		int r = f->marks_path ? print_stamped(f, buf + cut, left, f->offset + (off_t)cut)
				      : fd_write_full(STDOUT_FILENO, buf + cut, left);
		f->offset += n;
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
		fprintf(stderr, "detached; job %s runs on\n", f->id);
		return FOLLOW_DETACHED;
	}
	if (number == SIGINT)
		f->last_interrupt_ns = clock_now_ns();

	auto_json json_t *kill = json_pack("{s:s,s:i}", "job", f->id, "signal", number);
	/* This fails if the job has ended meanwhile, which is reported next. */
	if (client_ask("Kill", kill, NULL, &err) < 0 && err.code != ESRCH)
		print_error(&err);
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

/* Opens the log if it is a regular file; others do not grow in a way that can be followed. */
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
	int r = thread_start(&thread, wait_for_end, w);
	if (r < 0)
		return brumate_fail(err, -r, "thread: %m");

	r = copy_until(f, w->done_fd, err);
	eventfd_write(w->stop_fd, 1);
	pthread_join(thread, NULL);
	if (r == 0 && w->r < 0) {
		*err = w->err;
		return w->r;
	}
	return r;
}

/* Copies the log of @job from @offset to stdout until the job ends. @ret_job: the Job as it was then; owned.
 * 0; FOLLOW_DETACHED, @ret_job not written; <0. */
static int follow_job(json_t *job, off_t offset, const char *marks_path,
		      enum follow_signals signals, json_t **ret_job, struct brumate_error *err)
{
	const char *id = json_string_value(json_object_get(job, "id"));
	auto_close int stop_fd = eventfd(0, EFD_CLOEXEC), done_fd = eventfd(0, EFD_CLOEXEC);
	struct waiter w = { .id = id, .stop_fd = stop_fd, .done_fd = done_fd };
	struct follower f = { .id = id,
			      .signals = signals,
			      .log_fd = -1,
			      .inotify_fd = -1,
			      .interrupt_fd = interrupt_watch(false),
			      .offset = offset,
			      .marks_path = marks_path,
			      .end = INT64_MAX,
			      .unseen = log_size(json_string_value(json_object_get(job, "log"))) };

	if (!id)
		return brumate_fail(err, EPROTO, "the reply names no job");
	if (stop_fd < 0 || done_fd < 0 || f.interrupt_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");

	int r = open_log(&f, json_string_value(json_object_get(job, "log")), err);
	if (r == 0)
		r = run_follower(&f, &w, err);
	cleanup_close(&f.log_fd);
	cleanup_close(&f.inotify_fd);
	free(f.marks);
	if (r == 0)
		*ret_job = json_incref(json_object_get(w.reply, "job"));
	json_decref(w.reply);
	return r;
}

/* What stands in it from @offset to @end: of a job that goes on writing, too, that is to come to an end. */
static int show_log(const char *log, off_t offset, off_t end, const char *marks_path,
		    struct brumate_error *err)
{
	struct follower f = { .log_fd = open(log, O_RDONLY | O_CLOEXEC),
			      .offset = offset,
			      .end = end,
			      .marks_path = marks_path,
			      .unseen = INT64_MAX };

	if (f.log_fd < 0)
		return brumate_fail(err, errno, "%s: %m", log);
	int r = copy_new(&f, err);
	cleanup_close(&f.log_fd);
	free(f.marks);
	return r;
}

off_t log_size(const char *path)
{
	struct stat st;

	return path && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : 0;
}

/* The exit status of `brumate` for a job that ended: its own; EXIT_JOB_LOST with @err's text where it is lost;
 * 0 with a word on stderr where it was checkpointed away. */
static int job_exit_status(json_t *job, struct brumate_error *err)
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

/* follow_to_end(), with the times of lines where @marks_path is not NULL. */
static int follow_with_times(json_t *job, off_t offset, const char *marks_path,
			     enum follow_signals signals, struct brumate_error *err)
{
	auto_json json_t *ended = NULL;
	int r = follow_job(job, offset, marks_path, signals, &ended, err);

	if (r == FOLLOW_DETACHED)
		return EXIT_OK;
	return r < 0 ? r : job_exit_status(ended, err);
}

int follow_to_end(json_t *job, off_t offset, enum follow_signals signals, struct brumate_error *err)
{
	return follow_with_times(job, offset, NULL, signals, err);
}

/* ---- the commands ---- */

static const char *log_of(json_t *job)
{
	return json_string_value(json_object_get(job, "log"));
}

/* Where the last @n_lines lines of the first @size bytes begin; one without its end counts. Read from there: logs are
 * large. */
static int find_lines(off_t *ret, int fd, off_t size, int64_t n_lines)
{
	char buf[65536];

	/* What is gone has no lines: where it is reached, all that is left is shown. */
	const off_t data = lseek(fd, 0, SEEK_DATA), first = data > 0 && data < size ? data : 0;

	*ret = 0;
	for (off_t end = size; end > first;) {
		const off_t room = (off_t)sizeof(buf),
			    part = end - first < room ? end - first : room;
		const ssize_t n = pread(fd, buf, (size_t)part, end - part);

		if (n < part) /* it is being truncated */
			return n < 0 ? -errno : 0;
		for (off_t i = part; i-- > 0;)
			if (buf[i] == '\n' && end - part + i + 1 < size && --n_lines == 0) {
				*ret = end - part + i + 1;
				return 0;
			}
		end -= part;
	}
	return 0;
}

/* Begins after the last mark from before --since, with the line that was being written. */
static int find_since(off_t *ret, const struct invocation *in, int fd, off_t size,
		      const char *marks_path, struct brumate_error *err)
{
	auto_free struct log_mark *marks = NULL;
	uint64_t since_ms, start = 0;
	size_t n = 0;
	int r = parse_since(&since_ms, in->values[OPT_SINCE], err);

	if (r < 0)
		return r;
	if ((r = log_marks_read(&marks, &n, marks_path)) < 0)
		return brumate_fail(err, -r, "%s: %m", marks_path);
	for (size_t i = 0; i < n; i++)
		if (marks[i].ms && marks[i].ms < since_ms)
			start = marks[i].size_bytes;
	*ret = (off_t)start < size ? (off_t)start : size;
	r = *ret < size ? find_lines(ret, fd, *ret + 1, 1) : 0;
	return r < 0 ? brumate_fail(err, -r, "log: %m") : 0;
}

/* Where what is shown of the first @size bytes of the log begins. */
static int find_start(off_t *ret, const struct invocation *in, const char *log, off_t size,
		      const char *marks_path, struct brumate_error *err)
{
	const char *lines = in->values[OPT_TAIL];
	int64_t n_lines = 0;
	off_t since = 0;
	struct stat st;

	*ret = 0;
	if (!lines && !in->values[OPT_SINCE])
		return 0;
	int r = lines && strcmp(lines, "0") != 0 ? parse_count(&n_lines, "--tail", lines, err) : 0;
	if (r < 0)
		return r;
	auto_close int fd = open(log, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", log);
	if (!S_ISREG(st.st_mode))
		return 0; /* nothing is kept there */
	if (in->values[OPT_SINCE] && (r = find_since(&since, in, fd, size, marks_path, err)) < 0)
		return r;
	if (lines && !n_lines)
		*ret = size;
	else if (lines && (r = find_lines(ret, fd, size, n_lines)) < 0)
		return brumate_fail(err, -r, "%s: %m", log);
	*ret = *ret > since ? *ret : since;
	return 0;
}

int verb_logs(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	off_t start;
	int r = client_ask_about("Status", "job", in->operands[0], &reply, err);
	if (r < 0)
		return r;

	json_t *job = json_object_get(reply, "job");
	if (!log_of(job)) {
		brumate_fail(err, ENOENT, "job %s has no log", in->operands[0]);
		brumate_hint(err,
			     "it was not started by brumate: its output goes where it went before");
		return -ENOENT;
	}
	auto_free char *marks_path =
		path_format("%s/jobs/%s/%s", path_state_dir(), text_of(job, "id"), JOB_LOG_MARKS);
	if (!marks_path)
		return brumate_fail(err, ENOMEM, "%m");
	const off_t end = log_size(log_of(job));
	r = find_start(&start, in, log_of(job), end, marks_path, err);
	if (r < 0)
		return r;
	const char *times = in->values[OPT_TIMESTAMPS] ? marks_path : NULL;
	return in->values[OPT_FOLLOW] ? follow_with_times(job, start, times, FOLLOW_DETACHES, err)
				      : show_log(log_of(job), start, end, times, err);
}

/* A fd that becomes readable after @timeout_ms. */
static int open_timer(uint64_t timeout_ms)
{
	struct itimerspec when = {
		.it_value = { (time_t)(timeout_ms / 1000), (long)(timeout_ms % 1000) * 1000000 },
	};
	auto_close int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

	if (!timeout_ms)
		when.it_value.tv_nsec = 1; /* 0 would disarm it */
	if (fd < 0 || timerfd_settime(fd, 0, &when, NULL) < 0)
		return -errno;
	return take_fd(&fd);
}

static int fail_timed_out(const char *job, uint64_t timeout_ms, struct brumate_error *err)
{
	char time[WORD_BYTES];

	format_seconds(time, (double)timeout_ms / 1e3);
	return brumate_fail(err, ETIMEDOUT, "wait: timed out after %s; job %s has not ended", time,
			    job);
}

int verb_wait(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	auto_close int timer = -1;
	uint64_t timeout_ms = 0;
	int r = add_string(parameters, "job", in->operands[0], err);

	if (r == 0 && in->values[OPT_TIMEOUT]) {
		r = parse_duration(&timeout_ms, "--timeout", in->values[OPT_TIMEOUT], err);
		if (r < 0)
			return r;
		timer = open_timer(timeout_ms);
		if (timer < 0)
			return brumate_fail(err, -timer, "timer: %m");
	}
	if (r == 0)
		r = client_call("Wait", parameters, NULL, NULL, timer, &reply, err);
	if (r == -ECANCELED)
		return fail_timed_out(in->operands[0], timeout_ms, err);
	if (r == 0 && wants_json(in))
		r = print_json(reply, err);
	return r < 0 ? r : job_exit_status(json_object_get(reply, "job"), err);
}
