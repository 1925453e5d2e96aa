// SPDX-License-Identifier: MIT
/*
 * The data path of a tree of processes: moves their device memory out of them and back, without their driver. Agents
 * in the processes park the memory (park.h), the vault holds it (vault.h), the broker copies it (move.h). The data
 * path knows neither a job nor a store: its caller names whose memory it is, and provides the sink that writes a
 * host copy to a checkpoint and the source that reads one back. Not for two threads at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/progress.h"
#include "client/agent.h"
#include "client/transfer-session.h"
#include "datapath/feed.h"
#include "datapath/vault.h"

/** A process with an agent, which exports its device memory. */
struct datapath_agent {
	struct agent agent;
	bool is_new; /* not known to the driver (yet), so it has no device memory to move */
	int result;  /* of the last request; its text is in @error */
	struct brumate_error error;
	struct agent_piece *pieces; /* as last listed; owned */
	size_t n_pieces;
	int *fds;     /* of the pieces, while they are exported; owned, may be NULL */
	bool is_deaf; /* did not answer a message about the snapshot, so it gets no more of them */

	/* filled by share_check() and share_bring(); owned */
	uint64_t token;
	struct agent_alias *aliases;
	size_t n_aliases;
	struct datapath_loan
		*loans; /* its pieces that other members map, while share_bring() runs */
	size_t n_loans;
};

/** A piece that other members map, with a descriptor of it. */
struct datapath_loan {
	uint64_t piece;
	int fd;
};

/** Writes the bytes of @copy from @start to before @end to a checkpoint. Both are at the start of a segment, or @end
 * is the end of the copy. @digests: of all its chunks; NULL: unknown. What is not read during the call is read later
 * from @copy's memory, which its file descriptors keep. */
typedef int (*datapath_save_fn)(void *arg, const struct host_copy *copy, uint64_t start,
				uint64_t end, const struct digest *digests,
				struct brumate_error *err);

/** Writes host copies to a checkpoint. Called in the thread of the transfer. */
struct datapath_sink {
	datapath_save_fn save; /* NULL: there is no checkpoint */
	void *arg;
	bool while_copying; /* complete segments are written while the rest is still being copied */
};

/** States for each chunk how @feed gets it, and fills @digests with those of all chunks (NULL: not wanted). With
 * @verify the source compares every digest; without, it leaves that to the GPU where it can. Returns 1 if the GPU is
 * to compare them, else 0. Called in the thread of the transfer, once for each attempt. */
typedef int (*datapath_plan_fn)(void *arg, struct feed *feed, struct digest_table *digests,
				bool verify, struct brumate_error *err);
/** Reads all of @feed, as planned by plan(). Runs in a thread of its own; feed_stop() ends it. */
typedef int (*datapath_feed_fn)(void *arg, struct feed *feed, bool (*is_cancelled)(void *arg),
				void *cancel_arg, struct brumate_error *err);

/** Reads device memory at a restore, chunk by chunk on its way to the GPU. */
struct datapath_source {
	datapath_plan_fn plan;
	datapath_feed_fn feed;
	void *arg;
};

/** Totals of what was moved. */
struct datapath_sums {
	uint64_t bytes;	     /* moved, or parked */
	uint64_t disk_bytes; /* of these, in files instead of memory */
	double seconds;
	struct transfer_spared spared; /* not copied */
};

/** How host copies are treated when the program runs again. */
struct datapath_keep {
	bool copy;  /* this one turns into the baseline */
	bool spare; /* the same, while the memory that it takes is not needed elsewhere */
	bool drop;  /* the previous baseline is dropped */
	bool live;  /* the baseline was made by a live copy, for this operation alone */
};

/** What agents have mapped on the way in. */
struct datapath_maps {
	bool early;	     /* the pieces of the vault already */
	bool aliases_hidden; /* no memory of another member */
};

/** Jobs of other nodes, whose work kernels of this one may wait for. */
struct datapath_elsewhere {
	/* While all members here are idle and let nothing through: 0, so are all elsewhere; 1, not yet; <0, it is given up.
	 * Called in a thread of its own, again and again. NULL: there are none. */
	int (*all_idle)(void *arg, struct brumate_error *err);
	void *arg;
};

struct move;

struct datapath {
	/* set by the caller; borrowed, except agent_dir */
	const struct target *target; /* whose memory it is */
	char *agent_dir;	     /* the directory of the agents' sockets; owned */
	bool uses_agents;	     /* false: the driver alone moves device memory */
	struct vault *vault;	     /* NULL: the data path does nothing */
	struct progress *progress;
	uint32_t lock_timeout_ms; /* for closing a gate, if the progress has no deadline */
	bool force; /* proceed although some memory cannot be taken apart by the library */
	struct datapath_elsewhere elsewhere;
	struct datapath_keep keep;
	enum datapath_copy {
		DATAPATH_COPY_FIRST, /* the program resumes after its memory was copied out */
		DATAPATH_COPY_BEHIND, /* the program resumes first; the parked memory, the snapshot, is copied out behind it */
		DATAPATH_COPY_AFTER, /* like DATAPATH_COPY_BEHIND, but copying starts only once the program runs or a caller waits for it */
	} copy;
	struct datapath_sink sink;
	const struct dev_gpu_pair *
		pairs; /* the GPUs to which memory moves; memory of all other GPUs stays on its GPU */
	size_t n_pairs;

	struct datapath_agent *agents;
	size_t n_agents;
	struct proc_id *
		gone; /* owned: processes with memory in the vault that do not use the GPU any more */
	size_t n_gone;
	bool has_changed;	   /* members began or ended while their gates closed */
	struct agent_drain *drain; /* while gates close, if there are several; else NULL */
	int drain_fd;
	struct move *move; /* the transfer under way; NULL: none */
	struct host_copy
		saved; /* a host copy that the sink still reads, after the vault released it */
	struct datapath_maps maps;
	struct datapath_sums sums;
	struct agent_room
		held[AGENT_SNAPSHOT_GPUS_MAX]; /* the snapshot, as agents are informed of it */
	size_t n_held;
};

/** Closes the connections to the agents and frees everything but the vault. No transfer may be under way:
 * move_stop(). */
void datapath_fini(struct datapath *d);

/** Closes the fds of the agent's pieces and frees its list of them. */
void datapath_agent_fini(struct datapath_agent *a);

/** Frees what is known about memory that the agent shares with others. */
void datapath_agent_unshare(struct datapath_agent *a);

/** Closes the connections to the agents and forgets them. */
void datapath_drop_agents(struct datapath *d);

/* ---- all agents at once: what is asked of each is asked in a thread of its own ---- */

typedef int (*agents_fn)(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);

/** Calls @fn for every agent. Returns the first failure; each agent keeps its own result. Agents whose processes end
 * are dropped, which is not a failure. */
int agents_ask(struct datapath *d, agents_fn fn, struct brumate_error *err);
/** The two halves of agents_ask(): the first calls @fn and leaves every result in its agent; the second drops agents
 * that end and returns the first failure. */
int agents_ask_all(struct datapath *d, agents_fn fn, struct brumate_error *err);
int agents_settle(struct datapath *d, struct brumate_error *err);

/** Closes and forgets the agents for which @fn does not return true. */
void agents_keep(struct datapath *d, bool (*fn)(void *arg, const struct datapath_agent *a),
		 void *arg);

/** Connects to the agent if there is no connection yet. */
int agents_reach(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);
/** Lists the pieces of a connected agent. On failure the previous list stays. */
int agents_list(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);

/** How many pieces the first @n_agents agents have listed, which is the index of the next agent's first piece among
 * all. */
size_t agents_count_pieces(const struct datapath *d, size_t n_agents);

/** How many of the listed pieces are only imported by their processes: the driver does not export these again. */
size_t agents_count_imported(const struct datapath *d);
