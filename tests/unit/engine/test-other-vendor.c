// SPDX-License-Identifier: MIT
/*
 * A vendor of another shape: its driver has no calls that lock, save and restore a process, since CRIU's plugin
 * of the vendor does all that; and the broker does not move its memory. Broker, client and the set of GPU
 * processes work over it, and refuse what it cannot do.
 */
#include "check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "broker/broker.h"
#include "client/transfer-session.h"
#include "engine/gpu-set.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static const char uuid[] = "GPU-00000000-0000-0000-0000-000000000007";

static int other_open(const struct dev_libraries *libraries, struct dev_info *ret,
		      struct brumate_error *err)
{
	*ret = (struct dev_info){ .driver_version = "6.16", .simulated = libraries->simulated };
	return 0;
}

static int other_gpus(struct dev_gpu *ret, size_t max, size_t *ret_n, struct brumate_error *err)
{
	*ret = (struct dev_gpu){ .name = "other", .total_bytes = 1 << 30 };
	strcpy(ret->uuid, uuid);
	*ret_n = 1;
	return 0;
}

static int other_state(pid_t pid, enum dev_state *ret, struct brumate_error *err)
{
	*ret = pid == getpid() ? DEV_STATE_RUNNING : DEV_STATE_NONE;
	return 0;
}

static int other_process(pid_t pid, struct dev_process *ret, struct brumate_error *err)
{
	*ret = (struct dev_process){ .used_bytes = 1 << 20, .n_gpus = 1, .gpu_bytes = { 1 << 20 } };
	strcpy(ret->gpus[0], uuid);
	return other_state(pid, &ret->state, err);
}

static const struct dev_backend other = {
	.name = "other",
	.open = other_open,
	.gpus = other_gpus,
	.process = other_process,
	.state = other_state,
};

static const struct gpu_vendor other_vendor = {
	.id = "other", .name = "Other", .backend = &other, .devices = ""
};

struct served {
	struct broker *broker;
	struct wire_server *server;
	pthread_t thread;
	int stop_fd;
};

static void *accept_all(void *arg)
{
	struct served *s = arg;
	struct pollfd fds[] = { { .fd = wire_server_fd(s->server), .events = POLLIN },
				{ .fd = s->stop_fd, .events = POLLIN } };

	while (poll(fds, 2, -1) > 0 && !fds[1].revents)
		wire_server_accept(s->server);
	return NULL;
}

static void check_broker(struct broker_client *client)
{
	auto_free struct broker_info *info = calloc(1, sizeof(*info));
	auto_(transfer_client_close) struct transfer_client *session = NULL;
	auto_(host_copy_fini) struct host_copy copy = HOST_COPY_EMPTY;
	struct device_piece piece = { .len_bytes = 2 << 20 };
	struct transfer_request request = { .pieces = &piece, .n = 1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int fd = STDIN_FILENO;

	CHECK(info && broker_client_info(client, info, &err) == 0);
	CHECK_STR(info->backend, "other");
	CHECK_STR(info->device.driver_version, "6.16");
	CHECK(info->device.features == 0 && info->n_gpus == 1);
	CHECK_STR(info->gpus[0].uuid, uuid);

	strcpy(piece.gpu, uuid);
	CHECK(transfer_client_open(&session, client, &err) == 0);
	CHECK(transfer_client_out(session, &request, &fd, &copy, NULL, &err) < 0);
	CHECK(strstr(err.text, "by their driver alone"));
}

static void check_set(struct gpu_set *set)
{
	struct gpu_vendor vendor = *gpu_vendors[0];
	struct brumate_error err = BRUMATE_ERROR_NONE;

	vendor.name = "Other";
	vendor.saved_by_criu = true;
	set->vendor = &vendor;
	CHECK(gpu_set_act(set, DEV_LOCK, DEV_STATE_LOCKED, 1000, &err) == 1);
	CHECK(gpu_set_act(set, DEV_DO_CHECKPOINT, DEV_STATE_CHECKPOINTED, 1000, &err) == 1);
	CHECK(gpu_set_bring_back(set, &err) == 0);
	CHECK(gpu_set_is_running(set) && gpu_set_bytes(set) == 1 << 20);
	CHECK(gpu_set_check_suspend(set, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "Other GPUs can be saved to a disk only"));

	/* One who takes it for a driver with such calls is told that it has none. */
	vendor.saved_by_criu = false;
	CHECK(gpu_set_check_suspend(set, &err) == 0);
	CHECK(gpu_set_act(set, DEV_LOCK, DEV_STATE_LOCKED, 1000, &err) < 0);
	CHECK(strstr(err.text, "other: the driver has no call for lock"));
}

int main(void)
{
	char dir[] = "/tmp/brumate-other-XXXXXX";
	struct broker_options o = { .vendor = &other_vendor, .pool_bytes = 64 << 20 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct served s;
	int ends[2];

	CHECK(mkdtemp(dir));
	CHECK(setenv("BRUMATE_STATE_DIR", dir, 1) == 0);
	auto_free char *path = path_format("%s/socket", dir);
	CHECK(broker_new(&s.broker, &o, &err) == 0);
	struct wire_service service = broker_service(s.broker);
	int listen_fd = wire_listen(path, 0600, &err);
	CHECK(listen_fd >= 0 && wire_server_new(&s.server, &service, listen_fd, &err) == 0);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	s.stop_fd = ends[0];
	CHECK(pthread_create(&s.thread, NULL, accept_all, &s) == 0);

	struct gpu_process self = { .dev.state = DEV_STATE_NONE };
	const struct target target = { .id = "test" };
	struct gpu_set set = { .target = &target, .items = &self, .n = 1, .broker_is_open = true };
	set.broker = BROKER_CLIENT_EMPTY;
	CHECK(proc_identify(&self.id, getpid(), &err) == 0);
	CHECK(wire_connect(&set.broker.wire, path, &err) == 0);
	check_broker(&set.broker);
	check_set(&set);

	broker_client_close(&set.broker);
	close(ends[1]);
	pthread_join(s.thread, NULL);
	close(ends[0]);
	wire_server_free(s.server);
	CHECK(broker_drain(s.broker, 10000) == 0);
	broker_free(s.broker);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
