// SPDX-License-Identifier: MIT
/*
 * The protocol between a client and the broker in a session that moves device memory: packets of a SOCK_SEQPACKET
 * pair, of which the client got one end by io.brumate.broker.Transfer. Byte order and layout are the machine's own.
 * Neither end trusts the other's bytes: transfer_check() alone decides what a packet may hold; each receiver checks
 * the order.
 *
 *	LAYOUT    the pieces of the next request, in packets; n_total is their number in all. The broker begins to
 *	          make ready what it will need: contexts and, with TRANSFER_TO_HOST, host memory.
 *	DIGESTS   an fd: the digest table (wire/host-copy.h) of the host copy of the next request. The broker writes
 *	          it with OUT, and compares it with what reached the GPU with IN. The layout had the flag.
 *	OUT       then FDS of all pieces, in their order. Answer: PROGRESS ..., SEGMENTS of the host copy,
 *	          DONE. With TRANSFER_EARLY, complete SEGMENTS may come before the others, in their order; n_total in
 *	          PROGRESS is their number, and the flag TRANSFER_WITH_DIGESTS means that the digest table, though
 *	          not valid yet, has their digests.
 *	          With TRANSFER_BASE (in the layout, too) it describes a host copy to be updated, whose SEGMENTS come
 *	          before the FDS and are not in the answer; if the table is valid, chunks whose digest is already in
 *	          it are not copied.
 *	          With TRANSFER_COUNT in the layout there is no host copy: DONE says how much is zero, and the digest
 *	          table gets the digests.
 *	IN        total_bytes, segment_bytes and n_total describe the host copy; then its SEGMENTS. Answer:
 *	          PROGRESS ..., FDS of all pieces once all are allocated, PROGRESS ..., DONE. n_total in PROGRESS
 *	          is the number of the first pieces that are filled, not necessarily with correct bytes.
 *	          With TRANSFER_STREAM (in the layout, too) there is no host copy, n_total and segment_bytes are
 *	          0, and the first answer is one of SEGMENTS: a ring of slots of TRANSFER_SLOT_BYTES. The
 *	          client fills slots and sends FILLED; "slots" in PROGRESS are the slots that are free again.
 *	FILLED    a slot, with its number in n_total, holds segment_bytes from total_bytes on of what would be the
 *	          host copy: of one GPU, and for each GPU in their order. What the digest table marks as zero is left
 *	          out.
 *
 * With TRANSFER_SPILLED, some segments of a host copy are on a disk (wire/host-copy.h), and one descriptor
 * follows those of the segments: the memfd of their key. It counts in n_total.
 *
 * DONE of IN has TRANSFER_WITH_DIGESTS if all that is in device memory was compared.
 *
 * DONE with an error may come at any time and is the last answer; the broker drops fds that arrive after it. Closing
 * the connection cancels the request.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
	TRANSFER_VERSION = 1,
	TRANSFER_ITEMS_MAX = 64,       /* pieces or fds in a packet */
	TRANSFER_PIECES_MAX = 1 << 20, /* of a layout */
	TRANSFER_SEGMENTS_MAX = 1 << 20,
	TRANSFER_SLOTS_MAX = 32, /* of a ring */
	TRANSFER_UUID_BYTES = 16,
};

#define TRANSFER_ALIGN_BYTES (2ull << 20) /* alignment of pieces, in length and in a host copy */
#define TRANSFER_BYTES_MAX   (1ull << 46) /* of a host copy */
#define TRANSFER_SLOT_BYTES  (8ull << 20) /* of a ring */

enum transfer_op {
	TRANSFER_LAYOUT = 1,
	TRANSFER_OUT,
	TRANSFER_IN,
	TRANSFER_FDS = 5,
	TRANSFER_SEGMENTS,
	TRANSFER_PROGRESS,
	TRANSFER_DONE,
	TRANSFER_DIGESTS,
	TRANSFER_FILLED,
	TRANSFER_OP__MAX,
};

/* Flags of LAYOUT; a base also in OUT, a stream in IN; TRANSFER_SPILLED in SEGMENTS and in the packets before them. */
enum {
	TRANSFER_TO_HOST = 1u << 0,
	TRANSFER_WITH_DIGESTS = 1u << 1, /* computed on the GPU: chunks of zeros are not copied */
	TRANSFER_BASE = 1u << 2,
	TRANSFER_LIVE = 1u << 8, /* out: the memory may be written during the copy */
	TRANSFER_SPILLED = 1u << 3,
	TRANSFER_EARLY = 1u << 5,  /* OUT: the client uses segments before all are complete */
	TRANSFER_STREAM = 1u << 6, /* IN: through a ring, which the client fills */
	TRANSFER_COUNT = 1u << 7,  /* LAYOUT of OUT: nothing is copied */
};

struct transfer_piece {
	uint64_t len_bytes;
	uint8_t gpu[TRANSFER_UUID_BYTES];
};

/* n: pieces in this packet, or fds with it. Members that the op does not use are 0. */
struct transfer_packet {
	uint32_t version, op;
	uint32_t n, n_total;
	uint32_t flags;
	uint32_t exit_code;		     /* DONE */
	int32_t error;			     /* DONE: 0 or -errno */
	uint32_t slots;			     /* PROGRESS of a stream: a mask */
	uint64_t total_bytes, segment_bytes; /* IN, SEGMENTS, OUT with a base; FILLED */
	uint64_t done_bytes;		     /* PROGRESS */
	uint64_t zero_bytes, same_bytes;     /* DONE: not copied, being zero or unchanged */
	union {
		struct transfer_piece pieces[TRANSFER_ITEMS_MAX];
		struct {
			char text[1024], hint[512];
		} failure;
	};
};

/** A packet of kind @op with nothing else set. */
static inline struct transfer_packet transfer_packet(enum transfer_op op)
{
	return (struct transfer_packet){ .version = TRANSFER_VERSION, .op = op };
}

/** Whether packets of kind @op carry fds. */
static inline bool transfer_has_fds(uint32_t op)
{
	return op == TRANSFER_FDS || op == TRANSFER_SEGMENTS || op == TRANSFER_DIGESTS;
}

/** Whether @p, of @len_bytes with @n_fds, is a valid packet. Pure. 0 or -EBADMSG. */
int transfer_check(const struct transfer_packet *p, size_t len_bytes, size_t n_fds,
		   struct brumate_error *err);

/** Sends one packet; @fds borrowed. Errors to act on: -EPIPE, -ETIMEDOUT. */
int transfer_send(int socket_fd, const struct transfer_packet *p, const int *fds, size_t n_fds,
		  uint64_t deadline_ns);

/** Receives one packet that passes transfer_check(), and its fds (owned by the caller, p->n of them for
 * FDS, SEGMENTS and DIGESTS). Errors to act on: -EPIPE (peer is gone), -ETIMEDOUT, -EBADMSG, -EMFILE. */
int transfer_receive(int socket_fd, struct transfer_packet *ret, int ret_fds[TRANSFER_ITEMS_MAX],
		     uint64_t deadline_ns, struct brumate_error *err);

/** Sends @n fds in as many packets as needed, each a copy of @p except for n. */
int transfer_send_all(int socket_fd, const struct transfer_packet *p, const int *fds, size_t n,
		      uint64_t deadline_ns);

/** The offset of the piece after one of @len_bytes at @offset. Pure. */
static inline uint64_t transfer_next(uint64_t offset, uint64_t len_bytes)
{
	return offset +
	       (len_bytes + TRANSFER_ALIGN_BYTES - 1) / TRANSFER_ALIGN_BYTES * TRANSFER_ALIGN_BYTES;
}
