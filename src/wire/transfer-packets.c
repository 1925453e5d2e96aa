// SPDX-License-Identifier: MIT
/* Packets of a session that moves device memory: checked, sent and received. See transfer-packets.h. */
#include "wire/transfer-packets.h"
#include "base/packet.h"

#include <errno.h>
#include <string.h>

static int bad(struct brumate_error *err, const struct transfer_packet *p, const char *what)
{
	return brumate_fail(err, EBADMSG, "transfer: packet of kind %u: %s", p->op, what);
}

static int check_layout(const struct transfer_packet *p, struct brumate_error *err)
{
	if (!p->n || p->n > TRANSFER_ITEMS_MAX || p->n > p->n_total ||
	    p->n_total > TRANSFER_PIECES_MAX)
		return bad(err, p, "number of pieces");
	for (uint32_t i = 0; i < p->n; i++)
		if (!p->pieces[i].len_bytes || p->pieces[i].len_bytes > TRANSFER_BYTES_MAX ||
		    p->pieces[i].len_bytes % TRANSFER_ALIGN_BYTES)
			return bad(err, p, "length of a piece is not a multiple of 2 MiB");
	return 0;
}

static int check_copy(const struct transfer_packet *p, struct brumate_error *err)
{
	if (!p->total_bytes || p->total_bytes > TRANSFER_BYTES_MAX)
		return bad(err, p, "size of the host copy");
	if (p->op == TRANSFER_IN && p->flags & TRANSFER_STREAM)
		return p->segment_bytes || p->n_total ? bad(err, p, "segments of a stream") : 0;
	if (!p->segment_bytes || p->segment_bytes > TRANSFER_BYTES_MAX ||
	    p->segment_bytes % TRANSFER_ALIGN_BYTES || p->n_total > TRANSFER_SEGMENTS_MAX ||
	    p->n_total !=
		    (p->total_bytes - 1) / p->segment_bytes + 1 + !!(p->flags & TRANSFER_SPILLED))
		return bad(err, p, "size of segments");
	return 0;
}

static int check_filled(const struct transfer_packet *p, struct brumate_error *err)
{
	if (p->n_total >= TRANSFER_SLOTS_MAX)
		return bad(err, p, "number of the slot");
	if (!p->segment_bytes || p->segment_bytes > TRANSFER_SLOT_BYTES ||
	    p->segment_bytes % TRANSFER_ALIGN_BYTES || p->total_bytes % TRANSFER_ALIGN_BYTES ||
	    p->total_bytes > TRANSFER_BYTES_MAX - p->segment_bytes)
		return bad(err, p, "what the slot holds");
	return 0;
}

static int check_failure(const struct transfer_packet *p, struct brumate_error *err)
{
	if (p->error > 0 || p->error < -4095)
		return bad(err, p, "error");
	if (!memchr(p->failure.text, 0, sizeof(p->failure.text)) ||
	    !memchr(p->failure.hint, 0, sizeof(p->failure.hint)))
		return bad(err, p, "text without an end");
	return 0;
}

int transfer_check(const struct transfer_packet *p, size_t len_bytes, size_t n_fds,
		   struct brumate_error *err)
{
	if (len_bytes != sizeof(*p))
		return brumate_fail(err, EBADMSG, "transfer: packet of %zu bytes, expected %zu",
				    len_bytes, sizeof(*p));
	if (p->version != TRANSFER_VERSION)
		return brumate_fail(err, EBADMSG, "transfer: packet of version %u, expected %d",
				    p->version, TRANSFER_VERSION);
	if (!transfer_has_fds(p->op) && n_fds)
		return bad(err, p, "has fds");
	switch (p->op) {
	case TRANSFER_LAYOUT:
		return check_layout(p, err);
	case TRANSFER_FDS:
		return p->n && p->n == n_fds ? 0 : bad(err, p, "number of fds");
	case TRANSFER_SEGMENTS:
		return p->n && p->n == n_fds ? check_copy(p, err) : bad(err, p, "number of fds");
	case TRANSFER_IN:
		return check_copy(p, err);
	case TRANSFER_DONE:
		return check_failure(p, err);
	case TRANSFER_DIGESTS:
		return p->n == 1 && n_fds == 1 ? 0 : bad(err, p, "number of fds");
	case TRANSFER_OUT:
		return p->flags & TRANSFER_BASE ? check_copy(p, err) : 0;
	case TRANSFER_FILLED:
		return check_filled(p, err);
	case TRANSFER_PROGRESS:
		return 0;
	default:
		return bad(err, p, "not known");
	}
}

int transfer_send(int socket_fd, const struct transfer_packet *p, const int *fds, size_t n_fds,
		  uint64_t deadline_ns)
{
	ssize_t n = packet_send(socket_fd, p, sizeof(*p), fds, n_fds, deadline_ns);

	return n < 0 ? (int)n : 0;
}

int transfer_send_all(int socket_fd, const struct transfer_packet *p, const int *fds, size_t n,
		      uint64_t deadline_ns)
{
	struct transfer_packet packet = *p;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i += packet.n) {
		packet.n = (uint32_t)(n - i < TRANSFER_ITEMS_MAX ? n - i : TRANSFER_ITEMS_MAX);
		r = transfer_send(socket_fd, &packet, fds + i, packet.n, deadline_ns);
	}
	return r;
}

int transfer_receive(int socket_fd, struct transfer_packet *ret, int ret_fds[TRANSFER_ITEMS_MAX],
		     uint64_t deadline_ns, struct brumate_error *err)
{
	int items[TRANSFER_ITEMS_MAX], r = 0;
	struct packet_fds fds = { items, TRANSFER_ITEMS_MAX };
	struct transfer_packet p = { 0 };
	ssize_t len = packet_receive(socket_fd, &p, sizeof(p), &fds, deadline_ns);

	if (len < 0)
		return brumate_fail(err, (int)-len, "transfer: %m");
	if (fds.state == PACKET_LOST_FDS) {
		r = brumate_fail(err, EMFILE, "transfer: fds were lost on the way: %m");
		brumate_hint(err, "raise the limit of open files (LimitNOFILE=)");
	} else if (fds.state == PACKET_TOO_LONG) {
		r = brumate_fail(err, EBADMSG, "transfer: packet too long");
	} else {
		r = transfer_check(&p, (size_t)len, fds.n, err);
	}
	if (r < 0) {
		packet_close_fds(items, fds.n);
		return r;
	}
	memcpy(ret_fds, items, fds.n * sizeof(items[0]));
	*ret = p;
	return 0;
}
