// SPDX-License-Identifier: MIT
/* Host copies that do not fit into memory: what is beyond goes to a disk and comes back, unreadable there,
 * and nothing of it is left when nobody holds it. */
#include "pieces.h"
#include "wire/host-copy.h"

#include <dirent.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define POOL   "[Broker]\nPool=64M\n"
#define MEMORY POOL "Memory=32M\n"

enum { PIECES = 8 }; /* of 8 MiB: segments are as long up to 256 MiB */

static uint64_t eight(size_t i)
{
	return 8 * MIB;
}

static void restart(const char *conf)
{
	end_broker(&b);
	node_conf(conf);
	broker_start();
}

static size_t count_on_disk(const struct host_copy *c)
{
	size_t n = 0;

	for (size_t i = 0; i < host_copy_n_segments(c); i++)
		n += host_copy_is_on_disk(c, i);
	return n;
}

/* Reads it as a holder does. */
static void read_part(const struct host_copy *c, size_t i, const struct seal_disk_key *key,
		      void *buf)
{
	uint64_t start = i * c->segment_bytes;

	if (host_copy_is_on_disk(c, i)) {
		CHECK(spill_read(c->segments[i], key, start, start, buf, c->segment_bytes) == 0);
		return;
	}
	char *at = mmap(NULL, c->segment_bytes, PROT_READ, MAP_SHARED, c->segments[i], 0);
	CHECK(at != MAP_FAILED);
	memcpy(buf, at, c->segment_bytes);
	munmap(at, c->segment_bytes);
}

/* Pieces of eight() are as long as the segments. */
static void check_copy(const struct set *set)
{
	const struct host_copy *c = &set->copy;
	auto_free uint64_t *buf = malloc(c->segment_bytes), *want = malloc(c->segment_bytes);
	struct seal_disk_key key = { 0 };

	CHECK(!host_copy_is_spilled(c) ||
	      spill_key_read(&key, c->segments[host_copy_n_segments(c)]) == 0);
	for (size_t i = 0; i < host_copy_n_segments(c); i++) {
		pattern(want, c->segment_bytes, i);
		read_part(c, i, &key, buf);
		CHECK(memcmp(buf, want, c->segment_bytes) == 0);
		if (!host_copy_is_on_disk(c, i))
			continue;
		CHECK(pread(c->segments[i], buf, c->segment_bytes, 0) == (ssize_t)c->segment_bytes);
		for (size_t k = 0; k < c->segment_bytes / sizeof(*buf); k++)
			CHECK(buf[k] != want[k]);
	}
}

/* Files of the directory that this machine's processes have open, ours and the broker's, and its entries. */
static void check_empty(void)
{
	auto_free char *path = path_format("%s/state/spill", node_dir);
	DIR *dir = opendir(path);
	struct dirent *e;

	CHECK(dir);
	while ((e = readdir(dir)))
		CHECK(e->d_name[0] == '.');
	closedir(dir);
}

static bool has_open(pid_t pid)
{
	auto_free char *fds = path_format("/proc/%d/fd", pid);
	auto_free char *spill = path_format("%s/state/spill/", node_dir);
	DIR *dir = opendir(fds);
	bool found = false;
	struct dirent *e;
	char to[4096];

	CHECK(dir);
	while ((e = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, to, sizeof(to) - 1);

		to[n > 0 ? n : 0] = '\0';
		found = found || !strncmp(to, spill, strlen(spill));
	}
	closedir(dir);
	return found;
}

static void wait_closed(void)
{
	uint64_t deadline_ns = deadline_in_ms(10000);

	while (has_open(broker_client_pid(&b)) && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 5);
	CHECK(!has_open(broker_client_pid(&b)));
}

static void test_mixed(bool digests)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(PIECES, eight, 2);

	set.request.digests = digests;
	out(s, &set);
	size_t on_disk = count_on_disk(&set.copy);
	CHECK(on_disk >= PIECES - 4 && on_disk < PIECES && host_copy_is_spilled(&set.copy));
	CHECK(host_copy_disk_bytes(&set.copy) == on_disk * 8 * MIB);
	CHECK(pool_bytes("pinned_bytes") <= (int64_t)(64 * MIB));
	check_copy(&set);
	check_empty();
	wait_closed(); /* the holders keep it */
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	wait_closed();
	set_free(&set);
	CHECK(!has_open(getpid()));
}

static int try_out(struct set *set, struct brumate_error *err)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	return transfer_client_out(s, &set->request, set->fds, &set->copy, NULL, err);
}

/* An fd of memory that nobody wrote to. */
static int make_zeros(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUmemGenericAllocationHandle handle;
	int fd;

	CHECK(cu.create(&handle, 8 * MIB, &prop, 0) == CUDA_SUCCESS);
	CHECK(cu.export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	CHECK(cu.release(handle) == CUDA_SUCCESS);
	return fd;
}

/* Memory that is reserved, and mostly zero, takes none of the host's: neither memory nor disk. */
static void test_mostly_zero(bool live)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(PIECES, eight, 1);
	struct brumate_error err;

	set.request.digests = true;
	set.request.live = live;
	/* A live copy goes to memory alone. */
	CHECK(!live || try_out(&set, &err) == -ENOSPC);
	for (size_t i = 0; i < PIECES; i++) {
		if (i % 4 == 1)
			continue;
		close(set.fds[i]);
		set.fds[i] = make_zeros();
	}
	must(transfer_client_out(s, &set.request, set.fds, &set.copy, &set.spared, &err), &err);
	CHECK(!host_copy_is_spilled(&set.copy) && set.spared.zero_bytes == 6 * 8 * MIB);
	set_close_fds(&set);
	set.request.live = false;
	in(s, &set);
	for (size_t i = 1; i < PIECES; i += 4)
		piece_check(set.fds[i], 8 * MIB, 0, i);
	set_free(&set);
}

/* What was zero in a base, and is not any more, takes memory; where there is too little, nothing of the base is written. */
static void test_growth(bool live)
{
	struct set set = set_make(PIECES, eight, 1);
	struct brumate_error err;
	int full[PIECES];

	set.request.digests = true;
	memcpy(full, set.fds, sizeof(full));
	for (size_t i = 1; i < PIECES; i++)
		set.fds[i] = make_zeros();
	must(try_out(&set, &err), &err);
	for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
		auto_(transfer_client_close) struct transfer_client *s = session();

		for (size_t i = 1; i < n; i++) {
			close(set.fds[i]);
			set.fds[i] = fcntl(full[i], F_DUPFD_CLOEXEC, 0);
		}
		set.request.live = live;
		int r = transfer_client_update(s, &set.request, set.fds, &set.copy, &set.spared,
					       &err);
		CHECK(r == (n == PIECES || live ? -ENOSPC : 0));
		CHECK(r == 0 || strstr(err.text, "memory is too short"));
		if (r < 0) /* it is held by the caller alone */
			break;
	}
	for (size_t i = 1; i < PIECES; i++)
		close(full[i]);
	set_free(&set);
}

/* All of it on the disk, and back by another broker. */
static void test_other_broker(void)
{
	struct set set = set_make(PIECES, eight, 1);
	struct transfer_client *s = session();

	restart(POOL "Memory=1M\n");
	transfer_client_close(s);
	s = session();
	out(s, &set);
	CHECK(count_on_disk(&set.copy) == PIECES);
	set_close_fds(&set);
	CHECK(kill(broker_client_pid(&b), SIGKILL) == 0);
	broker_client_close(&b);
	broker_start();
	check_copy(&set);
	transfer_client_close(s);
	s = session();
	in(s, &set);
	set_check_device(&set);
	transfer_client_close(s);
	set_free(&set);
}

/* Zeros are as secret as the rest, and what changed is written in place. */
static void test_update(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(PIECES, eight, 1);
	struct brumate_error err;

	set.request.digests = true;
	out(s, &set);
	CHECK(count_on_disk(&set.copy));
	for (size_t i = PIECES - 2; i < PIECES; i++) {
		close(set.fds[i]);
		set.fds[i] = piece_make(8 * MIB, 0, i + 100);
	}
	must(transfer_client_update(s, &set.request, set.fds, &set.copy, &set.spared, &err), &err);
	CHECK(set.spared.same_bytes == (PIECES - 2) * 8 * MIB);
	set_close_fds(&set);
	in(s, &set);
	for (size_t i = 0; i < PIECES; i++)
		piece_check(set.fds[i], 8 * MIB, 0, i < PIECES - 2 ? i : i + 100);
	set_free(&set);
}

static int try_in(struct set *set, int *fds, struct brumate_error *err)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	return transfer_client_in(s, &set->request, &set->copy, fds, NULL, err);
}

static void test_faults(void)
{
	static const char *const points[] = { "data.spill-open", "data.spill-write" };
	struct set set = set_make(PIECES, eight, 2);
	struct brumate_error err;
	int fds[PIECES];

	for (size_t i = 0; i < 2 * sizeof(points) / sizeof(points[0]); i++) {
		auto_free char *text =
			path_format("%s %s\n", points[i / 2], i % 2 ? "kill" : "error:5");

		node_fault(text);
		CHECK(try_out(&set, &err) == (i % 2 ? -EPIPE : -EIO));
		if (i % 2) {
			broker_client_close(&b);
			broker_start();
		}
		set_check_device(&set);
		check_empty();
		wait_closed();
	}
	must(try_out(&set, &err), &err);
	node_fault("data.spill-read error:5\n");
	CHECK(try_in(&set, fds, &err) == -EIO && strstr(err.text, "read"));
	node_fault("data.spill-read kill\n");
	CHECK(try_in(&set, fds, &err) == -EPIPE);
	broker_client_close(&b);
	broker_start();
	check_copy(&set);
	set_close_fds(&set);
	must(try_in(&set, set.fds, &err), &err);
	set_check_device(&set);
	set_free(&set);
}

/* A client that is killed in the middle. */
static void test_client_killed(void)
{
	struct set set = set_make(PIECES, eight, 1);
	struct brumate_error err;
	int ready[2];
	char c;

	CHECK(pipe2(ready, O_CLOEXEC) == 0);
	node_fault("data.spill-write delay:300\n");
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(write(ready[1], "r", 1) == 1);
		try_out(&set, &err);
		pause();
	}
	CHECK(read(ready[0], &c, 1) == 1);
	while (access(getenv("BRUMATE_FAULT_FILE"), F_OK) == 0)
		poll(NULL, 0, 1); /* until it writes to the disk */
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	close(ready[0]);
	close(ready[1]);
	wait_closed();
	check_empty();
	set_free(&set);
}

/* Descriptors that are no segments, or no key. */
static void test_strangers(void)
{
	struct set set = set_make(PIECES, eight, 1);
	struct brumate_error err;
	int fds[PIECES];

	must(try_out(&set, &err), &err);
	int *key = &set.copy.segments[PIECES], *last = key - 1;
	int right = *key;
	*key = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(ftruncate(*key, sizeof(struct seal_disk_key)) == 0);
	CHECK(try_in(&set, fds, &err) == -EBADF && strstr(err.text, "key"));
	close(*key);
	*key = right;
	CHECK(host_copy_is_on_disk(&set.copy, PIECES - 1));
	CHECK(ftruncate(*last, 4096) == 0); /* a holder may do that; nobody has it mapped */
	CHECK(try_in(&set, fds, &err) == -EBADF);
	set_free(&set);
}

static void test_no_room(void)
{
	auto_free char *state = path_format("%s/state/spill", node_dir);
	auto_free char *small = path_format("%s/small", node_dir);
	auto_free char *conf = path_format(MEMORY "SpillDirectory=%s\n", small);
	struct set set = set_make(PIECES, eight, 1);
	struct host_copy copy = HOST_COPY_EMPTY;
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;

	auto_close int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct device_piece large = { .len_bytes = 1ull << 45 };
	const struct transfer_request request = { .pieces = &large, .n = 1 };

	strcpy(large.gpu, set.pieces[0].gpu);
	CHECK(transfer_client_out(s, &request, &fd, &copy, NULL, &err) == -ENOSPC);
	CHECK(strstr(err.text, "32.0 TiB needed") && strstr(err.text, state));
	CHECK(strstr(err.hint, "SpillDirectory="));
	transfer_client_close(take_ptr(&s));
	CHECK(mkdir(small, 0700) == 0);
	if (mount("test", small, "tmpfs", 0, "size=16m") < 0) {
		printf("no mount: %s\n", strerror(errno));
		rmdir(small);
		set_free(&set);
		return;
	}
	restart(conf);
	CHECK(try_out(&set, &err) == -EOPNOTSUPP && strstr(err.text, small));
	set_check_device(&set);
	CHECK(umount(small) == 0 && rmdir(small) == 0);
	restart(MEMORY);
	must(try_out(&set, &err), &err);
	check_copy(&set);
	set_free(&set);
}

static bool is_in_memory(void)
{
	return pool_bytes("disk_bytes") == 0;
}

int main(void)
{
	node_start();
	driver_open();
	node_conf(MEMORY);
	broker_start();
	if (is_in_memory()) {
		end_broker(&b);
		node_end();
		SKIP("the test's directory is in memory");
	}
	test_mixed(false);
	test_mixed(true);
	test_mostly_zero(false);
	test_mostly_zero(true);
	test_growth(false);
	test_growth(true);
	test_update();
	test_strangers();
	test_faults();
	test_client_killed();
	test_no_room();
	test_other_broker();
	end_broker(&b);
	node_end();
	return 0;
}
