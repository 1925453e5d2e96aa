// SPDX-License-Identifier: MIT
/* Kinds of work: graphs, streams with events and callbacks, threads, and work that takes long. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kinds.h"

#define MIB ((size_t)1 << 20)

static struct gpu gpu;
static struct array memory;

/* A graph captured and instantiated before the first step, launched at each. */
static CUstream stream;
static CUgraphExec exec;

static void setup_graph(const struct options *options)
{
	CUgraph graph;

	gpu_open(&gpu, options->gpu);
	array_alloc(&memory, &gpu, 4, options->mib * MIB / 4);
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECKED(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	array_add(&memory, stream);
	CHECKED(cuStreamEndCapture(stream, &graph));
	memory.added = 0; /* captured, not done */
	CHECKED(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static bool step_graph(void *state, uint64_t n)
{
	CHECKED(cuGraphLaunch(exec, stream));
	memory.added++;
	return array_check(&memory, stream);
}

/*
 * Streams chained by events, with work under way from one step to the next: what a step starts
 * (a kernel of 20 ms, an addition, a callback) is waited for and checked by the one after it.
 */
enum { STREAMS = 4 };
static CUstream streams[STREAMS];
static CUevent events[STREAMS];
static struct array arrays[STREAMS];
static atomic_uint callbacks;

static void count_callback(void *data)
{
	atomic_fetch_add(&callbacks, 1);
}

static void start_work(void)
{
	uint64_t ns = 20000000;

	LAUNCH(gpu.spin_ns, 1, streams[0], &ns);
	for (int i = 0; i < STREAMS; i++) {
		if (i > 0)
			CHECKED(cuStreamWaitEvent(streams[i], events[i - 1], 0));
		array_add(&arrays[i], streams[i]);
		CHECKED(cuLaunchHostFunc(streams[i], count_callback, NULL));
		CHECKED(cuEventRecord(events[i], streams[i]));
	}
}

static void setup_streams(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	for (int i = 0; i < STREAMS; i++) {
		CHECKED(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		CHECKED(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
		array_alloc(&arrays[i], &gpu, 1, options->mib * MIB / STREAMS);
	}
	start_work();
}

static bool step_streams(void *state, uint64_t n)
{
	bool right = true;

	CHECKED(cuEventSynchronize(events[STREAMS - 1]));
	for (int i = 0; i < STREAMS; i++)
		right &= array_check(&arrays[i], streams[i]);
	right &= atomic_load(&callbacks) == STREAMS * n;
	start_work();
	return right;
}

/* Threads that launch and check at the same time, each on its own stream. */
enum { THREADS = 8 };
static pthread_barrier_t begin, end;
static atomic_uint wrong;
static size_t thread_bytes;

static void *thread_main(void *data)
{
	struct array own;
	CUstream own_stream;

	CHECKED(cuCtxSetCurrent(gpu.ctx));
	CHECKED(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
	array_alloc(&own, &gpu, 1, thread_bytes);
	for (;;) {
		pthread_barrier_wait(&begin);
		array_add(&own, own_stream);
		if (!array_check(&own, own_stream))
			atomic_fetch_add(&wrong, 1);
		pthread_barrier_wait(&end);
	}
	return NULL;
}

static void setup_threads(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	thread_bytes = options->mib * MIB / THREADS;
	pthread_barrier_init(&begin, NULL, THREADS + 1);
	pthread_barrier_init(&end, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;
		int r = pthread_create(&thread, NULL, thread_main, NULL);
		if (r)
			die("start thread %d: %s", i, strerror(r));
		pthread_detach(thread);
	}
}

static bool step_threads(void *state, uint64_t n)
{
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&end);
	return atomic_load(&wrong) == 0;
}

/*
 * On SIGUSR1 the next step starts something that takes --busy-ms: `busy` a kernel, `callback` a host
 * function. It says so ("started") and goes on with its steps on another stream meanwhile.
 */
static volatile sig_atomic_t asked;
static unsigned int busy_ms;
static CUstream busy_stream;

static void ask(int signal)
{
	asked = 1;
}

static void setup_on_request(const struct options *options)
{
	struct sigaction action = { .sa_handler = ask, .sa_flags = SA_RESTART };

	gpu_open(&gpu, options->gpu);
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECKED(cuStreamCreate(&busy_stream, CU_STREAM_NON_BLOCKING));
	array_alloc(&memory, &gpu, 1, options->mib * MIB);
	busy_ms = options->busy_ms;
	sigaction(SIGUSR1, &action, NULL);
}

static bool step_busy(void *state, uint64_t n)
{
	uint64_t ns = (uint64_t)busy_ms * 1000000;

	if (asked) {
		asked = 0;
		LAUNCH(gpu.spin_ns, 1, busy_stream, &ns);
		say("started");
	}
	array_add(&memory, stream);
	return array_check(&memory, stream);
}

/* The callback itself says that it runs: only then does it block the driver. */
static void block(void *data)
{
	struct timespec left = { .tv_sec = busy_ms / 1000,
				 .tv_nsec = (long)(busy_ms % 1000) * 1000000 };

	say("started");
	while (nanosleep(&left, &left) < 0)
		;
}

static bool step_callback(void *state, uint64_t n)
{
	if (asked) {
		asked = 0;
		CHECKED(cuLaunchHostFunc(busy_stream, block, NULL));
	}
	array_add(&memory, stream);
	return array_check(&memory, stream);
}

/* The same kernel, but the program waits for it: it is inside a blocking call meanwhile. */
static bool step_sync(void *state, uint64_t n)
{
	bool waiting = asked;
	bool right = step_busy(state, n);

	if (waiting)
		CHECKED(cuStreamSynchronize(busy_stream));
	return right;
}

const struct kind work_kinds[] = {
	{ "graph", "a graph instantiated before, launched each step", setup_graph, step_graph },
	{ "streams", "streams, events and callbacks under way", setup_streams, step_streams },
	{ "threads", "eight threads with a stream each", setup_threads, step_threads },
	{ "busy", "SIGUSR1: a kernel of --busy-ms", setup_on_request, step_busy },
	{ "callback", "SIGUSR1: a host callback of --busy-ms", setup_on_request, step_callback },
	{ "sync", "SIGUSR1: waits for a kernel of --busy-ms", setup_on_request, step_sync },
	{ NULL },
};
