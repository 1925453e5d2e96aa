// SPDX-License-Identifier: MIT
/*
 * Every way in which a program reaches the driver, here the simulated one: linked, by dlsym, by
 * cuGetProcAddress, from libraries loaded later. Each ends at the gate: with it closed all of them
 * wait, with it open they go on.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "driver-abi.h"
#include "interpose/cuda/calls.h"
#include "later.h"
#include "preload.h"
#include "threads.h"

#if defined(__x86_64__)
#define OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define OLDEST_GLIBC "GLIBC_2.17"
#endif

typedef CUresult (*version_fn)(int *version);

static const struct hooks *hooks;

static void *open_driver(int flags)
{
	void *handle = dlopen("libcuda.so.1", flags);

	CHECK(handle);
	return handle;
}

static void *by_link(void)
{
	return (void *)cuDriverGetVersion;
}

static void *by_handle(void)
{
	return dlsym(open_driver(RTLD_NOW | RTLD_LOCAL), "cuDriverGetVersion");
}

static void *by_path(void)
{
	char path[4096];
	void *handle;

	snprintf(path, sizeof(path), "%s/libcuda.so.1", getenv("TEST_DRIVER_DIR"));
	handle = dlopen(path, RTLD_LAZY);
	CHECK(handle);
	return dlsym(handle, "cuDriverGetVersion");
}

static void *by_program(void)
{
	return dlsym(dlopen(NULL, RTLD_LAZY), "cuDriverGetVersion");
}

static void *by_default(void)
{
	return dlsym(RTLD_DEFAULT, "cuDriverGetVersion");
}

static void *by_next(void)
{
	return dlsym(RTLD_NEXT, "cuDriverGetVersion");
}

static void *by_old_dlsym(void)
{
	void *(*old)(void *, const char *) =
		(__typeof__(old))dlvsym(RTLD_DEFAULT, "dlsym", OLDEST_GLIBC);

	CHECK(old);
	return old(open_driver(RTLD_LAZY), "cuDriverGetVersion");
}

static void *by_proc_address(void)
{
	void *fn = NULL;

	CHECK(!cuGetProcAddress("cuDriverGetVersion", &fn, 11030, 0));
	return fn;
}

static void *by_proc_address_v2(void)
{
	CUdriverProcAddressQueryResult status;
	void *fn = NULL;

	CHECK(!cuGetProcAddress_v2("cuDriverGetVersion", &fn, 13000,
				   CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
	CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
	return fn;
}

/* As cudart does: the address of cuGetProcAddress is itself looked up, by both. */
static void *by_runtime(void)
{
	__typeof__(cuGetProcAddress_v2) *get, *again = NULL;
	void *fn = NULL;

	get = (__typeof__(get))dlsym(open_driver(RTLD_NOW), "cuGetProcAddress_v2");
	CHECK(get && hooks->is_ours((void *)get));
	CHECK(!get("cuGetProcAddress", (void **)&again, 12000, 0, NULL));
	CHECK(again && hooks->is_ours((void *)again));
	CHECK(!again("cuDriverGetVersion", &fn, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
	return fn;
}

static void *later(enum later_way way)
{
	void *library = dlopen(getenv("TEST_LATER"), RTLD_NOW | RTLD_LOCAL);
	__typeof__(later_find) *find;

	CHECK(library);
	find = (__typeof__(find))dlsym(library, "later_find");
	CHECK(find);
	return find(way);
}

static void *by_later_link(void)
{
	return later(LATER_LINKED);
}

static void *by_later_default(void)
{
	return later(LATER_DEFAULT);
}

static void *by_later_next(void)
{
	return later(LATER_NEXT);
}

/* Bound past whatever is loaded before it: the libraries of sanitizers refuse that. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void *deep(enum later_way way)
{
	return later(way);
}
#else
static void copy_file(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC),
	    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	ssize_t n;

	CHECK(in >= 0 && out >= 0);
	while ((n = sendfile(out, in, NULL, 1 << 20)) > 0)
		;
	CHECK(!n && !close(in) && !close(out));
}

static void *deep(enum later_way way)
{
	static atomic_int n;
	char path[64];
	void *library, *(*find)(enum later_way);

	/* A copy: what is loaded already is not bound again. */
	snprintf(path, sizeof(path), "/tmp/later-%d-%d.so", getpid(), atomic_fetch_add(&n, 1));
	copy_file(getenv("TEST_LATER"), path);
	library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
	CHECK(!unlink(path) && library);
	find = (__typeof__(find))dlsym(library, "later_find");
	CHECK(find);
	return find(way);
}
#endif

static void *by_deep_link(void)
{
	return deep(LATER_LINKED);
}

static void *by_deep_handle(void)
{
	return deep(LATER_HANDLE);
}

static void *by_deep_default(void)
{
	return deep(LATER_DEFAULT);
}

static const struct way {
	const char *name;
	void *(*find)(void);
} ways[] = {
	{ "linked", by_link },
	{ "dlsym(handle)", by_handle },
	{ "dlsym(handle of the path)", by_path },
	{ "dlsym(the program's handle)", by_program },
	{ "dlsym(RTLD_DEFAULT)", by_default },
	{ "dlsym(RTLD_NEXT)", by_next },
	{ "dlsym of the old version", by_old_dlsym },
	{ "cuGetProcAddress", by_proc_address },
	{ "cuGetProcAddress_v2", by_proc_address_v2 },
	{ "as cudart does", by_runtime },
	{ "linked, loaded later", by_later_link },
	{ "dlsym(RTLD_DEFAULT), loaded later", by_later_default },
	{ "dlsym(RTLD_NEXT), loaded later", by_later_next },
	{ "linked, bound deeply", by_deep_link },
	{ "dlsym(handle), bound deeply", by_deep_handle },
	{ "dlsym(RTLD_DEFAULT), bound deeply", by_deep_default },
};

enum { WAYS = sizeof(ways) / sizeof(*ways) };

static struct caller {
	pthread_t thread;
	version_fn fn;
	atomic_int tid;
	atomic_bool done;
} callers[WAYS];

static void *call(void *arg)
{
	struct caller *c = arg;
	int version = 0;

	c->tid = gettid();
	errno = 4711;
	CHECK(!c->fn(&version) && version >= 12000);
	CHECK(errno == 4711);
	c->done = true;
	return NULL;
}

static void start_callers(void)
{
	int version;

	CHECK(!cuDriverGetVersion(&version)); /* the driver's own first use may set errno */
	for (int i = 0; i < WAYS; i++) {
		callers[i] = (struct caller){ .fn = (version_fn)ways[i].find() };
		CHECK(callers[i].fn);
		if (!hooks->is_ours((void *)callers[i].fn))
			fprintf(stderr, "%s: past the gate\n", ways[i].name);
		CHECK(hooks->is_ours((void *)callers[i].fn));
	}
	CHECK(!hooks->gate_close(deadline_in_ms(60000)));
	for (int i = 0; i < WAYS; i++)
		CHECK(!pthread_create(&callers[i].thread, NULL, call, &callers[i]));
}

static void test_every_way_waits(void)
{
	start_callers();
	for (int i = 0; i < WAYS; i++)
		await_asleep(&callers[i].tid);
	for (int i = 0; i < WAYS; i++)
		CHECK(!callers[i].done);
	hooks->gate_open();
	for (int i = 0; i < WAYS; i++)
		CHECK(!pthread_join(callers[i].thread, NULL));
}

static void test_wrapper_is_called(void)
{
	__typeof__(cuDeviceGetCount) *fn = NULL;
	int n = 0;

	CHECK(!*hooks->wrapped && !*hooks->started);
	CHECK(!cuInit(0) && *hooks->started == 1);
	CHECK(!cuDeviceGetCount(&n) && n > 0 && *hooks->wrapped == 1);
	CHECK(!cuGetProcAddress_v2("cuDeviceGetCount", (void **)&fn, 12000, 0, NULL));
	CHECK(!fn(&n) && *hooks->wrapped == 2);
	CHECK(!hooks->driver->cuDeviceGetCount(&n) && *hooks->wrapped == 2);
}

static void test_fork(void)
{
	int status, version;
	pid_t pid;

	CHECK(!hooks->gate_close(DEADLINE_NEVER));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(*hooks->forgotten != 1 || cuDriverGetVersion(&version));
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK(!*hooks->forgotten);
	hooks->gate_open();
}

/* Lookups that do not concern the driver, or fail, are what they are without the library. */
static void test_other_names(void)
{
	void *library = dlopen(getenv("TEST_LATER"), RTLD_NOW | RTLD_LOCAL), *fn = (void *)1;
	int (*own)(void);

	own = (__typeof__(own))dlsym(library, "cuOwnFunction");
	CHECK(own && own() == 4711);
	CHECK(!dlsym(RTLD_DEFAULT, "cuOwnFunction"));
	CHECK(dlerror());
	CHECK(!dlsym(open_driver(RTLD_LAZY), "cuNoSuchFunction"));
	CHECK(strstr(dlerror(), "cuNoSuchFunction"));
	CHECK(dlsym(open_driver(RTLD_LAZY), "cuInit") && !dlerror());
	CHECK(dlsym(RTLD_NEXT, "malloc") && dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid);
	CHECK(dlvsym(RTLD_DEFAULT, "dlclose", OLDEST_GLIBC));
	/* The driver lacks it, though the library exports it. */
	CHECK(!dlsym(RTLD_DEFAULT, "cuGLInit") && !dlsym(open_driver(RTLD_LAZY), "cuGLInit"));
	CHECK(cuGetProcAddress_v2("cuNoSuchFunction", &fn, 12000, 0, NULL) && !fn);
	CHECK(cuGetProcAddress_v2(NULL, &fn, 12000, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGetProcAddress("cuInit", NULL, 12000, 0) == CUDA_ERROR_INVALID_VALUE);
}

/* The names stand in order, and each trampoline leads to the function of its name. */
static void test_names(void)
{
	void *handle = open_driver(RTLD_LAZY);

	for (unsigned int i = 0; i < hooks->first_spare; i++) {
		void *found = dlsym(handle, hooks->names[i]);

		CHECK(!i || strcmp(hooks->names[i - 1], hooks->names[i]) < 0);
		CHECK(!found || found == hooks->entry(i));
	}
	dlerror();
}

static pthread_barrier_t barrier;

static void *first_use(void *arg)
{
	const struct way *way = arg;
	version_fn fn;
	int version;

	pthread_barrier_wait(&barrier);
	fn = (version_fn)way->find();
	CHECK(hooks->is_ours((void *)fn));
	CHECK(!fn(&version) && version >= 12000);
	return NULL;
}

static void race(void)
{
	pthread_t threads[WAYS];

	CHECK(!pthread_barrier_init(&barrier, NULL, WAYS));
	for (int i = 0; i < WAYS; i++)
		CHECK(!pthread_create(&threads[i], NULL, first_use, (void *)&ways[i]));
	for (int i = 0; i < WAYS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

/* BRUMATE_INTERPOSE=off: nothing waits, whatever the gate. */
static void off(void)
{
	int version, n;

	CHECK(!hooks->gate_close(DEADLINE_NEVER));
	for (int i = 0; i < WAYS; i++)
		if (ways[i].find != by_runtime)
			CHECK(!((version_fn)ways[i].find())(&version));
	CHECK(!hooks->is_ours(by_handle()));
	CHECK(!cuInit(0) && !cuDeviceGetCount(&n) && !*hooks->wrapped);
}

static double ns_per_call(version_fn fn)
{
	enum { CALLS = 200000 };
	uint64_t start_ns = clock_now_ns();
	int version;

	for (int i = 0; i < CALLS; i++)
		fn(&version);
	return (double)(clock_now_ns() - start_ns) / CALLS;
}

int main(int argc, char **argv)
{
	hooks = preload(argv);
	if (argc > 1 && !strcmp(argv[1], "race"))
		race();
	if (argc > 1 && !strcmp(argv[1], "off"))
		off();
	if (argc > 1)
		return 0;
	test_every_way_waits();
	test_wrapper_is_called();
	test_fork();
	test_other_names();
	test_names();
	for (int i = 0; i < 10; i++)
		run_mode("race", NULL, NULL);
	run_mode("off", "BRUMATE_INTERPOSE", "off");
	printf("cuDriverGetVersion: %.1f ns, past the gate %.1f ns\n",
	       ns_per_call(cuDriverGetVersion), ns_per_call(hooks->driver->cuDriverGetVersion));
	return 0;
}
