// SPDX-License-Identifier: MIT
/*
 * The protocol between a job's shim and the agent in a job process. The agent is one thread of our library in that
 * process. It listens on the unix socket (SOCK_SEQPACKET) $BRUMATE_AGENT_DIR/PID, where PID is the process's number
 * in its own pid namespace. There are no connections between operations, so that CRIU can dump the socket. One
 * connection is served at a time; one request, then its replies.
 *
 * A piece is one physical allocation of device memory that the interposer made or took over; its id is never used
 * again in its process. Byte order and layout are the machine's own, as both ends run on it. A restored agent has the
 * version that its image says (see the reply to HELLO).
 */
#pragma once

#include <stdint.h>

#define AGENT_DIR_VARIABLE "BRUMATE_AGENT_DIR"

/* The directory in a container: a tmpfs of its own. The host reaches it through /proc/PID/root of the container's
 * first process. */
#define AGENT_CONTAINER_DIR "/run/brumate-agents"

/* The name of the agent's thread. */
#define AGENT_THREAD_NAME "brumate-agent"

/* A file in the directory of the sockets. While it exists, agents that start keep their gates closed until OPEN. */
#define AGENT_HOLD_FILE "hold"

/* An agent whose socket file was removed listens on a new one within this many seconds, if the directory exists. */
enum { AGENT_LOOKS_S = 1 };

/*
 * While the gate of a process is closed over idle contexts, the first call that waits there sends a struct agent_wake to
 * AGENT_WAKE_SOCKET (SOCK_DGRAM), where the shim of a job of `run --wake` listens, and sends it again every AGENT_LOOKS_S
 * for as long as one waits. The modification time of an agent's socket says when its process last used the GPU, to within
 * AGENT_LOOKS_S.
 */
#define AGENT_WAKE_SOCKET "wake"

/*
 * An allocation that finds no room in a job of `run --wake` connects to AGENT_NEED_SOCKET (SOCK_SEQPACKET), where its shim
 * answers with one byte, AGENT_NEED_AGAIN, once it may go better: another job has left the GPU, or a moment has passed. Without
 * that byte there is no more to be had. Each try is a connection of its own.
 */
#define AGENT_NEED_SOCKET "need"
enum { AGENT_NEED_AGAIN = 'A' };
enum { AGENT_CALL_BYTES = 56 };

/*
 * While the broker keeps GPUs open for a future copy of this job, that takes device memory. The shim then listens on
 * AGENT_ROOM_SOCKET (SOCK_SEQPACKET), in the directory of the agents' sockets. An agent that finds no room for device
 * memory connects to it; the shim closes the connection once that memory is free. AGENT_ROOM_FILE holds an array of
 * struct agent_room; it is valid as long as the shim has a lock (flock) on it. The socket of an agent that supports
 * both has the mode AGENT_MODE_WITH_ROOM, which CRIU preserves; those of others have AGENT_MODE.
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
 * HELLO   asks for version, state and sums. Any time.
 * GATE    closes the gate within timeout_ms: no thread of the program is in the driver any more, and all its
 *         contexts are idle. -ETIMEDOUT: it is open again. -EOPNOTSUPP: the text says which memory cannot be
 *         parked (the gate is open again). -EREMOTEIO: a context is in a permanent error state, which the driver
 *         would not restore (the gate is open again). With the descriptor of a struct agent_drain, the agents of a
 *         job drain together; ids: the number of this one among them.
 * LIST    all pieces, in packets of at most AGENT_PIECES_MAX, with more set in all but the last.
 * EXPORT  fds of the pieces with the given ids, in that order. They stay mapped.
 * UNMAP   unmaps and releases every piece; their addresses stay reserved. From here on only the fds that EXPORT
 *         returned keep the memory. Contexts free their memory for stacks, too. With n = 1: only unmaps what
 *         ALIASES lists.
 * MAP     fds of the pieces with the given ids: imports them. OWN, or else OPEN, maps them at their old addresses
 *         with their old access. With the last of them contexts allocate their memory for stacks again (-ENOMEM:
 *         there is no room; the shim may repeat MAP, or send OWN, OPEN or UNMAP).
 * OWN     after the last MAP: replaces imported memory by the process's own, by copies on the GPU, as far as there
 *         is room. n in the reply: pieces that stayed imported (their holders must keep their fds until LIST does
 *         not have the piece any more). Pieces that other members may have are only replaced with n = 1, by which
 *         the shim states that no member has them mapped. A piece that stays imported cannot be exported
 *         (-EOPNOTSUPP), unless other members may have it. Room appears when the holders close the fds of pieces
 *         that are no longer imported, so OWN may be repeated.
 * OPEN    opens the gate. Refused (-EBUSY) while a piece is unmapped.
 * DETACH  announces that the shim will close the connection, and the agent keeps its state. Without DETACH, a closed
 *         connection opens a closed gate unless a piece is unmapped.
 *
 * ALIASES lists memory of other members that is mapped here, like LIST, which does not list it. UNMAP unmaps it, and
 *         MAP maps it again, with the fds that its owner exports. The token in the reply identifies this process.
 * COPY    a descriptor of a copy of each of the ALIASES with the given ids, in that order, for memory whose owner
 *         has ended and cannot export it. The reply describes them like LIST. From here on a closed connection does
 *         not open the gate, even without ids: a process that has the memory mapped must not run while others get
 *         the copy.
 *
 * SNAPSHOT says how much of the job's memory is held a second time until it is copied, on which GPUs; ids: see
 *         AGENT_SNAPSHOT_ITEM; without ids, nothing is held any more. While something is held, an allocation that
 *         finds no room waits for the next of these requests, and retries each second if none came for half a
 *         minute. Any time.
 *
 * The answer to any of them may be -ESHUTDOWN: the program is in exit(), or its driver has shut down. The gate is
 * open, nothing needs to be mapped, and the shim should let the process end.
 *
 * Between processes, for an IPC handle or a file that one process made and another opens. ids: the token and the two
 * numbers that identify the memory (a block and its id, or 0 and the id of a piece), an offset, and the asker: the
 * number of its job, and its pid. These peers open no gate, and ask once in a connection.
 * LEND       fds of the memory's pieces from that offset on, each with its length, and its position in va. Pieces
 *            lent to another job count as shared. -EAGAIN while the gate is closed.
 * TAKE_BACK  a process of another job does not use the pieces before that offset any more.
 * AGENT_LEND_EVENT and AGENT_TAKE_EVENT_BACK: the same for an event with an IPC handle, which the two numbers
 *            identify. The answer has the driver's present handle.
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

/* A call that waits. @pid: in its own pid namespace. */
struct agent_wake {
	uint32_t version;
	int32_t pid;
	char call[AGENT_CALL_BYTES]; /* its name, which ends with a NUL; empty: not known */
};

/* Device memory on one GPU. */
struct agent_room {
	uint8_t gpu[AGENT_UUID_BYTES];
	uint64_t bytes;
};

/* The number of ids in SNAPSHOT for one GPU: two hold its UUID, the third a number of bytes. */
enum { AGENT_SNAPSHOT_ITEM = 3, AGENT_SNAPSHOT_GPUS_MAX = AGENT_PIECES_MAX / AGENT_SNAPSHOT_ITEM };

/*
 * Memory that the agents of a job share while their gates close: a kernel of one member may wait for work that
 * another member's closed gate blocks, as in collectives. So a member that is idle while another is not lets a call
 * through from time to time. The bits in @busy are the members that are not idle. A member sets its own bit only
 * while another's is set: once @busy is 0 it stays 0, and all gates are closed over idle GPUs. The shim clears the
 * bit of a member that has ended. All are written atomically; @changes is a futex that counts changes of @busy. The
 * memory is a memfd that is sealed against shrinking. Where kernels may wait for jobs of other nodes, the shim has a bit
 * for those, and gives out passes: where @passes is not 0, it is one more than how many calls the members may yet let
 * through. With none left they stay idle while the shim asks whether the others are.
 */
enum { AGENT_DRAIN_MEMBERS_MAX = 64 };

struct agent_drain {
	uint64_t busy;
	uint64_t start_ns; /* CLOCK_MONOTONIC of the shim; only older agents read it */
	uint32_t changes, passes;
};

/* n in the replies to HELLO and GATE. The text says what the process shares with others. An agent that cannot
 * determine this sets none of them. */
enum {
	AGENT_SHARING_KNOWN = 1u << 0,
	AGENT_SHARES = 1u << 1, /* device memory, or objects related to it, with another process */
	AGENT_HAS_PEERS = 1u << 2, /* the driver enabled peer access between GPUs of this process */
	AGENT_IS_STARTING = 1u << 3,  /* its driver is being initialised, or waits for the gate */
	AGENT_HAS_ALIASES = 1u << 4,  /* memory of other members is, or was, mapped here */
	AGENT_HAS_SNAPSHOT = 1u << 5, /* according to the last SNAPSHOT, something is held */
	/* The program asked for these and got the answer that they are unsupported, as they could not be restored: */
	AGENT_WITHHELD_MULTICAST = 1u << 6, /* multicast between GPUs */
	AGENT_WITHHELD_SHARING = 1u << 7,   /* memory on the host, and sharing by other ways */
	AGENT_OWNS_AHEAD = 1u << 8,	    /* OWN supports AGENT_OWN_AHEAD */
	/* 1u << 12 and 13: said MDWE (prctl(2)), of earlier agents. */
};

/* n in OWN. GIVEN: also replace pieces that other members may have. AHEAD: replace the pieces that are mapped, while
 * others are not yet; contexts do not get their memory for stacks back. */
enum { AGENT_OWN_GIVEN = 1u << 0, AGENT_OWN_AHEAD = 1u << 1 };

enum agent_gate { AGENT_GATE_OPEN, AGENT_GATE_CLOSED, AGENT_GATE_UNMAPPED };

/* The meaning of the n ids depends on op. Descriptors are passed by SCM_RIGHTS. */
struct agent_request {
	uint32_t version, op;
	uint32_t timeout_ms, n;
	uint64_t ids[AGENT_PIECES_MAX];
};

enum {
	AGENT_PIECE_IMPORTED = 1u << 0,
	AGENT_PIECE_SHARED = 1u << 1 /* SHARED: with another process */
};

struct agent_piece {
	uint64_t id, va, len_bytes;
	uint8_t gpu[AGENT_UUID_BYTES];
	uint32_t flags, reserved;
};

enum { AGENT_ALIAS_AWAY = 1u << 0 };

/* Memory of another member. @token: from the owner's reply to ALIASES; @piece: its id at the owner. */
struct agent_alias {
	uint64_t id, len_bytes, token, piece;
	int32_t pid; /* of the owner, in its own pid namespace */
	uint32_t flags;
	uint64_t reserved;
};

struct agent_reply {
	uint32_t version;
	int32_t error;	/* 0 or -errno */
	int32_t result; /* the driver's error number, if the driver refused */
	uint32_t more;	/* another packet of this reply follows */
	uint32_t gate;	/* enum agent_gate, at the time of the reply */
	uint32_t n;	/* of pieces[]; another meaning in HELLO, GATE and OWN */
	union {
		uint64_t managed_bytes; /* HELLO: bytes of all pieces */
		uint64_t token;		/* ALIASES */
	};
	uint64_t
		driver_bytes; /* HELLO: allocated by calls that are passed to the driver, as far as known */
	char text[AGENT_TEXT_BYTES];
	union {
		struct agent_piece pieces[AGENT_PIECES_MAX];
		struct agent_alias aliases[AGENT_PIECES_MAX];
		uint8_t event[AGENT_EVENT_BYTES]; /* AGENT_LEND_EVENT */
	};
};
