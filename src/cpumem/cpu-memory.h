// SPDX-License-Identifier: MIT
/*
 * Large private memory of a job's processes, saved and filled by us instead of CRIU: choosing it, reading it from
 * frozen processes, writing it into restored ones, both with any number of threads, and the table by which our plugin
 * inside CRIU leaves it out (criu-plugin/hidden.h). Nothing here changes a process that is saved: its memory stays
 * intact even if any of our programs dies.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "criu/criu.h"
#include "image/manifest.h"
#include "process/attributes.h"
#include "process/process.h"

/** Regions start and end at multiples of this; what stands over at the edges stays with CRIU. */
#define CPU_MEMORY_ALIGN_BYTES (2ull << 20)

/** A run of private anonymous memory. */
struct cpu_memory_region {
	pid_t pid;	 /* as we number it */
	pid_t inner_pid; /* as its own namespace does, and CRIU in that */
	uint64_t va, len_bytes;
	uint64_t present_bytes;
	uint64_t *present; /* owned; a bit a page, from the lowest; the others read as zeros */
	int mem_fd; /* owned; /proc/PID/mem where others have some of its pages too, or it is a user's; else -1 */
};

struct cpu_memory {
	struct cpu_memory_region *items; /* sorted by inner_pid, pid, va */
	size_t n;
	uint64_t len_bytes, present_bytes; /* of all */
};
#define CPU_MEMORY_EMPTY ((struct cpu_memory){ 0 })
void cpu_memory_fini(struct cpu_memory *m);
DEFINE_AUTO_FINI(struct cpu_memory, cpu_memory_fini)

/**
 * Finds the memory worth it in the frozen processes of @tree: private, anonymous, readable and writable,
 * nothing special, at least 8 MiB of it there. Memory that processes still share after a fork stays with
 * CRIU, which keeps it shared. @user: with whose rights it is read; NULL: with ours.
 */
int cpu_memory_choose(struct cpu_memory *ret, const struct proc_tree *tree,
		      const struct criu_user *user, unsigned threads, struct brumate_error *err);

/** Reads @len_bytes at @offset of @r; a chunks_source_fn with @r as its argument. 0, -ESRCH, -EFAULT. */
int cpu_memory_read(void *r, uint64_t offset, void *buf, size_t len_bytes);

/** Progress of a copy, from one of its threads; <0 ends it with that code. May be NULL. */
typedef int (*cpu_memory_progress_fn)(void *arg, uint64_t done_bytes);

/** A copy of such memory in private memory of ours: the regions one after the other. */
struct cpu_memory_copy {
	void *bytes;
	uint64_t len_bytes;
};
#define CPU_MEMORY_COPY_EMPTY ((struct cpu_memory_copy){ 0 })

/** Addresses for a copy of @m, zeros, none of them in memory yet. -ENOMEM: also where the kernel promises
 * no memory that may never be touched (vm.overcommit_memory=2). */
int cpu_memory_copy_reserve(struct cpu_memory_copy *ret, const struct cpu_memory *m);
void cpu_memory_copy_fini(struct cpu_memory_copy *c);
DEFINE_AUTO_FINI(struct cpu_memory_copy, cpu_memory_copy_fini)

/** Copies @m to @to, which was reserved for it; what is not there stays absent. @threads 0: by the number
 * of cores. */
int cpu_memory_copy_out(const struct cpu_memory *m, const struct cpu_memory_copy *to,
			unsigned threads, cpu_memory_progress_fn progress, void *arg,
			struct brumate_error *err);

/**
 * cpu_memory_open() - open the memory of process @pid
 * @pidfd: of that process, borrowed; -1: use the process that has the pid at present
 * @user: with this user's permissions; NULL: with ours
 *
 * Opens the present memory of the process: if it executes another program later, with any permissions, that gets new
 * memory. So the kernel checks the permission once, and its decision stays valid. Returns the descriptor of
 * /proc/PID/mem (owned), -EPERM or -EACCES (that user may not trace the process), -ESRCH, -errno.
 */
int cpu_memory_open(pid_t pid, int pidfd, int flags, const struct criu_user *user,
		    struct brumate_error *err);

/** A process that is filled, by any number of threads. */
struct cpu_memory_target {
	pid_t pid;
	uint64_t va, len_bytes;
	int pidfd;  /* borrowed; for the caller: cpu_memory_write() does not need it */
	int mem_fd; /* borrowed; cpu_memory_open(); -1: the process is known by @pid */
};

/** Writes into a restored process whose memory is zero there; a chunks_sink_fn with a target as its
 * argument. Pages of zeros are left out. 0, -ESRCH, -EFAULT (no such memory), -ERANGE. */
int cpu_memory_write(void *target, uint64_t offset, const void *data, size_t len_bytes);

/** Memory of a process, whole huge pages; best some 64 MiB. */
struct cpu_memory_range {
	pid_t pid;
	int pidfd, mem_fd; /* borrowed; as those of a target */
	uint64_t va, len_bytes;
};

/**
 * Gives memory of stopped processes that is zero huge pages, which cpu_memory_write() then fills several times
 * as fast as small ones. Where there are none to be had, or only slowly, small pages do.
 */
void cpu_memory_make_huge(const struct cpu_memory_range *ranges, size_t n, unsigned threads);

/* ---- what CRIU is told ---- */

/** Whether a CRIU that gets the table (hidden_table_new()) uses it. */
bool cpu_memory_table_is_heeded(int table_fd);

/** The numbers by which a CRIU identifies processes: those in their own pid namespace if it runs in that, or ours. */
enum cpu_memory_pids { CPU_MEMORY_INNER_PIDS, CPU_MEMORY_OUR_PIDS };

/** Hides @m from now on. -E2BIG: more than the table takes. */
int cpu_memory_hide(int table_fd, const struct cpu_memory *m, enum cpu_memory_pids pids);

/** Lets CRIU pass over mappings of the devices it was given (criu_plugin): zeros stand there after a restore. */
int cpu_memory_allow_device_maps(int table_fd);

/** Asks for calls of restored threads. -errno. */
int cpu_memory_table_ask(int table_fd, const struct attributes_call *calls, size_t n);

/** Digests (owned) of the filters of system calls that CRIU's processes have, once all stand still, as the plugin has them
 * from the kernel. 0, or the -errno of what kept it from reading them all. */
int cpu_memory_table_filters(struct manifest_filters **ret, size_t *ret_n, int table_fd);

/** What threads said of themselves (owned), once all stand still, and how many processes have a session
 * keyring of their own (keyrings(7)). 0, -errno. */
int cpu_memory_table_told(struct attributes_told **ret, size_t *ret_n, size_t *ret_keyrings,
			  int table_fd);

struct thread_notes;

/** What the plugin noted of the threads, once all stand still (criu-plugin/hidden.h). 0, -errno. */
int cpu_memory_table_threads(struct thread_notes *ret, int table_fd);

/* ---- pure, for foreign bytes ---- */

struct cpu_memory_vma {
	uint64_t start, end;
	uint64_t there_bytes; /* in memory or swapped out, according to smaps */
};

/**
 * Picks out of the text of /proc/PID/smaps the mappings that may be taken, whole, in order. Returns their
 * number, at most @room; -EBADMSG.
 */
ssize_t cpu_memory_parse_smaps(char *text, struct cpu_memory_vma *ret, size_t room);
