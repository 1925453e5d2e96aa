// SPDX-License-Identifier: MIT
/* What the tests of the simulated driver share. */
#include "sim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

struct driver cu;

static char machine[64];
static pid_t owner;

static const char kernels_ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
				  ".visible .global .align 8 .u64 counter = 7;\n"
				  ".visible .entry brumate_fill_u64(.param .u64 p) { ret; }\n"
				  ".visible .entry brumate_add_u64(.param .u64 p) { ret; }\n"
				  ".visible .entry brumate_sum_u64(.param .u64 p) { ret; }\n"
				  ".visible .entry brumate_spin_ns(.param .u64 n) { ret; }\n"
				  ".visible .entry brumate_store_u32(.param .u64 p) { ret; }\n"
				  ".visible .entry not_one_of_ours() { ret; }\n";

static void remove_machine(void)
{
	if (getpid() == owner)
		remove_tree(AT_FDCWD, machine);
}

void make_machine(const char *vram_mib)
{
	owner = getpid();
	snprintf(machine, sizeof(machine), "/dev/shm/brumate-test-%d", owner);
	remove_tree(AT_FDCWD, machine);
	setenv("BRUMATE_SIM_DIR", machine, 1);
	setenv("BRUMATE_SIM_VRAM_MIB", vram_mib, 1);
	atexit(remove_machine);
}

void load_driver(void)
{
	void *library = dlopen(getenv("BRUMATE_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
#define X(name)                                               \
	cu.name = (__typeof__(cu.name))dlsym(library, #name); \
	CHECK(cu.name);
	DRIVER_CALLS(X)
#undef X
}

CUcontext start_driver(int device)
{
	CUcontext ctx;

	load_driver();
	CHECK(cu.cuInit(0) == CUDA_SUCCESS);
	CHECK(cu.cuDevicePrimaryCtxRetain(&ctx, device) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	return ctx;
}

size_t free_bytes(void)
{
	size_t free_now, total;

	CHECK(cu.cuMemGetInfo_v2(&free_now, &total) == CUDA_SUCCESS);
	return free_now;
}

CUmodule load_kernels(void)
{
	CUmodule module;

	CHECK(cu.cuModuleLoadData(&module, kernels_ptx) == CUDA_SUCCESS);
	return module;
}

CUfunction kernel(CUmodule module, const char *name)
{
	CUfunction fn;

	CHECK(cu.cuModuleGetFunction(&fn, module, name) == CUDA_SUCCESS);
	return fn;
}

void child_main(int argc, char **argv, const struct child_body *bodies)
{
	if (argc != 3)
		return;
	for (; bodies->name; bodies++) {
		if (strcmp(bodies->name, argv[1]))
			continue;
		bodies->run(atoi(argv[2]));
		exit(0);
	}
	exit(1);
}

void child_start(struct child *ret, const char *body)
{
	char number[16];
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	snprintf(number, sizeof(number), "%d", ends[1]);
	ret->pid = fork();
	CHECK(ret->pid >= 0);
	if (!ret->pid) {
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "child", body, number, NULL);
		_exit(127);
	}
	close(ends[1]);
	ret->socket = ends[0];
}

static int reap(struct child *child)
{
	int status;

	close(child->socket);
	CHECK(waitpid(child->pid, &status, 0) == child->pid);
	return status;
}

void child_end(struct child *child)
{
	CHECK(reap(child) == 0);
}

void child_kill(struct child *child)
{
	CHECK(!kill(child->pid, SIGKILL));
	reap(child);
}

void say(int socket, uint64_t value)
{
	if (send(socket, &value, sizeof(value), MSG_NOSIGNAL) != sizeof(value))
		_exit(0);
}

uint64_t hear(int socket)
{
	uint64_t value;

	if (recv(socket, &value, sizeof(value), 0) == sizeof(value))
		return value;
	/* In a child: the test is over. In the test: the child has failed, and has said why. */
	_exit(getpid() == owner);
}

void send_fd(int socket, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 0;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

int receive_fd(int socket)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd;

	CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
	CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

CUresult lock(pid_t pid, unsigned int timeout_ms)
{
	CUcheckpointLockArgs args = { .timeoutMs = timeout_ms };

	return cu.cuCheckpointProcessLock(pid, &args);
}

CUresult checkpoint(pid_t pid)
{
	CUcheckpointCheckpointArgs args = { { 0 } };

	return cu.cuCheckpointProcessCheckpoint(pid, &args);
}

CUresult restore(pid_t pid)
{
	CUcheckpointRestoreArgs args = { 0 };

	return cu.cuCheckpointProcessRestore(pid, &args);
}

CUresult unlock(pid_t pid)
{
	CUcheckpointUnlockArgs args = { { 0 } };

	return cu.cuCheckpointProcessUnlock(pid, &args);
}

int state(pid_t pid)
{
	CUprocessState now;
	CUresult r = cu.cuCheckpointProcessGetState(pid, &now);

	return r ? -(int)r : (int)now;
}

void cycle(pid_t pid)
{
	CHECK(lock(pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(pid) == CUDA_SUCCESS);
	CHECK(restore(pid) == CUDA_SUCCESS);
	CHECK(unlock(pid) == CUDA_SUCCESS);
}
