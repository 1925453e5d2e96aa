// SPDX-License-Identifier: MIT
/*
 * `brumate events`: what happened to jobs, out of the two files that their shims append to (job/events.h). --follow
 * waits by inotify, and keeps reading the file that has been moved aside, as who opened it before may still append.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/pages.h"
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "job/events.h"

/* A file as far as it was read. */
struct tail {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
	char *line; /* owned: what was read of a line without its end */
	size_t len;
};

/* The newer file is opened first: where it is moved meanwhile, it is found twice, and not missed. */
enum { TAIL_OLD, TAIL_NEW, TAILS };

struct reader {
	const struct invocation *in;
	uint64_t since_ms;
	struct tail tails[TAILS];
	bool *seen;   /* for each operand: an event of it was there */
	bool is_mute; /* events are looked for, not shown */
};

/* ---- a line ---- */

static bool is_word_of(const char *word, json_t *event)
{
	const char *id = text_of(event, "job");

	return !strcmp(word, text_of(event, "name")) ||
	       (strlen(word) >= 4 && !strncmp(word, id, strlen(word)));
}

static bool is_asked_for(struct reader *r, json_t *event)
{
	bool wanted = !r->in->n_operands;
	uint64_t ms = 0;

	for (int i = 0; i < r->in->n_operands; i++)
		if (is_word_of(r->in->operands[i], event))
			wanted = r->seen[i] = true;
	return wanted && clock_parse_stamp(&ms, text_of(event, "time")) == 0 && ms >= r->since_ms;
}

static void describe_operation(char *ret, size_t room, json_t *event)
{
	const uint64_t image = bytes_of(event, "image_bytes"), gpu = bytes_of(event, "gpu_bytes");
	const double still = json_number_value(json_object_get(event, "downtime_s"));
	const char *checkpoint = text_of(event, "checkpoint");
	char bytes[WORD_BYTES], took[WORD_BYTES], stood[WORD_BYTES];

	format_bytes(bytes, image ? image : gpu);
	format_seconds(took, json_number_value(json_object_get(event, "seconds")));
	format_seconds(stood, still);
	snprintf(ret, room, "%s%s%s in %s%s%s", checkpoint, *checkpoint ? ": " : "", bytes, took,
		 still > 0 ? ", stood still " : "", still > 0 ? stood : "");
}

static void describe_schedule(char *ret, size_t room, json_t *event)
{
	char every[WORD_BYTES];

	format_seconds(every, (double)bytes_of(event, "every_ms") / 1e3);
	if (bytes_of(event, "every_ms"))
		snprintf(ret, room, "every %s", every);
	else
		snprintf(ret, room, "ended");
}

static void describe_hook(char *ret, size_t room, json_t *event)
{
	const char *output = text_of(event, "output");
	const int first = (int)strcspn(output, "\r\n");

	if (json_object_get(event, "exit_code"))
		snprintf(ret, room, "%s: exit status %d%s%.*s", text_of(event, "hook"),
			 (int)bytes_of(event, "exit_code"), first ? ": " : "", first, output);
	else
		snprintf(ret, room, "%s: %s", text_of(event, "hook"), text_of(event, "reason"));
}

/* What a person wants to know in addition to the kind of the event. */
static void describe(char *ret, size_t room, json_t *event)
{
	const char *what = text_of(event, "event");

	*ret = '\0';
	if (!strcmp(what, "hook"))
		describe_hook(ret, room, event);
	else if (json_object_get(event, "seconds"))
		describe_operation(ret, room, event);
	else if (json_object_get(event, "operation"))
		snprintf(ret, room, "%s: %s", text_of(event, "operation"),
			 text_of(event, "reason"));
	else if (!strcmp(what, "schedule"))
		describe_schedule(ret, room, event);
	else if (json_object_get(event, "exit_code"))
		snprintf(ret, room, "exit status %d", (int)bytes_of(event, "exit_code"));
	else if (json_object_get(event, "pid"))
		snprintf(ret, room, "process %d", (int)bytes_of(event, "pid"));
	else if (json_object_get(event, "command"))
		snprintf(ret, room, "%s", text_of(event, "command"));
	else if (!strcmp(what, "state"))
		snprintf(ret, room, "%s -> %s", text_of(event, "from"), text_of(event, "state"));
	else
		snprintf(ret, room, "%s", text_of(event, "reason"));
}

static void print_local_time(uint64_t ms)
{
	const time_t seconds = (time_t)(ms / 1000);
	char date[32];
	struct tm tm;

	if (!localtime_r(&seconds, &tm) || !strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm))
		snprintf(date, sizeof(date), "-");
	printf("%s.%03u", date, (unsigned)(ms % 1000));
}

static void print_event(json_t *event)
{
	const uint64_t missed = bytes_of(event, "missed");
	char details[1024];
	uint64_t ms = 0;

	if (missed)
		printf("(%llu events could not be written)\n", (unsigned long long)missed);
	clock_parse_stamp(&ms, text_of(event, "time"));
	describe(details, sizeof(details), event);
	print_local_time(ms);
	printf("  %-8s  ", text_of(event, "job"));
	print_plain(stdout, text_of(event, "name"));
	printf("  ");
	print_plain(stdout, text_of(event, "event"));
	printf("%s", *details ? "  " : "");
	print_plain(stdout, details);
	putchar('\n');
}

static void take_line(struct reader *r, const char *line, size_t len)
{
	auto_json json_t *event = json_loadb(line, len, 0, NULL);

	if (!json_is_object(event) || !is_asked_for(r, event) || r->is_mute)
		return;
	if (wants_json(r->in))
		printf("%.*s\n", (int)len, line);
	else
		print_event(event);
}

/* ---- the files ---- */

static void tail_close(struct tail *t)
{
	cleanup_close(&t->fd);
	free(t->line);
	*t = (struct tail){ .fd = -1 };
}

static int add_bytes(struct tail *t, const char *bytes, size_t n)
{
	char *more = t->len + n <= EVENTS_LINE_BYTES_MAX ? realloc(t->line, t->len + n) : NULL;

	if (!more)
		return -ENOMEM;
	memcpy(more + t->len, bytes, n);
	t->line = more;
	t->len += n;
	return 0;
}

/* A line that is longer than any event is dropped, and reading continues at the next line. */
static void take_bytes(struct reader *r, struct tail *t, const char *bytes, size_t n)
{
	while (n) {
		const char *end = memchr(bytes, '\n', n);
		const size_t part = end ? (size_t)(end - bytes) : n;

		if (part && add_bytes(t, bytes, part) < 0)
			t->len = 0;
		if (end && t->len)
			take_line(r, t->line, t->len);
		if (end)
			t->len = 0;
		bytes += part + (end != NULL);
		n -= part + (end != NULL);
	}
}

static int read_tail(struct reader *r, struct tail *t, struct brumate_error *err)
{
	char buf[65536];
	ssize_t n = 0;

	while (t->fd >= 0 && (n = read(t->fd, buf, sizeof(buf))) > 0)
		take_bytes(r, t, buf, (size_t)n);
	return n < 0 ? brumate_fail(err, errno, "events: %m") : 0;
}

static struct tail tail_open(const char *name)
{
	auto_free char *path = path_format("%s/%s", path_state_dir(), name);
	auto_close int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return (struct tail){ .fd = -1 };
	return (struct tail){ .fd = take_fd(&fd), .dev = st.st_dev, .ino = st.st_ino };
}

static bool is_same_file(const struct tail *a, const struct tail *b)
{
	return a->fd >= 0 && b->fd >= 0 && a->dev == b->dev && a->ino == b->ino;
}

/* Opens what stands under the two names now, and goes on where it is a file that was being read. */
static void look_for_files(struct reader *r)
{
	struct tail found[TAILS];

	found[TAIL_NEW] = tail_open(EVENTS_FILE);
	found[TAIL_OLD] = tail_open(EVENTS_FILE_OLD);
	if (is_same_file(&found[TAIL_OLD], &found[TAIL_NEW]))
		tail_close(&found[TAIL_NEW]);
	for (int i = 0; i < TAILS; i++)
		for (int k = 0; k < TAILS; k++)
			if (is_same_file(&found[i], &r->tails[k])) {
				tail_close(&found[i]);
				found[i] = r->tails[k];
				r->tails[k] = (struct tail){ .fd = -1 };
			}
	for (int i = 0; i < TAILS; i++) {
		tail_close(&r->tails[i]);
		r->tails[i] = found[i];
	}
}

static int read_files(struct reader *r, struct brumate_error *err)
{
	int result = 0;

	for (int i = 0; i < TAILS && result == 0; i++)
		result = read_tail(r, &r->tails[i], err);
	return result;
}

/* Files that are moved away are read to their ends first. */
static int read_all(struct reader *r, struct brumate_error *err)
{
	int result = read_files(r, err);

	if (result < 0)
		return result;
	look_for_files(r);
	result = read_files(r, err);
	if (result == 0 && fflush(stdout) == EOF)
		return brumate_fail(err, errno, "stdout: %m");
	return result;
}

/* ---- the command ---- */

/* A job that has no event has a record, or there is none of that name: found before the first event is shown. */
static int check_operands(struct reader *r, struct brumate_error *err)
{
	int result = 0;

	if (!r->in->n_operands)
		return 0;
	r->is_mute = true;
	result = read_all(r, err);
	r->is_mute = false;
	for (int i = 0; i < TAILS; i++)
		tail_close(&r->tails[i]);
	for (int i = 0; i < r->in->n_operands && result == 0; i++)
		if (!r->seen[i])
			result = client_ask_about("Status", "job", r->in->operands[i], NULL, err);
	return result;
}

int job_table_watch(struct brumate_error *err)
{
	const char *dir = path_state_dir();
	auto_close int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	int r = mkdir_parents(dir, 0700);

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", dir);
	if (fd < 0 || inotify_add_watch(fd, dir, IN_MODIFY | IN_CREATE | IN_MOVED_TO) < 0)
		return brumate_fail(err, errno, "watch %s: %m", dir);
	return take_fd(&fd);
}

/* Returns 0 once the user has had enough, or nobody reads stdout any more. */
static int follow(struct reader *r, int inotify_fd, struct brumate_error *err)
{
	struct pollfd fds[] = {
		{ .fd = inotify_fd, .events = POLLIN },
		{ .fd = interrupt_watch(false), .events = POLLIN },
		{ .fd = STDOUT_FILENO },
	};
	int result = 0;

	while (result == 0) {
		char changes[4096];

		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			return brumate_fail(err, errno, "poll: %m");
		if (fds[1].revents || fds[2].revents & POLLERR)
			return 0;
		if (fds[0].revents && read(inotify_fd, changes, sizeof(changes)) < 0 &&
		    errno != EAGAIN)
			return brumate_fail(err, errno, "inotify: %m");
		result = read_all(r, err);
	}
	return result;
}

static int show(struct reader *r, struct brumate_error *err)
{
	const bool follows = r->in->values[OPT_FOLLOW];
	auto_close int inotify_fd = follows ? job_table_watch(err) : -1;

	if (follows && inotify_fd < 0)
		return inotify_fd;
	int result = check_operands(r, err);
	if (result == 0)
		result = read_all(r, err);
	return result == 0 && follows ? follow(r, inotify_fd, err) : result;
}

int verb_events(const struct invocation *in, struct brumate_error *err)
{
	auto_free bool *seen = calloc((size_t)in->n_operands + 1, sizeof(*seen));
	struct reader r = { .in = in, .seen = seen, .tails = { { .fd = -1 }, { .fd = -1 } } };
	int result = 0;

	if (!seen)
		return brumate_fail(err, ENOMEM, "%m");
	if (in->values[OPT_SINCE])
		result = parse_since(&r.since_ms, in->values[OPT_SINCE], err);
	if (result == 0)
		result = show(&r, err);
	for (int i = 0; i < TAILS; i++)
		tail_close(&r.tails[i]);
	return result < 0 ? result : EXIT_OK;
}
