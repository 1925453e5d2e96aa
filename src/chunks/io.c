// SPDX-License-Identifier: MIT
/*
 * Reads and writes of large files; see io.h. The upper part handles buffers, files and the results of requests; a
 * request is carried out by io_uring or by plain calls. A request is in one place at a time: in a free list, with the
 * caller, or under way; the lock is only held to move it between them.
 */
#include "chunks/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/huge-pages.h"
#include "base/mapped.h"
#include "base/thread.h"
#include "base/workers.h"
#include "chunks/files.h"

#define ROOM_FIRST_BYTES (16ull << 20)
#define ROOM_STEP_BYTES	 (256ull << 20)
#define HUGE_STEP_BYTES	 (16ull << 20)
/* Writing as much as a huge page into small pages of tmpfs takes at least so much longer. A huge page that takes
 * longer to get is not worth it, unless small pages are measured to be even slower: they are if many threads allocate
 * them at once. */
#define SMALL_PAGES_NS	 500000
#define COSTS_SEEN_BYTES (16ull << 20)

enum {
	BUFFERS = 32,
	BUFFER_BYTES = 2 << 20,
	WRITES = 32,
	TRIES_MAX = 1000,
	THREADS_MAX = 8,
	/* A read from any offset touches one more block at each end. */
	SLACK_BYTES = 2 * IO_ALIGN_BYTES,
	/* Limits for room beyond what a file needs: a part of its own size, and a part of the free space. */
	HUGE_STEP_PART = 4,
	HUGE_STEP_FREE_PART = 512,
};

/* A read or write under way, with its buffer. */
struct io_request {
	struct io_buffer buffer; /* the first member: callers have a pointer to it */
	struct work work;	 /* for a thread that makes plain calls */
	struct io_request *next; /* in a free list */
	struct io *io;
	struct io_file *file;
	void *memory;	/* of the pool; NULL: the caller's memory is used */
	unsigned index; /* of @memory among the pool's buffers */
	bool pinned;	/* @memory is registered with the kernel; under the ring's lock */

	bool write, busy;
	bool direct; /* whether the file used O_DIRECT when this attempt began */
	char *data;
	size_t len_bytes, done_bytes; /* of the kernel's request: padded if necessary */
	uint64_t offset;
	size_t want_skip, want_bytes; /* for a read, the part that the caller asked for */
	unsigned tries;		      /* attempts in a row that made no progress */
	int error;
};

/* The next request to the kernel. */
struct io_attempt {
	void *data;
	size_t len_bytes;
	uint64_t offset;
	int fd;
};
/* CPU time that writes took. */
struct io_cost {
	_Atomic uint64_t ns, bytes;
};

struct io {
	struct uring *uring;	    /* NULL: unavailable, or not wanted */
	struct work_queue *threads; /* for plain calls */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a request was returned, or a read ended */
	struct io_request *requests, *free_buffers, *free_writes;
	char *pool;
	size_t pool_bytes, stride_bytes; /* of the pool, and of each buffer in it */
	unsigned n_buffers, n_writes;
	bool maps;
	struct huge_pages_luck luck;
	struct io_cost into_small, into_huge; /* for writes to tmpfs */
};

struct io_file {
	struct io *io;
	int fd;
	atomic_bool direct;
	bool in_memory; /* tmpfs: a write is a copy, fastest in the thread that has the data in its cache */
	unsigned in_flight; /* under io->lock */
	int error;	    /* the first one of writes; under io->lock */
	pthread_mutex_t growing;
	uint64_t room_bytes; /* allocated ahead; UINT64_MAX: allocate as needed. Under growing */
	atomic_bool is_huge; /* what was allocated last */
	char *map; /* all of the file's content when it was opened; NULL: it is read by calls */
	size_t map_bytes;
};

/* ---- requests ---- */

static size_t align_up(size_t n)
{
	return (n + IO_ALIGN_BYTES - 1) & ~(size_t)(IO_ALIGN_BYTES - 1);
}

static size_t align_down(size_t n)
{
	return n & ~(size_t)(IO_ALIGN_BYTES - 1);
}

static struct io_request *request_of(struct io_buffer *b)
{
	return (struct io_request *)b;
}

static void wait_change(struct io *io)
{
	pthread_cond_wait(&io->changed, &io->lock);
}

static void release(struct io_request *q)
{
	struct io_request **list = q->memory ? &q->io->free_buffers : &q->io->free_writes;

	q->next = *list;
	*list = q;
	pthread_cond_broadcast(&q->io->changed);
}

static struct io_request *acquire(struct io *io, struct io_request **list)
{
	pthread_mutex_lock(&io->lock);
	while (!*list)
		wait_change(io);
	struct io_request *q = *list;
	*list = q->next;
	pthread_mutex_unlock(&io->lock);
	q->error = 0;
	return q;
}

struct io_buffer *io_buffer_get(struct io *io)
{
	struct io_request *q = acquire(io, &io->free_buffers);

	q->buffer.data = q->memory;
	return &q->buffer;
}

void io_buffer_put(struct io_buffer *b)
{
	if (!b)
		return;
	struct io_request *q = request_of(b);

	pthread_mutex_lock(&q->io->lock);
	while (q->busy)
		wait_change(q->io);
	release(q);
	pthread_mutex_unlock(&q->io->lock);
}

/* The next request to the kernel. */
static struct io_attempt next_attempt(struct io_request *q)
{
	struct io_attempt a = { .data = q->data + q->done_bytes,
				.len_bytes = q->len_bytes - q->done_bytes,
				.offset = q->offset + q->done_bytes,
				.fd = q->file->fd };

	q->direct = q->file->direct;
	if (a.len_bytes > IO_ALIGN_BYTES && fault_point("store.io-short") < 0)
		a.len_bytes = align_down(a.len_bytes / 2 + IO_ALIGN_BYTES - 1);
	return a;
}

/* Ends @q: a write is freed, a read wakes its waiter. */
static bool finish(struct io_request *q, int error)
{
	struct io_file *f = q->file;
	struct io *io = q->io;

	pthread_mutex_lock(&io->lock);
	q->error = error;
	q->busy = false;
	f->in_flight--;
	if (q->write && error && !f->error)
		f->error = error;
	if (q->write)
		release(q);
	else
		pthread_cond_broadcast(&io->changed);
	pthread_mutex_unlock(&io->lock);
	return true;
}

static bool again(struct io_request *q, int error)
{
	return ++q->tries > TRIES_MAX ? finish(q, error) : false;
}

/* The file system accepted O_DIRECT at first but fails it now: continues without. */
static void fall_back(struct io_file *f)
{
	int flags = fcntl(f->fd, F_GETFL);

	fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
	f->direct = false;
}

static bool is_end(const struct io_request *q)
{
	struct stat st;

	return fstat(q->file->fd, &st) < 0 || q->offset + q->done_bytes >= (uint64_t)st.st_size;
}

static bool step_bytes(struct io_request *q, size_t n)
{
	size_t was = q->done_bytes;

	if (n == 0)
		return finish(q, q->write ? -EIO : 0);
	q->done_bytes += n;
	if (q->done_bytes >= q->len_bytes || (!q->write && is_end(q)))
		return finish(q, 0);
	if (q->direct) /* continue at a whole block only */
		q->done_bytes = align_down(q->done_bytes);
	if (q->done_bytes == was)
		return again(q, -EIO);
	q->tries = 0;
	return false;
}

/* Handles the result (bytes, or -errno) of an attempt. Returns true if @q has ended and may be freed; false if it
 * needs another attempt. */
static bool take_result(struct io_request *q, ssize_t result)
{
	int r = result < 0 ? 0 : fault_point(q->write ? "store.io-write" : "store.io-read");

	if (r < 0)
		result = r;
	if (result >= 0)
		return step_bytes(q, (size_t)result);
	/* -ECANCELED: the thread that submitted it ended before the kernel began. */
	if (result == -EINTR || result == -EAGAIN || result == -ECANCELED)
		return again(q, (int)result);
	if (result == -EINVAL && q->direct) {
		fall_back(q->file);
		return again(q, (int)result);
	}
	return finish(q, (int)result);
}

/* ---- plain calls ---- */

static ssize_t attempt_plain(struct io_request *q)
{
	struct io_attempt a = next_attempt(q);
	ssize_t n = q->write ? pwrite(a.fd, a.data, a.len_bytes, (off_t)a.offset)
			     : pread(a.fd, a.data, a.len_bytes, (off_t)a.offset);

	return n < 0 ? -errno : n;
}

static void carry_out_plain(struct io_request *q)
{
	while (!take_result(q, attempt_plain(q)))
		;
}

/* A file that was cut short ends with zeros in a mapping, up to the end of its last page. */
static bool has_all(const struct io_attempt *a)
{
	struct stat st;

	return fstat(a->fd, &st) == 0 && (uint64_t)st.st_size >= a->offset + a->len_bytes;
}

/* Returns the bytes read; 0: read by a call instead, which gets the error if mapping failed. Pages that were read are
 * unmapped again at once: otherwise unmapping them all would delay the end. */
static ssize_t attempt_mapped(struct io_request *q)
{
	struct io_attempt a = next_attempt(q);
	const struct io_file *f = q->file;

	if (a.offset >= f->map_bytes)
		return 0;
	if (a.len_bytes > f->map_bytes - a.offset)
		a.len_bytes = f->map_bytes - a.offset;
	/* Bytes in the caller's memory go on to a device: the processor does not read them. */
	int r = mapped_copy(a.data, f->map + a.offset, a.len_bytes, q->data != q->memory);
	madvise(f->map + a.offset, a.len_bytes, MADV_DONTNEED);
	return r < 0 || !has_all(&a) ? 0 : (ssize_t)a.len_bytes;
}

static void carry_out_mapped(struct io_request *q)
{
	ssize_t n;

	do
		n = attempt_mapped(q);
	while (!take_result(q, n > 0 ? n : attempt_plain(q)));
}

/* @q must not be used after it. */
static void carry_out_in_memory(struct io_request *q)
{
	struct io_cost *cost = q->file->is_huge ? &q->io->into_huge : &q->io->into_small;
	const size_t bytes = q->len_bytes;
	const bool write = q->write;
	uint64_t start_ns = write ? huge_pages_start() : 0;

	if (!write && q->file->map)
		carry_out_mapped(q);
	else
		carry_out_plain(q);
	if (!write)
		return;
	atomic_fetch_add(&cost->ns, huge_pages_start() - start_ns);
	atomic_fetch_add(&cost->bytes, bytes);
}

static void run_request(struct work *work)
{
	carry_out_plain((struct io_request *)((char *)work - offsetof(struct io_request, work)));
}

/* ---- io_uring ---- */

/* Each request is submitted by the thread that has it, one at a time; a thread of its own waits for results. The lock
 * also orders the accesses of both threads for tsan, which does not see the ordering by the kernel. */
struct uring {
	struct io_uring ring;
	pthread_mutex_t lock; /* the submission side of the ring */
	pthread_t reaper;
	bool pins; /* the pool's buffers may be registered; under lock */
};

static void dispatch(struct io_request *q);

/* Registers the buffer of @q on its first use: registering all of them at the start would make the kernel clear much
 * memory for little data. Returns false if the kernel has to pin the memory for each request: it is the caller's, or
 * RLIMIT_MEMLOCK, which applies to some users, is too low. */
static bool pin_buffer(struct uring *e, struct io_request *q)
{
	const struct iovec buffer = { q->memory, q->io->stride_bytes };

	if (q->data != q->memory)
		return false;
	if (!q->pinned && e->pins)
		q->pinned = e->pins = io_uring_register_buffers_update_tag(
					      &e->ring, q->index, &buffer, NULL, 1) == 1;
	return q->pinned;
}

static void prepare_request(struct uring *e, struct io_uring_sqe *sqe, struct io_request *q)
{
	struct io_attempt a = next_attempt(q);
	bool fixed = pin_buffer(e, q);
	unsigned len = (unsigned)a.len_bytes;

	if (fixed && q->write)
		io_uring_prep_write_fixed(sqe, a.fd, a.data, len, a.offset, (int)q->index);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, a.fd, a.data, len, a.offset, (int)q->index);
	else if (q->write)
		io_uring_prep_write(sqe, a.fd, a.data, len, a.offset);
	else
		io_uring_prep_read(sqe, a.fd, a.data, len, a.offset);
	io_uring_sqe_set_data(sqe, q);
}

/* The kernel may be short of memory, or have unread results: both pass. @q NULL: end the thread that waits for
 * results. */
static void submit_uring(struct uring *e, struct io_request *q)
{
	int r;

	pthread_mutex_lock(&e->lock);
	/* Never NULL: the ring has as many entries as there are requests, and each is submitted at once. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
	assert(sqe);
	if (q)
		prepare_request(e, sqe, q);
	else
		io_uring_prep_nop(sqe);
	if (!q)
		io_uring_sqe_set_data(sqe, NULL);
	while ((r = io_uring_submit(&e->ring)) == -EAGAIN || r == -EBUSY || r == -EINTR)
		sched_yield();
	assert(r == 1);
	pthread_mutex_unlock(&e->lock);
}

static void *reap_results(void *arg)
{
	struct uring *e = arg;

	for (;;) {
		struct io_uring_cqe *cqe;
		int r = io_uring_wait_cqe(&e->ring, &cqe);

		if (r == -EINTR || r == -EAGAIN)
			continue;
		assert(r == 0);
		struct io_request *q = io_uring_cqe_get_data(cqe);
		int result = cqe->res;
		io_uring_cqe_seen(&e->ring, cqe);
		if (!q)
			return NULL;
		pthread_mutex_lock(&e->lock);
		pthread_mutex_unlock(&e->lock);
		if (!take_result(q, result))
			dispatch(q);
	}
}

static int uring_new(struct uring **ret, unsigned depth, unsigned n_buffers)
{
	struct uring *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	int r = io_uring_queue_init(depth + 1, &e->ring, 0);
	if (r < 0) {
		free(e);
		return r;
	}
	e->pins = io_uring_register_buffers_sparse(&e->ring, n_buffers) == 0;
	pthread_mutex_init(&e->lock, NULL);
	r = thread_start(&e->reaper, reap_results, e);
	if (r < 0) {
		io_uring_queue_exit(&e->ring);
		pthread_mutex_destroy(&e->lock);
		free(e);
		return r;
	}
	*ret = e;
	return 0;
}

static void uring_free(struct uring *e)
{
	if (!e)
		return;
	submit_uring(e, NULL);
	pthread_join(e->reaper, NULL);
	io_uring_queue_exit(&e->ring);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

/* Carries out @q in the way that its file allows at present. */
static void dispatch(struct io_request *q)
{
	struct io_file *f = q->file;

	if (f->in_memory)
		carry_out_in_memory(q);
	else if (f->direct && q->io->uring)
		submit_uring(q->io->uring, q);
	else
		work_queue_add(q->io->threads, &q->work);
}

/* ---- files ---- */

static uint64_t grown(uint64_t room, uint64_t end)
{
	while (room < end)
		room += room < ROOM_FIRST_BYTES	 ? ROOM_FIRST_BYTES
			: room < ROOM_STEP_BYTES ? room
						 : ROOM_STEP_BYTES;
	return room;
}

/* The cost of as many bytes as a huge page has; 0: unknown yet. */
static uint64_t cost_ns(const struct io_cost *c)
{
	uint64_t bytes = atomic_load(&c->bytes);

	return bytes < COSTS_SEEN_BYTES ? 0 : atomic_load(&c->ns) / (bytes / HUGE_PAGE_BYTES);
}

/* How long getting a huge page may take. */
static uint64_t bearable_ns(const struct io *io)
{
	uint64_t small_ns = cost_ns(&io->into_small), huge_ns = cost_ns(&io->into_huge);

	return small_ns > huge_ns + SMALL_PAGES_NS ? small_ns - huge_ns : SMALL_PAGES_NS;
}

/* Each call synchronises all processors, so a large file gets more at a time, unless space is short. */
static uint64_t huge_step(const struct io_file *f, uint64_t room)
{
	uint64_t step = room / HUGE_STEP_PART, free_bytes = 0;
	struct statfs fs;

	if (fstatfs(f->fd, &fs) == 0)
		free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	if (step > HUGE_PAGES_STEP_BYTES)
		step = HUGE_PAGES_STEP_BYTES;
	if (step > free_bytes / HUGE_STEP_FREE_PART)
		step = free_bytes / HUGE_STEP_FREE_PART;
	step -= step % HUGE_STEP_BYTES;
	return step ? step : HUGE_STEP_BYTES;
}

/* Returns false if huge pages are unavailable, or slow to get. Whether there is any space is left to the writes. */
static bool take_huge(struct io_file *f, uint64_t offset, size_t step)
{
	uint64_t start_ns = huge_pages_start();
	int protection = PROT_READ | PROT_WRITE;

	if (!huge_pages_pay(&f->io->luck) || ftruncate(f->fd, (off_t)(offset + step)) < 0)
		return false;
	void *p = huge_pages_map(f->fd, offset, step, protection);
	if (!p)
		return false;
	int r = huge_pages_populate(p, step);
	munmap(p, step);
	atomic_store(&f->io->luck.slow_ns, bearable_ns(f->io));
	huge_pages_note(&f->io->luck, step, r, start_ns);
	return r == 0;
}

/* Space in tmpfs is memory: in huge pages it is allocated and freed several times as fast. A short file does not use
 * them. */
static void grow_in_memory(struct io_file *f, uint64_t end)
{
	pthread_mutex_lock(&f->growing);
	while (end > f->room_bytes) {
		uint64_t was = f->room_bytes;
		uint64_t step = was ? huge_step(f, was) : HUGE_STEP_BYTES;

		f->is_huge = was && take_huge(f, was, step);
		f->room_bytes = was && !f->is_huge ? UINT64_MAX : was + step;
	}
	pthread_mutex_unlock(&f->growing);
}

/* Space is allocated ahead in large steps: a write that extends the file would block all others. */
static void grow(struct io_file *f, uint64_t end)
{
	pthread_mutex_lock(&f->growing);
	if (end > f->room_bytes) {
		uint64_t was = f->room_bytes, room = grown(was, end);

		if (fallocate(f->fd, 0, (off_t)was, (off_t)(room - was)) == 0)
			f->room_bytes = room;
		else if (errno == EOPNOTSUPP && ftruncate(f->fd, (off_t)room) == 0)
			f->room_bytes = room;
		else if (errno != EINTR) /* space is short: the writes will get the error */
			f->room_bytes = UINT64_MAX;
	}
	pthread_mutex_unlock(&f->growing);
}

static void start(struct io_file *f, struct io_request *q, bool write, void *data, size_t len_bytes,
		  uint64_t offset)
{
	q->file = f;
	q->write = write;
	q->data = data;
	q->len_bytes = len_bytes;
	q->offset = offset;
	q->done_bytes = 0;
	q->tries = 0;
	q->busy = true;
	if (write && f->direct)
		grow(f, offset + len_bytes);
	else if (write && f->in_memory)
		grow_in_memory(f, offset + len_bytes);
	dispatch(q);
}

/* Counts @q as under way; if the file had an error before, releases it instead. */
static int begin_write(struct io_file *f, struct io_request *q)
{
	pthread_mutex_lock(&f->io->lock);
	int r = f->error;
	if (r < 0)
		release(q);
	else
		f->in_flight++;
	pthread_mutex_unlock(&f->io->lock);
	return r;
}

int io_write(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset)
{
	struct io_request *q = request_of(b);
	int r = begin_write(f, q);

	if (r < 0)
		return r;
	memset((char *)b->data + len_bytes, 0, align_up(len_bytes) - len_bytes);
	start(f, q, true, b->data, align_up(len_bytes), offset);
	return 0;
}

int io_write_memory(struct io_file *f, const void *data, size_t len_bytes, uint64_t offset)
{
	struct io_request *q = acquire(f->io, &f->io->free_writes);
	int r = begin_write(f, q);

	if (r < 0)
		return r;
	start(f, q, true, (void *)data, len_bytes, offset);
	return 0;
}

static void begin_read(struct io_file *f, struct io_request *q, void *to, size_t len_bytes,
		       uint64_t offset)
{
	size_t skip = offset % IO_ALIGN_BYTES;

	q->want_skip = skip;
	q->want_bytes = len_bytes;
	pthread_mutex_lock(&f->io->lock);
	f->in_flight++;
	pthread_mutex_unlock(&f->io->lock);
	start(f, q, false, to, align_up(skip + len_bytes), offset - skip);
}

void io_read(struct io_file *f, struct io_buffer *b, size_t len_bytes, uint64_t offset)
{
	struct io_request *q = request_of(b);

	begin_read(f, q, q->memory, len_bytes, offset);
}

void io_read_memory(struct io_file *f, struct io_buffer *b, void *to, size_t len_bytes,
		    uint64_t offset)
{
	begin_read(f, request_of(b), to, len_bytes, offset);
}

ssize_t io_read_wait(struct io_buffer *b, const void **ret_data)
{
	struct io_request *q = request_of(b);

	pthread_mutex_lock(&q->io->lock);
	while (q->busy)
		wait_change(q->io);
	pthread_mutex_unlock(&q->io->lock);
	if (q->error)
		return q->error;

	size_t got = q->done_bytes > q->want_skip ? q->done_bytes - q->want_skip : 0;
	*ret_data = q->data + q->want_skip;
	return (ssize_t)(got < q->want_bytes ? got : q->want_bytes);
}

bool io_is_in_memory(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

enum io_engine io_engine_for(int fd)
{
	return io_is_in_memory(fd) ? IO_ENGINE_POSIX : IO_ENGINE_AUTO;
}

/* Sets O_DIRECT if the file system supports it with blocks no larger than ours. */
static bool make_direct(int fd)
{
	struct statx st;
	int flags = fcntl(fd, F_GETFL);

#ifdef STATX_DIOALIGN
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 &&
	    (st.stx_mask & STATX_DIOALIGN) &&
	    (!st.stx_dio_offset_align || st.stx_dio_offset_align > IO_ALIGN_BYTES ||
	     st.stx_dio_mem_align > IO_ALIGN_BYTES))
		return false;
#else
	(void)st;
#endif
	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

/* The first read(2) of a page of tmpfs makes the kernel (Linux 6.18) move the page to another list, under a lock
 * shared by all readers: 16 of them read 30 GB/s that way. Pages of a mapping that is advised to be read sequentially
 * stay in their list, and the same 16 threads read 69 GB/s. */
static void map_file(struct io_file *f)
{
	struct stat st;

	if (fstat(f->fd, &st) < 0 || st.st_size <= 0 || !S_ISREG(st.st_mode))
		return;
	f->map = huge_pages_map(f->fd, 0, (size_t)st.st_size, PROT_READ);
	if (!f->map)
		return;
	f->map_bytes = (size_t)st.st_size;
	madvise(f->map, f->map_bytes, MADV_SEQUENTIAL);
	madvise(f->map, f->map_bytes, MADV_DONTFORK);
}

int io_file_new(struct io_file **ret, struct io *io, int fd)
{
	struct io_file *f = calloc(1, sizeof(*f));

	if (!f) {
		cleanup_close(&fd);
		return -ENOMEM;
	}
	f->io = io;
	f->fd = fd;
	f->in_memory = io_is_in_memory(fd);
	f->direct = !f->in_memory && make_direct(fd);
	if (f->in_memory && io->maps)
		map_file(f);
	pthread_mutex_init(&f->growing, NULL);
	*ret = f;
	return 0;
}

int io_file_create(struct io_file **ret, struct io *io, int dir_fd, const char *name)
{
	int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : io_file_new(ret, io, fd);
}

int io_file_drain(struct io_file *f)
{
	pthread_mutex_lock(&f->io->lock);
	while (f->in_flight)
		wait_change(f->io);
	int r = f->error;
	pthread_mutex_unlock(&f->io->lock);
	return r;
}

int io_file_finish(struct io_file *f, uint64_t len_bytes)
{
	int r = io_file_drain(f);

	if (r == 0 && ftruncate(f->fd, (off_t)len_bytes) < 0)
		r = -errno;
	return r < 0 ? r : files_sync(f->fd, "store.sync-file");
}

void io_file_close(struct io_file *f)
{
	if (!f)
		return;
	io_file_drain(f);
	if (f->map)
		munmap(f->map, f->map_bytes);
	close(f->fd);
	pthread_mutex_destroy(&f->growing);
	free(f);
}

static int make_pool(struct io *io)
{
	size_t bytes = io->stride_bytes * io->n_buffers;
	unsigned n = io->n_buffers + io->n_writes;

	io->requests = calloc(n, sizeof(*io->requests));
	if (!io->requests)
		return -ENOMEM;
	void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool == MAP_FAILED)
		return -ENOMEM;
	io->pool = pool;
	io->pool_bytes = bytes;
	madvise(pool, io->pool_bytes,
		MADV_HUGEPAGE); /* fewer pages to pin; a failure does not matter */
	madvise(pool, io->pool_bytes, MADV_DONTFORK); /* a fork would copy pinned pages at once */
	for (unsigned i = 0; i < n; i++) {
		struct io_request *q = &io->requests[i];

		*q = (struct io_request){ .io = io, .index = i, .work.run = run_request };
		if (i < io->n_buffers)
			q->memory = io->pool + i * io->stride_bytes;
		release(q);
	}
	return 0;
}

static enum io_engine wanted_engine(const struct io_options *o)
{
	const char *name = secure_getenv("BRUMATE_IO");

	if (o->engine != IO_ENGINE_AUTO || !name)
		return o->engine;
	if (!strcmp(name, "uring"))
		return IO_ENGINE_URING;
	return strcmp(name, "posix") ? IO_ENGINE_AUTO : IO_ENGINE_POSIX;
}

static int start_engines(struct io *io, enum io_engine engine, struct brumate_error *err)
{
	int r = work_queue_new(&io->threads, THREADS_MAX, NULL);

	if (r < 0)
		return brumate_fail(err, -r, "cannot start a thread for the disk: %m");
	if (engine == IO_ENGINE_POSIX)
		return 0;
	r = uring_new(&io->uring, io->n_buffers + io->n_writes, io->n_buffers);
	/* Containers and the sysctl kernel.io_uring_disabled may forbid it: threads are almost as fast. */
	return r == 0 || engine == IO_ENGINE_AUTO ? 0 : brumate_fail(err, -r, "io_uring: %m");
}

int io_new(struct io **ret, const struct io_options *options, struct brumate_error *err)
{
	struct io_options o = options ? *options : (struct io_options){ 0 };
	struct io *io = calloc(1, sizeof(*io));

	if (!io)
		return brumate_fail(err, ENOMEM, "%m");
	io->n_buffers = o.buffers ? o.buffers : BUFFERS;
	io->n_writes = o.writes ? o.writes : WRITES;
	io->maps = o.maps;
	io->luck.slow_ns = SMALL_PAGES_NS;
	io->stride_bytes = align_up(o.buffer_bytes ? o.buffer_bytes : BUFFER_BYTES) + SLACK_BYTES;
	pthread_mutex_init(&io->lock, NULL);
	pthread_cond_init(&io->changed, NULL);

	int r = make_pool(io);
	if (r < 0)
		brumate_fail(err, -r, "buffers for the disk: %m");
	else
		r = start_engines(io, wanted_engine(&o), err);
	if (r < 0) {
		io_free(io);
		return r;
	}
	*ret = io;
	return 0;
}

enum io_engine io_engine(const struct io *io)
{
	return io->uring ? IO_ENGINE_URING : IO_ENGINE_POSIX;
}

void io_free(struct io *io)
{
	if (!io)
		return;
	uring_free(io->uring);
	work_queue_free(io->threads);
	if (io->pool)
		munmap(io->pool, io->pool_bytes);
	free(io->requests);
	pthread_cond_destroy(&io->changed);
	pthread_mutex_destroy(&io->lock);
	free(io);
}
