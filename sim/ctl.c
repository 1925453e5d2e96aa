// SPDX-License-Identifier: MIT
/*
 * This process as the target of checkpoint calls: its control block, and the restore thread that
 * waits there and locks, saves, restores and unlocks the process.
 */
#include "ctl.h"

#include <errno.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sim.h"

static struct ctl *ctl;
static atomic_bool was_locked;
static int ctl_fd = -1;

/* Not the private kind: the word is seen by several processes. */
void ctl_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
	struct timespec until = { (time_t)(deadline_ns / NS_PER_S),
				  (long)(deadline_ns % NS_PER_S) };

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value,
		deadline_ns == DEADLINE_NEVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void ctl_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/*
 * H200: lock waits for all work submitted so far, host functions included; one that timed out
 * leaves the process running.
 */
static CUresult do_lock(void)
{
	uint64_t deadline = ctl->timeout_ms ? deadline_in_ms(ctl->timeout_ms) : DEADLINE_NEVER;
	bool idle;

	if (sim_gate_close(deadline) < 0)
		return CUDA_ERROR_NOT_READY;
	atomic_store(&was_locked, true);
	pthread_mutex_lock(&sim.lock);
	idle = streams_wait(NULL, deadline);
	pthread_mutex_unlock(&sim.lock);
	if (!idle)
		sim_gate_open();
	return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult do_unlock(void)
{
	CUresult r = checkpoint_open_shared();

	if (!r)
		sim_gate_open();
	return r;
}

static CUresult do_restore(void)
{
	return checkpoint_restore(&ctl->restore);
}

static const struct {
	const char *fault;
	CUprocessState from, to;
	CUresult (*run)(void);
} ops[] = {
	[CTL_LOCK] = { "target:lock", CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED, do_lock },
	[CTL_CHECKPOINT] = { "target:checkpoint", CU_PROCESS_STATE_LOCKED,
			     CU_PROCESS_STATE_CHECKPOINTED, checkpoint_save },
	[CTL_RESTORE] = { "target:restore", CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED,
			  do_restore },
	[CTL_UNLOCK] = { "target:unlock", CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING,
			 do_unlock },
};

/* The caller holds a flock while it waits. */
static bool caller_is_gone(void)
{
	if (flock(ctl_fd, LOCK_EX | LOCK_NB) < 0)
		return false;
	flock(ctl_fd, LOCK_UN);
	return true;
}

static CUresult serve(void)
{
	CUresult r;

	/* H200: a call whose caller dies before it begins, in a stopped process, does nothing. */
	if (ctl->op >= CTL_QUERY || caller_is_gone())
		return CUDA_SUCCESS;
	r = sim_fault(ops[ctl->op].fault);
	if (r)
		return r;
	/* H200: a call in the wrong state returns 401 and changes nothing. */
	if (atomic_load(&ctl->state) != ops[ctl->op].from)
		return CUDA_ERROR_ILLEGAL_STATE;
	r = sim_job_file_begin(ctl->op == CTL_RESTORE);
	if (r) {
		checkpoint_lose();
		return r;
	}
	r = ops[ctl->op].run();
	sim_job_file_end();
	if (!r)
		atomic_store(&ctl->state, ops[ctl->op].to);
	return r;
}

static void *restore_thread(void *data)
{
	sem_t *known = data;

	ctl->restore_tid = (uint32_t)gettid();
	sem_post(known);
	for (;;) {
		uint32_t asked = atomic_load(&ctl->asked);

		if (asked == atomic_load(&ctl->done)) {
			ctl_futex_wait(&ctl->asked, asked, DEADLINE_NEVER);
			continue;
		}
		ctl->result = serve();
		atomic_store(&ctl->done, asked);
		ctl_futex_wake(&ctl->done);
	}
	return NULL;
}

/* Returns when the thread can be found: initialisation is over then. */
static int start_restore_thread(void)
{
	sigset_t all, old;
	pthread_t thread;
	sem_t known;
	int r;

	sem_init(&known, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, NULL, restore_thread, &known);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!r) {
		pthread_detach(thread);
		while (sem_wait(&known) < 0)
			;
	}
	sem_destroy(&known);
	return -r;
}

int ctl_start(void)
{
	int r;

	ctl_fd = memfd_create(CTL_MEMFD_NAME, MFD_CLOEXEC);
	if (ctl_fd < 0 || ftruncate(ctl_fd, sizeof(*ctl)) < 0)
		return -errno;
	ctl = mmap(NULL, sizeof(*ctl), PROT_READ | PROT_WRITE, MAP_SHARED, ctl_fd, 0);
	if (ctl == MAP_FAILED) {
		cleanup_close(&ctl_fd);
		return -errno;
	}
	madvise(ctl, sizeof(*ctl), MADV_DONTFORK);
	ctl->magic = CTL_MAGIC;
	ctl->version = CTL_VERSION;
	r = start_restore_thread();
	if (r < 0) {
		munmap(ctl, sizeof(*ctl));
		cleanup_close(&ctl_fd);
	}
	return r;
}

bool ctl_was_locked(void)
{
	return atomic_load(&was_locked);
}

/* The mapping stays: the restore thread waits in it. */
void ctl_stop(void)
{
	cleanup_close(&ctl_fd);
}

/* In a forked child, which has the descriptor but not the mapping. */
void ctl_forget(void)
{
	cleanup_close(&ctl_fd);
	ctl = NULL;
}
