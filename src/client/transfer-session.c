// SPDX-License-Identifier: MIT
/*
 * The client's end of a session that moves device memory (wire/transfer-packets.h). It checks all that the broker says
 * before it believes it: what it hands out are the numbers of descriptors that were asked for, and memory that no
 * process can shrink while another one maps it.
 */
#include "client/transfer-session.h"
#include "base/clock.h"
#include "base/packet.h"
#include "wire/host-copy.h"
#include "wire/transfer-packets.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum {
	OPEN_TIMEOUT_MS = 60000, /* the broker may have to load the driver */
	SILENCE_TIMEOUT_MS =
		60000,		/* it says something ten times a second, if no driver call hangs */
	LOOK_MS = PEER_LOOK_MS, /* between questions whether to go on */
	CLOSE_TIMEOUT_MS = 2000,
};

struct transfer_client {
	int fd;
	struct peer peer; /* the broker */
};

/* A request that is under way: what may come as its answer, and what has come. */
struct pending {
	struct transfer_client *client;
	const struct transfer_request *request; /* NULL: of memory alone */
	uint64_t done_bytes;
	int *fds; /* of pieces, in their order */
	size_t n_fds, n_fds_wanted;
	uint64_t total_bytes; /* of the host copy that is to come; 0: none is */
	struct host_copy copy;
	size_t n_segments_wanted;
	struct transfer_spared spared;
	bool compared;
	const struct transfer_stream *stream; /* NULL: it is not one */
	bool begun;			      /* the stream has */
};

void host_copy_fini(struct host_copy *c)
{
	packet_close_fds(c->segments, c->n_segments);
	free(c->segments);
	digest_table_free(c->digests);
	*c = HOST_COPY_EMPTY;
}

size_t host_copy_n_segments(const struct host_copy *c)
{
	return c->total_bytes ? (size_t)((c->total_bytes - 1) / c->segment_bytes + 1) : 0;
}

bool host_copy_is_spilled(const struct host_copy *c)
{
	return c->n_segments > host_copy_n_segments(c);
}

bool host_copy_is_on_disk(const struct host_copy *c, size_t i)
{
	return host_copy_is_spilled(c) && spill_is_segment(c->segments[i], c->segment_bytes);
}

uint64_t host_copy_memory_bytes(const struct host_copy *c)
{
	uint64_t bytes = 0;
	struct stat st;

	for (size_t i = 0; i < host_copy_n_segments(c); i++)
		if (!host_copy_is_on_disk(c, i) && fstat(c->segments[i], &st) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	return bytes;
}

uint64_t host_copy_disk_bytes(const struct host_copy *c)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < host_copy_n_segments(c); i++) {
		uint64_t left = c->total_bytes - i * c->segment_bytes;

		if (host_copy_is_on_disk(c, i))
			bytes += left < c->segment_bytes ? left : c->segment_bytes;
	}
	return bytes;
}

uint64_t host_copy_offset(const struct device_piece *pieces, size_t i)
{
	uint64_t offset = 0;

	for (size_t k = 0; k < i; k++)
		offset = transfer_next(offset, pieces[k].len_bytes);
	return offset;
}

static int fail_broken(int r, struct brumate_error *err)
{
	if (r == -EPIPE)
		return brumate_fail(err, EPIPE, "broker: it ended during a copy");
	return brumate_fail(err, -r, "broker: copy: %m");
}

int transfer_client_open(struct transfer_client **ret, struct broker_client *b,
			 struct brumate_error *err)
{
	auto_free struct transfer_client *c = calloc(1, sizeof(*c));
	int pair[2];

	if (!c)
		return brumate_fail(err, ENOMEM, "broker: %m");
	if (b->wire.fd < 0)
		return brumate_fail(err, EPIPE, "broker: not connected");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return brumate_fail(err, errno, "broker: socket: %m");
	auto_close int mine = pair[0], theirs = pair[1];
	int r = broker_client_call(b, "io.brumate.broker.Transfer", NULL, theirs, NULL,
				   deadline_in_ms(OPEN_TIMEOUT_MS), err);
	if (r < 0)
		return r;
	c->fd = take_fd(&mine);
	c->peer = b->peer;
	*ret = take_ptr(&c);
	return 0;
}

/* Waits until the broker has released what the session had, so that the next request for memory finds it. */
static void wait_let_go(struct transfer_client *c)
{
	uint64_t deadline_ns = deadline_in_ms(CLOSE_TIMEOUT_MS);
	struct transfer_packet p;
	int fds[TRANSFER_ITEMS_MAX];

	shutdown(c->fd, SHUT_WR);
	while (peer_wait(&c->peer, c->fd, POLLIN, deadline_ns) == 0 &&
	       transfer_receive(c->fd, &p, fds, deadline_ns, NULL) == 0)
		if (transfer_has_fds(p.op))
			packet_close_fds(fds, p.n);
}

void transfer_client_close(struct transfer_client *c)
{
	if (!c)
		return;
	wait_let_go(c);
	cleanup_close(&c->fd);
	free(c);
}

static int send_one(struct transfer_client *c, const struct transfer_packet *p, const int *fds,
		    size_t n)
{
	uint64_t deadline_ns = deadline_in_ms(SILENCE_TIMEOUT_MS);
	int r = peer_wait(&c->peer, c->fd, POLLOUT, deadline_ns);

	return r < 0 ? r : transfer_send(c->fd, p, fds, n, deadline_ns);
}

static int send_packet(struct transfer_client *c, const struct transfer_packet *p, const int *fds,
		       size_t n, struct brumate_error *err)
{
	struct transfer_packet part = *p;
	int r = n ? 0 : send_one(c, p, NULL, 0);

	for (size_t i = 0; i < n && r == 0; i += part.n) {
		part.n = (uint32_t)(n - i < TRANSFER_ITEMS_MAX ? n - i : TRANSFER_ITEMS_MAX);
		r = send_one(c, &part, fds + i, part.n);
	}
	return r < 0 ? fail_broken(r, err) : 0;
}

static int send_layout(struct transfer_client *c, const struct transfer_request *request,
		       uint32_t flags, struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_LAYOUT);
	const struct device_piece *pieces = request->pieces;
	const size_t n = request->n;
	int r = 0;

	if (!n || n > TRANSFER_PIECES_MAX)
		return brumate_fail(err, EINVAL, "copy: %zu pieces", n);
	p.flags = flags;
	p.n_total = (uint32_t)n;
	for (size_t i = 0; i < n && r == 0; i++) {
		struct transfer_piece *piece = &p.pieces[p.n++];

		piece->len_bytes = pieces[i].len_bytes;
		if (!piece->len_bytes || piece->len_bytes % TRANSFER_ALIGN_BYTES ||
		    piece->len_bytes > TRANSFER_BYTES_MAX)
			return brumate_fail(err, EINVAL,
					    "copy: piece %zu: %llu bytes are not a multiple of 2 "
					    "MiB, or too many",
					    i + 1, (unsigned long long)piece->len_bytes);
		if (dev_uuid_parse(piece->gpu, pieces[i].gpu) < 0)
			return brumate_fail(err, EINVAL, "copy: piece %zu: '%s' is no GPU", i + 1,
					    pieces[i].gpu);
		if (p.n < TRANSFER_ITEMS_MAX && i + 1 < n)
			continue;
		r = send_packet(c, &p, NULL, 0, err);
		p.n = 0;
	}
	return r;
}

static int fail_answer(struct brumate_error *err)
{
	brumate_fail(err, EPROTO, "broker: unexpected reply to a copy of device memory");
	brumate_hint(err,
		     "brumate-broker may be of another version than this program: end it, and it "
		     "is started anew when needed");
	return -EPROTO;
}

/* Takes @fds. */
static int take_pieces(struct pending *q, const struct transfer_packet *p, const int *fds,
		       struct brumate_error *err)
{
	if (p->n > q->n_fds_wanted - q->n_fds) {
		packet_close_fds(fds, p->n);
		return fail_answer(err);
	}
	memcpy(q->fds + q->n_fds, fds, p->n * sizeof(*fds));
	q->n_fds += p->n;
	return 0;
}

/* The first packet of segments says how many there will be. */
static int expect_segments(struct pending *q, const struct transfer_packet *p,
			   struct brumate_error *err)
{
	if (!q->total_bytes || p->total_bytes != q->total_bytes)
		return fail_answer(err);
	if (q->copy.segments)
		return p->n_total == q->n_segments_wanted &&
				       p->segment_bytes == q->copy.segment_bytes
			       ? 0
			       : fail_answer(err);
	q->copy.segments = calloc(p->n_total, sizeof(*q->copy.segments));
	if (!q->copy.segments)
		return brumate_fail(err, ENOMEM, "copy: %m");
	q->copy.total_bytes = p->total_bytes;
	q->copy.segment_bytes = p->segment_bytes;
	q->n_segments_wanted = p->n_total;
	return 0;
}

/* Whether fd @i of the host copy is what it has to be. */
static bool is_segment(const struct pending *q, const struct transfer_packet *p, size_t i)
{
	auto_(seal_disk_key_fini) struct seal_disk_key key;
	bool spilled = p->flags & TRANSFER_SPILLED;
	int fd = q->copy.segments[i];

	if (spilled && i == q->n_segments_wanted - 1)
		return spill_key_read(&key, fd) == 0;
	return segment_check(fd, p->segment_bytes) == 0 ||
	       (spilled && spill_is_segment(fd, p->segment_bytes));
}

/* The ring of a stream. Takes the fd. */
static int take_ring(struct pending *q, const struct transfer_packet *p, int fd,
		     struct brumate_error *err)
{
	auto_close int ring = fd;

	if (q->begun || !p->total_bytes || p->total_bytes % TRANSFER_SLOT_BYTES ||
	    p->total_bytes > TRANSFER_SLOTS_MAX * TRANSFER_SLOT_BYTES ||
	    segment_check(ring, p->total_bytes) < 0)
		return fail_answer(err);
	q->begun = true;
	return q->stream->begin(q->stream->arg, ring,
				(size_t)(p->total_bytes / TRANSFER_SLOT_BYTES), err);
}

/* Takes @fds. */
static int take_segments(struct pending *q, const struct transfer_packet *p, const int *fds,
			 struct brumate_error *err)
{
	if (q->stream && p->n == 1)
		return take_ring(q, p, fds[0], err);
	int r = expect_segments(q, p, err);

	if (r == 0 && p->n > q->n_segments_wanted - q->copy.n_segments)
		r = fail_answer(err);
	if (r < 0) {
		packet_close_fds(fds, p->n);
		return r;
	}
	memcpy(q->copy.segments + q->copy.n_segments, fds, p->n * sizeof(*fds));
	for (uint32_t i = 0; i < p->n; i++)
		if (!is_segment(q, p, q->copy.n_segments + i))
			r = brumate_fail(err, EPROTO, "broker: copy: no segment of memory");
	q->copy.n_segments += p->n;
	return r;
}

static int end_request(struct pending *q, const struct transfer_packet *p,
		       struct brumate_error *err)
{
	if (p->error) {
		int r = brumate_fail(err, -p->error, "%s",
				     p->failure.text[0] ? p->failure.text : "copy failed");

		if (p->failure.hint[0])
			brumate_hint(err, "%s", p->failure.hint);
		if (p->exit_code && p->exit_code <= EXIT_NO_COMMAND)
			brumate_error_exit(err, (enum exit_code)p->exit_code);
		return r;
	}
	q->spared = (struct transfer_spared){ p->zero_bytes, p->same_bytes };
	q->compared = p->flags & TRANSFER_WITH_DIGESTS;
	if (q->n_fds != q->n_fds_wanted || (q->total_bytes && !q->copy.segments) ||
	    q->copy.n_segments != q->n_segments_wanted)
		return fail_answer(err);
	return 1;
}

/* Nothing is said of a host copy whose last segments may be on a disk until they are there. */
static int take_whole(const struct pending *q, const struct transfer_packet *p,
		      struct brumate_error *err)
{
	const struct transfer_request *request = q->request;
	const bool digests = q->copy.digests && p->flags & TRANSFER_WITH_DIGESTS;

	if (p->n_total > q->copy.n_segments)
		return fail_answer(err);
	if (request && request->whole && q->n_segments_wanted == host_copy_n_segments(&q->copy))
		request->whole(request->arg, &q->copy, p->n_total,
			       digests ? digest_table_digests(q->copy.digests) : NULL);
	return 0;
}

static int take_progress(struct pending *q, const struct transfer_packet *p,
			 struct brumate_error *err)
{
	q->done_bytes = p->done_bytes;
	if (q->begun && p->slots)
		q->stream->freed(q->stream->arg, p->slots);
	if (!p->n_total)
		return 0;
	if (q->total_bytes)
		return take_whole(q, p, err);
	if (q->n_fds < q->n_fds_wanted || p->n_total > q->n_fds)
		return fail_answer(err);
	if (q->request->filled)
		q->request->filled(q->request->arg, q->fds, p->n_total);
	return 0;
}

/* Takes @fds. Returns 1 at the end of the request. */
static int take_packet(struct pending *q, const struct transfer_packet *p, const int *fds,
		       struct brumate_error *err)
{
	switch (p->op) {
	case TRANSFER_PROGRESS:
		return take_progress(q, p, err);
	case TRANSFER_FDS:
		return take_pieces(q, p, fds, err);
	case TRANSFER_SEGMENTS:
		return take_segments(q, p, fds, err);
	case TRANSFER_DONE:
		return end_request(q, p, err);
	default:
		return fail_answer(err);
	}
}

/* Asks whether to go on, and waits up to @timeout_ms for the next packet. Returns 1 when one is there. */
static int wait_packet(struct pending *q, int timeout_ms, uint64_t deadline_ns,
		       struct brumate_error *err)
{
	struct pollfd p = { .fd = q->client->fd, .events = POLLIN };
	const struct transfer_request *request = q->request;
	int r = request && request->progress ? request->progress(request->arg, q->done_bytes) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "copy: cancelled");
	int n = poll(&p, 1, timeout_ms);
	if (n < 0 && errno != EINTR)
		return brumate_fail(err, errno, "broker: copy: %m");
	if (n == 0 && timeout_ms && (r = peer_look(&q->client->peer)) < 0)
		return fail_broken(r, err);
	if (n <= 0 && deadline_left_ms(deadline_ns) == 0)
		return brumate_fail(err, ETIMEDOUT, "broker: it said nothing for %d s of a copy",
				    SILENCE_TIMEOUT_MS / 1000);
	return n > 0;
}

/* Returns 1 at the end of the request. */
static int receive_packet(struct pending *q, uint64_t deadline_ns, struct brumate_error *err)
{
	struct transfer_packet p;
	int fds[TRANSFER_ITEMS_MAX];
	int r = transfer_receive(q->client->fd, &p, fds, deadline_ns, err);

	if (r < 0)
		return r == -EPIPE ? fail_broken(r, err) : r;
	return take_packet(q, &p, fds, err);
}

static int receive_answers(struct pending *q, struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(SILENCE_TIMEOUT_MS);
	int r = 0;

	while (r == 0) {
		r = wait_packet(q, LOOK_MS, deadline_ns, err);
		if (r <= 0)
			continue;
		r = receive_packet(q, deadline_ns, err);
		deadline_ns = deadline_in_ms(SILENCE_TIMEOUT_MS);
	}
	return r < 0 ? r : 0;
}

/* Receives what the broker says while it lacks pieces; otherwise the broker would wait for a reader. */
static int hear_meanwhile(struct pending *q, struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(SILENCE_TIMEOUT_MS);
	int r;

	while ((r = wait_packet(q, 0, deadline_ns, err)) > 0) {
		r = receive_packet(q, deadline_ns, err);
		if (r)
			return r < 0 ? r : fail_answer(err);
	}
	return r;
}

/* Closes what arrived. A session cannot be used after a request was left in the middle: the broker ends its work when
 * it sees the hang-up. */
static int fail_request(struct pending *q, int r)
{
	packet_close_fds(q->fds, q->n_fds);
	host_copy_fini(&q->copy);
	shutdown(q->client->fd, SHUT_WR);
	return r;
}

static uint32_t out_flags(const struct transfer_request *request)
{
	return TRANSFER_TO_HOST | (request->digests ? TRANSFER_WITH_DIGESTS : 0) |
	       (request->live ? TRANSFER_LIVE : 0);
}

static int send_digests(struct transfer_client *c, const struct digest_table *t,
			struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(TRANSFER_DIGESTS);

	return send_packet(c, &p, &t->fd, 1, err);
}

/* A copy without digests gets a table, which is not valid until the broker has filled it. */
static int give_digests(struct transfer_client *c, const struct transfer_request *request,
			struct host_copy *copy, uint64_t total_bytes, struct brumate_error *err)
{
	if (!request->digests)
		return 0;
	int r = copy->digests ? 0 : digest_table_new(&copy->digests, total_bytes);
	return r < 0 ? brumate_fail(err, -r, "digests: %m") : send_digests(c, copy->digests, err);
}

static int send_segments(struct transfer_client *c, enum transfer_op op, uint32_t flags,
			 const struct host_copy *copy, struct brumate_error *err)
{
	struct transfer_packet p = transfer_packet(op);

	const uint32_t spilled = host_copy_is_spilled(copy) ? TRANSFER_SPILLED : 0;

	p.flags = flags | spilled;
	p.total_bytes = copy->total_bytes;
	p.segment_bytes = copy->segment_bytes;
	p.n_total = (uint32_t)copy->n_segments;
	int r = send_packet(c, &p, NULL, 0, err);
	if (r < 0)
		return r;
	p.op = TRANSFER_SEGMENTS;
	p.flags = spilled;
	return send_packet(c, &p, copy->segments, copy->n_segments, err);
}

/* Sends the fds of the pieces, as they come. */
static int send_pieces(struct pending *q, const int *fds, struct brumate_error *err)
{
	const struct transfer_request *request = q->request;
	const struct transfer_packet p = transfer_packet(TRANSFER_FDS);
	size_t sent = 0;
	int r = 0;

	while (r == 0 && sent < request->n) {
		size_t there = request->given ? request->given(request->arg, sent) : request->n;

		if (there > sent)
			r = send_packet(q->client, &p, fds + sent, there - sent, err);
		sent = there;
		if (r == 0 && sent < request->n)
			r = hear_meanwhile(q, err);
	}
	return r;
}

/* What follows the layout of a copy out, unless @r is an error: the pieces @fds, and the answers to them. An error ends
 * the session. */
static int exchange_out(struct pending *q, const struct transfer_packet *begin, const int *fds,
			int r, struct brumate_error *err)
{
	if (r == 0)
		r = send_packet(q->client, begin, NULL, 0, err);
	if (r == 0)
		r = send_pieces(q, fds, err);
	if (r == 0)
		r = receive_answers(q, err);
	return r < 0 ? fail_request(q, r) : 0;
}

int transfer_client_out(struct transfer_client *c, const struct transfer_request *request,
			const int *fds, struct host_copy *ret, struct transfer_spared *ret_spared,
			struct brumate_error *err)
{
	struct pending q = { .client = c,
			     .request = request,
			     .total_bytes = host_copy_offset(request->pieces, request->n) };
	struct transfer_packet begin = transfer_packet(TRANSFER_OUT);

	begin.flags = request->whole ? TRANSFER_EARLY : 0;
	int r = send_layout(c, request, out_flags(request), err);
	if (r == 0)
		r = give_digests(c, request, &q.copy, q.total_bytes, err);
	if ((r = exchange_out(&q, &begin, fds, r, err)) < 0)
		return r;
	*ret = q.copy;
	if (ret_spared)
		*ret_spared = q.spared;
	return 0;
}

int transfer_client_count(struct transfer_client *c, const struct transfer_request *request,
			  const int *fds, struct digest_table *digests, uint64_t *ret_zero_bytes,
			  struct brumate_error *err)
{
	const uint32_t flags = TRANSFER_TO_HOST | TRANSFER_WITH_DIGESTS | TRANSFER_COUNT;
	const struct transfer_packet begin = transfer_packet(TRANSFER_OUT);
	struct pending q = { .client = c, .request = request };
	int r = send_layout(c, request, flags, err);

	if (r == 0 && digests)
		r = send_digests(c, digests, err);
	if ((r = exchange_out(&q, &begin, fds, r, err)) < 0)
		return r;
	*ret_zero_bytes = q.spared.zero_bytes;
	return 0;
}

int transfer_client_update(struct transfer_client *c, const struct transfer_request *request,
			   const int *fds, struct host_copy *base,
			   struct transfer_spared *ret_spared, struct brumate_error *err)
{
	struct pending q = { .client = c, .request = request };

	if (base->total_bytes != host_copy_offset(request->pieces, request->n))
		return brumate_fail(err, EINVAL, "copy: the host copy is of other pieces");
	/* A transfer without digests changes the copy, so the digests that it has become invalid. */
	if (!request->digests && base->digests)
		digest_table_set_whole(base->digests, false);
	int r = send_layout(c, request, out_flags(request) | TRANSFER_BASE, err);
	if (r == 0)
		r = give_digests(c, request, base, base->total_bytes, err);
	if (r == 0)
		r = send_segments(c, TRANSFER_OUT, TRANSFER_BASE, base, err);
	if (r == 0)
		r = send_pieces(&q, fds, err);
	if (r == 0)
		r = receive_answers(&q, err);
	if (r < 0)
		return fail_request(&q, r);
	if (ret_spared)
		*ret_spared = q.spared;
	return 0;
}

static int send_in_layout(struct transfer_client *c, const struct transfer_request *request,
			  struct digest_table *digests, uint32_t flags, struct brumate_error *err)
{
	bool compare = request->digests && digests && digest_table_is_whole(digests);
	int r = send_layout(c, request, flags | (compare ? TRANSFER_WITH_DIGESTS : 0), err);

	return r == 0 && compare ? send_digests(c, digests, err) : r;
}

static int end_in(struct pending *q, int r, int *ret_fds, bool *ret_compared)
{
	if (r < 0)
		return fail_request(q, r);
	memcpy(ret_fds, q->fds, q->n_fds * sizeof(*q->fds));
	if (ret_compared)
		*ret_compared = q->compared;
	return 0;
}

int transfer_client_in(struct transfer_client *c, const struct transfer_request *request,
		       const struct host_copy *from, int *ret_fds, bool *ret_compared,
		       struct brumate_error *err)
{
	auto_free int *fds = calloc(request->n + 1, sizeof(*fds));
	struct pending q = {
		.client = c, .request = request, .fds = fds, .n_fds_wanted = request->n
	};

	if (!fds)
		return brumate_fail(err, ENOMEM, "copy: %m");
	if (from->total_bytes != host_copy_offset(request->pieces, request->n))
		return brumate_fail(err, EINVAL, "copy: the host copy is of other pieces");
	int r = send_in_layout(c, request, from->digests, 0, err);
	if (r == 0)
		r = send_segments(c, TRANSFER_IN, 0, from, err);
	if (r == 0)
		r = receive_answers(&q, err);
	return end_in(&q, r, ret_fds, ret_compared);
}

int transfer_client_stream(struct transfer_client *c, const struct transfer_request *request,
			   const struct transfer_stream *stream, int *ret_fds, bool *ret_compared,
			   struct brumate_error *err)
{
	auto_free int *fds = calloc(request->n + 1, sizeof(*fds));
	struct pending q = { .client = c,
			     .request = request,
			     .fds = fds,
			     .n_fds_wanted = request->n,
			     .stream = stream };
	struct transfer_packet p = transfer_packet(TRANSFER_IN);

	if (!fds)
		return brumate_fail(err, ENOMEM, "copy: %m");
	p.flags = TRANSFER_STREAM;
	p.total_bytes = host_copy_offset(request->pieces, request->n);
	int r = send_in_layout(c, request, stream->digests, TRANSFER_STREAM, err);
	if (r == 0)
		r = send_packet(c, &p, NULL, 0, err);
	if (r == 0)
		r = receive_answers(&q, err);
	return end_in(&q, r, ret_fds, ret_compared);
}

int transfer_client_fill(struct transfer_client *c, unsigned slot, uint64_t offset, uint64_t bytes)
{
	struct transfer_packet p = transfer_packet(TRANSFER_FILLED);

	p.n_total = slot;
	p.total_bytes = offset;
	p.segment_bytes = bytes;
	return transfer_send(c->fd, &p, NULL, 0, deadline_in_ms(SILENCE_TIMEOUT_MS));
}

void transfer_client_abort(struct transfer_client *c)
{
	shutdown(c->fd, SHUT_WR); /* the broker hangs up once it has released all */
}
