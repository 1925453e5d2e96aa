// SPDX-License-Identifier: MIT
/* Timers in images that are written here byte by byte, as protobuf.dev describes it: what CRIU would restore otherwise than it
 * was is changed, all else stays. */
#include "check.h"
#include "criu/mend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>

/* ---- messages ---- */

struct message {
	uint8_t bytes[1024];
	size_t n;
};

static void put_varint(struct message *m, uint64_t value)
{
	for (; value > 0x7f; value >>= 7)
		m->bytes[m->n++] = (uint8_t)(value | 0x80);
	m->bytes[m->n++] = (uint8_t)value;
	CHECK(m->n < sizeof(m->bytes) - 16);
}

static void put_number(struct message *m, unsigned field, uint64_t value)
{
	put_varint(m, field << 3);
	put_varint(m, value);
}

static void put_bytes(struct message *m, const void *bytes, size_t n)
{
	CHECK(m->n + n < sizeof(m->bytes) - 16);
	memcpy(m->bytes + m->n, bytes, n);
	m->n += n;
}

static void put_message(struct message *m, unsigned field, const struct message *inner)
{
	put_varint(m, field << 3 | 2);
	put_varint(m, inner->n);
	put_bytes(m, inner->bytes, inner->n);
}

static uint64_t take_varint(const uint8_t **p, const uint8_t *end)
{
	uint64_t value = 0;

	for (unsigned shift = 0; *p < end; shift += 7) {
		value |= (uint64_t)(**p & 0x7f) << shift;
		if (!(*(*p)++ & 0x80))
			break;
	}
	return value;
}

struct view {
	const uint8_t *p, *end;
};

/* The @nth field of that number: a view of it; or its value, where it is a number. */
static bool find_field(struct view v, unsigned field, unsigned nth, struct view *ret,
		       uint64_t *value)
{
	while (v.p < v.end) {
		uint64_t key = take_varint(&v.p, v.end), n = take_varint(&v.p, v.end);
		struct view inner = { v.p, v.p + (key & 2 ? n : 0) };

		CHECK((key & 7) == 0 || (key & 7) == 2);
		v.p = inner.end;
		if (key >> 3 != field || nth--)
			continue;
		*ret = inner;
		*value = n;
		return true;
	}
	return false;
}

static uint64_t number(struct view v, unsigned field)
{
	uint64_t value;

	CHECK(find_field(v, field, 0, &v, &value));
	return value;
}

static struct view inner(struct view v, unsigned field, unsigned nth)
{
	uint64_t value;
	struct view ret;

	CHECK(find_field(v, field, nth, &ret, &value));
	return ret;
}

static bool has(struct view v, unsigned field)
{
	uint64_t value;

	return find_field(v, field, 0, &v, &value);
}

/* ---- images ---- */

static void begin_image(struct message *m, uint32_t second)
{
	const uint32_t head[] = { CRIU_MAGIC_IMAGE, second };

	m->n = 0;
	put_bytes(m, head, sizeof(head));
}

static void put_entry(struct message *m, const struct message *entry)
{
	const uint32_t len = (uint32_t)entry->n;

	put_bytes(m, &len, sizeof(len));
	put_bytes(m, entry->bytes, entry->n);
}

static struct view entry(const uint8_t *bytes, size_t len_bytes, unsigned nth)
{
	const uint8_t *p = bytes + 8;
	uint32_t len;

	for (;; p += len + 4) {
		CHECK(p + 4 <= bytes + len_bytes);
		memcpy(&len, p, sizeof(len));
		if (!nth--)
			return (struct view){ p + 4, p + 4 + len };
	}
}

/* ---- behind descriptors ---- */

static const struct criu_semaphores none = { 0 };

enum { FILE_TIMER = 12, TICKS = 5, FLAGS = 6, LEFT_S = 7, LEFT_NS = 8, INTERVAL_NS = 10 };

struct timer_file {
	uint64_t ticks, flags, left_s, left_ns, interval_s, interval_ns;
};

static void put_timer_file(struct message *image, const struct timer_file *t)
{
	struct message owner = { .n = 0 }, timer = { .n = 0 }, file = { .n = 0 };

	put_number(&owner, 1, 1000);
	put_number(&timer, 1, 77);
	put_number(&timer, 2, 02);
	put_message(&timer, 3, &owner);
	put_number(&timer, 4, CLOCK_MONOTONIC);
	put_number(&timer, TICKS, t->ticks);
	put_number(&timer, FLAGS, t->flags);
	put_number(&timer, LEFT_S, t->left_s);
	put_number(&timer, LEFT_NS, t->left_ns);
	put_number(&timer, 9, t->interval_s);
	put_number(&timer, INTERVAL_NS, t->interval_ns);
	put_number(&file, 1, 17);
	put_number(&file, 2, 77);
	put_message(&file, FILE_TIMER, &timer);
	put_entry(image, &file);
}

static void expect_timer_file(struct timer_file before, struct timer_file after)
{
	const bool same = !memcmp(&before, &after, sizeof(before));
	struct message image, other = { .n = 0 };
	struct criu_mended m = CRIU_MENDED_NONE;

	put_number(&other, 1, 6);
	put_number(&other, 2, 78);
	begin_image(&image, CRIU_MAGIC_FILES);
	put_entry(&image, &other);
	put_timer_file(&image, &before);
	put_entry(&image, &other);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &none) == !same);
	if (same)
		return;
	struct view file = entry(m.bytes, m.len_bytes, 1), t = inner(file, FILE_TIMER, 0);
	CHECK(number(file, 1) == 17 && number(file, 2) == 77);
	CHECK(number(t, 1) == 77 && number(t, 2) == 2 && number(t, 4) == CLOCK_MONOTONIC);
	CHECK(number(inner(t, 3, 0), 1) == 1000);
	CHECK(number(t, TICKS) == after.ticks && number(t, FLAGS) == after.flags);
	CHECK(number(t, LEFT_S) == after.left_s && number(t, LEFT_NS) == after.left_ns);
	CHECK(number(t, 9) == after.interval_s && number(t, INTERVAL_NS) == after.interval_ns);
	for (unsigned i = 0; i < 3; i += 2) {
		struct view e = entry(m.bytes, m.len_bytes, i);
		CHECK(e.end - e.p == (ptrdiff_t)other.n && !memcmp(e.p, other.bytes, other.n));
	}
	criu_mended_fini(&m);
}

static void test_behind_descriptors(void)
{
	enum { ABSOLUTE = TFD_TIMER_ABSTIME, CANCEL = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET };
	const struct timer_file unset = { 0 }, runs = { 0, 0, 3, 5, 7, 9 },
				read_once = { .ticks = 2 };

	expect_timer_file(unset, unset);
	expect_timer_file(runs, runs);
	expect_timer_file(read_once,
			  read_once); /* one that does not repeat: CRIU brings its ticks back */
	expect_timer_file((struct timer_file){ .interval_s = 1 },
			  (struct timer_file){ .interval_s = 1 });
	/* expired and unread, they go on: the ticks that were, and no more */
	expect_timer_file((struct timer_file){ .ticks = 1, .interval_s = 1 },
			  (struct timer_file){ .left_ns = 1, .interval_s = 1 });
	expect_timer_file((struct timer_file){ .ticks = 6, .interval_ns = 50 },
			  (struct timer_file){ .ticks = 5, .left_ns = 1, .interval_ns = 50 });
	/* what is left of an absolute one is no time of day */
	expect_timer_file((struct timer_file){ 0, ABSOLUTE, 3, 5, 7, 9 },
			  (struct timer_file){ 0, 0, 3, 5, 7, 9 });
	expect_timer_file((struct timer_file){ .flags = ABSOLUTE }, unset);
	expect_timer_file((struct timer_file){ .ticks = 1, .flags = ABSOLUTE, .interval_s = 1 },
			  (struct timer_file){ .left_ns = 1, .interval_s = 1 });
	expect_timer_file((struct timer_file){ 0, CANCEL, 3, 5, 0, 0 },
			  (struct timer_file){ 0, CANCEL, 4, 5, 0, 0 });
	expect_timer_file((struct timer_file){ .flags = CANCEL }, unset);
}

/* ---- semaphores ---- */

static void put_event_file(struct message *image, uint32_t id, uint64_t count)
{
	struct message owner = { .n = 0 }, event = { .n = 0 }, file = { .n = 0 };

	put_number(&owner, 1, 1000);
	put_number(&event, 1, id);
	put_number(&event, 2, O_RDWR | O_NONBLOCK);
	put_message(&event, 3, &owner);
	put_number(&event, 4, count);
	put_number(&file, 1, 6);
	put_number(&file, 2, id);
	put_message(&file, 8, &event);
	put_entry(image, &file);
}

static void test_semaphores(void)
{
	uint32_t ids[] = { 9, 31 };
	const struct criu_semaphores semaphores = { ids, 2 };
	struct criu_mended m = CRIU_MENDED_NONE;
	struct message image;

	begin_image(&image, CRIU_MAGIC_FILES);
	put_event_file(&image, 30, 5);
	put_event_file(&image, 31, UINT32_MAX);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &none) == 0);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &semaphores) == 1);
	struct view plain = inner(entry(m.bytes, m.len_bytes, 0), 8, 0),
		    semaphore = inner(entry(m.bytes, m.len_bytes, 1), 8, 0);
	CHECK(number(plain, 2) == (O_RDWR | O_NONBLOCK) && number(plain, 4) == 5);
	CHECK(number(semaphore, 2) == (O_RDWR | O_NONBLOCK | O_DIRECT));
	CHECK(number(semaphore, 4) == UINT32_MAX && number(inner(semaphore, 3, 0), 1) == 1000);
	criu_mended_fini(&m);
	put_event_file(&image, 32, UINT32_MAX + 1ull);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &none) == -EOVERFLOW);
}

/* ---- unix sockets ---- */

enum { FILE_UNIX = 16, PERMISSIONS = 13, DELETED = 15 };

static void put_unix_socket(struct message *image, uint64_t uid, bool deleted)
{
	struct message permissions = { .n = 0 }, owner = { .n = 0 }, unix_socket = { .n = 0 },
		       file = { .n = 0 };

	put_number(&permissions, 1, 0);
	put_number(&permissions, 2, uid);
	put_number(&permissions, 3, uid);
	put_number(&owner, 1, 1000);
	for (unsigned field = 1; field <= 9; field++)
		put_number(&unix_socket, field, field);
	put_message(&unix_socket, 10, &owner);
	put_message(&unix_socket, 11, &owner);
	put_message(&unix_socket, 12, &owner);
	put_message(&unix_socket, PERMISSIONS, &permissions);
	put_number(&unix_socket, DELETED, deleted);
	put_number(&file, 1, 5);
	put_number(&file, 2, 9);
	put_message(&file, FILE_UNIX, &unix_socket);
	put_entry(image, &file);
}

/* The owner of a file that is gone is not known. */
static void test_unix_sockets(void)
{
	struct criu_mended m = CRIU_MENDED_NONE;
	struct message image;

	begin_image(&image, CRIU_MAGIC_FILES);
	put_unix_socket(&image, 0, false);
	put_unix_socket(&image, 1000, false);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &none) == 0);
	put_unix_socket(&image, 196607, true);
	CHECK(criu_mend_files(&m, image.bytes, image.n, &none) == 1);
	for (unsigned i = 0; i < 3; i++) {
		struct view u = inner(entry(m.bytes, m.len_bytes, i), FILE_UNIX, 0);
		CHECK(has(u, PERMISSIONS) == (i < 2) && has(u, DELETED) && has(u, 11));
	}
	criu_mended_fini(&m);
}

/* ---- of processes ---- */

enum { LEADER = 50, WORKER = 51, GONE = 52 };
enum {
	OF_PROCESS = -6,
	OF_ITS_MAKER = -2
}; /* CLOCK_PROCESS_CPUTIME_ID and CLOCK_THREAD_CPUTIME_ID, as the kernel shows them */
enum { CLOCK = 2, NOTIFY = 4, THREAD = 11 };

static uint32_t clock_of(pid_t tid)
{
	return ~(uint32_t)tid << 3 | 4 | 2;
}

struct posix_timer {
	uint32_t clock;
	int notify;
	pid_t thread; /* 0: none is named */
};

static void put_core(struct message *image, const struct posix_timer *t)
{
	struct message timer = { .n = 0 }, timers = { .n = 0 }, task = { .n = 0 },
		       core = { .n = 0 }, usual = { .n = 0 };

	put_number(&timer, 1, 3);
	put_number(&timer, CLOCK, t->clock);
	put_number(&timer, 3, SIGUSR2);
	put_number(&timer, NOTIFY, (uint64_t)t->notify);
	for (unsigned field = 5; field <= 10; field++)
		put_number(&timer, field, field * 100);
	if (t->thread)
		put_number(&timer, THREAD, (uint64_t)t->thread);
	put_number(&usual, 1, 7);
	put_message(&timers, 1, &usual);
	put_message(&timers, 4, &timer);
	put_number(&task, 1, 1);
	put_number(&task, 2, 99);
	put_message(&task, 7, &timers);
	put_number(&core, 1, 1);
	put_message(&core, 3, &task);
	begin_image(image, CRIU_MAGIC_CORE);
	put_entry(image, &core);
}

static int mend(struct criu_mended *ret, const struct posix_timer *t, size_t n_threads)
{
	pid_t threads[] = { LEADER, WORKER };
	const struct criu_image_process p = { .pid = LEADER,
					      .threads = threads,
					      .n_threads = n_threads };
	struct message image;

	put_core(&image, t);
	return criu_mend_core(ret, image.bytes, image.n, &p);
}

static void expect_posix(struct posix_timer before, struct posix_timer after, size_t n_threads)
{
	const bool same = !memcmp(&before, &after, sizeof(before));
	struct criu_mended m = CRIU_MENDED_NONE;

	CHECK(mend(&m, &before, n_threads) == !same);
	if (same)
		return;
	struct view core = entry(m.bytes, m.len_bytes, 0), task = inner(core, 3, 0),
		    timers = inner(task, 7, 0), t = inner(timers, 4, 0);
	CHECK(number(core, 1) == 1 && number(task, 1) == 1 && number(task, 2) == 99);
	CHECK(number(inner(timers, 1, 0), 1) == 7 && number(t, 1) == 3 && number(t, 3) == SIGUSR2);
	CHECK((uint32_t)number(t, CLOCK) == after.clock);
	CHECK(number(t, NOTIFY) == (uint64_t)after.notify);
	CHECK(after.thread ? number(t, THREAD) == (uint64_t)after.thread : !has(t, THREAD));
	for (unsigned field = 5; field <= 10; field++) {
		bool is_stopped =
			field >= 7 && after.clock != before.clock && after.clock == CLOCK_MONOTONIC;
		CHECK(number(t, field) == (is_stopped ? 0 : field * 100));
	}
	criu_mended_fini(&m);
}

static void test_of_processes(void)
{
	const struct posix_timer usual = { CLOCK_MONOTONIC, SIGEV_SIGNAL, 0 },
				 process = { (uint32_t)OF_PROCESS, SIGEV_SIGNAL, 0 },
				 worker = { CLOCK_MONOTONIC, SIGEV_THREAD_ID, WORKER },
				 profiler = { clock_of(WORKER), SIGEV_THREAD_ID, WORKER },
				 stopped = { CLOCK_MONOTONIC, SIGEV_NONE, 0 };
	struct criu_mended m = CRIU_MENDED_NONE;

	expect_posix(usual, usual, 2);
	expect_posix(process, process, 2);
	expect_posix(worker, worker, 2);
	expect_posix(profiler, profiler, 2);
	/* a thread that has ended */
	expect_posix((struct posix_timer){ CLOCK_REALTIME, SIGEV_THREAD_ID, GONE },
		     (struct posix_timer){ CLOCK_REALTIME, SIGEV_NONE, 0 }, 2);
	expect_posix((struct posix_timer){ clock_of(GONE), SIGEV_SIGNAL, 0 }, stopped, 2);
	expect_posix((struct posix_timer){ clock_of(GONE), SIGEV_THREAD_ID, GONE }, stopped, 2);
	expect_posix((struct posix_timer){ clock_of(GONE), SIGEV_THREAD_ID, WORKER }, stopped, 2);
	/* the clock of whoever made the timer */
	expect_posix((struct posix_timer){ (uint32_t)OF_ITS_MAKER, SIGEV_THREAD_ID, WORKER },
		     profiler, 2);
	expect_posix((struct posix_timer){ (uint32_t)OF_ITS_MAKER, SIGEV_THREAD_ID, GONE }, stopped,
		     2);
	expect_posix((struct posix_timer){ (uint32_t)OF_ITS_MAKER, SIGEV_SIGNAL, 0 },
		     (struct posix_timer){ clock_of(LEADER), SIGEV_SIGNAL, 0 }, 1);
	CHECK(mend(&m, &(struct posix_timer){ (uint32_t)OF_ITS_MAKER, SIGEV_SIGNAL, 0 }, 2) ==
	      -EOPNOTSUPP);
}

/* ---- what TCP has not sent ---- */

enum { QUEUED = 3, UNSENT = 12, LATER = 13 };

/* An entry of these bytes, and after it what is no entry: the queues. */
static void put_stream(struct message *image, unsigned queued, unsigned unsent)
{
	struct message stream = { .n = 0 };

	begin_image(image, CRIU_MAGIC_TCP_STREAM);
	put_number(&stream, QUEUED, queued);
	put_number(&stream, UNSENT, unsent);
	put_number(&stream, LATER, 0xffffffff);
	put_entry(image, &stream);
	put_bytes(image, "\xff\xff\xff\xff\xff", queued);
}

static void test_unsent(void)
{
	struct criu_mended m = CRIU_MENDED_NONE;
	struct message image;

	put_stream(&image, 5, 0);
	CHECK(criu_mend_tcp(&m, image.bytes, image.n) == 0 && !m.bytes);
	put_stream(&image, 5, 5);
	CHECK(criu_mend_tcp(&m, image.bytes, image.n) == 1);
	struct view stream = entry(m.bytes, m.len_bytes, 0);
	CHECK(number(stream, QUEUED) == 5 && number(stream, UNSENT) == 0);
	CHECK(number(stream, LATER) == 0xffffffff);
	CHECK(m.bytes + m.len_bytes == stream.end + 5 &&
	      !memcmp(stream.end, "\xff\xff\xff\xff\xff", 5));
	criu_mended_fini(&m);
	put_stream(&image, 0, 5);
	for (size_t n = 0; n < image.n; n++)
		CHECK(criu_mend_tcp(&m, image.bytes, n) == -EBADMSG);
	CHECK(criu_mend_tcp(&m, image.bytes, image.n) == 1);
	criu_mended_fini(&m);
}

/* ---- damage ---- */

static void test_damage(void)
{
	const struct criu_image_process p = { .pid = LEADER };
	struct criu_mended m = CRIU_MENDED_NONE;
	struct message image;

	begin_image(&image, CRIU_MAGIC_FILES);
	put_timer_file(&image, &(struct timer_file){ .flags = TFD_TIMER_ABSTIME });
	const size_t one = image.n;
	put_timer_file(&image, &(struct timer_file){ .flags = TFD_TIMER_ABSTIME });
	for (size_t n = 0; n < image.n; n++) {
		int r = criu_mend_files(&m, image.bytes, n, &none);
		CHECK(r == (n == 8 ? 0 : n == one ? 1 : -EBADMSG));
		criu_mended_fini(&m);
	}
	put_core(&image, &(struct posix_timer){ CLOCK_REALTIME, SIGEV_THREAD_ID, GONE });
	for (size_t n = 0; n < image.n; n++)
		CHECK(criu_mend_core(&m, image.bytes, n, &p) == -EBADMSG);
}

int main(void)
{
	test_behind_descriptors();
	test_semaphores();
	test_unix_sockets();
	test_of_processes();
	test_unsent();
	test_damage();
	return 0;
}
