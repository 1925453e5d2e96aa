// SPDX-License-Identifier: MIT
/* What CRIU would not restore as it was; see mend.h. */
#include "criu/mend.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/clock.h"
#include "base/array.h"
#include "base/fd.h"
#include "images.pb-c.h"

/* ---- an image that is written anew ---- */

enum {
	HEAD_BYTES = 8,
	LEN_BYTES = 4,
	TCP_IMAGE_BYTES_MAX = 1 << 30, /* it holds what was not acknowledged */
};

void criu_mended_fini(struct criu_mended *m)
{
	free(m->bytes);
	*m = CRIU_MENDED_NONE;
}

static int append(struct criu_mended *m, const void *bytes, size_t len_bytes)
{
	uint8_t *more = realloc(m->bytes, m->len_bytes + len_bytes + 1);

	if (!more)
		return -ENOMEM;
	m->bytes = more;
	memcpy(more + m->len_bytes, bytes, len_bytes);
	m->len_bytes += len_bytes;
	return 0;
}

static int append_entry(struct criu_mended *m, const void *bytes, size_t len_bytes)
{
	const uint32_t len = htole32((uint32_t)len_bytes);
	int r = append(m, &len, sizeof(len));

	return r < 0 ? r : append(m, bytes, len_bytes);
}

int criu_mended_begin(struct criu_mended *m, const void *image, const struct criu_entries *entries)
{
	return append(m, image, (size_t)(entries->p - (const uint8_t *)image));
}

int criu_mended_copy(struct criu_mended *m, const struct criu_entries *entry)
{
	return append_entry(m, entry->p, entry->left);
}

int criu_mended_append(struct criu_mended *m, const ProtobufCMessage *message)
{
	size_t len = protobuf_c_message_get_packed_size(message);
	auto_free uint8_t *bytes = malloc(len + 1);

	if (!bytes)
		return -ENOMEM;
	protobuf_c_message_pack(message, bytes);
	return append_entry(m, bytes, len);
}

/* ---- timers behind descriptors ---- */

/* One that has never been set, or has no more to come, has no time left, as has one that waits to be read. */
static bool mend_timer_file(CriuImage__TimerFile *t)
{
	const CriuImage__TimerFile before = *t;
	const bool is_over = !t->left_s && !t->left_ns;

	/* What is left is counted from the restore on. The flags are kept for one that is to end where the clock is set, and it
	 * comes up to a second late, not early. */
	if (t->settime_flags & TFD_TIMER_CANCEL_ON_SET && !is_over)
		t->left_s++;
	else
		t->settime_flags = 0;
	/* It expires at once, which counts as the tick taken off here, and goes on from there. */
	if (is_over && t->ticks && (t->interval_s || t->interval_ns)) {
		t->left_ns = 1;
		t->ticks--;
	}
	return t->settime_flags != before.settime_flags || t->left_s != before.left_s ||
	       t->left_ns != before.left_ns;
}

/* ---- eventfds ---- */

static bool is_among(const struct criu_semaphores *s, uint32_t id)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->ids[i] == id)
			return true;
	return false;
}

/* Returns 1 if it was changed, 0, -errno. */
static int mend_event_file(CriuImage__EventFile *e, const struct criu_semaphores *s)
{
	if (e->count > UINT32_MAX)
		return -EOVERFLOW;
	if (!is_among(s, e->id))
		return 0;
	e->flags |= O_DIRECT;
	return 1;
}

/* ---- unix sockets ---- */

/* The owner of a file that is deleted CRIU does not know, and writes down what happens to be in its memory; it would give
 * that the file which it makes for a moment, as only root may. Without an owner it leaves that file as it is. */
static bool mend_unix_socket(CriuImage__UnixSocket *u)
{
	CriuImage__FilePermissions *p = u->permissions;

	if (!p || !u->deleted)
		return false;
	criu_image__file_permissions__free_unpacked(p, NULL);
	u->permissions = NULL;
	return true;
}

/* ---- files ---- */

/* Appends the entry of a file, mended if need be. 1: it was; 0; -errno. */
static int append_file(struct criu_mended *m, const struct criu_entries *entry,
		       const struct criu_semaphores *semaphores)
{
	CriuImage__File *file = criu_image__file__unpack(NULL, entry->left, entry->p);
	int changed = 0;

	if (!file)
		return -EBADMSG;
	if (file->timer)
		changed = mend_timer_file(file->timer);
	else if (file->event)
		changed = mend_event_file(file->event, semaphores);
	else if (file->unix_socket)
		changed = mend_unix_socket(file->unix_socket);
	int r = changed > 0    ? criu_mended_append(m, &file->base)
		: changed == 0 ? append_entry(m, entry->p, entry->left)
			       : changed;
	criu_image__file__free_unpacked(file, NULL);
	return r < 0 ? r : changed;
}

int criu_mend_files(struct criu_mended *ret, const void *buf, size_t len_bytes,
		    const struct criu_semaphores *semaphores)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	struct criu_entries image, entry;
	bool is_changed = false;
	int r = criu_entries_open(&image, buf, len_bytes, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FILES);

	if (r < 0 || (r = append(&m, buf, HEAD_BYTES)) < 0)
		return r;
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		if ((r = append_file(&m, &entry, semaphores)) < 0)
			return r;
		is_changed = is_changed || r > 0;
	}
	if (r < 0 || !is_changed)
		return r;
	*ret = m;
	m = CRIU_MENDED_NONE;
	return 1;
}

/* ---- timers of processes ---- */

/* The numbers of clocks of CPU time: the bits of a thread's or process's number, inverted, above three that say which clock
 * it is (linux/posix-timers.h). Number 0 is the timer's maker. */
enum { CLOCK_OF_THREAD = 4, CLOCK_KIND_BITS = 3 };

static bool is_of_a_thread(int32_t clock)
{
	return clock < 0 && clock & CLOCK_OF_THREAD;
}

static pid_t thread_of(int32_t clock)
{
	return (pid_t)(~clock >> CLOCK_KIND_BITS);
}

static int32_t clock_of(pid_t tid, int32_t like)
{
	return (int32_t)(~(uint32_t)tid << CLOCK_KIND_BITS | ((uint32_t)like & 7));
}

static bool has_thread(const struct criu_image_process *p, pid_t tid)
{
	for (size_t i = 0; i < p->n_threads; i++)
		if (p->threads[i] == tid)
			return true;
	return false;
}

/* Nobody hears of it any more, but it can be asked and deleted. */
static void silence(CriuImage__PosixTimer *t)
{
	t->notify = SIGEV_NONE;
	t->has_thread = false;
}

/* It never expires. */
static void stop(CriuImage__PosixTimer *t)
{
	silence(t);
	t->clock = CLOCK_MONOTONIC;
	t->interval_s = t->interval_ns = t->left_s = t->left_ns = 0;
}

/* Returns 1 if it was changed, 0, -EOPNOTSUPP. */
static int mend_clock(CriuImage__PosixTimer *t, const struct criu_image_process *p)
{
	const int32_t clock = (int32_t)t->clock;
	pid_t tid = is_of_a_thread(clock) ? thread_of(clock) : 0;

	if (!is_of_a_thread(clock))
		return 0;
	if (!tid) {
		/* The kernel gives a thread signals for its own CPU time only by a timer that it made itself. */
		if (t->notify == SIGEV_THREAD_ID && t->has_thread)
			tid = t->thread;
		else if (p->n_threads <= 1)
			tid = p->pid;
		else
			return -EOPNOTSUPP;
		t->clock = (uint32_t)clock_of(tid, clock);
	}
	if (has_thread(p, tid))
		return t->clock != (uint32_t)clock;
	stop(t);
	return 1;
}

static int mend_posix_timer(CriuImage__PosixTimer *t, const struct criu_image_process *p)
{
	int r = mend_clock(t, p);

	if (r >= 0 && t->notify == SIGEV_THREAD_ID && !has_thread(p, t->thread)) {
		silence(t);
		r = 1;
	}
	return r;
}

static int mend_timers(CriuImage__Core *core, const struct criu_image_process *p)
{
	CriuImage__Timers *timers = core->tc ? core->tc->timers : NULL;
	bool is_changed = false;

	for (size_t i = 0; timers && i < timers->n_posix; i++) {
		int r = mend_posix_timer(timers->posix[i], p);

		if (r < 0)
			return r;
		is_changed = is_changed || r > 0;
	}
	return is_changed;
}

/* A member that is none, of a damaged image, can be read and packed, and not be read after that. */
static bool is_core(const void *buf, size_t len_bytes)
{
	CriuImage__Core *core = criu_core_unpack(buf, len_bytes);

	if (core)
		criu_image__core__free_unpacked(core, NULL);
	return core;
}

int criu_mend_core(struct criu_mended *ret, const void *buf, size_t len_bytes,
		   const struct criu_image_process *p)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	CriuImage__Core *core = criu_core_unpack(buf, len_bytes);
	int r = core ? mend_timers(core, p) : -EBADMSG;

	if (r > 0 && (r = append(&m, buf, HEAD_BYTES)) == 0 &&
	    (r = criu_mended_append(&m, &core->base)) == 0)
		r = is_core(m.bytes, m.len_bytes) ? 1 : -EBADMSG;
	if (core)
		criu_image__core__free_unpacked(core, NULL);
	if (r <= 0)
		return r;
	*ret = m;
	m = CRIU_MENDED_NONE;
	return 1;
}

static uint64_t ns_of(uint64_t s, uint64_t ns)
{
	return s > INT64_MAX / NS_PER_S - 1 ? INT64_MAX : s * NS_PER_S + ns % NS_PER_S;
}

int criu_core_timers(const void *buf, size_t len_bytes, pid_t pid, criu_timer_fn fn, void *arg)
{
	CriuImage__Core *core = criu_core_unpack(buf, len_bytes);
	const CriuImage__Timers *timers = core && core->tc ? core->tc->timers : NULL;
	int r = core ? 0 : -EBADMSG;

	for (size_t i = 0; timers && i < timers->n_posix && r == 0; i++) {
		const CriuImage__PosixTimer *t = timers->posix[i];
		const struct criu_timer timer = { pid, (int32_t)t->id, ns_of(t->left_s, t->left_ns),
						  ns_of(t->interval_s, t->interval_ns) };

		if (t->clock == CLOCK_REALTIME && timer.left_ns && timer.id >= 0)
			r = fn(arg, &timer);
	}
	if (core)
		criu_image__core__free_unpacked(core, NULL);
	return r;
}

/* ---- which eventfds are semaphores ---- */

enum { TYPE_EVENTFD = 6 };

struct search {
	int dir_fd;
	criu_semaphore_fn is_semaphore;
	criu_timer_fn on_timer;
	void *arg;
	struct criu_semaphores found, others; /* that were asked about */
};

/* Many descriptors may lead to one. */
static int ask_about(struct search *s, pid_t pid, const CriuImage__Descriptor *d)
{
	if (d->type != TYPE_EVENTFD || is_among(&s->found, d->id) || is_among(&s->others, d->id))
		return 0;
	int r = s->is_semaphore(s->arg, pid, (int)d->fd);
	if (r == -ENOENT || r == -ESRCH) /* killed, which CRIU tells */
		r = 0;
	struct criu_semaphores *to = r > 0 ? &s->found : &s->others;
	return r < 0 ? r : array_add(to->ids, to->n, d->id);
}

static int search_descriptors(struct search *s, pid_t pid, uint32_t files_id)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	char name[32];
	size_t len;

	snprintf(name, sizeof(name), "fdinfo-%u.img", files_id);
	int r = file_read_plain(s->dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);
	if (r == 0)
		r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FDINFO);
	while (r == 0 && (r = criu_entries_next(&image, &entry)) > 0) {
		CriuImage__Descriptor *d =
			criu_image__descriptor__unpack(NULL, entry.left, entry.p);

		r = d ? ask_about(s, pid, d) : -EBADMSG;
		if (d)
			criu_image__descriptor__free_unpacked(d, NULL);
	}
	return r == -ENOENT ? 0 : r;
}

/* A process that has ended has no such image. */
static int search_process(struct search *s, pid_t pid)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	char name[32];
	size_t len;

	snprintf(name, sizeof(name), "ids-%d.img", pid);
	int r = file_read_plain(s->dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_IDS);
	if (r < 0 || criu_entries_next(&image, &entry) <= 0)
		return -EBADMSG;
	CriuImage__KernelIds *ids = criu_image__kernel_ids__unpack(NULL, entry.left, entry.p);
	if (!ids)
		return -EBADMSG;
	r = ids->has_files_id ? search_descriptors(s, pid, ids->files_id) : 0;
	criu_image__kernel_ids__free_unpacked(ids, NULL);
	return r;
}

/* ---- what TCP has not sent ---- */

/* An entry, and after it the bytes of the two queues. */
int criu_mend_tcp(struct criu_mended *ret, const void *buf, size_t len_bytes)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, buf, len_bytes, CRIU_MAGIC_IMAGE, CRIU_MAGIC_TCP_STREAM);

	if (r == 0)
		r = criu_mended_begin(&m, buf, &image);
	if (r == 0)
		r = criu_entries_next(&image, &entry);
	if (r <= 0)
		return r < 0 ? r : -EBADMSG;
	CriuImage__TcpStream *stream = criu_image__tcp_stream__unpack(NULL, entry.left, entry.p);
	if (!stream)
		return -EBADMSG;
	const bool mends = stream->unsent_bytes > 0;
	stream->unsent_bytes = 0;
	r = mends ? criu_mended_append(&m, &stream->base) : 0;
	criu_image__tcp_stream__free_unpacked(stream, NULL);
	if (r == 0 && mends)
		r = append(&m, image.p, image.left);
	if (r < 0 || !mends)
		return r;
	*ret = m;
	m = CRIU_MENDED_NONE;
	return 1;
}

/* ---- all of them ---- */

int criu_mended_write(int dir_fd, const char *name, const struct criu_mended *m)
{
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd_write_full(fd, m->bytes, m->len_bytes);
}

static int fail_clock(pid_t pid, struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP,
		     "process %d has a timer that counts the CPU time of one of its threads, and "
		     "of which, the kernel does not tell",
		     pid);
	brumate_hint(err, "delete it before, or make it with pthread_getcpuclockid(3)");
	return -EOPNOTSUPP;
}

static int fail_image(const char *name, int r, struct brumate_error *err)
{
	return brumate_fail(err, -r, "CRIU's image %s: %s", name, strerror(-r));
}

static int mend_process(struct search *s, const struct criu_image_process *p,
			struct brumate_error *err)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	auto_free char *text = NULL;
	char name[32];
	size_t len = 0;

	snprintf(name, sizeof(name), "core-%d.img", p->pid);
	int r = file_read_plain(s->dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);
	if (r == 0)
		r = criu_mend_core(&m, text, len, p);
	if (r > 0)
		r = criu_mended_write(s->dir_fd, name, &m);
	if (r == 0)
		r = criu_core_timers(text, len, p->pid, s->on_timer, s->arg);
	if (r == -EOPNOTSUPP)
		return fail_clock(p->pid, err);
	if (r < 0)
		return fail_image(name, r, err);
	r = search_process(s, p->pid);
	if (r == -EOPNOTSUPP)
		return brumate_fail(err, EOPNOTSUPP,
				    "process %d has an eventfd that is a semaphore, and the plugin "
				    "of CRIU that restores it is not installed (brumate-criu.so)",
				    p->pid);
	return r < 0 ? brumate_fail(err, -r, "process %d: its eventfds: %s", p->pid, strerror(-r))
		     : 0;
}

static int mend_all_files(const struct search *s, struct brumate_error *err)
{
	static const char name[] = "files.img";
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	auto_free char *text = NULL;
	size_t len = 0;
	int r = file_read_plain(s->dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);

	if (r == 0)
		r = criu_mend_files(&m, text, len, &s->found);
	if (r > 0)
		r = criu_mended_write(s->dir_fd, name, &m);
	if (r == -EOVERFLOW)
		return brumate_fail(err, EOPNOTSUPP,
				    "an eventfd of the job has a count of more than 32 bits, which "
				    "CRIU does not restore");
	return r < 0 ? fail_image(name, r, err) : 0;
}

static int mend_connection(int dir_fd, const char *name, struct brumate_error *err)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	auto_free char *text = NULL;
	size_t len = 0;
	int r = file_read_plain(dir_fd, name, TCP_IMAGE_BYTES_MAX, &text, &len);

	if (r == 0)
		r = criu_mend_tcp(&m, text, len);
	if (r > 0)
		r = criu_mended_write(dir_fd, name, &m);
	return r < 0 ? fail_image(name, r, err) : 0;
}

static int mend_connections(int dir_fd, struct brumate_error *err)
{
	auto_closedir DIR *dir = dir_open(dir_fd, ".");
	int r = 0, more = dir ? 0 : -errno;
	struct dirent *e;

	while (dir && r == 0 && (more = dir_next(dir, &e)) > 0)
		if (criu_image_is_tcp(e->d_name))
			r = mend_connection(dir_fd, e->d_name, err);
	return more < 0 ? brumate_fail(err, -more, "CRIU's images: %s", strerror(-more)) : r;
}

int criu_mend_images(int dir_fd, criu_semaphore_fn is_semaphore, criu_timer_fn on_timer, void *arg,
		     struct brumate_error *err)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	struct search s = {
		.dir_fd = dir_fd, .is_semaphore = is_semaphore, .on_timer = on_timer, .arg = arg
	};
	int r = criu_image_tree_read(&tree, dir_fd);

	if (r < 0)
		return fail_image("pstree.img", r, err);
	for (size_t i = 0; r == 0 && i < tree.n; i++)
		r = mend_process(&s, &tree.items[i], err);
	if (r == 0)
		r = mend_all_files(&s, err);
	if (r == 0)
		r = mend_connections(dir_fd, err);
	free(s.found.ids);
	free(s.others.ids);
	return r;
}
