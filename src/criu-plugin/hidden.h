// SPDX-License-Identifier: MIT
/*
 * Memory that CRIU must not write into its images, because the shim saves it: a table in a memfd that the shim fills
 * while CRIU waits for it, and that the plugin inside CRIU reads. Both come from one build. If the plugin ignores the
 * table, that only costs time: the memory is then saved twice.
 *
 * In the other direction the plugin fills in the filters of system calls, and what else the kernel shows only to the tracer of a
 * thread, which is CRIU. It also has restored threads make calls for which the shim asks, since only their tracer can.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/** Environment variables of CRIU: the number of the memfd; a list, separated by colons, of path prefixes of devices that
 * are reopened at restore; and the id of a vendor whose own plugin saves the GPUs (gpu/saved-by.h), at a restore with a blank and
 * "FROM=TO,...", where those that move go. */
#define HIDDEN_FD_VARIABLE     "BRUMATE_CRIU_HIDDEN"
#define HIDDEN_DEV_VARIABLE    "BRUMATE_CRIU_DEVICES"
#define HIDDEN_VENDOR_VARIABLE "BRUMATE_CRIU_VENDOR"

/** Name of the plugin. An image with hidden memory names it, so CRIU refuses a restore without the plugin, that is,
 * without the shim. */
#define HIDDEN_PLUGIN_NAME "brumate"

/** How CRIU is given a new end of a TCP connection; the number of its file in the images follows, as %x. */
#define HIDDEN_CONNECTION_KEY "brumate-connection:"

/** How CRIU is given a socket that went on listening (process/listeners.h); its name follows. */
#define HIDDEN_LISTENER_KEY "brumate-listener:"
enum { HIDDEN_LISTENER_KEY_BYTES = 96 };

enum { HIDDEN_MAGIC = 0x62724831, HIDDEN_RANGES_MAX = 1 << 16 };

/** Private memory [start, end) of a process, numbered as CRIU does. */
struct hidden_range {
	int64_t pid;
	uint64_t start, end;
};

enum { FILTER_OWNERS_MAX = 1 << 16, FILTER_CHAINS_BYTES = 4 << 20 };

/** A filter of a chain; its program comes behind it. */
struct filter_head {
	uint32_t flags; /* as the kernel tells them */
	uint32_t len_bytes;
};

/** Threads of a process, numbered as CRIU does, have the chain [offset, offset + len_bytes). */
struct filter_owner {
	int64_t pid;
	uint32_t offset, len_bytes;
};

/** A chain is all filters of a thread, in the order in which the kernel numbers them. Equal chains are stored once. */
struct filter_table {
	uint32_t error; /* an errno: there is more than this */
	uint32_t n;
	uint32_t used_bytes;
	struct filter_owner owners[FILTER_OWNERS_MAX];
	uint8_t chains[FILTER_CHAINS_BYTES];
};

/** What of the threads is not as the program left it. */
struct thread_notes {
	uint32_t n_early_waits; /* that end early (calls.h) */
	uint32_t
		error; /* an errno: the registers of process @pid cannot be read, or not restored */
	int64_t pid;   /* numbered as CRIU does, as all of this */
	int64_t kept_by; /* a thread that does not release @kept (registers.h); 0: there is none */
	uint64_t kept;
	int64_t gpu_pid; /* a process that a vendor's plugin could not resume on its GPUs; 0: there is none */
	int64_t bound_pid; /* one in which CRIU cannot run its code, for MDWE (prctl(2)); 0: there is none */
};

enum { THREAD_TOLD_MAX = 1 << 16 };

/** What the kernel tells a thread of itself, and nobody else (prctl(2)). */
struct thread_told {
	int32_t pid, tid; /* in their own pid namespace */
	uint64_t timer_slack_ns;
	uint32_t keeps_capabilities;
	uint32_t write_or_run; /* MDWE, of the process */
};

/** Of those threads that have something of it: where the kernel tells us, only what it does not tell. */
struct thread_tellings {
	uint32_t n;
	uint32_t n_unknown; /* threads that could not be asked */
	uint32_t
		n_keyrings; /* processes with another session keyring than CRIU, and the shim, have */
	struct thread_told items[THREAD_TOLD_MAX];
};

enum { HIDDEN_CALLS_MAX = 1 << 14, HIDDEN_CALL_WORDS = 16 };

/** A system call that a restored thread is to make for itself. */
struct hidden_call {
	int64_t pid, tid; /* as CRIU numbers them; tid 0: each thread of the process */
	uint64_t number, arguments[6];
	uint64_t mask_argument; /* which of them is the address of @mask; 0: none */
	uint64_t mask[HIDDEN_CALL_WORDS];
};

/** Set by the shim before a restore. */
struct hidden_calls {
	_Atomic uint32_t n;
	struct hidden_call items[HIDDEN_CALLS_MAX];
};

struct hidden_table {
	uint32_t magic;
	_Atomic uint32_t is_heeded;	/* set by the plugin, as soon as it can */
	_Atomic uint32_t n;		/* set by the shim, once the ranges are there */
	_Atomic uint32_t may_lose_maps; /* set by the shim: devices are mapped by forks alone */
	struct hidden_range ranges[HIDDEN_RANGES_MAX]; /* sorted by pid, then start; disjoint */
	/* Set by the plugin, before CRIU says that all stand still: */
	struct filter_table filters;
	struct thread_notes threads;
	struct thread_tellings tellings;
	struct hidden_calls calls; /* for a restore */
};

/** A table, empty, for a CRIU. Returns its fd (owned) or -errno. */
int hidden_table_new(void);
