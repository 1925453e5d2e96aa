// SPDX-License-Identifier: MIT
/*
 * What processes and threads have in addition to memory and files, and CRIU does not bring back: the CPUs they may run
 * on, priorities, and the like. Read while they stand still, written down as text (docs/image-format.md, "Attributes"),
 * and given back from outside. Processes and threads are numbered as their own pid namespace does.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/alarms.h"
#include "process/process.h"

enum {
	ATTRIBUTES_CPUS = 8192, /* more than any kernel has */
	ATTRIBUTES_NODES = 1024,
	ATTRIBUTES_THREADS_MAX = 1 << 16,
	ATTRIBUTES_RANGES_MAX = 1 << 14,
	ATTRIBUTES_WATCHES_MAX = 1 << 16,
	ATTRIBUTES_ALARMS_MAX = 1 << 20,
	ATTRIBUTES_PROCESSES_MAX = 1 << 17,
	ATTRIBUTES_BYTES_MAX = 256 << 20,
	ATTRIBUTES_LIST_BYTES = 1024, /* of a list of CPUs or nodes as text */
};

/** A timer slack that is not known. */
#define ATTRIBUTES_NO_SLACK UINT64_MAX

/** Name of the file among CRIU's images. */
#define ATTRIBUTES_FILE "attributes"

struct attributes_thread {
	pid_t tid;
	uint32_t io_priority;	     /* as ioprio_get(2) */
	uint64_t timer_slack_ns;     /* or ATTRIBUTES_NO_SLACK */
	uint32_t util_min, util_max; /* as sched_getattr(2) */
	/* "0-3,8"; empty: all that there are. In a cgroup these are the CPUs of the cgroup. */
	char cpus[ATTRIBUTES_LIST_BYTES];
	char memory_policy[32]; /* as below; empty: that of the process */
	char memory_nodes[ATTRIBUTES_LIST_BYTES];
	bool resets_on_fork;	/* its children get the usual scheduling (SCHED_RESET_ON_FORK) */
	unsigned memory_errors; /* prctl(2), PR_MCE_KILL_GET */
	bool keeps_capabilities; /* the same, PR_GET_KEEPCAPS, of a thread that CRIU could not give it */
};

/** A mapping whose memory has a policy of its own (mbind(2)). */
struct attributes_range {
	uint64_t start, len_bytes;
	char policy[32];
	char nodes[ATTRIBUTES_LIST_BYTES];
};

/** A mapping whose pages are locked once they are there (mlock2(2), MLOCK_ONFAULT). */
struct attributes_locked {
	uint64_t start, len_bytes;
};

/** A watch of an inotify on a file that is deleted and still open, in the same process. */
struct attributes_watch {
	int fd; /* of the inotify */
	int number;
	uint32_t mask;
	int file_fd;
};

struct attributes_process {
	pid_t pid;
	uint32_t coredump_filter;
	uint32_t personality;
	uint32_t write_or_run;	/* prctl(2), MDWE, which the process alone can tell */
	char memory_policy[32]; /* "default", "bind", "prefer=relative" … */
	char memory_nodes[ATTRIBUTES_LIST_BYTES]; /* of that policy; empty: none */
	struct attributes_thread *threads;	  /* owned */
	size_t n_threads;
	struct attributes_range *ranges; /* owned */
	size_t n_ranges;
	struct attributes_locked *locked; /* owned */
	size_t n_locked;
	struct attributes_watch *watches; /* owned */
	size_t n_watches;
	struct alarm *alarms; /* owned */
	size_t n_alarms;
	struct alarm_timer *timers; /* owned */
	size_t n_timers;
};

struct attributes {
	struct attributes_process *items; /* owned */
	size_t n;
};
#define ATTRIBUTES_EMPTY ((struct attributes){ 0 })
void attributes_fini(struct attributes *a);
DEFINE_AUTO_FINI(struct attributes, attributes_fini)

/** Reads those of all processes of @tree. What cannot be read of one is left out. 0, -ENOMEM. */
int attributes_read(struct attributes *ret, const struct proc_tree *tree);

/** Reads which mappings of the processes of @tree have a policy of their own, or are locked as they come, and nothing else. The kernel looks at
 * each page for that, so call it while the processes run. 0, -ENOMEM. */
int attributes_read_ranges(struct attributes *ret, const struct proc_tree *tree);

/** Moves the ranges of @from to the same processes of @to. */
void attributes_take_ranges(struct attributes *to, struct attributes *from);

/** What a thread has said of itself (criu-plugin/hidden.h). */
struct attributes_told {
	pid_t pid, tid;
	uint64_t timer_slack_ns; /* 0: not known */
	bool keeps_capabilities;
	uint32_t write_or_run; /* of its process */
};

/** Adds it. Returns how many threads have a timer slack that is not known yet. */
size_t attributes_add_told(struct attributes *a, const struct attributes_told *told, size_t n);

/** Adds a timer of process @pid. -ENOMEM, -ESRCH: the process is not there. */
int attributes_add_timer(struct attributes *a, pid_t pid, const struct alarm_timer *timer);

/** As text (owned); NULL without memory. */
char *attributes_encode(const struct attributes *a, size_t *ret_len_bytes);

/** Pure, for foreign bytes. -EBADMSG, -ENOMEM. */
int attributes_decode(struct attributes *ret, const char *text, size_t len_bytes);

/** A system call that a restored thread is to make for itself: others cannot do it. */
struct attributes_call {
	pid_t pid, tid; /* as the record numbers them; tid 0: each thread of the process */
	uint64_t number, arguments[6];
	unsigned mask_argument; /* which of them is the address of @mask; 0: none */
	uint64_t mask[ATTRIBUTES_NODES / 64];
};

/** The calls that give back what cannot be given from outside (owned). 0, -ENOMEM. */
int attributes_calls(struct attributes_call **ret, size_t *ret_n, const struct attributes *a);

/** Called with what could not be given back, as a sentence. */
typedef void (*attributes_note_fn)(void *arg, const char *text);

/**
 * Gives the processes of @tree, which stand still after a restore, what @a says, with the rights of the calling thread
 * for files and signals (user_files_enter()), and looks whether they have it all. What they do not have is noted.
 */
void attributes_apply(const struct attributes *a, const struct proc_tree *tree,
		      attributes_note_fn note, void *arg);

/** Makes the watches again, which were lost with the name that CRIU gave such a file for a moment, and sets the alarms. Uses
 * our own rights, as it needs those of a tracer. */
void attributes_watch(const struct attributes *a, const struct proc_tree *tree,
		      attributes_note_fn note, void *arg);
