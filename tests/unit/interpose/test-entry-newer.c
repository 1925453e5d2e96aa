// SPDX-License-Identifier: MIT
/*
 * Entry points of a driver that is newer than driver.def, in a program that is not linked with it:
 * arguments of every kind arrive, unknown functions are gated, unwinders pass; and a program without
 * any driver.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "interpose/cuda/calls.h"
#include "newer/newer.h"
#include "preload.h"
#include "threads.h"

static const struct hooks *hooks;
static void *handle;

/* What a program linked with the driver calls. */
static void *linked(const char *name)
{
	for (unsigned int i = 0; i < hooks->first_spare; i++)
		if (!strcmp(hooks->names[i], name))
			return hooks->entry(i);
	CHECK(!name);
	return NULL;
}

#define FIND(name) ((__typeof__(name) *)find(#name))

static void *find(const char *name)
{
	void *fn = dlsym(handle, name);

	CHECK(fn && hooks->is_ours(fn));
	return fn;
}

static void test_before_it_is_loaded(void)
{
	CHECK(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror());
	CHECK(!dlsym(dlopen(NULL, RTLD_LAZY), "cuInit") && dlerror());
	CHECK(!((__typeof__(cuInit) *)linked("cuInit"))(0));
	CHECK(((__typeof__(cuDriverGetVersion) *)linked("cuDriverGetVersion"))(NULL) ==
	      CUDA_ERROR_NOT_FOUND);
	handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(handle);
	CHECK(dlsym(handle, "cuInit") == linked("cuInit"));
	CHECK(!dlsym(RTLD_DEFAULT, "cuInit") && !dlsym(RTLD_NEXT, "cuInit"));
}

static void test_arguments(void)
{
	struct newer_large large;
	struct newer_sum sum;
	CUipcMemHandle ipc;
	CUdeviceptr ptr, want = 5;
	float bias = 0;
	long whole = 1 + 2 * 2 + 3 * 3 + 4 * 4 + 5 * 5 + 6 * 6 + 7 * 7 + 8 * 8;

	for (int i = 0; i < NEWER_WORDS; i++) {
		large.words[i] = 1000 + i;
		whole += (1000 + i) * (i + 9);
	}
	CHECK(!FIND(cuNewSum)(&sum, 1, 2, 3, 4, 5, 6, 7, 2.5, 0.25, large, 8));
	CHECK(sum.whole == whole && sum.real == 2.25);

	for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++) {
		ipc.reserved[i] = (char)(i * 3);
		want = want * 31 + (unsigned char)(i * 3);
	}
	CHECK(!FIND(cuIpcOpenMemHandle_v2)(&ptr, ipc, 5) && ptr == want);
	CHECK(!FIND(cuTexRefSetMipmapLevelBias)(&bias, 1.5f) && bias == 1.5f);
}

static void test_names(void)
{
	__typeof__(cuStreamQuery_ptsz) *query = NULL;
	void *again = NULL;

	CHECK(FIND(cuNewVersioned)() == CUDA_ERROR_TIMEOUT);
	CHECK(dlvsym(handle, "cuNewVersioned", "NEWER_1") == find("cuNewVersioned"));
	CHECK(!dlvsym(handle, "cuNewVersioned", "NEWER_2") && dlerror());
	CHECK(dlsym(handle, "cudbgNewFunction") &&
	      !hooks->is_ours(dlsym(handle, "cudbgNewFunction")));
	CHECK(!FIND(cuGetProcAddress_v2)("cuStreamQuery", (void **)&query, 12000,
					 CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
	CHECK((void *)query == linked("cuStreamQuery_ptsz") && query(NULL) == CUDA_ERROR_NOT_READY);
	CHECK(FIND(cuGetProcAddress_v2)("cuNone", &again, 12000, 0, NULL) && !again);
}

static void test_unexported(void)
{
	__typeof__(cuDeviceGetCount) *fn = NULL, *again = NULL;
	int value;

	CHECK(!FIND(cuGetProcAddress_v2)("cuNewHidden", (void **)&fn, 12000, 0, NULL));
	CHECK(hooks->is_ours((void *)fn) && !fn(&value) && value == 4711);
	CHECK(!FIND(cuGetProcAddress_v2)("cuNewHidden", (void **)&again, 12000, 0, NULL));
	CHECK(again == fn);
	/* One that has a wrapper goes there, whatever address the driver gave. */
	CHECK(!FIND(cuGetProcAddress_v2)("cuDeviceGetCount", (void **)&fn, 14000, 0, NULL));
	CHECK(fn == (void *)linked("cuDeviceGetCount") && !fn(&value) && *hooks->wrapped == 1);
}

static void nest(void *arg)
{
	int count;

	CHECK(!FIND(cuDeviceGetCount)(&count));
	*(int *)arg = count;
}

static int walk(void);

/* An unwinder gets from the driver's callback back to who called the driver. */
static void count_frames(void *arg)
{
	void *frames[64];
	int n = backtrace(frames, 64);

	for (int i = 0; i < n; i++)
		*(int *)arg += (uintptr_t)frames[i] - (uintptr_t)walk < 1024;
}

__attribute__((noinline, aligned(1024))) static int walk(void)
{
	int found = 0;

	CHECK(!FIND(cuNewCall)(count_frames, &found));
	return found;
}

static void end_thread(void *arg)
{
	pthread_exit(arg);
}

static void *end_in_driver(void *arg)
{
	FIND(cuNewCall)(end_thread, arg);
	return NULL;
}

static void test_calls_back(void)
{
	pthread_t thread;
	int n = 0;
	void *result;

	CHECK(!FIND(cuNewCall)(nest, &n) && n == 1);
	CHECK(walk() == 1);
	CHECK(!pthread_create(&thread, NULL, end_in_driver, &n));
	CHECK(!pthread_join(thread, &result) && result == &n);
	CHECK(!hooks->gate_close(deadline_in_ms(60000)));
	hooks->gate_open();
}

struct caller {
	__typeof__(cuNewVersioned) *fn;
	atomic_int tid;
	atomic_bool done;
};

static void *call(void *arg)
{
	struct caller *c = arg;

	c->tid = gettid();
	CHECK(c->fn() == CUDA_ERROR_TIMEOUT);
	c->done = true;
	return NULL;
}

static void test_unknown_waits(void)
{
	struct caller c = { .fn = FIND(cuNewVersioned) };
	pthread_t thread;

	CHECK(!hooks->gate_close(deadline_in_ms(60000)));
	CHECK(!pthread_create(&thread, NULL, call, &c));
	await_asleep(&c.tid);
	CHECK(!c.done);
	hooks->gate_open();
	CHECK(!pthread_join(thread, NULL));
}

/* A thread that is known, and inside when the gate closes. */
struct inside {
	atomic_int tid, closer;
	atomic_bool in, go, closed, again;
};

static void stay(void *arg)
{
	struct inside *t = arg;

	t->in = true;
	await(t->go);
}

static void *stay_inside(void *arg)
{
	struct inside *t = arg;

	CHECK(FIND(cuNewVersioned)() == CUDA_ERROR_TIMEOUT);
	CHECK(!FIND(cuNewCall)(stay, t));
	await(t->closed);
	t->tid = gettid();
	CHECK(FIND(cuNewVersioned)() == CUDA_ERROR_TIMEOUT);
	t->again = true;
	return NULL;
}

static void *close_gate(void *arg)
{
	struct inside *t = arg;
	uint64_t start_ns = clock_now_ns();

	t->closer = gettid();
	CHECK(!hooks->gate_close(deadline_in_ms(60000)));
	CHECK(clock_now_ns() - start_ns < 30ull * 1000 * 1000 * 1000); /* it was woken */
	t->closed = true;
	return NULL;
}

static void test_inside(void)
{
	struct inside t = { .in = false };
	pthread_t thread, closer;

	CHECK(!pthread_create(&thread, NULL, stay_inside, &t));
	await(t.in);
	CHECK(hooks->gate_close(deadline_in_ms(1)) == -ETIMEDOUT);
	CHECK(!pthread_create(&closer, NULL, close_gate, &t));
	await_asleep(&t.closer);
	CHECK(!t.closed);
	t.go = true;
	CHECK(!pthread_join(closer, NULL));
	await_asleep(&t.tid);
	CHECK(!t.again);
	hooks->gate_open();
	CHECK(!pthread_join(thread, NULL) && t.again);
}

static void *arguments_again(void *arg)
{
	test_arguments();
	test_arguments();
	return NULL;
}

/* The first calls of a thread go another way than the others. */
static void test_arguments_everywhere(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, arguments_again, NULL));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!hooks->gate_close(deadline_in_ms(60000)));
	CHECK(!pthread_create(&thread, NULL, arguments_again, NULL));
	hooks->gate_open();
	CHECK(!pthread_join(thread, NULL));
}

static void absent(void)
{
	if (dlopen("libcuda.so.1", RTLD_LAZY)) {
		printf("not tested here, there is a driver: a program without one\n");
		return;
	}
	CHECK(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror());
	CHECK(((__typeof__(cuInit) *)linked("cuInit"))(0) == CUDA_ERROR_NO_DEVICE);
}

int main(int argc, char **argv)
{
	hooks = preload(argv);
	if (argc > 1) {
		absent();
		return 0;
	}
	test_before_it_is_loaded();
	test_arguments();
	test_arguments_everywhere();
	test_names();
	test_unexported();
	test_calls_back();
	test_unknown_waits();
	test_inside();
	run_mode("absent", "LD_LIBRARY_PATH", "/nonexistent");
	return 0;
}
