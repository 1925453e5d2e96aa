// SPDX-License-Identifier: MIT
/*
 * The data path of a tree of processes: it takes their device memory out of them and puts it back, without
 * their driver. Agents in the processes park the memory (park.h), the vault holds it (vault.h), the broker
 * moves it (move.h). The data path knows neither a job nor a store: its caller says whose memory
 * it is, and what takes a host copy on to a checkpoint or brings one back. Not for two threads at once.
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

/** A process whose device memory its agent gives out. */
struct datapath_agent {
	struct agent agent;
	bool is_new; /* the driver does not know its process (yet): there is nothing to be moved */
	int result;  /* of the last request, with its text */
	struct brumate_error error;
	struct agent_piece *pieces; /* as last listed; owned */
	size_t n_pieces;
	int *fds;     /* of the pieces, while they are exported; owned, may be NULL */
	bool is_deaf; /* did not answer when it was told of the snapshot: it is not told again */

	/* as share_check() and share_bring() find it, owned */
	uint64_t token;
	struct agent_alias *aliases;
	size_t n_aliases;
	struct datapath_loan *loans; /* what others map of its memory, while they do it */
	size_t n_loans;
};

/** A piece that other members map, and a descriptor of it. */
struct datapath_loan {
	uint64_t piece;
	int fd;
};

/** Takes bytes from @start to before @end of @copy on to a checkpoint. Both are where a segment begins, or
 * @end is where the copy ends. @digests of all its chunks; NULL: they are not known. What is not read at
 * once stays to be read: in @copy's memory, which its file descriptors hold. */
typedef int (*datapath_save_fn)(void *arg, const struct host_copy *copy, uint64_t start,
				uint64_t end, const struct digest *digests,
				struct brumate_error *err);

/** What takes host copies on to a checkpoint, called in the thread of the transfer. */
struct datapath_sink {
	datapath_save_fn save; /* NULL: there is no checkpoint */
	void *arg;
	bool while_copying; /* what is whole goes on beside the rest of the copy */
};

/** Brings all pieces from a checkpoint into @copy. With @verify it compares every digest, and @copy is zeros;
 * else @copy may hold anything. Returns 1 if the digests of what was read are yet to be compared, by the GPU;
 * 0 if they were; what are zeros for sure is left out where they are not. Called in the thread of the
 * transfer; @is_cancelled is asked now and then. */
typedef int (*datapath_load_fn)(void *arg, const struct host_copy *copy, bool verify,
				bool (*is_cancelled)(void *arg), void *cancel_arg,
				struct brumate_error *err);

/** Says of each chunk where @feed gets it from, and fills @digests with those of all (NULL: they are not wanted). With
 * @verify the source will compare every digest, else it leaves that to the GPU where it can. Returns 1 if it does;
 * 0; -EOPNOTSUPP: it is to be loaded. Called in the thread of the transfer, again for each attempt. */
typedef int (*datapath_plan_fn)(void *arg, struct feed *feed, struct digest_table *digests,
				bool verify, struct brumate_error *err);
/** Reads all of @feed, as plan() said. In a thread of its own; feed_stop() ends it. */
typedef int (*datapath_feed_fn)(void *arg, struct feed *feed, bool (*is_cancelled)(void *arg),
				void *cancel_arg, struct brumate_error *err);

/** Where device memory comes from at a restore: chunk by chunk, on its way to the GPU; or into host memory first,
 * where the broker has no memory for a ring or the source does not do that. */
struct datapath_source {
	datapath_plan_fn plan; /* NULL: it is always loaded */
	datapath_feed_fn feed;
	datapath_load_fn load;
	void *arg;
};

/** What was moved. */
struct datapath_sums {
	uint64_t bytes;	     /* moved, or parked */
	uint64_t disk_bytes; /* of them: not in memory */
	double seconds;
	struct transfer_spared spared; /* of bytes: not copied */
};

struct move;

struct datapath {
	/* what the caller says; borrowed but for agent_dir */
	struct keeper_owner owner;
	char *agent_dir;     /* where their agents listen; owned */
	bool uses_agents;    /* else the driver alone moves device memory */
	bool simulated;	     /* the driver is the simulated one */
	struct vault *vault; /* NULL: there is nothing to do for the data path */
	struct progress *progress;
	uint32_t lock_timeout_ms; /* for a gate to close, where the progress has no deadline */
	bool force;		  /* also memory that the library cannot take apart */
	bool keep_copy;	    /* the host copy becomes the baseline when the program runs again */
	bool drop_baseline; /* the baseline of before does not stay then */
	enum datapath_copy {
		DATAPATH_COPY_FIRST, /* the program runs again once its memory is copied out */
		DATAPATH_COPY_BEHIND, /* what is parked, the snapshot, is copied out while the program runs */
		DATAPATH_COPY_AFTER, /* nor is anything of it copied before it runs, if somebody does not wait for it */
	} copy;
	struct datapath_sink sink;
	const struct dev_gpu_pair
		*pairs; /* where memory of which GPU comes back; others: where it was */
	size_t n_pairs;

	struct datapath_agent *agents;
	size_t n_agents;
	struct proc_id *gone; /* owned: whose memory the vault has, but who use the GPU no more */
	size_t n_gone;
	bool has_changed;	   /* members began or ended while their gates closed */
	struct agent_drain *drain; /* while their gates close, where there are several; else NULL */
	int drain_fd;
	struct move *move;	/* under way; NULL: none */
	struct host_copy saved; /* the sink still reads it, and the vault holds it no more */
	bool live_baseline;	/* the baseline was made by a live copy, for this operation alone */
	bool mapped_early;	/* pieces that agents have mapped are those of the vault */
	bool aliases_hidden;	/* no member has memory of another one mapped */
	struct datapath_sums sums;
	struct agent_room held[AGENT_SNAPSHOT_GPUS_MAX]; /* of the snapshot, as agents are told */
	size_t n_held;
};

/** Hangs up at the agents and forgets everything but the vault. No transfer is under way: move_stop(). */
void datapath_fini(struct datapath *d);

/** Closes the fds of the agents' pieces and forgets these. */
void datapath_agent_fini(struct datapath_agent *a);

/** Lets go of what the agent shares with others. */
void datapath_agent_unshare(struct datapath_agent *a);

/** Hangs up at the agents and forgets them. */
void datapath_drop_agents(struct datapath *d);

/* ---- all agents at once: what is asked of each is asked in a thread of its own ---- */

typedef int (*agents_fn)(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);

/** Calls @fn for every agent. Returns the first failure; each agent keeps its own. Those whose processes end are
 * not among them any more, and are no failure. */
int agents_ask(struct datapath *d, agents_fn fn, struct brumate_error *err);
/** Its two halves: what becomes of each is left to be looked at, and nothing is let go of; then those that end are dropped. */
int agents_ask_all(struct datapath *d, agents_fn fn, struct brumate_error *err);
int agents_settle(struct datapath *d, struct brumate_error *err);

/** Connects to an agent, unless it is. */
int agents_reach(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);
/** Lists the pieces of an agent, which is connected. On failure what was listed before stays. */
int agents_list(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);

/** How many pieces the first @n_agents have listed: where those of the next begin among all. */
size_t agents_count_pieces(const struct datapath *d, size_t n_agents);

/** How many of the listed pieces their processes only import: the driver does not export these again. */
size_t agents_count_imported(const struct datapath *d);
