// SPDX-License-Identifier: MIT
/* Appending to the file of events; see events.h. */
#include "job/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "wire/wire.h"

/* How many events of this process could not be written since the last one that was. */
static atomic_uint n_missed;

/* ---- the file ---- */

/* Several processes may find the file full at once. The one that gets its lock, and finds it still in its place, moves
 * it. */
static void rotate(int fd, const char *path, const char *old)
{
	struct stat here, there;

	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return;
	if (fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_dev == there.st_dev &&
	    here.st_ino == there.st_ino && rename(path, old) < 0)
		log_debug("events: %s stays: reason=\"%m\"", path);
	flock(fd, LOCK_UN);
}

static int open_events(const char *path)
{
	int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd < 0 ? -errno : fd;
}

static int open_with_room(void)
{
	auto_free char *path = path_format("%s/%s", path_state_dir(), EVENTS_FILE);
	auto_free char *old = path_format("%s/%s", path_state_dir(), EVENTS_FILE_OLD);
	auto_close int fd = path && old ? open_events(path) : -ENOMEM;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 ? fd : -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if (st.st_size < EVENTS_BYTES_MAX)
		return take_fd(&fd);
	rotate(fd, path, old);
	return open_events(path);
}

/* A writer was killed, or the disk was full, in the middle of the last line. */
static bool ends_in_half_a_line(int fd)
{
	struct stat st;
	char last = '\n';

	if (fstat(fd, &st) == 0 && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) < 0)
		return false;
	return last != '\n';
}

static int append(const char *line)
{
	auto_close int fd = open_with_room();

	if (fd < 0)
		return fd;
	if (!fd_disk_has(fd, EVENTS_SPARE_BYTES)) /* the last room is for records */
		return -ENOSPC;
	auto_free char *text = path_format("%s%s\n", ends_in_half_a_line(fd) ? "\n" : "", line);
	if (!text)
		return -ENOMEM;
	const ssize_t len = (ssize_t)strlen(text), n = write(fd, text, (size_t)len);
	return n < 0 ? -errno : n < len ? -ENOSPC : 0;
}

/* ---- an event ---- */

static json_t *make_event(const struct target *t, const char *what, json_t *details,
			  unsigned missed)
{
	char stamp[CLOCK_STAMP_BYTES];

	clock_stamp(stamp);
	auto_json json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "time", stamp, "event", what, "job",
					t->id, "name", t->name);
	if (!o || (details && json_object_update(o, details) < 0))
		return NULL;
	if (missed && json_object_set_new(o, "missed", json_integer(missed)) < 0)
		return NULL;
	return take_ptr(&o);
}

void event_add(const struct target *t, const char *what, json_t *details)
{
	const unsigned missed = atomic_exchange(&n_missed, 0);
	auto_json json_t *owned = details;
	auto_json json_t *o = make_event(t, what, owned, missed);
	auto_free char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
	int r = line && strlen(line) < EVENTS_LINE_BYTES_MAX ? append(line) : -ENOMEM;

	if (r == 0)
		return;
	atomic_fetch_add(&n_missed, missed + 1);
	log_debug("an event is left out: job=%s event=%s reason=\"%s\"", t->id, what, strerror(-r));
}

/* ---- what was ---- */

struct search {
	const char *what, *key;
	uint64_t bytes;
	bool goes_on;
	struct event_figures *found;
	double distance; /* of @found: by how much one is larger than the other; 0: there is none */
};

/* Those that differ by less than a tenth are alike. */
static void consider_event(struct search *s, json_t *o)
{
	const double at = (double)json_integer_value(json_object_get(o, s->key)) + 1;
	const double wanted = (double)s->bytes + 1;
	const double distance = at > wanted ? at / wanted : wanted / at;
	const double seconds = json_number_value(json_object_get(o, "seconds"));
	const double downtime = json_number_value(json_object_get(o, "downtime_s"));
	const char *what = json_string_value(json_object_get(o, "event"));
	const char *time = json_string_value(json_object_get(o, "time"));

	if (!what || !time || strcmp(what, s->what) || (downtime > 0) != s->goes_on)
		return;
	if (s->distance == 0 || seconds < s->found->least_seconds)
		s->found->least_seconds = seconds;
	if (s->distance > 0 && distance > s->distance * 1.1)
		return;
	s->distance = distance;
	s->found->seconds = seconds;
	s->found->downtime_s = downtime;
	s->found->bytes = (uint64_t)(at - 1);
	snprintf(s->found->time, sizeof(s->found->time), "%s", time);
}

static void search_file(struct search *s, const char *name)
{
	auto_free char *path = path_format("%s/%s", path_state_dir(), name), *text = NULL;
	char kind[64], *rest;

	if (!path || file_read(AT_FDCWD, path, 2 * EVENTS_BYTES_MAX, &text, NULL) < 0)
		return;
	snprintf(kind, sizeof(kind), "\"event\":\"%s\"", s->what);
	rest = text;
	for (char *line; (line = strsep(&rest, "\n"));) {
		auto_json json_t *o = strstr(line, kind) ? json_loads(line, 0, NULL) : NULL;

		if (o)
			consider_event(s, o);
	}
}

int events_find_like(struct event_figures *ret, const char *what, const char *key, uint64_t bytes,
		     bool goes_on)
{
	struct event_figures found = { 0 };
	struct search s = { what, key, bytes, goes_on, &found, 0 };

	search_file(&s, EVENTS_FILE_OLD);
	search_file(&s, EVENTS_FILE);
	if (s.distance == 0)
		return -ENOENT;
	*ret = found;
	return 0;
}

/* ---- what is told of kinds ---- */

/* The kind of a change that is more than a change of state. */
static const char *kind_of(const struct target *t, enum job_state from)
{
	if (from == JOB_CREATED && t->state == JOB_RUNNING)
		return t->owned_by->was_started(t) ? "started" : "adopted";
	if (t->state == JOB_EXITED && from != JOB_RESTORING)
		return "exited";
	if (t->state == JOB_LOST && from != JOB_RESTORING)
		return "lost";
	return "state";
}

void event_add_state(const struct target *t, enum job_state from)
{
	auto_json json_t *o = json_pack("{s:s,s:s}", "from", job_state_name(from), "state",
					job_state_name(t->state));

	if (!o)
		return;
	if (t->state == JOB_RUNNING && from == JOB_CREATED)
		json_object_set_new(o, "pid",
				    json_integer(t->command.pid ? t->command.pid : t->root.pid));
	if (t->state == JOB_EXITED && t->exit_code != JOB_EXIT_UNKNOWN)
		json_object_set_new(o, "exit_code", json_integer(t->exit_code));
	if (t->state == JOB_LOST && t->message[0])
		json_object_set_new(o, "reason", wire_string(t->message));
	event_add(t, kind_of(t, from), take_ptr(&o));
}

void event_add_failure(const struct target *t, const char *operation, const char *reason)
{
	event_add(t, "failed",
		  json_pack("{s:s,s:o}", "operation", operation, "reason", wire_string(reason)));
}

json_t *event_gpus(const struct target *t)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < t->n_gpus; i++)
		if (t->gpus[i].bytes)
			json_array_append_new(list,
					      json_pack("{s:s,s:s,s:I}", "uuid", t->gpus[i].uuid,
							"name", t->gpus[i].name, "bytes",
							(json_int_t)t->gpus[i].bytes));
	return list;
}
