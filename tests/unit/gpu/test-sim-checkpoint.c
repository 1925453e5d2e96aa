// SPDX-License-Identifier: MIT
/*
 * The checkpoint calls of the simulated driver, made on another process: what comes back, and what
 * does not. The states and results are those of docs/driver-behaviour.md.
 */
#include <semaphore.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"
#include "../../../sim/job_file.h"

enum { WORDS = 3 << 20 };

/* Keeps memory of every kind, and answers each request with the sum over it after adding to it. */
static void worker(int socket)
{
	uint64_t n = WORDS, one = 1, base = 0, sum;
	CUmodule module;
	CUdeviceptr p, out;
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph;
	void *pinned;

	start_driver(0);
	module = load_kernels();
	CHECK(cu.cuMemAlloc_v2(&p, n * 8) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&out, 8) == CUDA_SUCCESS);
	CHECK(cu.cuMemAllocHost_v2(&pinned, 8) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
	CHECK(LAUNCH(kernel(module, "brumate_fill_u64"), NULL, &p, &n, &base) == CUDA_SUCCESS);
	CHECK(cu.cuStreamBeginCapture_v2(stream, 0) == CUDA_SUCCESS);
	CHECK(LAUNCH(kernel(module, "brumate_add_u64"), stream, &p, &n, &one) == CUDA_SUCCESS);
	CHECK(LAUNCH(kernel(module, "brumate_sum_u64"), stream, &p, &n, &out) == CUDA_SUCCESS);
	CHECK(cu.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	CHECK(cu.cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
	say(socket, 0);
	for (;;) {
		hear(socket);
		sum = 0;
		CHECK(cu.cuMemcpyHtoD_v2(out, &sum, 8) == CUDA_SUCCESS);
		CHECK(cu.cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
		CHECK(cu.cuMemcpyDtoH_v2(pinned, out, 8) == CUDA_SUCCESS);
		memcpy(&sum, pinned, 8);
		say(socket, sum);
	}
}

static uint64_t expected_sum(uint64_t step)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < WORDS; i++)
		sum += i * 2654435761u + step;
	return sum;
}

static bool step_is_right(struct child *child, uint64_t step)
{
	say(child->socket, 0);
	return hear(child->socket) == expected_sum(step);
}

static void test_cycle(void)
{
	size_t before = free_bytes();
	struct child child;
	size_t in_use;
	int tid;

	child_start(&child, "worker");
	hear(child.socket);
	in_use = before - free_bytes();
	CHECK(in_use >= WORDS * 8);
	CHECK(step_is_right(&child, 1));
	CHECK(cu.cuCheckpointProcessGetRestoreThreadId(child.pid, &tid) == CUDA_SUCCESS);
	CHECK(tid != child.pid);
	CHECK(state(tid) == CU_PROCESS_STATE_RUNNING); /* a thread stands for its process */
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(state(child.pid) == CU_PROCESS_STATE_LOCKED);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(state(child.pid) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(free_bytes() == before);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(state(child.pid) == CU_PROCESS_STATE_LOCKED);
	CHECK(before - free_bytes() == in_use);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	CHECK(step_is_right(&child, 2));
	cycle(child.pid);
	CHECK(step_is_right(&child, 3));
	child_end(&child);
	CHECK(free_bytes() == before);
}

/* A locked process does not get into the driver, and goes on where it waited. */
static void test_lock_blocks(void)
{
	struct child child;

	child_start(&child, "worker");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	say(child.socket, 0);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	CHECK(hear(child.socket) == expected_sum(1));
	child_end(&child);
}

static void test_wrong_state(void)
{
	struct child child;

	child_start(&child, "worker");
	hear(child.socket);
	CHECK(checkpoint(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(restore(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(unlock(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(lock(child.pid, 100) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(restore(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(lock(child.pid, 0) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(checkpoint(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(unlock(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(state(child.pid) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	CHECK(step_is_right(&child, 1));
	child_end(&child);
}

static void idler(int socket)
{
	say(socket, 0);
	hear(socket);
}

static void test_no_client(void)
{
	struct child child;

	CHECK(state(0) == -CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(state(-1) == -CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(cu.cuCheckpointProcessGetState(getpid(), NULL) == CUDA_ERROR_INVALID_VALUE);
	child_start(&child, "idler");
	hear(child.socket);
	CHECK(state(child.pid) == -CUDA_ERROR_NOT_INITIALIZED);
	CHECK(lock(child.pid, 100) == CUDA_ERROR_NOT_INITIALIZED);
	child_end(&child);
	CHECK(state(child.pid) == -CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(state(getpid()) == CU_PROCESS_STATE_RUNNING);
}

static void managed(int socket)
{
	CUdeviceptr ptr;

	start_driver(0);
	CHECK(cu.cuMemAllocManaged(&ptr, 4 * MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
	CHECK(cu.cuMemFree_v2(ptr) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
}

static void test_managed(void)
{
	struct child child;

	child_start(&child, "managed");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_ERROR_NOT_SUPPORTED);
	CHECK(state(child.pid) == CU_PROCESS_STATE_LOCKED);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	say(child.socket, 0);
	hear(child.socket);
	cycle(child.pid);
	child_end(&child);
}

/* Checks that @pid, saved, is beyond help. */
static void check_lost(pid_t pid, CUresult first, CUresult later)
{
	CHECK(lock(pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(pid) == CUDA_SUCCESS);
	CHECK(restore(pid) == first);
	CHECK(restore(pid) == later);
	CHECK(unlock(pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(state(pid) == CU_PROCESS_STATE_CHECKPOINTED);
}

static void peers(int socket)
{
	CUcontext first, second;

	second = start_driver(1);
	first = start_driver(0);
	CHECK(first != second);
	CHECK(cu.cuCtxEnablePeerAccess(second, 0) == CUDA_SUCCESS);
	CHECK(cu.cuCtxDisablePeerAccess(second) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
	CHECK(cu.cuCtxEnablePeerAccess(second, 0) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
}

static void test_peers(void)
{
	struct child child;

	child_start(&child, "peers");
	hear(child.socket);
	cycle(child.pid);
	say(child.socket, 0);
	hear(child.socket);
	check_lost(child.pid, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
	child_kill(&child);
}

static void ipc_exporter(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	uint32_t value;
	uint64_t word;

	start_driver(0);
	CHECK(cu.cuMemAlloc_v2(&ptr, 4 * MIB) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32_v2(ptr, 77, MIB) == CUDA_SUCCESS);
	CHECK(cu.cuIpcGetMemHandle(&handle, ptr) == CUDA_SUCCESS);
	for (size_t i = 0; i < sizeof(handle); i += sizeof(word)) {
		memcpy(&word, (char *)&handle + i, sizeof(word));
		say(socket, word);
	}
	for (;;) {
		hear(socket);
		CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) == CUDA_SUCCESS);
		say(socket, value);
	}
}

static void ipc_importer(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	uint64_t word;

	start_driver(0);
	for (size_t i = 0; i < sizeof(handle); i += sizeof(word)) {
		word = hear(socket);
		memcpy((char *)&handle + i, &word, sizeof(word));
	}
	CHECK(cu.cuIpcOpenMemHandle_v2(&ptr, handle, 1) == CUDA_SUCCESS);
	say(socket, 0);
	for (;;) {
		word = hear(socket);
		CHECK(cu.cuMemsetD32_v2(ptr, (unsigned int)word, 1) == CUDA_SUCCESS);
		say(socket, 0);
	}
}

static void start_ipc_pair(struct child *exporter, struct child *importer)
{
	child_start(exporter, "ipc_exporter");
	child_start(importer, "ipc_importer");
	for (int i = 0; i < 8; i++)
		say(importer->socket, hear(exporter->socket));
	hear(importer->socket);
}

static void test_legacy_ipc(void)
{
	struct child exporter, importer;

	start_ipc_pair(&exporter, &importer);
	CHECK(lock(exporter.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(exporter.pid) == CUDA_SUCCESS);
	check_lost(importer.pid, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
	CHECK(restore(exporter.pid) == CUDA_SUCCESS);
	CHECK(unlock(exporter.pid) == CUDA_SUCCESS);
	say(exporter.socket, 0);
	CHECK(hear(exporter.socket) == 77);
	child_end(&exporter);
	child_kill(&importer);
}

/* What the vendor's tool does: the file is this process's, which all members see. */
static int name_job_file(void)
{
	struct sim_job_file content = { .magic = JOB_FILE_MAGIC, .identity = 1 };
	char path[64];
	int fd = memfd_create("job-file", MFD_CLOEXEC);

	CHECK(fd >= 0 && write(fd, &content, sizeof(content)) == sizeof(content));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), fd);
	setenv("CUDA_CHECKPOINT_JOB_FILE", path, 1);
	return fd;
}

/* Without a job file, and with one that no tool made, it is as on older drivers. */
static void test_legacy_ipc_without_a_job(void)
{
	static const char *const files[] = { NULL, "/proc/self/exe", "/nowhere" };
	struct child exporter, importer;

	setenv("BRUMATE_SIM_DRIVER", "610", 1);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		if (files[i])
			setenv("CUDA_CHECKPOINT_JOB_FILE", files[i], 1);
		start_ipc_pair(&exporter, &importer);
		unsetenv("CUDA_CHECKPOINT_JOB_FILE");
		check_lost(importer.pid, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
		child_kill(&exporter);
		child_kill(&importer);
	}
	unsetenv("BRUMATE_SIM_DRIVER");
}

/* A copy of the file from before the checkpoint is no use; what it is now is. */
static void test_stale_job_file(void)
{
	struct sim_job_file before, now;
	struct child child;
	int fd;

	setenv("BRUMATE_SIM_DRIVER", "590", 1);
	fd = name_job_file();
	child_start(&child, "ipc_exporter");
	unsetenv("BRUMATE_SIM_DRIVER");
	unsetenv("CUDA_CHECKPOINT_JOB_FILE");
	for (int i = 0; i < 8; i++)
		hear(child.socket);
	CHECK(pread(fd, &before, sizeof(before), 0) == sizeof(before));
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS && checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(pread(fd, &now, sizeof(now), 0) == sizeof(now) && now.saves == before.saves + 1);
	CHECK(pwrite(fd, &before, sizeof(before), 0) == sizeof(before));
	CHECK(restore(child.pid) == CUDA_ERROR_INVALID_VALUE);
	CHECK(pwrite(fd, &now, sizeof(now), 0) == sizeof(now));
	CHECK(restore(child.pid) == CUDA_SUCCESS && unlock(child.pid) == CUDA_SUCCESS);
	close(fd);
	child_kill(&child);
}

/* Driver 610 restores legacy IPC among the processes of a job, whose memory is shared again. */
static void test_legacy_ipc_in_a_job(void)
{
	struct child exporter, importer;
	int fd;

	setenv("BRUMATE_SIM_DRIVER", "610", 1);
	fd = name_job_file();
	start_ipc_pair(&exporter, &importer);
	unsetenv("BRUMATE_SIM_DRIVER");
	unsetenv("CUDA_CHECKPOINT_JOB_FILE");
	CHECK(lock(exporter.pid, 0) == CUDA_SUCCESS);
	CHECK(lock(importer.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(exporter.pid) == CUDA_SUCCESS);
	CHECK(checkpoint(importer.pid) == CUDA_SUCCESS);
	CHECK(restore(importer.pid) == CUDA_SUCCESS);
	CHECK(unlock(importer.pid) == CUDA_ERROR_NOT_READY); /* before its exporter is restored */
	CHECK(restore(exporter.pid) == CUDA_SUCCESS);
	CHECK(unlock(exporter.pid) == CUDA_SUCCESS);
	CHECK(unlock(importer.pid) == CUDA_SUCCESS);
	say(importer.socket, 4242);
	hear(importer.socket);
	say(exporter.socket, 0);
	CHECK(hear(exporter.socket) == 4242);
	close(fd);
	child_end(&exporter);
	child_end(&importer);
}

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

/* Imports what it is sent, once to be let go of and once to be kept. */
static void fd_importer(int socket)
{
	CUmemGenericAllocationHandle handle;
	int fd = receive_fd(socket);

	start_driver(0);
	for (int i = 0; i < 2; i++) {
		CHECK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
							CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
		      CUDA_SUCCESS);
		if (!i)
			CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
		say(socket, 0);
		hear(socket);
		if (!i)
			continue;
		CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
	}
}

static void test_imported_by_fd(void)
{
	CUmemGenericAllocationHandle handle;
	struct child child;
	int fd;

	child_start(&child, "fd_importer");
	CHECK(cu.cuMemCreate(&handle, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					      0) == CUDA_SUCCESS);
	send_fd(child.socket, fd);
	close(fd);
	hear(child.socket);
	cycle(child.pid); /* let go of in time */
	say(child.socket, 0);
	hear(child.socket);
	check_lost(child.pid, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
	child_kill(&child);
	CHECK(cu.cuMemRelease(handle) == CUDA_SUCCESS);
}

/* Sends an event in pieces, as messages are of eight bytes. */
static void event_maker(int socket)
{
	CUipcEventHandle handle;
	uint64_t words[sizeof(handle) / sizeof(uint64_t)];
	CUevent event;

	start_driver(0);
	CHECK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(!cu.cuIpcGetEventHandle(&handle, event) && !cu.cuEventRecord(event, NULL));
	memcpy(words, &handle, sizeof(handle));
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		say(socket, words[i]);
	hear(socket);
	CHECK(!cu.cuEventSynchronize(event) && !cu.cuEventDestroy_v2(event));
	say(socket, 0);
	hear(socket);
}

/* Who made it comes back, and its handle is void; who has it open is lost, as with memory. */
static void test_shared_event(void)
{
	uint64_t words[sizeof(CUipcEventHandle) / sizeof(uint64_t)];
	CUipcEventHandle handle;
	struct child maker;
	CUevent event;

	child_start(&maker, "event_maker");
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		words[i] = hear(maker.socket);
	memcpy(&handle, words, sizeof(handle));
	CHECK(!cu.cuIpcOpenEventHandle(&event, handle));
	CHECK(!cu.cuStreamWaitEvent(NULL, event, 0) && !cu.cuEventSynchronize(event));
	CHECK(cu.cuEventQuery(event) == CUDA_SUCCESS && !cu.cuEventDestroy_v2(event));
	cycle(maker.pid);
	CHECK(cu.cuIpcOpenEventHandle(&event, handle) == CUDA_ERROR_INVALID_VALUE);
	say(maker.socket, 0);
	hear(maker.socket);
	child_end(&maker);
}

/* Such memory is lost on an H200, shared (by NCCL's ranks) or not. */
static void host_holder(int socket)
{
	CUmemAllocationProp host = prop;
	CUmemGenericAllocationHandle handle;

	host.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 };
	start_driver(0);
	CHECK(cu.cuMemCreate(&handle, 2 * MIB, &host, 0) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
}

static void test_host_memory(void)
{
	struct child child;

	child_start(&child, "host_holder");
	hear(child.socket);
	check_lost(child.pid, CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN);
	child_kill(&child);
}

static void test_out_of_memory(void)
{
	size_t before = free_bytes();
	struct child child;
	CUdeviceptr hog;

	child_start(&child, "worker");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&hog, before - 20 * MIB) == CUDA_SUCCESS);
	CHECK(restore(child.pid) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuMemFree_v2(hog) == CUDA_SUCCESS);
	CHECK(restore(child.pid) == CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(unlock(child.pid) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(state(child.pid) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(free_bytes() == before);
	child_kill(&child);
}

static void wait_for_word(void *socket)
{
	hear(*(int *)socket);
}

/* Its stream is busy until the test says a word. */
static void busy(int socket)
{
	CUstream stream;

	start_driver(0);
	CHECK(cu.cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
	CHECK(cu.cuLaunchHostFunc(stream, wait_for_word, &socket) == CUDA_SUCCESS);
	say(socket, 0);
	CHECK(cu.cuStreamSynchronize(stream) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
}

static void test_lock_timeout(void)
{
	struct child child;

	child_start(&child, "busy");
	hear(child.socket);
	CHECK(lock(child.pid, 50) == CUDA_ERROR_NOT_READY);
	CHECK(state(child.pid) == CU_PROCESS_STATE_RUNNING);
	say(child.socket, 0);
	hear(child.socket);
	CHECK(lock(child.pid, 10000) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	child_end(&child);
}

static CUuuid uuid_of(int device)
{
	CUuuid uuid;

	CHECK(cu.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS);
	return uuid;
}

static CUresult restore_onto(pid_t pid, CUcheckpointGpuPair *pairs, unsigned int n)
{
	CUcheckpointRestoreArgs args = { .gpuPairs = pairs, .gpuPairsCount = n };

	return cu.cuCheckpointProcessRestore(pid, &args);
}

static void test_remap(void)
{
	CUcheckpointGpuPair swap[2] = { { uuid_of(0), uuid_of(1) }, { uuid_of(1), uuid_of(0) } };
	CUcheckpointGpuPair both_onto_one[2] = { { uuid_of(0), uuid_of(1) },
						 { uuid_of(1), uuid_of(1) } };
	CUcheckpointGpuPair unknown[2] = { swap[0], swap[1] };
	size_t before = free_bytes();
	struct child child;

	unknown[0].newUuid.bytes[0] ^= 1;
	child_start(&child, "worker");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(restore_onto(child.pid, swap, 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(restore_onto(child.pid, both_onto_one, 2) == CUDA_ERROR_INVALID_VALUE);
	CHECK(restore_onto(child.pid, unknown, 2) == CUDA_ERROR_INVALID_VALUE);
	CHECK(state(child.pid) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(restore_onto(child.pid, swap, 2) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	CHECK(free_bytes() == before); /* of GPU 0: the memory is on GPU 1 */
	CHECK(step_is_right(&child, 1));
	child_end(&child);
}

/* The target dies in the middle: the caller hears of it, and the memory is free. */
static void test_target_dies(void)
{
	size_t before = free_bytes();
	struct child child;

	setenv("BRUMATE_SIM_FAULT", "target:checkpoint:1:crash", 1);
	child_start(&child, "worker");
	unsetenv("BRUMATE_SIM_FAULT");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(state(child.pid) == -CUDA_ERROR_NOT_INITIALIZED); /* a zombie */
	child_kill(&child);
	CHECK(free_bytes() == before);
}

/* Asks for a checkpoint of the process it is told, and is killed meanwhile. */
static void caller(int socket)
{
	pid_t pid = (pid_t)hear(socket);

	start_driver(0);
	say(socket, 0);
	checkpoint(pid);
}

static void test_caller_dies(void)
{
	struct child child, asking;

	setenv("BRUMATE_SIM_FAULT", "target:checkpoint:1:delay=300", 1);
	child_start(&child, "worker");
	unsetenv("BRUMATE_SIM_FAULT");
	hear(child.socket);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	child_start(&asking, "caller");
	say(asking.socket, (uint64_t)child.pid);
	hear(asking.socket);
	usleep(100000); /* into the delay, which no event tells of; too early is no failure */
	child_kill(&asking);
	/* Whichever came first, the next caller finds a whole state and can go on. */
	if (state(child.pid) == CU_PROCESS_STATE_LOCKED)
		CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(state(child.pid) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	CHECK(step_is_right(&child, 1));
	child_end(&child);
}

static const struct child_body bodies[] = {
	{ "worker", worker },
	{ "idler", idler },
	{ "managed", managed },
	{ "peers", peers },
	{ "ipc_exporter", ipc_exporter },
	{ "ipc_importer", ipc_importer },
	{ "fd_importer", fd_importer },
	{ "busy", busy },
	{ "caller", caller },
	{ "event_maker", event_maker },
	{ "host_holder", host_holder },
	{ NULL },
};

int main(int argc, char **argv)
{
	child_main(argc, argv, bodies);
	make_machine("128");
	start_driver(0);
	test_cycle();
	test_lock_blocks();
	test_wrong_state();
	test_no_client();
	test_managed();
	test_peers();
	test_legacy_ipc();
	test_legacy_ipc_without_a_job();
	test_stale_job_file();
	test_legacy_ipc_in_a_job();
	test_imported_by_fd();
	test_shared_event();
	test_host_memory();
	test_out_of_memory();
	test_lock_timeout();
	test_remap();
	test_target_dies();
	test_caller_dies();
	return 0;
}
