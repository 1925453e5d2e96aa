// SPDX-License-Identifier: MIT
/* How brokers begin and end: one at a time, none when idle, never one that a client misses. */
#include "node.h"

#include <sys/stat.h>

enum { RACERS = 8 };

static void set_idle(const char *seconds)
{
	CHECK(setenv("BRUMATE_BROKER_IDLE_S", seconds, 1) == 0);
}

static bool has_socket(void)
{
	auto_free char *path = path_format("%s/run/broker-simulated.sock", node_dir);

	return access(path, F_OK) == 0;
}

static void open_broker(struct broker_client *b)
{
	struct brumate_error err;

	if (broker_client_open(b, &(struct gpu_kind){ .simulated = true }, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		CHECK(0);
	}
}

static bool is_alive(pid_t pid)
{
	auto_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return fd >= 0 && poll(&p, 1, 0) == 0;
}

static void test_idle_exit(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct broker_info info;
	struct stat st;

	set_idle("0.2");
	open_broker(&b);
	pid_t pid = broker_client_pid(&b);
	auto_free char *path = path_format("%s/run/broker-simulated.sock", node_dir);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
	auto_free char *dir = path_format("%s/run", node_dir);
	CHECK(stat(dir, &st) == 0 && (st.st_mode & 0777) == 0711);

	poll(NULL, 0, 700); /* connected: not idle, however long nothing is asked */
	CHECK(is_alive(pid) && broker_client_info(&b, &info, NULL) == 0);
	broker_client_close(&b);
	wait_gone(pid, 5000);
	CHECK(!has_socket());
	open_broker(&b);
	CHECK(broker_client_pid(&b) != pid && broker_client_info(&b, &info, NULL) == 0);
	end_broker(&b);
	CHECK(!has_socket());
}

/* Clients that come just as an idle broker ends. */
static void test_idle_race(void)
{
	set_idle("0.005");
	for (int i = 0; i < 60; i++) {
		struct broker_client b = BROKER_CLIENT_EMPTY;
		struct dev_process p;
		pid_t pid = getpid();

		open_broker(&b);
		CHECK(broker_client_state(&b, &pid, 1, &p, NULL) == 0);
		broker_client_close(&b);
		poll(NULL, 0, i % 12);
	}
	set_idle("5");
	struct broker_client last = BROKER_CLIENT_EMPTY;
	open_broker(&last);
	end_broker(&last);
}

static void race(int result_fd)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct broker_info info;

	open_broker(&b);
	CHECK(broker_client_info(&b, &info, NULL) == 0 && info.pid == broker_client_pid(&b));
	CHECK(write(result_fd, &info.pid, sizeof(info.pid)) == sizeof(info.pid));
	broker_client_close(&b);
}

/* Many start a broker at the same moment: there is one, and all get it. */
static void test_starting_race(void)
{
	int results[2];
	pid_t pids[RACERS];

	CHECK(pipe2(results, O_CLOEXEC) == 0);
	for (int i = 0; i < RACERS; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			race(results[1]);
			_exit(0);
		}
	}
	for (int i = 0; i < RACERS; i++) {
		int status;

		CHECK(wait(&status) > 0 && status == 0);
		CHECK(read(results[0], &pids[i], sizeof(pids[i])) == sizeof(pids[i]));
		CHECK(pids[i] == pids[0]);
	}
	close(results[0]);
	close(results[1]);

	struct broker_client b = BROKER_CLIENT_EMPTY;
	open_broker(&b);
	CHECK(broker_client_pid(&b) == pids[0]);
	end_broker(&b);
}

/* A broker started beside one that serves has nothing to do. */
static void test_second_ends_at_once(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	int status;

	open_broker(&b);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		auto_free char *path = path_find_helper("brumate-broker");

		execl(path, path, "--simulated", NULL);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	struct broker_info info;
	CHECK(broker_client_info(&b, &info, NULL) == 0);
	end_broker(&b);
}

/* The directory was removed and made again: the old broker leaves the new one's socket alone. */
static void test_directory_made_anew(void)
{
	struct broker_client old = BROKER_CLIENT_EMPTY, fresh = BROKER_CLIENT_EMPTY;
	struct broker_info info;

	set_idle("0.3");
	open_broker(&old);
	auto_free char *dir = path_format("%s/run", node_dir);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	set_idle("5");
	open_broker(&fresh);
	pid_t pid = broker_client_pid(&old);
	CHECK(broker_client_pid(&fresh) != pid);
	broker_client_close(&old);
	wait_gone(pid, 5000);
	CHECK(has_socket());
	CHECK(broker_client_reopen(&fresh, NULL) == 0 &&
	      broker_client_info(&fresh, &info, NULL) == 0);
	end_broker(&fresh);
}

static void *terminate_soon(void *arg)
{
	poll(NULL, 0, 100);
	CHECK(kill(*(pid_t *)arg, SIGTERM) == 0);
	return NULL;
}

/* SIGTERM lets the call under way end, and its caller hears of it. */
static void test_terminated(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct broker_outcome o;
	struct node_target t = target_start();
	pthread_t thread;

	open_broker(&b);
	pid_t pid = broker_client_pid(&b);
	CHECK(broker_client_act(&b, DEV_LOCK, &t.pid, 1, 5000, NULL, 0, &o, NULL) == 0);
	node_sim_fault("target:checkpoint:*:delay=500");
	CHECK(pthread_create(&thread, NULL, terminate_soon, &pid) == 0);
	CHECK(broker_client_act(&b, DEV_DO_CHECKPOINT, &t.pid, 1, 5000, NULL, 0, &o, NULL) == 0);
	CHECK(o.result.number == 0 && o.state == DEV_STATE_CHECKPOINTED);
	pthread_join(thread, NULL);
	wait_gone(pid, 5000);
	node_sim_fault(NULL);

	CHECK(broker_client_reopen(&b, NULL) == 0);
	CHECK(broker_client_act(&b, DEV_RESTORE, &t.pid, 1, 5000, NULL, 0, &o, NULL) == 0);
	CHECK(broker_client_act(&b, DEV_UNLOCK, &t.pid, 1, 5000, NULL, 0, &o, NULL) == 0);
	target_check(&t);
	target_end(&t);
	end_broker(&b);
}

static pid_t parent_of(pid_t pid)
{
	auto_free char *path = path_format("/proc/%d/stat", (int)pid), *text = NULL;
	int parent = -1;

	CHECK(file_read(AT_FDCWD, path, 4096, &text, NULL) == 0);
	CHECK(sscanf(strrchr(text, ')'), ") %*c %d", &parent) == 1);
	return parent;
}

/* Whoever starts the broker does not become its parent, not even one that adopts all orphans. */
static void test_nobodys_child(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;

	open_broker(&b);
	CHECK(parent_of(broker_client_pid(&b)) != getpid());
	end_broker(&b);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
		open_broker(&b);
		CHECK(parent_of(broker_client_pid(&b)) != getpid());
		CHECK(wire_call(&b.wire, "io.brumate.broker.Quit", NULL, NULL, 0, NULL, NULL, NULL,
				deadline_in_ms(5000), NULL) == 0);
		_exit(0);
	}
	int status, other;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(waitpid(-1, &other, __WALL) > 0 || errno == ECHILD); /* our sibling may be ours */
}

static void test_bad_configuration(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct brumate_error err;

	set_idle("soon");
	CHECK(broker_client_open(&b, &(struct gpu_kind){ .simulated = true }, &err) == -EIO);
	CHECK(strstr(err.text, "BRUMATE_BROKER_IDLE_S: 'soon'") && strstr(err.hint, "broker.log"));
	set_idle("5");

	auto_free char *dir = path_format("%s/run", node_dir);
	CHECK(chmod(dir, 0777) == 0);
	CHECK(broker_client_open(&b, &(struct gpu_kind){ .simulated = true }, &err) == -EIO &&
	      strstr(err.text, "other users"));
	CHECK(chmod(dir, 0711) == 0);
}

/* An old driver is told by what it cannot do. */
static void test_old_driver(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct broker_info info;
	struct broker_outcome o;
	struct brumate_error err;
	struct dev_gpu_pair pair;
	pid_t pid = getpid();

	setenv("BRUMATE_SIM_DRIVER", "570", 1);
	open_broker(&b);
	CHECK(broker_client_info(&b, &info, NULL) == 0 && info.device.features == DEV_CHECKPOINT);
	strcpy(pair.from, info.gpus[0].gpu.uuid);
	strcpy(pair.to, info.gpus[1].gpu.uuid);
	CHECK(broker_client_act(&b, DEV_RESTORE, &pid, 1, 1000, &pair, 1, &o, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "570"));
	end_broker(&b);
	setenv("BRUMATE_SIM_DRIVER", "615", 1);
	open_broker(&b);
	CHECK(broker_client_info(&b, &info, NULL) == 0);
	CHECK(info.device.features ==
	      (DEV_CHECKPOINT | DEV_REMAP | DEV_JOB_FILE | DEV_LEGACY_IPC | DEV_CUSTOM_STORAGE));
	end_broker(&b);
	unsetenv("BRUMATE_SIM_DRIVER");
}

/* On a machine without the vendor's driver, the real broker says so and does not linger. */
static void test_no_driver(void)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	struct broker_info info;
	struct brumate_error err;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (library) {
		dlclose(library);
		return;
	}
	CHECK(broker_client_open(&b, &(struct gpu_kind){ .simulated = false }, NULL) == 0);
	CHECK(broker_client_info(&b, &info, &err) == -ENODEV);
	CHECK(strstr(err.text, "no NVIDIA driver") && err.hint[0]);
	CHECK(brumate_exit_code(&err) == EXIT_UNSUPPORTED);
	pid_t pid = broker_client_pid(&b);
	broker_client_close(&b);
	wait_gone(pid, 4000);
}

/* A failure that may be gone is told once: whoever calls then, or has called and still is connected, has another broker
 * try. */
static void test_driver_that_failed(void)
{
	struct broker_client told = BROKER_CLIENT_EMPTY, next = BROKER_CLIENT_EMPTY;
	struct broker_info info;
	struct brumate_error err;

	node_fault("device.open error:19\n");
	open_broker(&told);
	pid_t pid = broker_client_pid(&told);
	CHECK(broker_client_info(&told, &info, &err) == -ENODEV && strstr(err.text, "device.open"));
	CHECK(!has_socket());
	open_broker(&next);
	CHECK(broker_client_pid(&next) != pid && broker_client_info(&next, &info, NULL) == 0);
	CHECK(broker_client_info(&told, &info, NULL) == 0 && info.pid == broker_client_pid(&next));
	broker_client_close(&told);
	end_broker(&next);
}

/* Nor is it kept for whoever is connected, and asks nothing for a while. */
static void test_driver_that_failed_unasked(void)
{
	struct broker_client silent = BROKER_CLIENT_EMPTY;
	struct broker_info info;

	node_fault("device.open error:19\n");
	open_broker(&silent);
	pid_t pid = broker_client_pid(&silent);
	wait_gone(pid, 10000);
	CHECK(broker_client_info(&silent, &info, NULL) == 0 && info.pid != pid);
	end_broker(&silent);
}

int main(void)
{
	node_start();
	test_idle_exit();
	test_idle_race();
	test_starting_race();
	test_second_ends_at_once();
	test_directory_made_anew();
	test_terminated();
	test_nobodys_child();
	test_bad_configuration();
	test_old_driver();
	test_driver_that_failed();
	test_driver_that_failed_unasked();
	test_no_driver();
	node_end();
	return 0;
}
