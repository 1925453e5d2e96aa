// SPDX-License-Identifier: MIT
/*
 * When the job wrote what stands in its log. The job writes into the file itself, so nobody sees it do so; but while it
 * lives, the loop looks once a second how far the file has grown, and appends to the marks (job/log.h) when it was
 * last written to. The job pays nothing for it, and its lines have times that are right to that second. The same look keeps a log of ours from filling the disk.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "job/log.h"

/* Where there are more marks than that, every second one goes, and a look is taken half as often. */
enum { MARKS_MAX = 32768, DISK_SPARE_BYTES = 1 << 20, TICK_MS = 10 };
/* Holes are of whole blocks, and are made seldom. */
enum { PAGE_BYTES = 65536, KEEP_SLACK_BYTES = 1 << 20 };

struct marks {
	struct shim *shim;
	struct loop_source timer;
	char *log, *path;    /* owned; NULL: there is no log */
	uint64_t size;	     /* of the log, at the last mark */
	uint64_t keep_bytes; /* of its end, on disk; 0: all of it */
	size_t n;	     /* marks in the file */
	unsigned every_s;
};

static int append_mark(struct marks *m, uint64_t ms, uint64_t size)
{
	auto_close int fd =
		open(m->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat before;
	char line[64];

	if (fd < 0 || fstat(fd, &before) < 0)
		return -errno;
	if (!fd_disk_has(fd, DISK_SPARE_BYTES))
		return -ENOSPC;
	const int len = snprintf(line, sizeof(line), "%" PRIu64 " %" PRIu64 "\n", ms, size);
	if (write(fd, line, (size_t)len) == len)
		return 0;
	return ftruncate(fd, before.st_size) < 0 ? -errno : -ENOSPC;
}

/* What could not be marked is marked at the next look. */
static void mark(struct marks *m, uint64_t ms, uint64_t size)
{
	if (append_mark(m, ms, size) < 0)
		return;
	m->size = size;
	m->n++;
}

static void thin_out(struct marks *m)
{
	auto_free struct log_mark *marks = NULL;
	size_t n = 0, kept = 0, len = 0;
	auto_free char *text = log_marks_read(&marks, &n, m->path) < 0 ? NULL : malloc(n * 48 + 1);

	for (size_t i = 0; text && i < n; i++)
		if (i % 2 || !marks[i].ms || !marks[i + (i + 1 < n)].ms) {
			len += (size_t)sprintf(text + len, "%" PRIu64 " %" PRIu64 "\n", marks[i].ms,
					       marks[i].size_bytes);
			kept++;
		}
	if (!text || file_swap(AT_FDCWD, m->path, text, len, 0600) < 0)
		return;
	m->n = kept;
	m->every_s *= 2;
}

/* The kernel stamps files by a clock that is behind by a tick at most: by then it was written. */
static uint64_t written_ms(const struct stat *st)
{
	const uint64_t now = clock_wall_ns() / NS_PER_MS;
	const uint64_t ms = (uint64_t)st->st_mtim.tv_sec * 1000 +
			    (uint64_t)st->st_mtim.tv_nsec / NS_PER_MS + TICK_MS;

	return st->st_mtim.tv_sec > 0 && ms < now ? ms : now;
}

/* Gives the disk back what the beginning of the log takes. The file stays as long as it is: CRIU wants it so at a
 * restore, and the marks count from its beginning. */
static void shorten(struct marks *m, const struct stat *st)
{
	const struct job *job = &m->shim->job;
	const uint64_t size = (uint64_t)st->st_size, on_disk = (uint64_t)st->st_blocks * 512;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!m->keep_bytes || size <= m->keep_bytes ||
	    on_disk <= m->keep_bytes + m->keep_bytes / 4 + KEEP_SLACK_BYTES)
		return;
	auto_close int fd = job_log_open(&job->target, false, &err);
	if (fd >= 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				 (off_t)((size - m->keep_bytes) / PAGE_BYTES * PAGE_BYTES)) < 0)
		brumate_fail(&err, errno, "%s: %m", m->log);
	if (!err.code)
		return;
	log_warn("the log is not shortened: job=%s reason=\"%s\"", job->id, err.text);
	m->keep_bytes = 0; /* a file system that cannot do it will not learn it */
}

static void look(struct marks *m)
{
	struct stat st;

	if (!m->log || stat(m->log, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	if ((uint64_t)st.st_size < m->size) { /* it was truncated: what was marked is gone */
		if (truncate(m->path, 0) < 0)
			return;
		m->size = m->n = 0;
	}
	if ((uint64_t)st.st_size > m->size)
		mark(m, written_ms(&st), (uint64_t)st.st_size);
	if (m->n > MARKS_MAX)
		thin_out(m);
	shorten(m, &st);
}

/* Of a log that the user chose nothing is taken. */
static uint64_t kept_bytes(const struct job *job)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_free char *own = job_log_default(job->id);

	if (!own || !job->log || strcmp(own, job->log) != 0 || conf_load(&conf, NULL) < 0)
		return 0;
	return conf.log_bytes;
}

static void marks_due(void *arg)
{
	struct marks *m = arg;

	look(m);
	loop_after(&m->timer, m->every_s * 1000ull);
}

static void marks_start(void *part, struct shim *s)
{
	struct marks *m = part;
	auto_free struct log_mark *marks = NULL;
	struct stat st;

	*m = (struct marks){ .shim = s,
			     .log = s->job.log ? strdup(s->job.log) : NULL,
			     .path = path_format("%s/%s", s->job.dir, JOB_LOG_MARKS),
			     .keep_bytes = kept_bytes(&s->job),
			     .every_s = 1 };
	loop_add(s->loop, &m->timer, marks_due, m);
	if (!m->path)
		free(take_ptr(&m->log));
	if (!m->log)
		return;
	if (log_marks_read(&marks, &m->n, m->path) == 0 && m->n)
		m->size = marks[m->n - 1].size_bytes;
	/* Nobody looked when this was written. */
	if (stat(m->log, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size > m->size)
		mark(m, 0, (uint64_t)st.st_size);
}

static void marks_update(void *part)
{
	struct marks *m = part;
	const bool alive = m->shim->view.members.root.pid;

	if (!m->log || alive == loop_has_time(&m->timer))
		return;
	look(m);
	if (alive)
		loop_after(&m->timer, m->every_s * 1000ull);
	else
		loop_never(&m->timer);
}

static void marks_stop(void *part)
{
	struct marks *m = part;

	if (loop_has_time(&m->timer))
		look(m);
	free(take_ptr(&m->log));
	free(take_ptr(&m->path));
}

const struct shim_part marks_part = {
	.size_bytes = sizeof(struct marks),
	.start = marks_start,
	.update = marks_update,
	.stop = marks_stop,
};
