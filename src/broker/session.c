// SPDX-License-Identifier: MIT
/*
 * Sessions: the client's request, what of the answer was sent, and the end. A session releases everything when its
 * client closes the connection. What was handed out lives on with its holders. See session.h.
 */
#include "broker/session.h"
#include "broker/transfer.h"
#include "broker/digests.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/packet.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	PROGRESS_MS = 100,
	SEND_TIMEOUT_MS = 30000, /* for a client that does not read */
	SESSIONS_MAX = 64,
	PLACE_TIMEOUT_MS = 20000, /* for a place among them */
	PLACE_LOOK_MS = 200,
	FEW_SESSIONS = 4, /* of one process: it may need all of them */
	SILENT_MS =
		5000, /* without a word to or from the client: its place is taken where it is needed */
	SILENT_OF_FEW_MS = 15000, /* and if its process has few */
	GPUS_IDLE_MS = 10000,	  /* open GPUs cost device memory */
};

enum session_state {
	SESSION_IDLE,	 /* no answer is due */
	SESSION_EXPECTS, /* a request has begun, and its segments have not arrived */
	SESSION_WORKS,	 /* a transfer is under way */
};

struct session {
	struct sessions *all;
	struct session *next; /* in the list of sessions, under its lock */
	int socket_fd, wake_fd;
	pid_t pid;		  /* of the client; 0: it is not known */
	uint64_t heard_ns;	  /* when it last did what is its part; under the lock */
	bool dropped;		  /* its place is needed; under the lock */
	enum session_state state; /* changed by the session's own thread, under the lock */

	struct transfer_piece *pieces; /* of a layout that is being received */
	uint32_t n_pieces, n_pieces_all;
	struct transfer *transfer;
	uint32_t flags;		     /* of the layout */
	struct transfer_packet from; /* IN, or OUT with a base: the request */
	int *segments;		     /* the host copy's segments that have arrived */
	uint32_t n_segments;
	bool gave_pieces;	      /* in: the client has the pieces' fds */
	bool told_all;		      /* the client has the digests of the segments that it has */
	size_t n_gave;		      /* segments that the client has */
	struct brumate_error refused; /* of a layout, reported with its request */
};

struct sessions {
	struct driver *driver;
	struct gpus *gpus;
	bool digests;
	struct loop *loop;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	struct session *list;
	size_t n, n_dropped;
	size_t n_waiting; /* for a place */
	uint64_t last_end_ns;
	bool stopping;
};

static void set_state(struct session *s, enum session_state state)
{
	pthread_mutex_lock(&s->all->lock);
	s->state = state;
	if (state == SESSION_IDLE && s->all->stopping)
		shutdown(s->socket_fd, SHUT_RD);
	pthread_mutex_unlock(&s->all->lock);
}

static void note_heard(struct session *s)
{
	pthread_mutex_lock(&s->all->lock);
	s->heard_ns = clock_now_ns();
	pthread_mutex_unlock(&s->all->lock);
}

/* Drops all work, also if under way. */
static void reset_session(struct session *s)
{
	transfer_free(take_ptr(&s->transfer));
	packet_close_fds(s->segments, s->n_segments);
	free(take_ptr(&s->segments));
	free(take_ptr(&s->pieces));
	s->n_segments = s->n_pieces = s->n_pieces_all = 0;
	s->gave_pieces = false;
	s->n_gave = 0;
}

/* Releases what the request used, and sends DONE. @err: why it failed, or NULL. */
static int send_done(struct session *s, const struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_DONE);

	if (s->transfer && !err) {
		p.zero_bytes = s->transfer->zero_bytes;
		p.same_bytes = s->transfer->same_bytes;
		p.flags = digests_are_compared(s->transfer) ? TRANSFER_WITH_DIGESTS : 0;
	}
	reset_session(s);
	if (err) {
		p.error = -err->code;
		p.exit_code = (uint32_t)err->exit_code;
		snprintf(p.failure.text, sizeof(p.failure.text), "%s", err->text);
		snprintf(p.failure.hint, sizeof(p.failure.hint), "%s", err->hint);
	}
	set_state(s, SESSION_IDLE);
	return transfer_send(s->socket_fd, &p, NULL, 0, deadline_in_ms(SEND_TIMEOUT_MS));
}

/* Answers a request that failed; the session goes on. */
static int fail_request(struct session *s, const struct brumate_error *err)
{
	log_warn("copy failed: %s", err->text);
	return send_done(s, err);
}

/* Sends the segments that the client does not have yet, up to before @end. */
static int send_segments(struct session *s, struct segments *h, size_t end,
			 struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_SEGMENTS);
	const size_t n = end - s->n_gave;
	auto_free int *fds = calloc(n + 1, sizeof(*fds));

	p.total_bytes = h->total_bytes;
	p.segment_bytes = h->segment_bytes;
	p.flags = h->spilled ? TRANSFER_SPILLED : 0;
	p.n_total = (uint32_t)segments_fds(h);
	if (!fds)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	int r = segments_lease(h, s->n_gave, end, fds, err);
	if (r < 0)
		return r;
	r = transfer_send_all(s->socket_fd, &p, fds, n, deadline_in_ms(SEND_TIMEOUT_MS));
	packet_close_fds(fds, n);
	s->n_gave = end;
	return r < 0 ? brumate_fail(err, -r, "host copy: sending it: %m") : 0;
}

/* Sends the complete segments of the host copy. A copy that is partly on a disk is sent at the end. */
static int send_early(struct session *s, size_t n_whole, struct transfer_packet *p,
		      struct brumate_error *err)
{
	struct transfer *t = s->transfer;
	struct segments *h = t->host;

	if (n_whole > s->n_gave && !h->spilled) {
		uint64_t start = s->n_gave * h->segment_bytes, end = n_whole * h->segment_bytes;

		end = end < h->total_bytes ? end : h->total_bytes;
		s->told_all = (s->told_all || !start) && digests_tell(t, start, end);
		int r = send_segments(s, h, n_whole, err);
		if (r < 0)
			return r;
	}
	p->n_total = (uint32_t)s->n_gave;
	p->flags = s->told_all ? TRANSFER_WITH_DIGESTS : 0;
	return 0;
}

static int send_pieces(struct session *s, const struct transfer *t, struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_FDS);
	auto_free int *fds = calloc(t->n_pieces, sizeof(*fds));

	if (!fds)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	for (size_t i = 0; i < t->n_pieces; i++)
		fds[i] = t->pieces[i].fd;
	int r = transfer_send_all(s->socket_fd, &p, fds, t->n_pieces,
				  deadline_in_ms(SEND_TIMEOUT_MS));
	s->gave_pieces = true;
	return r < 0 ? brumate_fail(err, -r, "pieces: sending them: %m") : 0;
}

/* While copies are under way: the client can use what is filled or complete before the rest is. */
static int tell_progress(struct session *s, const struct transfer_view *view,
			 struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_PROGRESS);
	const struct transfer *t = s->transfer;
	int r = 0;

	p.done_bytes = view->done_bytes;
	if (t && t->early)
		r = send_early(s, view->n_whole, &p, err);
	if (t && t->stream)
		p.slots = stream_take_freed(s->transfer);
	if (t && !t->to_host && view->made) {
		r = s->gave_pieces ? 0 : send_pieces(s, t, err);
		p.n_total = (uint32_t)view->n_filled;
	}
	if (r < 0)
		return r;
	r = transfer_send(s->socket_fd, &p, NULL, 0, deadline_in_ms(SEND_TIMEOUT_MS));
	if (r == 0 && !(t && transfer_waits_for_client(s->transfer)))
		note_heard(s);
	return r < 0 ? brumate_fail(err, -r, "progress: sending it: %m") : 0;
}

static int send_answer(struct session *s, struct brumate_error *err)
{
	/* What came in is unmapped here before its new owners allocate. */
	transfer_finish(s->transfer);
	digests_finish(s->transfer);
	if (!s->transfer->to_host)
		return s->gave_pieces ? 0 : send_pieces(s, s->transfer, err);
	return s->flags & (TRANSFER_BASE | TRANSFER_COUNT)
		       ? 0
		       : send_segments(s, s->transfer->host, segments_fds(s->transfer->host), err);
}

/* After a wake-up, and from time to time: reports the progress, or the end. */
static int report_session(struct session *s)
{
	struct transfer_view view = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = transfer_look(s->transfer, &view, &err);

	if (r == 0 && (r = tell_progress(s, &view, &err)) == 0)
		return 0;
	if (r > 0)
		r = send_answer(s, &err);
	if (r < 0)
		return fail_request(s, &err);
	if (!(s->flags & TRANSFER_COUNT))
		log_info("copied %s bytes=%llu zero=%llu unchanged=%llu pieces=%zu",
			 s->transfer->to_host ? "out" : "in",
			 (unsigned long long)s->transfer->total_bytes,
			 (unsigned long long)s->transfer->zero_bytes,
			 (unsigned long long)s->transfer->same_bytes, s->transfer->n_pieces);
	return send_done(s, NULL);
}

static int begin_transfer(struct session *s, struct brumate_error *err)
{
	auto_free struct transfer_piece *pieces = take_ptr(&s->pieces);
	int r = transfer_new(&s->transfer, s->all->driver, s->all->gpus, pieces, s->n_pieces,
			     s->flags, s->wake_fd, err);

	if (r == 0 && s->flags & TRANSFER_WITH_DIGESTS)
		r = digests_new(s->transfer, -1, err);
	if (r == 0 && s->flags & TRANSFER_STREAM && !s->transfer->to_host)
		r = transfer_stream(s->transfer, err);
	return r;
}

static int add_layout(struct session *s, const struct transfer_packet *p, struct brumate_error *err)
{
	if (!s->pieces) {
		reset_session(s);
		set_state(s, SESSION_IDLE);
		s->refused = BRUMATE_ERROR_NONE;
		s->pieces = calloc(p->n_total, sizeof(*s->pieces));
		s->n_pieces_all = p->n_total;
		s->flags = s->all->digests ? p->flags : p->flags & ~TRANSFER_WITH_DIGESTS;
	}
	if (!s->pieces)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	if (p->n_total != s->n_pieces_all || p->n > s->n_pieces_all - s->n_pieces)
		return brumate_fail(err, EBADMSG,
				    "pieces: their number differs from that in the layout");
	memcpy(s->pieces + s->n_pieces, p->pieces, p->n * sizeof(*p->pieces));
	s->n_pieces += p->n;
	if (s->n_pieces == s->n_pieces_all && begin_transfer(s, &s->refused) < 0)
		log_debug("nothing to copy to: %s", s->refused.text);
	return 0;
}

/* Whether the layout fits this request; a layout states whether there is a base. */
static bool is_ready_for(const struct session *s, const struct transfer_packet *p)
{
	bool to_host = p->op == TRANSFER_OUT;

	return s->transfer && s->transfer->to_host == to_host && s->state == SESSION_IDLE &&
	       (to_host ? (p->flags & TRANSFER_BASE) == (s->flags & TRANSFER_BASE)
			: !(p->flags & TRANSFER_STREAM) == !s->transfer->stream);
}

static int fail_other_size(const struct transfer *t, const struct transfer_packet *p,
			   struct brumate_error *err)
{
	return brumate_fail(err, EBADMSG, "host copy: %llu bytes of memory and %llu of it",
			    (unsigned long long)t->total_bytes, (unsigned long long)p->total_bytes);
}

/* Notes the host copy whose segments come next. */
static int expect_segments(struct session *s, const struct transfer_packet *p,
			   struct brumate_error *err)
{
	if (p->total_bytes != s->transfer->total_bytes)
		return fail_other_size(s->transfer, p, err);
	s->from = *p;
	s->segments = calloc(p->n_total, sizeof(*s->segments));
	return s->segments ? 0 : brumate_fail(err, ENOMEM, "host copy: %m");
}

/* From here on the client fills the ring. */
static int begin_stream(struct session *s, const struct transfer_packet *p,
			struct brumate_error *err)
{
	struct transfer_packet ring = transfer_packet(TRANSFER_SEGMENTS);
	struct transfer *t = s->transfer;

	if (p->total_bytes != t->total_bytes)
		return fail_other_size(t, p, err);
	auto_close int fd = stream_lease(t->stream, &ring.total_bytes, err);
	if (fd < 0)
		return fd;
	ring.segment_bytes = ring.total_bytes;
	ring.n = ring.n_total = 1;
	set_state(s, SESSION_WORKS);
	int r = transfer_start(t, NULL, false, err);
	if (r == 0 &&
	    (r = transfer_send(s->socket_fd, &ring, &fd, 1, deadline_in_ms(SEND_TIMEOUT_MS))) < 0)
		brumate_fail(err, -r, "ring: sending it: %m");
	return r;
}

static int begin_move(struct session *s, const struct transfer_packet *p, struct brumate_error *err)
{
	if (!is_ready_for(s, p))
		return brumate_fail(err, EBADMSG, "copy %s: no layout for it",
				    p->op == TRANSFER_OUT ? "out" : "in");
	if (s->transfer->stream)
		return begin_stream(s, p, err);
	if (p->op == TRANSFER_IN || p->flags & TRANSFER_BASE) {
		set_state(s, SESSION_EXPECTS);
		return expect_segments(s, p, err);
	}
	set_state(s, SESSION_WORKS);
	return transfer_start(s->transfer, NULL, p->flags & TRANSFER_EARLY, err);
}

static int add_digests(struct session *s, int fd, struct brumate_error *err)
{
	if (!s->transfer || s->state == SESSION_WORKS)
		return brumate_fail(err, EBADMSG, "digests: no layout for them");
	struct brumate_error why = BRUMATE_ERROR_NONE;
	if (digests_new(s->transfer, fd, &why) < 0)
		transfer_fail(s->transfer, &why); /* the request gets the error */
	return 0;
}

/* Takes @fds. */
static int add_segments(struct session *s, const struct transfer_packet *p, const int *fds,
			struct brumate_error *err)
{
	struct segments *host;

	memcpy(s->segments + s->n_segments, fds, p->n * sizeof(*fds));
	s->n_segments += p->n;
	if (s->n_segments < s->from.n_total)
		return 0;
	int r = segments_adopt(&host, s->all->gpus, s->from.total_bytes, s->from.segment_bytes,
			       s->segments, s->n_segments, err);
	if (r < 0)
		return r;
	set_state(s, SESSION_WORKS);
	return transfer_start(s->transfer, host, false, err);
}

/* After a layout that failed: answers its request with the error, and drops the fds that come with it. */
static int refuse_packet(struct session *s, const struct transfer_packet *p,
			 struct brumate_error *err)
{
	if (p->op != TRANSFER_OUT && p->op != TRANSFER_IN)
		return 0;
	set_state(s, SESSION_EXPECTS);
	*err = s->refused;
	s->refused = BRUMATE_ERROR_NONE;
	return -err->code;
}

/* @ret_taken: the packet's fds are taken. Those of a failed request are not. */
static int serve_fds(struct session *s, const struct transfer_packet *p, const int *fds,
		     bool *ret_taken, struct brumate_error *err)
{
	if (p->op == TRANSFER_SEGMENTS && s->state == SESSION_EXPECTS) {
		if (p->n > s->from.n_total - s->n_segments)
			return brumate_fail(err, EBADMSG,
					    "host copy: more segments than announced");
		*ret_taken = true;
		return add_segments(s, p, fds, err);
	}
	if (p->op == TRANSFER_FDS && s->state == SESSION_WORKS && s->transfer &&
	    s->transfer->to_host) {
		int r = transfer_give(s->transfer, fds, p->n);

		*ret_taken = r == 0;
		return r < 0 ? brumate_fail(err, -r, "more fds than pieces: %m") : 0;
	}
	return 0;
}

static int serve_packet(struct session *s, const struct transfer_packet *p, const int *fds,
			bool *ret_taken, struct brumate_error *err)
{
	if (s->refused.code && p->op != TRANSFER_LAYOUT)
		return refuse_packet(s, p, err);
	switch (p->op) {
	case TRANSFER_LAYOUT:
		return add_layout(s, p, err);
	case TRANSFER_OUT:
	case TRANSFER_IN:
		return begin_move(s, p, err);
	case TRANSFER_DIGESTS:
		return add_digests(s, fds[0], err);
	case TRANSFER_FILLED:
		return s->state == SESSION_WORKS && s->transfer && s->transfer->stream
			       ? stream_fill(s->transfer, p->n_total, p->total_bytes,
					     p->segment_bytes, err)
			       : 0; /* of a request that has failed */
	case TRANSFER_SEGMENTS:
	case TRANSFER_FDS:
		return serve_fds(s, p, fds, ret_taken, err);
	default:
		return brumate_fail(err, EBADMSG, "packet of kind %u is not for the broker", p->op);
	}
}

/* Returns 0 even if a request failed, as the client gets its error; <0: the session has ended. */
static int receive_packet(struct session *s)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct transfer_packet p;
	int fds[TRANSFER_ITEMS_MAX];
	bool taken = false;
	int r = transfer_receive(s->socket_fd, &p, fds, deadline_in_ms(0), &err);

	if (r == -EPIPE)
		return r;
	note_heard(s);
	if (r == 0) {
		r = serve_packet(s, &p, fds, &taken, &err);
		if (transfer_has_fds(p.op) && !taken)
			packet_close_fds(fds, p.n);
	}
	if (r < 0 && (fail_request(s, &err) < 0 || r == -EBADMSG))
		return -EPIPE;
	return 0;
}

/* Waits for a packet or, during work, for its end. */
static int serve_once(struct session *s)
{
	struct pollfd fds[] = { { .fd = s->socket_fd, .events = POLLIN },
				{ .fd = s->wake_fd, .events = POLLIN } };
	eventfd_t count;
	int r = 0;

	int n = poll(fds, 2, s->state == SESSION_WORKS ? PROGRESS_MS : -1);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[1].revents && eventfd_read(s->wake_fd, &count) < 0)
		return -errno;
	if (fds[0].revents)
		r = receive_packet(s);
	if (r < 0 || s->state != SESSION_WORKS || !(fds[1].revents || n == 0))
		return r;
	return report_session(s);
}

static void end_session(struct session *s)
{
	struct sessions *all = s->all;

	reset_session(s);
	pthread_mutex_lock(&all->lock);
	struct session **at = &all->list;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	all->n--;
	all->n_dropped -= s->dropped;
	close(s->socket_fd);
	close(s->wake_fd);
	free(s);
	all->last_end_ns = clock_now_ns();
	loop_wake(all->loop);
	pthread_cond_broadcast(&all->changed);
	pthread_mutex_unlock(&all->lock); /* from here on the session may be freed */
}

/* Opens the GPU of a machine that has only one: no other can be needed. */
static void open_only_gpu(struct gpus *gpus, const struct dev_backend *backend)
{
	struct dev_gpu found[2];
	struct dev_memory *memory;
	struct brumate_error err;
	uint8_t uuid[DEV_UUID_BYTES];
	size_t n = 0;

	if (!backend->memory || dev_gpus(backend, found, 2, &n, NULL) < 0 || n != 1 ||
	    dev_uuid_parse(uuid, found[0].uuid) < 0)
		return;
	if (gpus_get(gpus, &memory, uuid, &err) < 0)
		log_debug("%s", err.text); /* reported when it is needed */
}

static void *run_session(void *arg)
{
	struct session *s = arg;
	const struct dev_backend *backend;
	int r = driver_wait(s->all->driver, &backend, NULL, NULL);

	if (r == 0) {
		gpus_use(s->all->gpus, backend->memory);
		open_only_gpu(s->all->gpus, backend);
	}
	while (r == 0)
		r = serve_once(s);
	end_session(s);
	return NULL;
}

/* ---- all sessions ---- */

static int check_socket(int fd)
{
	int domain = 0, type = 0;
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
		return -errno;
	return domain == AF_UNIX && type == SOCK_SEQPACKET ? 0 : -ENOTSOCK;
}

/* Under the lock. */
static size_t count_of(const struct sessions *all, pid_t pid)
{
	size_t n = 0;

	for (const struct session *s = all->list; s; s = s->next)
		n += s->pid == pid && !s->dropped;
	return n;
}

/* Ends the session that is needed least, if there is one that says nothing: of the process that has most of them, the one that has been silent for
 * longest. Its client finds it closed, as if the broker had ended, and can begin again. Under the lock. */
static void drop_silent(struct sessions *all)
{
	const uint64_t now_ns = clock_now_ns();
	struct session *least = NULL;
	size_t n_least = 0;

	for (struct session *s = all->list; s; s = s->next) {
		const size_t n = count_of(all, s->pid);
		const uint64_t silent_ms = (now_ns - s->heard_ns) / NS_PER_MS;

		if (s->dropped || silent_ms < (n > FEW_SESSIONS ? SILENT_MS : SILENT_OF_FEW_MS))
			continue;
		if (least && (n < n_least || (n == n_least && s->heard_ns > least->heard_ns)))
			continue;
		least = s;
		n_least = n;
	}
	if (!least)
		return;
	least->dropped = true;
	all->n_dropped++;
	shutdown(least->socket_fd, SHUT_RDWR);
	log_info("a session of process %d ends, which was silent for %.1f s: its place is needed",
		 (int)least->pid, clock_since_s(least->heard_ns));
}

static bool has_hung_up(int fd)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, 0) > 0;
}

/* Sessions that their clients do not use keep no others out. Under the lock. */
static int wait_place(struct sessions *all, int socket_fd)
{
	const uint64_t deadline_ns = deadline_in_ms(PLACE_TIMEOUT_MS);
	int r = 0;

	all->n_waiting++;
	while (r == 0 && !all->stopping && all->n >= SESSIONS_MAX) {
		const struct timespec until = deadline_timespec(deadline_in_ms(PLACE_LOOK_MS));

		if (all->n - all->n_dropped + all->n_waiting > SESSIONS_MAX)
			drop_silent(all);
		pthread_cond_timedwait(&all->changed, &all->lock, &until);
		if (has_hung_up(socket_fd))
			r = -EPIPE;
		else if (deadline_left_ms(deadline_ns) == 0)
			r = -EBUSY;
	}
	all->n_waiting--;
	return r < 0 && all->n >= SESSIONS_MAX ? r : 0;
}

/* Under the lock. */
static int start_session(struct sessions *all, struct session *s)
{
	int r = wait_place(all, s->socket_fd);

	if (r < 0)
		return r;
	if (all->stopping)
		return -ESHUTDOWN;
	s->heard_ns = clock_now_ns();
	r = thread_start_detached(run_session, s, 0);
	if (r < 0)
		return r;
	s->next = all->list;
	all->list = s;
	all->n++;
	return 0;
}

int sessions_add(struct sessions *all, int socket_fd, pid_t pid, struct brumate_error *err)
{
	auto_close int fd = socket_fd, wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	auto_free struct session *s = calloc(1, sizeof(*s));
	int r = check_socket(fd);

	if (r < 0)
		return brumate_fail(err, -r,
				    "transfer: expected one end of a SOCK_SEQPACKET pair: %m");
	if (!s || wake_fd < 0)
		return brumate_fail(err, ENOMEM, "transfer: %m");
	s->all = all;
	s->socket_fd = fd;
	s->wake_fd = wake_fd;
	s->pid = pid;
	pthread_mutex_lock(&all->lock);
	r = start_session(all, s);
	if (r == 0) {
		take_fd(&fd);
		take_fd(&wake_fd);
		take_ptr(&s);
	}
	pthread_mutex_unlock(&all->lock);
	if (r == -EBUSY)
		return brumate_fail(
			err, EBUSY,
			"transfer: %d sessions move memory already, and none ended within %d s",
			SESSIONS_MAX, PLACE_TIMEOUT_MS / 1000);
	return r < 0 ? brumate_fail(err, -r, "transfer: no new session: %m") : 0;
}

size_t sessions_busy(struct sessions *all, uint64_t *ret_last_end_ns)
{
	pthread_mutex_lock(&all->lock);
	size_t n = all->n;
	*ret_last_end_ns = all->last_end_ns;
	pthread_mutex_unlock(&all->lock);
	return n;
}

int sessions_rest(struct sessions *all)
{
	int left_ms = -1;

	pthread_mutex_lock(&all->lock);
	if (!all->n && gpus_are_left(all->gpus)) {
		left_ms = deadline_left_ms(all->last_end_ns + GPUS_IDLE_MS * NS_PER_MS);
		if (left_ms == 0) {
			gpus_close(all->gpus); /* a session that begins waits for the lock */
			left_ms = -1;
		}
	}
	pthread_mutex_unlock(&all->lock);
	return left_ms;
}

bool sessions_close_gpus(struct sessions *all, uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);
	int r = 0;

	pthread_mutex_lock(&all->lock);
	while (all->n && r == 0)
		r = pthread_cond_timedwait(&all->changed, &all->lock, &until);
	bool closed = !all->n && gpus_close(all->gpus);
	pthread_mutex_unlock(&all->lock);
	return closed;
}

int sessions_drain(struct sessions *all, uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);
	int r = 0;

	pthread_mutex_lock(&all->lock);
	all->stopping = true;
	for (struct session *s = all->list; s; s = s->next)
		if (s->state == SESSION_IDLE)
			shutdown(s->socket_fd, SHUT_RD);
	while (all->n && r == 0)
		r = -pthread_cond_timedwait(&all->changed, &all->lock, &until);
	if (r == 0)
		gpus_close(all->gpus);
	pthread_mutex_unlock(&all->lock);
	return r;
}

int sessions_new(struct sessions **ret, struct driver *driver, struct gpus *gpus, bool digests,
		 struct loop *loop, struct brumate_error *err)
{
	struct sessions *all = calloc(1, sizeof(*all));

	if (!all)
		return brumate_fail(err, ENOMEM, "%m");
	all->driver = driver;
	all->gpus = gpus;
	all->digests = digests;
	all->loop = loop;
	pthread_mutex_init(&all->lock, NULL);
	condition_init(&all->changed);
	*ret = all;
	return 0;
}

void sessions_free(struct sessions *all)
{
	if (!all)
		return;
	pthread_mutex_destroy(&all->lock);
	pthread_cond_destroy(&all->changed);
	free(all);
}
