// SPDX-License-Identifier: MIT
/* The server as a whole: many connections, nothing left of dead ones, its end, its socket. */
#include "service.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { CLIENTS = 8, CALLS = 50 };

static size_t count(const char *dir_path)
{
	auto_closedir DIR *dir = opendir(dir_path);
	size_t n = 0;

	while (readdir(dir))
		n++;
	return n;
}

static int echo(struct wire *w)
{
	return wire_call(w, "io.brumate.test.Echo", NULL, NULL, 0, NULL, NULL, NULL,
			 deadline_in_ms(5000), NULL);
}

static void *call_often(void *arg)
{
	struct service *s = arg;

	for (int i = 0; i < CALLS; i++) {
		struct wire w;

		CHECK(wire_connect(&w, s->path, NULL) == 0);
		CHECK(echo(&w) == 0 && echo(&w) == 0);
		wire_fini(&w);
	}
	return NULL;
}

static void test_many(void)
{
	struct service s;
	pthread_t threads[CLIENTS];

	service_start(&s);
	size_t fds = count("/proc/self/fd"), tasks = count("/proc/self/task");
	for (int i = 0; i < CLIENTS; i++)
		CHECK(pthread_create(&threads[i], NULL, call_often, &s) == 0);
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(threads[i], NULL);
	CHECK(atomic_load(&s.calls) == 2 * CLIENTS * CALLS);

	uint64_t last_end_ns;
	service_pause(&s);
	while (wire_server_connections(s.server, &last_end_ns) > 0)
		poll(NULL, 0, 1);
	CHECK(wire_server_connections(s.server, &last_end_ns) == 0); /* joins the last one */
	CHECK(last_end_ns <= clock_now_ns());
	CHECK(count("/proc/self/fd") == fds);
	CHECK(count("/proc/self/task") == tasks - 1);
	service_end(&s);
}

static void *hang(void *arg)
{
	struct service *s = arg;
	struct wire w;
	struct brumate_error err;

	CHECK(wire_connect(&w, s->path, NULL) == 0);
	CHECK(wire_call(&w, "io.brumate.test.Hang", NULL, NULL, 0, NULL, NULL, NULL,
			deadline_in_ms(10000), &err) == -ECANCELED);
	wire_fini(&w);
	return NULL;
}

/* Freeing the server ends a call that would run for ever, and its caller still gets the answer. */
static void test_free_lets_calls_answer(void)
{
	struct service s;
	struct wire idle;
	pthread_t thread;

	service_start(&s);
	CHECK(wire_connect(&idle, s.path, NULL) == 0 && echo(&idle) == 0);
	CHECK(pthread_create(&thread, NULL, hang, &s) == 0);
	while (atomic_load(&s.calls) < 2)
		poll(NULL, 0, 1);
	service_end(&s);
	pthread_join(thread, NULL);
	CHECK(echo(&idle) == -EPIPE);
	wire_fini(&idle);
}

static void *drain(void *arg)
{
	struct service *s = arg;

	wire_server_drain(s->server, deadline_in_ms(60000));
	return NULL;
}

/* Who is connected is served until it hangs up, however often it calls; nobody else is. */
static void test_drain(void)
{
	struct service s;
	struct wire here, late;
	pthread_t thread;

	service_start(&s);
	CHECK(wire_connect(&here, s.path, NULL) == 0 && echo(&here) == 0);
	service_pause(&s);
	wire_server_drain(s.server, deadline_in_ms(20));
	CHECK(wire_connect(&late, s.path, NULL) == -ECONNREFUSED);
	CHECK(pthread_create(&thread, NULL, drain, &s) == 0);
	CHECK(echo(&here) == 0 && echo(&here) == 0);
	CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY);
	wire_fini(&here);
	pthread_join(thread, NULL);
	CHECK(wire_server_connections(s.server, NULL) == 0);
	service_end(&s);
}

static void test_socket(void)
{
	char dir[] = "/tmp/brumate-wire-XXXXXX";
	struct stat st;
	struct wire w;
	struct brumate_error err;

	CHECK(mkdtemp(dir));
	auto_free char *deep = path_format("%s/%0120d/%0120d", dir, 1, 2);
	auto_free char *path = path_format("%s/socket", deep), *file = path_format("%s/file", dir);
	CHECK(mkdir_parents(deep, 0700) == 0);

	CHECK(wire_connect(&w, path, NULL) == -ENOENT);
	mode_t before = umask(0077);
	auto_close int first = wire_listen(path, 0666, NULL);
	umask(before);
	CHECK(first >= 0);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0666);
	CHECK(wire_connect(&w, path, NULL) == 0);
	wire_fini(&w);

	auto_close int second = wire_listen(path, 0600, NULL); /* replaces it */
	CHECK(second >= 0);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
	cleanup_close(&second);
	CHECK(wire_connect(&w, path, NULL) == -ECONNREFUSED);

	CHECK(file_replace(AT_FDCWD, file, "x", 1, 0600) == 0);
	CHECK(wire_listen(file, 0600, &err) == -EEXIST); /* never removes what is not a socket */
	CHECK(access(file, F_OK) == 0);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
}

/* With no fd left a connection is turned away; later ones are served. */
static void test_out_of_fds(void)
{
	struct service s;
	struct wire w, other;
	struct rlimit saved, tight;

	service_start(&s);
	CHECK(wire_connect(&other, s.path, NULL) == 0 && echo(&other) == 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &saved) == 0);
	auto_close int probe = open("/dev/null", O_RDONLY | O_CLOEXEC);
	tight = saved;
	tight.rlim_cur = (rlim_t)probe + 1; /* of the two ends, only the client's fits */
	close(take_fd(&probe));
	CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(echo(&w) == -EPIPE);
	wire_fini(&w);
	CHECK(setrlimit(RLIMIT_NOFILE, &saved) == 0);
	CHECK(wire_connect(&w, s.path, NULL) == 0 && echo(&w) == 0);
	wire_fini(&w);
	wire_fini(&other);
	service_end(&s);
}

enum { PLACES = 512 }; /* CONNECTIONS_MAX of server.c */

/* Others get in, and who has called before stays longest. */
static void test_full(void)
{
	static const char half[] = "{\"method\":\"io.brumate.te";
	static struct wire held[PLACES], next[PLACES];
	struct service s;
	struct wire used;

	service_start(&s);
	CHECK(wire_connect(&used, s.path, NULL) == 0 && echo(&used) == 0);
	for (size_t i = 0; i + 1 < PLACES; i++) {
		CHECK(wire_connect(&held[i], s.path, NULL) == 0);
		if (i % 2)
			CHECK(write(held[i].fd, half, sizeof(half) - 1) == sizeof(half) - 1);
	}
	for (size_t i = 0; i < PLACES / 2; i++)
		CHECK(wire_connect(&next[i], s.path, NULL) == 0 && echo(&next[i]) == 0);
	CHECK(echo(&used) == 0);
	for (size_t i = 0; i < PLACES / 2; i++)
		wire_fini(&next[i]);
	for (size_t i = 0; i + 1 < PLACES; i++)
		wire_fini(&held[i]);
	wire_fini(&used);
	service_end(&s);
}

static pthread_t main_thread;
static atomic_int left; /* allocations of the server until one fails; 0: none does */

static void *allocate(size_t size)
{
	if (!pthread_equal(pthread_self(), main_thread) && atomic_load(&left) > 0 &&
	    atomic_fetch_sub(&left, 1) == 1)
		return NULL;
	return malloc(size);
}

/* A caller is answered, or hears that it will not be: whatever the server has no memory for. */
static void test_out_of_memory(void)
{
	struct service s;
	int n = 0, answered = 0;

	main_thread = pthread_self();
	service_start(&s);
	json_set_alloc_funcs(allocate, free);
	do {
		struct wire w;

		atomic_store(&left, ++n);
		CHECK(wire_connect(&w, s.path, NULL) == 0);
		uint64_t start_ns = clock_now_ns();
		answered += echo(&w) == 0;
		CHECK(clock_since_s(start_ns) < 4);
		wire_fini(&w);
	} while (atomic_exchange(&left, 0) <= 0);
	CHECK(n > 5 && answered >= 1);
	json_set_alloc_funcs(malloc, free);
	service_end(&s);
}

int main(void)
{
	test_many();
	test_free_lets_calls_answer();
	test_drain();
	test_socket();
	test_full();
	test_out_of_fds();
	test_out_of_memory();
	return 0;
}
