// SPDX-License-Identifier: MIT
/*
 * Hashes the files of a checkpoint with a few threads. The caller's thread does no work but report
 * progress: callbacks never run elsewhere. Signals stay with the caller too.
 */
#include "store/tree.h"
#include "store/ahead.h"
#include "chunks/files.h"
#include "chunks/team.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS_MAX = 8, REPORT_BYTES = 16 << 20 };

struct pool {
	struct tree *tree;
	struct tree_file **order; /* largest first */
	int dir_fd;
	tree_file_fn done;
	void *done_arg;

	atomic_size_t next;
	atomic_bool stop;
	atomic_uint_fast64_t done_bytes;

	pthread_mutex_t lock;
	pthread_cond_t news; /* progress, or a thread ended */
	unsigned n_running;  /* under lock, as is what follows */
	uint64_t reported_bytes;
	int r; /* of the failed file that is first by path */
	const struct tree_file *failed;
	struct brumate_error err;
};

static void report(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	pthread_cond_signal(&p->news);
	pthread_mutex_unlock(&p->lock);
}

static int hashed_some(void *arg, size_t n_bytes)
{
	struct pool *p = arg;
	uint64_t before = atomic_fetch_add(&p->done_bytes, n_bytes);

	if (before / REPORT_BYTES != (before + n_bytes) / REPORT_BYTES)
		report(p);
	return atomic_load(&p->stop) ? -ECANCELED : 0;
}

/* A thread reads while this one hashes: for a file that is larger than all others together, the two
 * would otherwise take turns. -EAGAIN: no thread to be had. */
static int digest_large(struct pool *p, struct digest *ret, int fd, uint64_t *ret_len)
{
	auto_(digest_run_free) struct digest_run *run = NULL;
	auto_(ahead_free) struct ahead *ahead = NULL;
	uint64_t len = 0;
	int r = digest_begin(&run);

	if (r == 0)
		r = ahead_start(&ahead, fd);
	while (r == 0) {
		const void *buf;
		ssize_t n = ahead_next(ahead, &buf);

		if (n == 0)
			break;
		r = n < 0 ? (int)n : digest_add(run, buf, (size_t)n);
		if (r == 0)
			r = hashed_some(p, (size_t)n);
		len += n > 0 ? (uint64_t)n : 0;
	}
	if (r == 0)
		r = digest_take(run, ret);
	if (r == 0)
		*ret_len = len;
	return r;
}

static int digest_of(struct pool *p, struct tree_file *f, int fd, uint64_t *ret_len)
{
	if (p->tree->will_sync) /* an error of the disk shows when it is synced */
		sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	if (f->len_bytes >= AHEAD_WORTH_BYTES) {
		int r = digest_large(p, &f->digest, fd, ret_len);

		if (r != -EAGAIN && r != -ENOMEM)
			return r;
	}
	return digest_file_steps(&f->digest, fd, ret_len, hashed_some, p);
}

static int hash_file(struct pool *p, struct tree_file *f, struct brumate_error *err)
{
	uint64_t len = 0;
	auto_close int fd = files_open(p->dir_fd, f->path, NULL);

	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", f->path);
	int r = digest_of(p, f, fd, &len);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", f->path);
	if (len != f->len_bytes)
		return brumate_fail(err, EBUSY, "%s: changed while it was read", f->path);
	return p->done ? p->done(fd, f, p->done_arg, err) : 0;
}

static void note_failure(struct pool *p, struct tree_file *f, int r,
			 const struct brumate_error *err)
{
	if (p->tree->go_on && r != -ECANCELED) {
		f->failure = r;
		return;
	}
	atomic_store(&p->stop, true);
	if (r == -ECANCELED)
		return;
	pthread_mutex_lock(&p->lock);
	if (!p->failed || f < p->failed) {
		p->failed = f;
		p->r = r;
		p->err = *err;
	}
	pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
	struct pool *p = arg;

	while (!atomic_load(&p->stop)) {
		size_t i = atomic_fetch_add(&p->next, 1);
		struct brumate_error err = BRUMATE_ERROR_NONE;

		if (i >= p->tree->n_files)
			break;
		if (p->order[i]->failure)
			continue;
		int r = hash_file(p, p->order[i], &err);
		if (r < 0)
			note_failure(p, p->order[i], r, &err);
	}
	pthread_mutex_lock(&p->lock);
	p->n_running--;
	pthread_cond_signal(&p->news);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Waits for the threads. Returns what the caller's progress function said last. */
static int wait_and_report(struct pool *p, store_progress_fn progress, void *arg)
{
	int r = 0;

	pthread_mutex_lock(&p->lock);
	while (p->n_running) {
		pthread_cond_wait(&p->news, &p->lock);
		uint64_t bytes = atomic_load(&p->done_bytes);

		if (!progress || r < 0 || bytes == p->reported_bytes)
			continue;
		p->reported_bytes = bytes;
		pthread_mutex_unlock(&p->lock);
		r = progress(arg, bytes, p->tree->total_bytes);
		if (r < 0)
			atomic_store(&p->stop, true);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

static unsigned threads_wanted(size_t n_files)
{
	unsigned n = team_cores(THREADS_MAX);

	return n > n_files ? (unsigned)n_files : n;
}

/* Starts as many threads as it can. Returns how many. */
static unsigned start_threads(struct pool *p, pthread_t *threads)
{
	unsigned wanted = threads_wanted(p->tree->n_files), n = 0;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_mutex_lock(&p->lock);
	while (n < wanted && pthread_create(&threads[n], NULL, work, p) == 0)
		n++;
	p->n_running = n;
	pthread_mutex_unlock(&p->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return n;
}

static int by_size(const void *a, const void *b)
{
	uint64_t left = (*(struct tree_file *const *)a)->len_bytes;
	uint64_t right = (*(struct tree_file *const *)b)->len_bytes;

	return left < right ? 1 : left > right ? -1 : 0;
}

static int run_pool(struct pool *p, store_progress_fn progress, void *arg,
		    struct brumate_error *err)
{
	pthread_t threads[THREADS_MAX];
	unsigned n = start_threads(p, threads);

	if (n == 0)
		return brumate_fail(err, EAGAIN, "no thread to hash files with: %m");
	int r = wait_and_report(p, progress, arg);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (r < 0)
		return brumate_fail(err, -r, "stopped while files were hashed: %m");
	if (p->failed && err)
		*err = p->err;
	if (p->r == 0 && progress)
		progress(arg, p->tree->total_bytes, p->tree->total_bytes);
	return p->r;
}

int tree_hash(struct tree *t, int dir_fd, tree_file_fn done, void *done_arg,
	      store_progress_fn progress, void *progress_arg, struct brumate_error *err)
{
	struct pool p = {
		.tree = t,
		.dir_fd = dir_fd,
		.done = done,
		.done_arg = done_arg,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.news = PTHREAD_COND_INITIALIZER,
	};

	if (t->n_files == 0)
		return 0;
	auto_free struct tree_file **order = calloc(t->n_files, sizeof(struct tree_file *));
	if (!order)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < t->n_files; i++)
		order[i] = &t->files[i];
	qsort(order, t->n_files, sizeof(struct tree_file *), by_size);
	p.order = order;

	int r = run_pool(&p, progress, progress_arg, err);
	pthread_cond_destroy(&p.news);
	pthread_mutex_destroy(&p.lock);
	return r;
}
