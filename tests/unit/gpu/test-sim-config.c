// SPDX-License-Identifier: MIT
/* What the environment makes of the simulated machine: versions, GPUs, faults, and wrong values. */
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "sim.h"

static const struct {
	const char *branch;
	uint64_t cuda_version;
	CUresult
		remap; /* what a restore with GPU pairs says of a process that is not checkpointed */
} drivers[] = {
	{ "570", 12080, CUDA_ERROR_NOT_SUPPORTED }, { "580", 13000, CUDA_ERROR_ILLEGAL_STATE },
	{ "590", 13010, CUDA_ERROR_ILLEGAL_STATE }, { "610", 13030, CUDA_ERROR_ILLEGAL_STATE },
	{ "615", 13040, CUDA_ERROR_ILLEGAL_STATE },
};

static void tell_driver(int socket)
{
	CUcheckpointGpuPair pair = { 0 };
	CUcheckpointRestoreArgs args = { .gpuPairs = &pair, .gpuPairsCount = 1 };
	int version;

	start_driver(0);
	CHECK(cu.cuDriverGetVersion(&version) == CUDA_SUCCESS);
	say(socket, (uint64_t)version);
	say(socket, cu.cuCheckpointProcessRestore(getpid(), &args));
	hear(socket);
}

static void test_drivers(void)
{
	struct child child;

	for (size_t i = 0; i < sizeof(drivers) / sizeof(*drivers); i++) {
		setenv("BRUMATE_SIM_DRIVER", drivers[i].branch, 1);
		child_start(&child, "tell_driver");
		CHECK(hear(child.socket) == drivers[i].cuda_version);
		CHECK(hear(child.socket) == drivers[i].remap);
		child_end(&child);
	}
	unsetenv("BRUMATE_SIM_DRIVER");
}

static void try_init(int socket)
{
	load_driver();
	CHECK(!close(STDERR_FILENO));
	say(socket, cu.cuInit(0));
}

static CUresult init_with(const char *name, const char *value)
{
	struct child child;
	CUresult r;

	setenv(name, value, 1);
	child_start(&child, "try_init");
	unsetenv(name);
	r = (CUresult)hear(child.socket);
	child_end(&child);
	return r;
}

static void test_wrong_values(void)
{
	static const struct {
		const char *name, *value;
	} wrong[] = {
		{ "BRUMATE_SIM_GPUS", "0" },	    { "BRUMATE_SIM_GPUS", "two" },
		{ "BRUMATE_SIM_GPUS", "17" },	    { "BRUMATE_SIM_MODEL", "A,B,C" },
		{ "BRUMATE_SIM_DRIVER", "555" },    { "BRUMATE_SIM_GBPS", "2.6" },
		{ "BRUMATE_SIM_GBPS", "2.6,-1" },   { "BRUMATE_SIM_MIG", "yes" },
		{ "BRUMATE_SIM_CTX_MIB", "8 MiB" }, { "BRUMATE_SIM_STACKS_MIB", "x" },
		{ "BRUMATE_SIM_RDMA", "2" },	    { "BRUMATE_SIM_PEERS", "2" },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		CHECK(init_with(wrong[i].name, wrong[i].value) == CUDA_ERROR_SYSTEM_NOT_READY);
	CHECK(init_with("BRUMATE_SIM_GPUS", "3") == CUDA_SUCCESS);
	CHECK(init_with("CUDA_VISIBLE_DEVICES", "") == CUDA_ERROR_NO_DEVICE);
}

static void tell_gpus(int socket)
{
	size_t free_now, total;
	CUuuid uuid;
	int n;

	start_driver(0);
	CHECK(cu.cuDeviceGetCount(&n) == CUDA_SUCCESS);
	CHECK(cu.cuDeviceGetUuid_v2(&uuid, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemGetInfo_v2(&free_now, &total) == CUDA_SUCCESS);
	say(socket, (uint64_t)n);
	say(socket, (uint64_t)uuid.bytes[15]);
	say(socket, total);
	hear(socket);
}

static void check_gpus(const char *visible, uint64_t n, uint64_t first, uint64_t vram)
{
	struct child child;

	setenv("BRUMATE_SIM_GPUS", "3", 1);
	setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	child_start(&child, "tell_gpus");
	unsetenv("BRUMATE_SIM_GPUS");
	unsetenv("CUDA_VISIBLE_DEVICES");
	CHECK(hear(child.socket) == n);
	CHECK(hear(child.socket) == first);
	CHECK(hear(child.socket) == vram);
	child_end(&child);
}

static void test_gpus(void)
{
	setenv("BRUMATE_SIM_VRAM_MIB", "64,128,256", 1);
	check_gpus("0,1,2", 3, 0, 64 * MIB);
	check_gpus("2,0", 2, 2, 256 * MIB);
	check_gpus("GPU-53494d00-0000-0000-0000-000000000001", 1, 1, 128 * MIB);
	check_gpus("1,9,0", 1, 1, 128 * MIB);
	setenv("BRUMATE_SIM_VRAM_MIB", "64", 1);
}

static void failing(int socket)
{
	CUdeviceptr ptr;

	start_driver(0);
	CHECK(cu.cuMemAlloc_v2(&ptr, 100) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&ptr, 100) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuMemAlloc_v2(&ptr, 100) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD8_v2(ptr, 0, 100) == CUDA_ERROR_UNKNOWN);
	CHECK(cu.cuMemsetD8_v2(ptr, 0, 100) == CUDA_ERROR_UNKNOWN);
	say(socket, 0);
	hear(socket);
}

static void test_faults(void)
{
	struct child child;

	setenv("BRUMATE_SIM_FAULT", "cuMemAlloc:2:error=2,cuMemsetD8_v2:*:error=999", 1);
	child_start(&child, "failing");
	unsetenv("BRUMATE_SIM_FAULT");
	hear(child.socket);
	child_end(&child);
}

static void write_fault(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", getenv("BRUMATE_SIM_DIR"), name);
	if (text)
		CHECK(!file_replace(AT_FDCWD, path, text, strlen(text), 0600));
	else
		CHECK(!unlink(path));
}

static void plain(int socket)
{
	start_driver(0);
	say(socket, 0);
	hear(socket);
}

/* Faults of the checkpoint calls are switched on and off while everything runs. */
static void test_fault_files(void)
{
	struct child child;
	char mine[32];

	start_driver(0);
	child_start(&child, "plain");
	hear(child.socket);
	write_fault("fault", "target:lock:*:error=999\n");
	CHECK(lock(child.pid, 0) == CUDA_ERROR_UNKNOWN);
	CHECK(state(child.pid) == CU_PROCESS_STATE_RUNNING);
	write_fault("fault", NULL);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	snprintf(mine, sizeof(mine), "fault-%d", getpid());
	write_fault(mine, "cuCheckpointProcessUnlock:*:error=304");
	CHECK(unlock(child.pid) == CUDA_ERROR_OPERATING_SYSTEM);
	write_fault(mine, NULL);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	child_end(&child);
}

static void test_proc_address(void)
{
	CUdriverProcAddressQueryResult status;
	void *fn;

	CHECK(cu.cuGetProcAddress_v2("cuMemAlloc", &fn, 13000, 0, &status) == CUDA_SUCCESS);
	CHECK(fn == (void *)cu.cuMemAlloc_v2 && status == CU_GET_PROC_ADDRESS_SUCCESS);
	CHECK(cu.cuGetProcAddress_v2("cuCheckpointProcessLock", &fn, 12000, 0, &status) ==
	      CUDA_ERROR_NOT_FOUND);
	CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT && !fn);
	CHECK(cu.cuGetProcAddress_v2("cuNoSuchThing", &fn, 13000, 0, &status) ==
	      CUDA_ERROR_NOT_FOUND);
	CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(cu.cuGetProcAddress_v2("cuGraphInstantiate", &fn, 13000, 0, NULL) == CUDA_SUCCESS);
	CHECK(fn == (void *)cu.cuGraphInstantiateWithFlags);
}

static const struct child_body bodies[] = {
	{ "tell_driver", tell_driver }, { "try_init", try_init }, { "tell_gpus", tell_gpus },
	{ "failing", failing },		{ "plain", plain },	  { NULL },
};

int main(int argc, char **argv)
{
	child_main(argc, argv, bodies);
	make_machine("64");
	test_drivers();
	test_wrong_values();
	test_gpus();
	test_faults();
	test_fault_files();
	test_proc_address();
	return 0;
}
