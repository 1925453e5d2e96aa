// SPDX-License-Identifier: MIT
/*
 * The client of the agent in a job process (wire/agent.h): one connection, requests with deadlines,
 * answers that are not trusted. Owns its connection; never keeps one open on its own account, because
 * a job with a connection to outside cannot be dumped. Not for two threads at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"
#include "wire/agent.h"

struct agent {
	int fd; /* -1: not connected */
	struct proc_id id;
	pid_t inner_pid;      /* as its own pid namespace numbers it; 0: not asked yet */
	enum agent_gate gate; /* as the last answer said */
	bool was_silent;   /* it left a question without an answer: others are hardly waited for */
	uint64_t until_ns; /* no answer is waited for longer; 0: as long as each call may take */
	uint32_t sharing;  /* AGENT_SHARING_KNOWN, AGENT_IS_STARTING and so on (wire/agent.h) */
	char shares[AGENT_TEXT_BYTES]; /* what is shared */
	uint64_t managed_bytes, driver_bytes;
	bool simulated;	     /* its driver is; kept by agent_open_again() */
	struct scout *scout; /* looks at what it gives first; NULL: it gives nothing now */
};
#define AGENT_EMPTY ((struct agent){ .fd = -1 })

enum {
	AGENT_HELLO_TIMEOUT_MS = 5000,
	AGENT_CALL_TIMEOUT_MS = 60000,
	AGENT_SILENT_TIMEOUT_MS = 500,
};

/**
 * Opens a directory of agents, to read. One of a container ("/proc/PID/root" AGENT_CONTAINER_DIR, PID of its first
 * process) is opened within the container's root, through no symbolic link, and must be on a tmpfs, as processes of the
 * container may have put anything at its path. Errors to act on: -ENOENT (there is none, or it is not such a one).
 */
int agent_dir_open(const char *dir);

/**
 * Connects to the agent of process @id, whose socket is in @dir, and says HELLO. Errors to act on: -ENOENT (it has
 * none), -ETIMEDOUT, -EPERM (another process answers there), -EPROTONOSUPPORT (another version).
 */
int agent_open(struct agent *ret, const char *dir, struct proc_id id, struct brumate_error *err);

/** The same of an agent that was connected before, and is no more: how long it may take, @a says. */
int agent_open_again(struct agent *a, const char *dir, struct brumate_error *err);

/** Whether the agent of that number asks for memory that is held for the job (AGENT_ROOM_SOCKET). */
bool agent_asks_for_room(int dir_fd, pid_t inner_pid);

/** Whether @dir has the socket of an agent of that number. Its process may have ended. */
bool agent_listens(const char *dir, pid_t inner_pid);

/**
 * Removes from @dir, where the agents of the job below @root listen, the sockets of those that have ended.
 * @known: its processes, as they were a while ago. To be called while no operation is at their agents.
 */
void agent_sweep(const char *dir, struct proc_id root, const struct proc_tree *known);
/** Hangs up, which opens a closed gate unless a piece is unmapped. Accepts the empty value. */
void agent_close(struct agent *a);
DEFINE_AUTO_FINI(struct agent, agent_close)
/** Hangs up and leaves the gate as it is. */
void agent_detach(struct agent *a);

/* The calls. Errors of all: -EPIPE (the agent or its process is gone), -ETIMEDOUT (no answer; the
 * connection is closed), -ENOMEM, -EMFILE and others of ours (it may have done it; the connection is closed),
 * -EBADMSG (an answer that makes no sense), -ESHUTDOWN (the process is ending, and is to
 * be let end), what the agent itself says. */

/** @timeout_ms: until it gives up and opens again (-ETIMEDOUT). -EOPNOTSUPP: text says why. @drain_fd: of the
 * struct agent_drain in which it is @member, with the other agents that are asked at the same time; -1: alone. */
int agent_gate(struct agent *a, uint32_t timeout_ms, int drain_fd, uint64_t member,
	       struct brumate_error *err);
/** Lists its pieces (owned), sorted by id. */
int agent_list(struct agent *a, struct agent_piece **ret, size_t *ret_n, struct brumate_error *err);
/**
 * Checks that its process has descriptors left for @n pieces that go and come back: the agent has one for each piece of a
 * request, and the driver needs a few more to bring pieces back than to give them away. The agent is not asked. -EMFILE.
 */
int agent_check_descriptors(const struct agent *a, size_t n, struct brumate_error *err);
/** @ret_fds has room for @n; owned on success. */
int agent_export(struct agent *a, const uint64_t *ids, size_t n, int *ret_fds,
		 struct brumate_error *err);
/** During agent_export_and_tell(): the first @n descriptors have arrived, and are the caller's even if the others
 * fail. */
typedef void (*agent_exported_fn)(void *arg, size_t n);
int agent_export_and_tell(struct agent *a, const uint64_t *ids, size_t n, int *ret_fds,
			  agent_exported_fn tell, void *arg, struct brumate_error *err);
int agent_unmap(struct agent *a, struct brumate_error *err);
/** Lists what it has of other members' memory (owned). @ret_token names its process to them. */
int agent_aliases(struct agent *a, struct agent_alias **ret, size_t *ret_n, uint64_t *ret_token,
		  struct brumate_error *err);
/** A copy of a piece of that (@ret_fd owned), and what it is. -EOPNOTSUPP: it is of a version that makes none. */
int agent_copy(struct agent *a, uint64_t id, struct agent_piece *ret, int *ret_fd,
	       struct brumate_error *err);
/** Has its gate stay closed until agent_open_gate(), as agent_copy() does. The same errors. */
int agent_keep_closed(struct agent *a, struct brumate_error *err);
/** Unmaps aliases alone. */
int agent_unmap_aliases(struct agent *a, struct brumate_error *err);
/** @fds borrowed. */
int agent_map(struct agent *a, const uint64_t *ids, const int *fds, size_t n,
	      struct brumate_error *err);
/** @ret_imported: pieces that stayed imported. @all: also those that other members may have; none has them
 * mapped. */
int agent_own(struct agent *a, bool all, size_t *ret_imported, struct brumate_error *err);
/** Like agent_own(), but for the pieces that are mapped by now, while others are not yet. An older agent is not
 * asked. */
int agent_own_ahead(struct agent *a, struct brumate_error *err);
int agent_open_gate(struct agent *a, struct brumate_error *err);

/** Says how much device memory is held next to its process now, on up to AGENT_SNAPSHOT_GPUS_MAX GPUs; @n 0: none any
 * more. Its allocations wait for that. -EOPNOTSUPP: it is of a version that does not know of it. */
int agent_tell_snapshot(struct agent *a, const struct agent_room *held, size_t n,
			struct brumate_error *err);

/**
 * agent_check_reply() - is this an answer that may be looked into?
 * @reply: borrowed, @len_bytes as received, untrusted
 *
 * Pure. Checks size, version, counts, that text ends, and pieces: ids once and not 0, sizes whole and
 * addresses without overflow. Return: 0; -EBADMSG; -EPROTONOSUPPORT.
 */
int agent_check_reply(const struct agent_reply *reply, size_t len_bytes, enum agent_op op,
		      struct brumate_error *err);
