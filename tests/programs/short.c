// SPDX-License-Identifier: MIT
/*
 * short KIND: a program that starts, uses the GPU for a moment, and ends: what it prints and how it ends is
 * the same every time, whatever happens to it in between. The kinds differ in what they do at the edges of
 * their lives. With --path P it stops at each phase PHASE for which there is a FIFO P.PHASE, until that has
 * been opened to be written to and closed again: who opens it so waits until the program is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

#define MIB ((size_t)1 << 20)

enum { STEP_MS = 10, WORKERS = 3, BAD_ADDRESS = 64, MANAGED_GLOBAL = 1 };

static const char usage[] = "short KIND [--busy-ms 300] [--mib 4] [--path FIFOS]";
static struct options options = { .mib = 4, .chunk_mib = 4, .busy_ms = 300 };
static struct gpu gpu;
static struct array memory;
static char **arguments;

/* ---- phases ---- */

static void phase(const char *name)
{
	char fifo[4096], byte;

	if (!options.path)
		return;
	snprintf(fifo, sizeof(fifo), "%s.%s", options.path, name);

	int fd = open(fifo, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	while (read(fd, &byte, 1) < 0 && errno == EINTR)
		;
	close(fd);
}

static unsigned int steps(void)
{
	return options.busy_ms / STEP_MS + 1;
}

static void begin(void)
{
	CUcontext ctx;

	phase("start");
	cuda_load();
	CHECKED(cuInit(0));
	phase("init");
	CHECKED(cuDevicePrimaryCtxRetain(&ctx, 0));
	phase("context");
	gpu_open(&gpu, options.gpu);
	phase("module");
}

static void step(struct array *array, CUstream stream, unsigned int n)
{
	uint64_t ns = STEP_MS * 1000000ull;

	LAUNCH(gpu.spin_ns, 1, stream, &ns);
	array_add(array, stream);
	say("step %u %s", n, array_check(array, stream) ? "OK" : "BAD");
}

static void work(void)
{
	array_alloc(&memory, &gpu, 1, options.mib * MIB);
	for (unsigned int n = 1; n <= steps(); n++) {
		if (n == steps() / 2 + 1)
			phase("work");
		step(&memory, NULL, n);
	}
	phase("end");
}

/* ---- kinds: what is made and destroyed again and again ---- */

static void run_plain(void)
{
	begin();
	work();
}

static void run_idle(void)
{
	phase("start");
	cuda_load();
	CHECKED(cuInit(0));
	phase("init");
	phase("end");
	say("initialised");
}

static void one_context(unsigned int n)
{
	CHECKED(cuCtxCreate_v2(&gpu.ctx, 0, gpu.device));
	gpu_load_kernels(&gpu);
	array_alloc(&memory, &gpu, 1, options.mib * MIB);
	step(&memory, NULL, n);
	CHECKED(cuCtxDestroy_v2(gpu.ctx));
	free(memory.chunks);
}

static void run_contexts(void)
{
	phase("start");
	cuda_load();
	CHECKED(cuInit(0));
	CHECKED(cuDeviceGet(&gpu.device, options.gpu));
	for (unsigned int n = 1; n <= steps() / 4 + 1; n++)
		one_context(n);
	phase("end");
}

static void run_primary(void)
{
	for (unsigned int n = 1; n <= steps() / 4 + 1; n++) {
		gpu_open(&gpu, options.gpu);
		array_alloc(&memory, &gpu, 1, options.mib * MIB);
		step(&memory, NULL, n);
		CHECKED(cuDevicePrimaryCtxReset_v2(gpu.device));
		free(memory.chunks);
	}
	phase("end");
}

static void run_modules(void)
{
	begin();
	array_alloc(&memory, &gpu, 1, options.mib * MIB);
	for (unsigned int n = 1; n <= steps(); n++) {
		CHECKED(cuModuleUnload(gpu.kernels));
		gpu_load_kernels(&gpu);
		step(&memory, NULL, n);
	}
	phase("end");
}

static void run_streams(void)
{
	CUstream stream;
	CUevent event;

	begin();
	array_alloc(&memory, &gpu, 1, options.mib * MIB);
	for (unsigned int n = 1; n <= steps(); n++) {
		CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		CHECKED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
		step(&memory, stream, n);
		CHECKED(cuEventRecord(event, stream));
		CHECKED(cuEventSynchronize(event));
		CHECKED(cuEventDestroy_v2(event));
		CHECKED(cuStreamDestroy_v2(stream));
	}
	phase("end");
}

static void one_graph(CUstream stream, unsigned int n)
{
	CUgraphExec exec;
	CUgraph graph;

	CHECKED(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	array_add(&memory, stream);
	CHECKED(cuStreamEndCapture(stream, &graph));
	CHECKED(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECKED(cuGraphLaunch(exec, stream));
	step(&memory, stream, n);
	CHECKED(cuGraphExecDestroy(exec));
	CHECKED(cuGraphDestroy(graph));
}

static void run_graphs(void)
{
	CUstream stream;

	begin();
	array_alloc(&memory, &gpu, 1, options.mib * MIB);
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned int n = 1; n <= steps(); n++)
		one_graph(stream, n);
	phase("end");
}

static void run_churn(void)
{
	begin();
	for (unsigned int n = 1; n <= steps(); n++) {
		array_alloc(&memory, &gpu, 1 + n % 3, (n % 5 + 1) * options.mib * MIB / 4);
		step(&memory, NULL, n);
		array_free(&memory);
	}
	phase("end");
}

static void run_async(void)
{
	CUdeviceptr at;
	CUstream stream;

	begin();
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned int n = 1; n <= steps(); n++) {
		CHECKED(cuMemAllocAsync(&at, options.mib * MIB, stream));
		CHECKED(cuStreamSynchronize(stream));
		array_over(&memory, &gpu, at, options.mib * MIB);
		step(&memory, stream, n);
		CHECKED(cuMemFreeAsync(at, stream));
		CHECKED(cuMemFree_v2(memory.sum));
		free(memory.chunks);
	}
	phase("end");
}

static void run_managed(void)
{
	CUdeviceptr at;

	begin();
	CHECKED(cuMemAllocManaged(&at, options.mib * MIB, MANAGED_GLOBAL));
	array_over(&memory, &gpu, at, options.mib * MIB);
	for (unsigned int n = 1; n <= steps(); n++)
		step(&memory, NULL, n);
	phase("end");
}

/* ---- kinds: threads and processes ---- */

static void *work_beside(void *arg)
{
	struct array own;
	CUstream stream;

	CHECKED(cuCtxSetCurrent(gpu.ctx));
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	array_alloc(&own, &gpu, 1, options.mib * MIB);
	for (unsigned int n = 1; n <= steps(); n++) {
		array_add(&own, stream);
		if (!array_check(&own, stream))
			die("a thread's step %u is BAD", n);
	}
	array_free(&own);
	CHECKED(cuStreamDestroy_v2(stream));
	return arg;
}

static void run_threads(void)
{
	pthread_t threads[WORKERS];

	begin();
	for (int i = 0; i < WORKERS; i++)
		if (pthread_create(&threads[i], NULL, work_beside, NULL))
			die("no thread");
	work();
	for (int i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	say("threads ended");
}

static void wait_for(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	say("child ended with %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static pid_t fork_or_die(void)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		die("fork: %s", strerror(errno));
	return pid;
}

static void exec_plain(void)
{
	char *argv[] = { arguments[0], "plain", "--busy-ms", "50", NULL };

	execv("/proc/self/exe", argv);
	die("exec: %s", strerror(errno));
}

/* Members of a job that come and go, each for a moment. */
static void run_workers(void)
{
	for (int i = 0; i < WORKERS; i++) {
		pid_t pid = fork_or_die();

		if (!pid)
			exec_plain();
		wait_for(pid);
	}
	phase("end");
}

/* A child that uses no GPU outlives its parent's work, and ends by exit(). */
static void run_fork(void)
{
	begin();

	pid_t pid = fork_or_die();
	if (!pid) {
		phase("child");
		exit(7);
	}
	work();
	wait_for(pid);
}

static void run_exec(void)
{
	begin();
	work();
	exec_plain();
}

/* ---- kinds: ends ---- */

static CUresult last_words(void)
{
	CUcontext ctx;

	return cuda.cuDevicePrimaryCtxRetain ? cuda.cuDevicePrimaryCtxRetain(&ctx, 0)
					     : CUDA_ERROR_NOT_INITIALIZED;
}

/* Registered before the driver was there: it runs when that has shut down. */
static void handle_early(void)
{
	phase("handler");
	say("the driver says %d", (int)last_words());
}

static void run_handler(void)
{
	atexit(handle_early);
	begin();
	work();
}

/* Registered after the driver's own: it runs while the driver works. */
static void handle_late(void)
{
	phase("late");
	step(&memory, NULL, 0);
	array_free(&memory);
	say("freed");
}

static void run_late_handler(void)
{
	begin();
	atexit(handle_late);
	work();
}

static void *end_process(void *arg)
{
	exit(3);
	return arg;
}

/* The thread ends the process while the first one is in the driver, or about to come back from it. */
static void run_exit_thread(void)
{
	uint64_t ns = 100 * STEP_MS * 1000000ull;
	pthread_t thread;

	begin();
	work();
	LAUNCH(gpu.spin_ns, 1, NULL, &ns);
	if (pthread_create(&thread, NULL, end_process, NULL))
		die("no thread");
	cuda.cuCtxSynchronize();
	for (;;)
		pause();
}

static void run_quick(void)
{
	uint64_t ns = 100 * STEP_MS * 1000000ull;

	begin();
	work();
	LAUNCH(gpu.spin_ns, 1, NULL, &ns);
	_exit(5);
}

static void run_abort(void)
{
	const struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
	begin();
	work();
	abort();
}

/* What a kernel did wrong stays in its context. */
static void run_sticky(void)
{
	CUdeviceptr bad = BAD_ADDRESS, at;
	unsigned int value = 1;

	begin();
	work();
	LAUNCH(gpu.store_u32, 1, NULL, &bad, &value);
	say("waiting says %d", (int)cuda.cuCtxSynchronize());
	phase("failed");
	for (unsigned int n = 1; n <= steps(); n++) {
		struct timespec pause = { .tv_nsec = STEP_MS * 1000000 };

		nanosleep(&pause, NULL);
		say("again %d, allocating %d", (int)cuda.cuCtxSynchronize(),
		    (int)cuda.cuMemAlloc_v2(&at, MIB));
	}
}

/* No GPU can be seen. */
static void run_blind(void)
{
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	phase("start");
	cuda_load();
	say("initialising says %d", (int)cuda.cuInit(0));
	phase("end");
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {
	{ "plain", run_plain },
	{ "idle", run_idle },
	{ "contexts", run_contexts },
	{ "primary", run_primary },
	{ "modules", run_modules },
	{ "streams", run_streams },
	{ "graphs", run_graphs },
	{ "churn", run_churn },
	{ "async", run_async },
	{ "managed", run_managed },
	{ "threads", run_threads },
	{ "workers", run_workers },
	{ "fork", run_fork },
	{ "exec", run_exec },
	{ "handler", run_handler },
	{ "late-handler", run_late_handler },
	{ "exit-thread", run_exit_thread },
	{ "quick", run_quick },
	{ "abort", run_abort },
	{ "sticky", run_sticky },
	{ "blind", run_blind },
};

int main(int argc, char **argv)
{
	arguments = argv;
	options_parse(&options, argc, argv, usage);
	for (size_t i = 0; options.word && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, options.word)) {
			kinds[i].run();
			return 0;
		}
	fprintf(stderr, "usage: %s\n", usage);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		fprintf(stderr, "  %s\n", kinds[i].name);
	return 2;
}
