// SPDX-License-Identifier: MIT
/* The server as a whole: many connections, nothing left of dead ones, its end, its socket. */
#include "service.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

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

enum { PLACES = 512, SHARE = 256 }; /* CONNECTIONS_MAX and SHARE_MAX of server.c */

static const char half[] = "{\"method\":\"io.brumate.te";
static const char hang_call[] = "{\"method\":\"io.brumate.test.Hang\"}";
static const char wait_call[] = "{\"method\":\"io.brumate.test.Wait\"}";

/* Connects @n times, says @text each time, and stays until it is killed. */
static pid_t crowd(const struct service *s, size_t n, const char *text, size_t bytes)
{
	int ready[2];
	char told;

	CHECK(pipe(ready) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct wire w;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (size_t i = 0; i < n; i++)
			if (wire_connect(&w, s->path, NULL) == 0)
				send(w.fd, text, bytes, MSG_NOSIGNAL);
		CHECK(write(ready[1], "r", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(pid > 0 && read(ready[0], &told, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void disperse(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* Others get in, and who has called before stays longest. */
static void test_full(void)
{
	static struct wire held[SHARE], next[SHARE];
	struct service s;
	struct wire used;

	service_start(&s);
	CHECK(wire_connect(&used, s.path, NULL) == 0 && echo(&used) == 0);
	for (size_t i = 0; i + 1 < SHARE; i++) {
		CHECK(wire_connect(&held[i], s.path, NULL) == 0);
		if (i % 2)
			CHECK(write(held[i].fd, half, sizeof(half) - 1) == sizeof(half) - 1);
	}
	for (size_t i = 0; i < SHARE / 2; i++)
		CHECK(wire_connect(&next[i], s.path, NULL) == 0 && echo(&next[i]) == 0);
	CHECK(echo(&used) == 0);
	for (size_t i = 0; i < SHARE / 2; i++)
		wire_fini(&next[i]);
	for (size_t i = 0; i + 1 < SHARE; i++)
		wire_fini(&held[i]);
	wire_fini(&used);
	service_end(&s);
}

/* Whatever a process does with its connections, it has a share of them at most. */
static void test_share(void)
{
	struct service s;
	struct wire w;

	service_start(&s);
	pid_t pid = crowd(&s, 2 * PLACES + 2 * SHARE, hang_call, sizeof(hang_call));
	CHECK(wire_connect(&w, s.path, NULL) == 0 && echo(&w) == 0);
	CHECK(atomic_load(&s.calls) > SHARE / 2); /* as many as hang, at least */
	disperse(pid);
	wire_fini(&w);
	service_end(&s);
}

/* Many processes whose calls wait keep nobody out either, and the first that goes is of one that has more than others. */
static void test_waiting(void)
{
	enum { CROWDS = PLACES / SHARE + 1 };
	struct service s;
	struct wire honest, w;
	pid_t pids[CROWDS];

	service_start(&s);
	CHECK(wire_connect(&honest, s.path, NULL) == 0);
	CHECK(write(honest.fd, wait_call, sizeof(wait_call)) == sizeof(wait_call));
	for (size_t i = 0; i < CROWDS; i++) {
		while (atomic_load(&s.calls) < 1 + (int)(i < PLACES / SHARE ? i * SHARE : 0))
			poll(NULL, 0, 1);
		pids[i] = crowd(&s, SHARE, wait_call, sizeof(wait_call));
	}
	CHECK(wire_connect(&w, s.path, NULL) == 0 && echo(&w) == 0);
	CHECK(!wire_is_hung_up(&honest));
	for (size_t i = 0; i < CROWDS; i++)
		disperse(pids[i]);
	wire_fini(&w);
	wire_fini(&honest);
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
	test_share();
	test_waiting();
	test_out_of_fds();
	test_out_of_memory();
	return 0;
}
