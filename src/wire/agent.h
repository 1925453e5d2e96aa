// SPDX-License-Identifier: MIT
/*
 * What a job's shim and the agent in a job process say to each other. The agent is one thread of
 * our library in it; it listens on the unix socket (SOCK_SEQPACKET) $BRUMATE_AGENT_DIR/PID, PID as
 * the process's own pid namespace numbers it, so that CRIU can dump it: between operations nobody is
 * connected. One connection is served at a time; one request, then its replies.
 *
 * A piece is one physical allocation of device memory that the interposer made or took over; it has
 * an id that is never used again in its process. Byte order and layout are the machine's own: both
 * ends live on it, and a restored agent is of the same version as its image says (HELLO tells).
 */
#pragma once

#include <stdint.h>

#define AGENT_DIR_VARIABLE "BRUMATE_AGENT_DIR"

/* The directory in a container, where it is a tmpfs of its own. The host reaches it by /proc/PID/root of the container's first
 * process. */
#define AGENT_CONTAINER_DIR "/run/brumate-agents"

/* What its thread is called. */
#define AGENT_THREAD_NAME "brumate-agent"

/* A file beside the sockets. While it is there, agents that start keep their gates closed, until OPEN. */
#define AGENT_HOLD_FILE "hold"

/*
 * While the broker keeps GPUs open, ready for a copy of this job, that takes device memory. The shim then listens on
 * AGENT_ROOM_SOCKET (SOCK_SEQPACKET), beside the sockets of agents. An agent that finds no room for device memory connects
 * to it; the shim hangs up once that memory is given back. AGENT_ROOM_FILE holds an array of struct agent_room; it is true
 * as long as the shim has a lock (flock) on it. The socket of an agent that knows both has the mode AGENT_MODE_WITH_ROOM,
 * which CRIU keeps; those of others have AGENT_MODE.
 */
#define AGENT_ROOM_SOCKET "room"
#define AGENT_ROOM_FILE	  "room-held"
enum { AGENT_ROOMS_MAX = 64, AGENT_MODE = 0600, AGENT_MODE_WITH_ROOM = 0700 };

enum {
	AGENT_VERSION = 1,
	AGENT_PIECES_MAX = 64,
	AGENT_TEXT_BYTES = 160,
	AGENT_UUID_BYTES = 16,
	AGENT_EVENT_BYTES = 64,
};

/*
 * HELLO   who are you. Any time.
 * GATE    close the gate within timeout_ms: no thread of the program is in the driver any more, all
 *         its contexts are idle. -ETIMEDOUT: it is open again. -EOPNOTSUPP: text says what memory
 *         cannot be taken (the gate is open again). -EREMOTEIO: a context has failed for good, and
 *         the driver would not bring that back as it is (the gate is open again). With the
 *         descriptor of a struct agent_drain the agents of a job drain together; ids: the number of
 *         this one among them.
 * LIST    all pieces, in packets of at most AGENT_PIECES_MAX, more set in all but the last.
 * EXPORT  fds of the pieces whose ids are given, in that order. They stay mapped.
 * UNMAP   unmap and release every piece; their addresses stay reserved. From here the fds that
 *         EXPORT gave are all that keeps the memory. Contexts give up their room for stacks, too.
 *         With n = 1 only what ALIASES lists.
 * MAP     fds of the pieces whose ids are given: imported. They are mapped at their old addresses with their old
 *         access by OWN, or else by OPEN. With the last of them contexts get the room for stacks back that
 *         UNMAP took (-ENOMEM: there is none; ask again, or OWN or OPEN, or UNMAP).
 * OWN     after the last MAP: replace imported memory by the process's own, by copies on the GPU, as
 *         far as there is room. n in the reply: pieces that stayed imported (their fds must be kept
 *         by whoever holds them until the piece is gone from LIST). Those that other members may have are
 *         replaced with n = 1 only: nobody has them mapped. A piece that stays imported cannot be EXPORTed
 *         (-EOPNOTSUPP), unless other members may have it. Room appears as the holders of fds close those of
 *         pieces that are no longer imported: OWN may be asked again.
 * OPEN    open the gate. Refused (-EBUSY) while a piece is unmapped.
 * DETACH  I hang up; stay as you are. Without it, hanging up opens a closed gate unless a piece is
 *         unmapped.
 *
 * ALIASES memory of other members that is mapped here, as LIST does; it is not among the pieces that LIST
 *         tells. UNMAP takes it away, and MAP brings it back, with what EXPORT at its owner gives. The token in
 *         the reply names this process.
 * COPY    a descriptor of a copy of each of the ALIASES whose ids are given, in that order, for memory whose owner
 *         has ended: nobody can export that. It is told as LIST would tell it. From here hanging up does not open the gate, also
 *         where no id is given: who has the memory mapped must not run on while others get the copy.
 *
 * SNAPSHOT how much of the job's memory is held beside it until it is copied, on which GPUs; ids: see
 *         AGENT_SNAPSHOT_ITEM; without ids nothing is held any more. While something is held, an allocation that
 *         finds no room waits for the next of these requests, or tries again each second until none came for half
 *         a minute. Any time.
 *
 * Any of them may be answered by -ESHUTDOWN: the program is in exit(), or its driver has shut down. The
 * gate is open, there is nothing to be mapped, and the process is to be let end.
 *
 * Between processes, for an IPC handle or a file that one made and the other opens. ids: the token and the
 * two numbers that name the memory (a block and its id, or 0 and that of a piece), an offset, and who asks: the
 * number of its job, and its pid. These peers open no gate, and ask once in a connection.
 * LEND       fds of the memory's pieces from that offset on; each is told with its length, and its place
 *            as va. Those for another job count as shared. -EAGAIN while the gate is closed.
 * TAKE_BACK  the pieces before that offset are not used any more, by one of another job.
 * AGENT_LEND_EVENT and AGENT_TAKE_EVENT_BACK: the same for an event with an IPC handle, which the two numbers name. The answer has
 *            the driver's handle as it is at this moment.
 */
enum agent_op {
	AGENT_HELLO = 1,
	AGENT_GATE,
	AGENT_LIST,
	AGENT_EXPORT,
	AGENT_UNMAP,
	AGENT_MAP,
	AGENT_OWN,
	AGENT_OPEN,
	AGENT_DETACH,
	AGENT_LEND,
	AGENT_TAKE_BACK,
	AGENT_ALIASES,
	AGENT_SNAPSHOT,
	AGENT_LEND_EVENT,
	AGENT_TAKE_EVENT_BACK,
	AGENT_COPY,
};

/* Device memory on one GPU. */
struct agent_room {
	uint8_t gpu[AGENT_UUID_BYTES];
	uint64_t bytes;
};

/* How many ids of SNAPSHOT tell of one GPU: two hold its UUID, the third a number of bytes. */
enum { AGENT_SNAPSHOT_ITEM = 3, AGENT_SNAPSHOT_GPUS_MAX = AGENT_PIECES_MAX / AGENT_SNAPSHOT_ITEM };

/*
 * Memory that the agents of a job share while their gates close: a kernel of one member may wait for work
 * that another's closed gate holds back, as collectives do. So a member that is idle while another is not lets
 * a call through now and then. The bits in @busy are the members that are not idle. A member sets its own only
 * while another's is set: once @busy is 0 it stays so, and all gates are closed over idle GPUs. The shim
 * clears the bit of a member that has ended. All are written atomically; @changes is a futex that counts
 * changes of @busy. A sealed memfd: it does not shrink.
 */
enum { AGENT_DRAIN_MEMBERS_MAX = 64 };

struct agent_drain {
	uint64_t busy;
	uint64_t start_ns; /* CLOCK_MONOTONIC of the shim; older agents alone read it */
	uint32_t changes, reserved;
};

/* n in the replies to HELLO and GATE. What the process shares with others is in text. An agent that cannot tell sets none. */
enum {
	AGENT_SHARING_KNOWN = 1u << 0,
	AGENT_SHARES = 1u << 1, /* device memory, or what belongs to it, with another process */
	AGENT_HAS_PEERS =
		1u << 2, /* peer access that the driver made, between GPUs of this process */
	AGENT_IS_STARTING =
		1u << 3, /* its driver is being initialised, or the gate holds that back */
	AGENT_HAS_ALIASES =
		1u << 4, /* memory of other members is mapped here, or was and is away */
	AGENT_HAS_SNAPSHOT = 1u << 5, /* SNAPSHOT said last that something is held */
	/* The program asked for this, and was told that there is none, as it could not be brought back: */
	AGENT_WITHHELD_MULTICAST = 1u << 6, /* multicast between GPUs */
	AGENT_WITHHELD_SHARING = 1u << 7,   /* other memory that processes share by the driver */
	AGENT_OWNS_AHEAD = 1u << 8,	    /* OWN knows AGENT_OWN_AHEAD */
};

/* n in OWN. GIVEN: pieces that other members may have, too. AHEAD: the pieces that are mapped, while others are not yet;
 * contexts do not get their room for stacks back. */
enum { AGENT_OWN_GIVEN = 1u << 0, AGENT_OWN_AHEAD = 1u << 1 };

enum agent_gate { AGENT_GATE_OPEN, AGENT_GATE_CLOSED, AGENT_GATE_UNMAPPED };

/* What the n ids mean depends on op. Descriptors come along by SCM_RIGHTS. */
struct agent_request {
	uint32_t version, op;
	uint32_t timeout_ms, n;
	uint64_t ids[AGENT_PIECES_MAX];
};

enum { AGENT_PIECE_IMPORTED = 1u << 0, AGENT_PIECE_SHARED = 1u << 1 /* with another process */ };

struct agent_piece {
	uint64_t id, va, len_bytes;
	uint8_t gpu[AGENT_UUID_BYTES];
	uint32_t flags, reserved;
};

enum { AGENT_ALIAS_AWAY = 1u << 0 };

/* Memory of another member. @token: what ALIASES at its owner says, @piece: its id there. */
struct agent_alias {
	uint64_t id, len_bytes, token, piece;
	int32_t pid; /* of the owner, as it numbers itself */
	uint32_t flags;
	uint64_t reserved;
};

struct agent_reply {
	uint32_t version;
	int32_t error;	/* 0 or -errno */
	int32_t result; /* the driver's own number, where it refused */
	uint32_t more;	/* another packet of this reply follows */
	uint32_t gate;	/* enum agent_gate, as it is now */
	uint32_t n;	/* of pieces[], or as HELLO, GATE and OWN say */
	union {
		uint64_t managed_bytes; /* HELLO: in pieces */
		uint64_t token;		/* ALIASES */
	};
	uint64_t
		driver_bytes; /* HELLO: allocated by calls that are left to the driver, as far as known */
	char text[AGENT_TEXT_BYTES];
	union {
		struct agent_piece pieces[AGENT_PIECES_MAX];
		struct agent_alias aliases[AGENT_PIECES_MAX];
		uint8_t event[AGENT_EVENT_BYTES]; /* AGENT_LEND_EVENT */
	};
};
