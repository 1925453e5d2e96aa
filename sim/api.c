// SPDX-License-Identifier: MIT
/*
 * The way in and out of every driver call: initialisation, the gate that a checkpoint lock closes,
 * what a forked child may do, and the calls that concern the driver itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/vendor.h"
#include "sim.h"

struct sim sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.handle_fd = -1,
};

_Thread_local bool api_in_callback;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialized, shut_down;
static atomic_uint gate_closed; /* futex: those who wait to get in */
static atomic_uint in_flight;	/* futex: who closes the gate */

static void futex_wait(atomic_uint *word, unsigned int value, const struct timespec *timeout)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Entering and closing each write one word and read the other's, so one of them sees the other. */
static void pass_gate(void)
{
	for (;;) {
		atomic_fetch_add(&in_flight, 1);
		if (!atomic_load(&gate_closed))
			return;
		if (atomic_fetch_sub(&in_flight, 1) == 1)
			futex_wake(&in_flight);
		futex_wait(&gate_closed, 1, NULL);
	}
}

static void leave_gate(void)
{
	if (atomic_fetch_sub(&in_flight, 1) == 1 && atomic_load(&gate_closed))
		futex_wake(&in_flight);
}

void sim_gate_open(void)
{
	atomic_store(&gate_closed, 0);
	futex_wake(&gate_closed);
}

int sim_gate_close(uint64_t deadline_ns)
{
	unsigned int n;

	atomic_store(&gate_closed, 1);
	while ((n = atomic_load(&in_flight))) {
		uint64_t now = clock_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
		struct timespec timeout = { (time_t)(left / NS_PER_S), (long)(left % NS_PER_S) };

		if (!left) {
			sim_gate_open();
			return -ETIMEDOUT;
		}
		futex_wait(&in_flight, n, deadline_ns == DEADLINE_NEVER ? NULL : &timeout);
	}
	return 0;
}

CUresult api_enter(const char *name)
{
	CUresult r;

	if (!atomic_load_explicit(&initialized, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* The vendor forbids driver calls in host functions and callbacks. */
	if (api_in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	pass_gate();
	r = atomic_load(&shut_down) ? CUDA_ERROR_DEINITIALIZED : sim_fault(name);
	return r ? api_leave(r) : CUDA_SUCCESS;
}

CUresult api_leave(CUresult result)
{
	leave_gate();
	return result;
}

CUresult api_context(CUcontext *ret)
{
	CUcontext ctx = sim_context_current();

	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CUresult error = ctx->error;
	if (error)
		return error;
	*ret = ctx;
	return CUDA_SUCCESS;
}

/*
 * What an open /dev/nvidia* is to CRIU: a descriptor it refuses to dump. A landlock ruleset is one
 * that needs no privilege; userfaultfd serves where landlock is not built in.
 */
CUresult handle_open(void)
{
	uint64_t rules = 1;
	long fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);

	if (fd < 0)
		fd = syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (fcntl((int)fd, F_SETFL, GPU_SIMULATED_DEVICE_FLAG) < 0) {
		close((int)fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim.handle_fd = (int)fd;
	return CUDA_SUCCESS;
}

void handle_close(void)
{
	if (sim.handle_fd >= 0)
		close(sim.handle_fd);
	sim.handle_fd = -1;
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&init_lock);
	pthread_mutex_lock(&sim.lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&sim.lock);
	pthread_mutex_unlock(&init_lock);
}

/* A child of a process that uses the driver cannot: it gets CUDA_ERROR_NOT_INITIALIZED. */
static void fork_child(void)
{
	pthread_mutex_unlock(&sim.lock);
	pthread_mutex_unlock(&init_lock);
	if (!sim.initialized)
		return;
	handle_close();
	sim_job_file_close();
	ctl_forget();
	sim.forked = true;
	atomic_store(&initialized, false);
}

/*
 * At exit() the driver shuts down, by a handler of its own, which waits while the process is locked (H200: concluded
 * from programs that were suspended as they ended). From then on calls return CUDA_ERROR_DEINITIALIZED, and for
 * others the process is not a client of the driver.
 */
static void shut_down_driver(void)
{
	if (sim.forked || !sim.initialized)
		return;
	pass_gate();
	atomic_store(&shut_down, true);
	leave_gate();
	handle_close();
	ctl_stop();
}

void shut_down_at_exit(enum config_shutdown when)
{
	static atomic_bool registered;

	if (config_get()->shutdown == when && !atomic_exchange(&registered, true))
		atexit(shut_down_driver);
}

/* Deadlines are of the monotonic clock. */
static void init_changed(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&sim.changed, &attr);
	pthread_condattr_destroy(&attr);
}

static CUresult initialize(void)
{
	struct config *config = config_get();
	CUresult r;

	if (!config || devices_init() < 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	int err = vram_init();
	if (err < 0) {
		fprintf(stderr, "simulated CUDA driver: %s: %s; set BRUMATE_SIM_DIR\n", config->dir,
			strerror(-err));
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	if (!sim.n_devices)
		return CUDA_ERROR_NO_DEVICE;
	init_changed();
	sim_job_file_open();
	r = handle_open();
	if (r)
		return r;
	if (pthread_atfork(fork_prepare, fork_parent, fork_child) || ctl_start() < 0) {
		handle_close();
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	r = sim_fault("init:found");
	/* H200: a program that was suspended in the middle of this got "not initialized". */
	if (!r && ctl_was_locked())
		r = CUDA_ERROR_NOT_INITIALIZED;
	if (r) {
		ctl_stop();
		handle_close();
		return r;
	}
	sim.initialized = true;
	atomic_store(&initialized, true);
	shut_down_at_exit(SHUTDOWN_OF_INIT);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load(&initialized))
		return API(CUDA_SUCCESS);
	r = sim_fault("cuInit");
	if (r)
		return r;
	pthread_mutex_lock(&init_lock);
	if (sim.forked)
		r = CUDA_ERROR_NOT_INITIALIZED;
	else if (!sim.initialized)
		r = initialize();
	pthread_mutex_unlock(&init_lock);
	return r;
}

CUresult cuDriverGetVersion(int *version)
{
	const struct config *config = config_get();

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!config)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	*version = config->cuda_version;
	return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}
