// SPDX-License-Identifier: MIT
/*
 * Files that are hashed when they are closed; see closed-files.h.
 *
 * CRIU writes a directory of images by one thread, eight for each process, and closes each once. The kernel tells of every close of a
 * file that was open for writing (inotify(7), IN_CLOSE_WRITE), also of the last one before the end: so it is known for certain what
 * was written to after it was hashed, even where its size and its times are the same. What is not certain is forgotten, and hashed
 * with all others at the end.
 */
#include "store/closed-files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/paths.h"
#include "base/thread.h"
#include "chunks/files.h"

enum { EVENTS_BYTES = 64 * 1024, CLOSES_MAX = 1 << 20 };

struct closed_files {
	int dir_fd; /* borrowed */
	char *name; /* of the directory below it */
	int watch_fd, stop_fd;
	disk_file_fn done;
	void *done_arg;
	pthread_t thread;
	bool has_ended;
	atomic_bool stop;
	/* Of the thread, until it has ended. One for each close, in their order. */
	struct closed_file *items;
	size_t n;
	bool is_lost; /* not all closes are known */
	int r;
	struct brumate_error err;
};

static int ask_going_on(void *arg, size_t n_bytes)
{
	const struct closed_files *c = arg;

	(void)n_bytes;
	return c->stop ? -ECANCELED : 0;
}

/* What cannot be read is left to the end, which says why. */
static void hash_closed(struct closed_files *c, struct closed_file *f)
{
	struct stat st;
	uint64_t len = 0;
	auto_close int fd = files_open(c->dir_fd, f->path, &st);

	if (fd < 0)
		return;
	sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* a disk error shows up in the sync */
	if (digest_file_steps(&f->digest, fd, &len, ask_going_on, c) < 0 ||
	    len != (uint64_t)st.st_size)
		return;
	const struct disk_file file = { .path = f->path, .len_bytes = len, .digest = f->digest };
	c->r = c->done(fd, &file, c->done_arg, &c->err);
	f->len_bytes = len;
	f->inode = st.st_ino;
	f->changed = st.st_mtim;
	f->is_hashed = c->r == 0;
}

static void note_close(struct closed_files *c, const struct inotify_event *e)
{
	struct closed_file f = { .nth = c->n };

	if (e->mask & IN_Q_OVERFLOW || !e->len || c->n == CLOSES_MAX ||
	    !(f.path = path_format("%s/%s", c->name, e->name))) {
		c->is_lost = true;
		return;
	}
	if (!c->stop && !c->is_lost && c->r == 0)
		hash_closed(c, &f);
	if (array_add(c->items, c->n, f) < 0) {
		free(f.path);
		c->is_lost = true;
	}
}

/* Reads what there is without waiting. False: nothing. */
static bool take_closes(struct closed_files *c)
{
	_Alignas(struct inotify_event) char buf[EVENTS_BYTES];
	ssize_t n = read(c->watch_fd, buf, sizeof(buf));

	if (n < 0 && errno != EAGAIN)
		c->is_lost = true;
	for (ssize_t at = 0; at < n;) {
		const struct inotify_event *e = (const struct inotify_event *)(buf + at);

		note_close(c, e);
		at += (ssize_t)(sizeof(*e) + e->len);
	}
	return n > 0;
}

/* Waits for its owner, however long that takes. What was closed until then is read to the end. */
static void *hash_in_thread(void *arg)
{
	struct closed_files *c = arg;
	struct pollfd fds[] = { { .fd = c->watch_fd, .events = POLLIN },
				{ .fd = c->stop_fd, .events = POLLIN } };

	while (!c->stop && !c->is_lost)
		if (poll(fds, 2, -1) > 0 && fds[0].revents)
			take_closes(c);
	while (!c->is_lost && take_closes(c))
		;
	return NULL;
}

/* By path, and the last close of each last. */
static int by_path(const void *a, const void *b)
{
	const struct closed_file *one = a, *other = b;
	int order = strcmp(one->path, other->path);

	return order ? order : (one->nth > other->nth) - (one->nth < other->nth);
}

/* Of each file the last close counts, and only if it was hashed after that. */
static void keep_last(struct closed_files *c)
{
	size_t kept = 0;

	if (c->n)
		qsort(c->items, c->n, sizeof(*c->items), by_path);
	for (size_t i = 0; i < c->n; i++) {
		struct closed_file *f = &c->items[i];
		bool is_last = i + 1 == c->n || strcmp(f->path, c->items[i + 1].path);

		if (is_last && f->is_hashed && !c->is_lost)
			c->items[kept++] = *f;
		else
			free(f->path);
	}
	c->n = kept;
}

int closed_files_begin(struct closed_files **ret, int dir_fd, const char *name, disk_file_fn done,
		       void *done_arg)
{
	auto_(closed_files_free) struct closed_files *c = calloc(1, sizeof(*c));
	auto_close int at = openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	char path[48];

	if (!c || at < 0)
		return c ? -errno : -ENOMEM;
	*c = (struct closed_files){ .dir_fd = dir_fd,
				    .name = strdup(name),
				    .watch_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK),
				    .stop_fd = eventfd(0, EFD_CLOEXEC),
				    .done = done,
				    .done_arg = done_arg,
				    .has_ended = true };
	snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
	if (!c->name)
		return -ENOMEM;
	if (c->watch_fd < 0 || c->stop_fd < 0 ||
	    inotify_add_watch(c->watch_fd, path, IN_CLOSE_WRITE | IN_ONLYDIR) < 0)
		return -errno;
	int r = thread_start(&c->thread, hash_in_thread, c);
	if (r < 0)
		return r;
	c->has_ended = false;
	*ret = take_ptr(&c);
	return 0;
}

int closed_files_end(struct closed_files *c, struct brumate_error *err)
{
	if (!c->has_ended) {
		c->stop = true;
		eventfd_write(c->stop_fd, 1); /* cannot fail: it counts nothing yet */
		pthread_join(c->thread, NULL);
		c->has_ended = true;
		keep_last(c);
	}
	if (c->r < 0 && err)
		*err = c->err;
	return c->r;
}

static int compare_path(const void *path, const void *file)
{
	return strcmp(path, ((const struct closed_file *)file)->path);
}

const struct closed_file *closed_files_find(const struct closed_files *c, const char *path)
{
	return c->n ? bsearch(path, c->items, c->n, sizeof(*c->items), compare_path) : NULL;
}

void closed_files_free(struct closed_files *c)
{
	if (!c)
		return;
	closed_files_end(c, NULL);
	for (size_t i = 0; i < c->n; i++)
		free(c->items[i].path);
	free(c->items);
	cleanup_close(&c->watch_fd);
	cleanup_close(&c->stop_fd);
	free(c->name);
	free(c);
}
