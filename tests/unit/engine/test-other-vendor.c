// SPDX-License-Identifier: MIT
/*
 * Another vendor, made up in other-vendor.c, in the place of those that the product knows: its table of vendors is
 * linked instead of the one that gpu/meson.build makes. Broker, client and the set of GPU processes work over it and refuse what it cannot
 * do; names, records and images are told apart by its id. Nothing else had to be changed for it.
 */
#include "check.h"
#include "base/loop.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "broker/broker.h"
#include "client/transfer-session.h"
#include "engine/gpu-set.h"
#include "gpu/vendor.h"
#include "other-vendor.h"
#include "process/scan.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern const struct gpu_vendor gpu_vendor_other;
const struct gpu_vendor *const gpu_vendors[] = { &gpu_vendor_other, NULL };

/* The same vendor with a driver that alone moves its memory. */
static const struct gpu_vendor *other_without_memory(void)
{
	static struct dev_backend control_only;
	static struct gpu_vendor second;

	control_only = *gpu_vendor_other.backend;
	control_only.memory = NULL;
	second = gpu_vendor_other;
	second.backend = &control_only;
	return &second;
}

struct served {
	struct broker *broker;
	struct wire_server *server;
	pthread_t thread;
	int stop_fd;
	struct loop loop; /* of an owner that looks at nothing */
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

enum { PIECE_BYTES = 4 << 20 };

/* A piece whose first half is 7, and whose second is zero. */
static int make_piece(void)
{
	int fd = memfd_create("piece", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, PIECE_BYTES) == 0);
	char *at = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	memset(at, 7, PIECE_BYTES / 2);
	munmap(at, PIECE_BYTES);
	return fd;
}

static void check_same(int a, int b)
{
	char *x = mmap(NULL, PIECE_BYTES, PROT_READ, MAP_SHARED, a, 0);
	char *y = mmap(NULL, PIECE_BYTES, PROT_READ, MAP_SHARED, b, 0);

	CHECK(x != MAP_FAILED && y != MAP_FAILED && !memcmp(x, y, PIECE_BYTES));
	munmap(x, PIECE_BYTES);
	munmap(y, PIECE_BYTES);
}

static void check_info(struct broker_client *client)
{
	auto_free struct broker_info *info = calloc(1, sizeof(*info));
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(info && broker_client_info(client, info, &err) == 0);
	CHECK_STR(info->backend, "other");
	CHECK_STR(info->device.driver_version, "6.16");
	CHECK(info->device.features == 0 && info->n_gpus == 1);
	CHECK_STR(info->gpus[0].gpu.uuid, OTHER_UUID);
}

/* @digests: they are computed on the device, and zeros are not copied. */
static void check_transfer(struct broker_client *client, bool digests)
{
	auto_(transfer_client_close) struct transfer_client *session = NULL;
	auto_(host_copy_fini) struct host_copy copy = HOST_COPY_EMPTY;
	struct device_piece piece = { .len_bytes = PIECE_BYTES };
	struct transfer_request request = { .pieces = &piece, .n = 1, .digests = digests };
	struct transfer_spared spared = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_close int fd = make_piece(), back = -1;

	strcpy(piece.gpu, OTHER_UUID);
	CHECK(transfer_client_open(&session, client, &err) == 0);
	CHECK(transfer_client_out(session, &request, &fd, &copy, &spared, &err) == 0);
	CHECK(copy.total_bytes == PIECE_BYTES);
	CHECK(spared.zero_bytes == (digests ? PIECE_BYTES / 2 : 0));
	CHECK(transfer_client_in(session, &request, &copy, &back, NULL, &err) == 0);
	check_same(fd, back);
}

/* The memory of the second is moved by its driver alone. */
static void check_without_memory(struct broker_client *client)
{
	auto_(transfer_client_close) struct transfer_client *session = NULL;
	auto_(host_copy_fini) struct host_copy copy = HOST_COPY_EMPTY;
	struct device_piece piece = { .len_bytes = 2 << 20 };
	struct transfer_request request = { .pieces = &piece, .n = 1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int fd = STDIN_FILENO;

	check_info(client);
	strcpy(piece.gpu, OTHER_UUID);
	CHECK(transfer_client_open(&session, client, &err) == 0);
	CHECK(transfer_client_out(session, &request, &fd, &copy, NULL, &err) < 0);
	CHECK(strstr(err.text, "by their driver alone"));
}

/* What names tell, and what a job is taken to use. */
static void check_names(void)
{
	static const char maps[] =
		"7f0000000000-7f0000001000 r-xp 0 00:00 0 /usr/lib/libother.so.1\n";
	const struct gpu_kind here = gpu_kind_here(false), older = { .vendor = "" };
	const struct gpu_kind simulated = { .vendor = "other", .simulated = true };
	auto_free char *broker = gpu_kind_broker(&here), *second = gpu_kind_broker(&simulated);
	const struct gpu_vendor *found = NULL;

	CHECK_STR(here.vendor, "other");
	CHECK(gpu_kind_vendor(&older) == gpu_vendors[0] && gpu_kind_is_same(&here, &older));
	CHECK(!gpu_kind_is_same(&here, &simulated));
	CHECK(broker && second && !strcmp(broker, "broker") && !strcmp(second, "broker-simulated"));
	CHECK(gpu_is_device("/dev/other0", 11) && !gpu_is_device("/dev/nvidia0", 12));
	CHECK(gpu_vendor_of_library(maps) == gpu_vendors[0]);
	CHECK(!gpu_vendor_of_partition("/dev/other0") && !gpu_vendor_of_service("/tmp/other"));
	CHECK(!gpu_vendor_of_managed(maps) && !gpu_clients_have_threads());
	CHECK(!gpu_is_interposer("libbrumate-cuda.so") && !gpu_is_driver_thread("cuda-EvtHandlr"));
	CHECK(scan_gpu_vendor(getpid(), &found) == 0 && !found);
}

static void check_set(struct gpu_set *set)
{
	struct gpu_vendor vendor = *gpu_vendors[0];
	struct brumate_error err = BRUMATE_ERROR_NONE;

	/* An image of GPUs that are not known here is refused by name. */
	CHECK(gpu_set_take_vendor(set, "cuda", &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "\"cuda\", which this brumate does not know"));
	CHECK(gpu_set_take_vendor(set, "other", &err) == 0 && set->vendor == gpu_vendors[0]);
	CHECK(set->broker_is_open);
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

/* Calls @with for a client of a broker of that vendor. */
static void serve(const struct gpu_vendor *vendor, const char *path,
		  void (*with)(struct broker_client *client))
{
	struct served s;
	struct broker_options o = {
		.vendor = vendor, .pool_bytes = 64 << 20, .digests = true, .loop = &s.loop
	};
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct broker_client client = BROKER_CLIENT_EMPTY;
	int ends[2];

	CHECK(loop_init(&s.loop) == 0);
	CHECK(broker_new(&s.broker, &o, &err) == 0);
	struct wire_service service = broker_service(s.broker);
	int listen_fd = wire_listen(path, 0600, &err);
	CHECK(listen_fd >= 0 && wire_server_new(&s.server, &service, listen_fd, &err) == 0);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	s.stop_fd = ends[0];
	CHECK(pthread_create(&s.thread, NULL, accept_all, &s) == 0);
	CHECK(wire_connect(&client.wire, path, &err) == 0);
	with(&client);

	broker_client_close(&client);
	close(ends[1]);
	pthread_join(s.thread, NULL);
	close(ends[0]);
	wire_server_free(s.server);
	CHECK(broker_drain(s.broker, 10000) == 0);
	broker_free(s.broker);
	loop_fini(&s.loop);
	unlink(path);
}

static void with_memory(struct broker_client *client)
{
	struct gpu_process self = { .dev.state = DEV_STATE_NONE };
	const struct target target = { .id = "test" };
	struct gpu_set set = { .target = &target,
			       .vendor = gpu_vendors[0],
			       .items = &self,
			       .n = 1,
			       .broker_is_open = true };

	CHECK(proc_identify(&self.id, getpid(), NULL) == 0);
	check_info(client);
	check_transfer(client, false);
	check_transfer(client, true);
	set.broker = *client; /* with what its calls have allocated */
	check_set(&set);
	*client = set.broker;
}

int main(void)
{
	char dir[] = "/tmp/brumate-other-XXXXXX";

	check_names();
	CHECK(mkdtemp(dir));
	CHECK(setenv("BRUMATE_STATE_DIR", dir, 1) == 0);
	auto_free char *path = path_format("%s/socket", dir);
	serve(gpu_vendors[0], path, with_memory);
	serve(other_without_memory(), path, check_without_memory);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
