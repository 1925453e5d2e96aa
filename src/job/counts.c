// SPDX-License-Identifier: MIT
/* What the operations of a job came to. See counts.h. */
#include "job/counts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "wire/wire.h"

enum { COUNTS_BYTES_MAX = 64 << 10 };

/* What job_counts() tells, of the counts.json in @dir. */
static json_t *counts_read(const char *dir)
{
	auto_free char *path = path_format("%s/counts.json", dir);
	auto_free char *text = NULL;

	if (!path)
		return NULL;
	if (file_read(AT_FDCWD, path, COUNTS_BYTES_MAX, &text, NULL) < 0)
		return json_object();
	json_t *counts = json_loads(text, 0, NULL);
	if (json_is_object(counts))
		return counts;
	json_decref(counts); /* damaged: as if there were none */
	return json_object();
}

json_t *job_counts(const struct target *t)
{
	return counts_read(t->dir);
}

static void add_integer(json_t *o, const char *key, uint64_t more)
{
	json_int_t now = json_integer_value(json_object_get(o, key));

	json_object_set_new(o, key, json_integer(now + (json_int_t)more));
}

static void add_seconds(json_t *o, const char *key, double more)
{
	double now = json_number_value(json_object_get(o, key));

	json_object_set_new(o, key, json_real(now + (more > 0 ? more : 0)));
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)NS_PER_S : 0;
}

/* The time that the job stood still is known once it runs again: of one that was suspended, when it is resumed. A
 * checkpoint of a suspended job changes nothing about that. */
static void add_standstill(json_t *counts, json_t *of_kind, const struct job_outcome *outcome)
{
	json_int_t since = json_integer_value(json_object_get(counts, "still_since_ns"));
	uint64_t from_ns = outcome->stopped_ns;

	if (!strcmp(outcome->kind, "suspend"))
		json_object_set_new(counts, "still_since_ns", json_integer((json_int_t)from_ns));
	else if (strcmp(outcome->kind, "checkpoint") != 0)
		json_object_del(counts, "still_since_ns");
	if (!strcmp(outcome->kind, "resume") && since > 0)
		from_ns = (uint64_t)since;
	if (from_ns && outcome->released_ns)
		add_seconds(of_kind, "standstill_s",
			    seconds_between(from_ns, outcome->released_ns));
}

static void add_done(json_t *counts, json_t *of_kind, const struct job_outcome *outcome)
{
	add_integer(of_kind, "done", 1);
	add_seconds(of_kind, "seconds", outcome->seconds);
	add_integer(of_kind, "gpu_bytes", outcome->gpu_bytes);
	add_integer(of_kind, "image_bytes", outcome->image_bytes);
	json_object_set_new(of_kind, "last_ms",
			    json_integer((json_int_t)(clock_wall_ns() / NS_PER_MS)));
	add_standstill(counts, of_kind, outcome);
}

static json_t *find_kind(json_t *counts, const char *kind)
{
	json_t *of_kind = json_object_get(counts, kind);

	if (json_is_object(of_kind))
		return of_kind;
	json_object_set_new(counts, kind, json_object());
	return json_object_get(counts, kind);
}

static int write_counts(const char *dir, json_t *counts)
{
	auto_free char *path = path_format("%s/counts.json", dir);
	auto_free char *text = json_dumps(counts, JSON_COMPACT);

	return path && text ? file_swap(AT_FDCWD, path, text, strlen(text), 0600) : -ENOMEM;
}

/* Adds @outcome to the counts.json in @dir. 0 or -errno. */
static int counts_add(const char *dir, const struct job_outcome *outcome)
{
	auto_json json_t *counts = counts_read(dir);
	json_t *of_kind = find_kind(counts, outcome->kind);

	if (outcome->result == 0)
		add_done(counts, of_kind, outcome);
	else
		add_integer(of_kind, outcome->result == -ECANCELED ? "cancelled" : "failed", 1);
	return write_counts(dir, counts);
}

void job_count(const struct target *t, const struct job_outcome *outcome)
{
	int r = counts_add(t->dir, outcome);

	if (r < 0)
		log_warn("an operation is not counted: job=%s reason=\"%s\"", t->id, strerror(-r));
}

/* ---- pods ---- */

static char *pods_dir(void)
{
	return path_format("%s/pods", path_state_dir());
}

/* The lock keeps two commands that end at once from counting as one. */
static int add_locked(const char *dir, const struct job_outcome *outcome)
{
	int r = mkdir_parents(dir, 0700);
	auto_close int fd = r < 0 ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (r < 0)
		return r;
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return -errno;
	return counts_add(dir, outcome);
}

void pod_count(const struct job_outcome *outcome)
{
	auto_free char *dir = pods_dir();
	int r = dir ? add_locked(dir, outcome) : -ENOMEM;

	if (r < 0)
		log_warn("a checkpoint of a pod is not counted: reason=\"%s\"", strerror(-r));
}

json_t *pod_counts(void)
{
	auto_free char *dir = pods_dir();

	return dir ? counts_read(dir) : NULL;
}
