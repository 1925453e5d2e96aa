// SPDX-License-Identifier: MIT
/* A node of its own for a test: directories, a simulated machine, and small programs that use it. */
#pragma once

#include "check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "driver-abi.h"
#include "client/broker.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char node_dir[] = "/tmp/brumate-broker-XXXXXX";

static inline void node_set(const char *variable, const char *subdir)
{
	auto_free char *path = path_format("%s/%s", node_dir, subdir);

	CHECK(setenv(variable, path, 1) == 0);
}

static inline void node_start(void)
{
	CHECK(mkdtemp(node_dir));
	node_set("BRUMATE_RUNTIME_DIR", "run");
	node_set("BRUMATE_STATE_DIR", "state");
	node_set("BRUMATE_LOG_DIR", "log");
	node_set("BRUMATE_SIM_DIR", "sim");
	node_set("BRUMATE_FAULT_FILE", "fault");
	node_set("BRUMATE_CONFIG", "conf");
	setenv("BRUMATE_LOG_LEVEL", "debug", 1);
	auto_free char *library = path_find_helper("sim/libcuda.so.1");
	if (!library) {
		remove_tree(AT_FDCWD, node_dir);
		SKIP("the simulated driver is not built");
	}
}

static inline void node_end(void)
{
	CHECK(remove_tree(AT_FDCWD, node_dir) == 0);
}

/* Faults in the target of a checkpoint call, as the simulated driver reads them. */
static inline void node_sim_fault(const char *text)
{
	auto_free char *dir = path_format("%s/sim", node_dir), *path = path_format("%s/fault", dir);

	CHECK(mkdir_parents(dir, 0700) == 0);
	if (text)
		CHECK(file_replace(AT_FDCWD, path, text, strlen(text), 0600) == 0);
	else
		CHECK(unlink(path) == 0);
}

/* Makes the next broker fail at a point, see base/fault.h. */
static inline void node_fault(const char *text)
{
	CHECK(file_replace(AT_FDCWD, getenv("BRUMATE_FAULT_FILE"), text, strlen(text), 0600) == 0);
}

/* What the next broker is told. */
static inline void node_conf(const char *text)
{
	CHECK(file_replace(AT_FDCWD, getenv("BRUMATE_CONFIG"), text, strlen(text), 0600) == 0);
}

/* Waits until the process @pid, which need not be ours, has ended. */
static inline void wait_gone(pid_t pid, int timeout_ms)
{
	auto_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (fd < 0) {
		CHECK(errno == ESRCH);
		return;
	}
	CHECK(poll(&p, 1, timeout_ms) == 1);
}

/* Asks a broker to end and waits for it. */
static inline void end_broker(struct broker_client *b)
{
	pid_t pid = broker_client_pid(b);

	CHECK(wire_call(&b->wire, "io.brumate.broker.Quit", NULL, NULL, 0, NULL, NULL, NULL,
			deadline_in_ms(5000), NULL) == 0);
	broker_client_close(b);
	wait_gone(pid, 10000);
}

/* A process with 8 MiB of device memory, which it checks when asked to. */
struct node_target {
	pid_t pid;
	int to, from;
};

enum { TARGET_BYTES = 8 << 20 };

static void *target_symbol(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	CHECK(symbol);
	return symbol;
}

static inline void target_run(int in, int out)
{
	auto_free char *path = path_find_helper("sim/libcuda.so.1");
	void *lib = dlopen(path, RTLD_NOW);
	CHECK(lib);
	__typeof__(cuInit) *init = target_symbol(lib, "cuInit");
	__typeof__(cuDevicePrimaryCtxRetain) *retain =
		target_symbol(lib, "cuDevicePrimaryCtxRetain");
	__typeof__(cuCtxSetCurrent) *set = target_symbol(lib, "cuCtxSetCurrent");
	__typeof__(cuMemAlloc_v2) *alloc = target_symbol(lib, "cuMemAlloc_v2");
	__typeof__(cuMemcpyHtoD_v2) *write_to = target_symbol(lib, "cuMemcpyHtoD_v2");
	__typeof__(cuMemcpyDtoH_v2) *read_from = target_symbol(lib, "cuMemcpyDtoH_v2");
	auto_free uint32_t *data = malloc(TARGET_BYTES), *back = malloc(TARGET_BYTES);
	CUcontext ctx;
	CUdeviceptr p;
	char c;

	CHECK(init(0) == CUDA_SUCCESS && retain(&ctx, 0) == CUDA_SUCCESS &&
	      set(ctx) == CUDA_SUCCESS);
	CHECK(alloc(&p, TARGET_BYTES) == CUDA_SUCCESS);
	for (uint32_t i = 0; i < TARGET_BYTES / sizeof(*data); i++)
		data[i] = i * 2654435761u + (uint32_t)getpid();
	CHECK(write_to(p, data, TARGET_BYTES) == CUDA_SUCCESS);
	CHECK(write(out, "r", 1) == 1);
	while (read(in, &c, 1) == 1 && c != 'q') {
		memset(back, 0, TARGET_BYTES);
		CHECK(read_from(back, p, TARGET_BYTES) == CUDA_SUCCESS);
		CHECK(memcmp(data, back, TARGET_BYTES) == 0);
		CHECK(write(out, "k", 1) == 1);
	}
}

static inline struct node_target target_start(void)
{
	int to[2], from[2];
	char c;

	CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(to[1]);
		close(from[0]);
		target_run(to[0], from[1]);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	CHECK(read(from[0], &c, 1) == 1 && c == 'r');
	return (struct node_target){ pid, to[1], from[0] };
}

/* Its calls work and its data is right. */
static inline void target_check(const struct node_target *t)
{
	struct pollfd p = { .fd = t->from, .events = POLLIN };
	char c;

	CHECK(write(t->to, "?", 1) == 1);
	CHECK(poll(&p, 1, 10000) == 1);
	CHECK(read(t->from, &c, 1) == 1 && c == 'k');
}

static inline void target_end(struct node_target *t)
{
	int status;

	CHECK(write(t->to, "q", 1) == 1);
	close(t->to);
	CHECK(waitpid(t->pid, &status, 0) == t->pid && status == 0);
	close(t->from);
}
