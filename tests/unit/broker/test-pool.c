// SPDX-License-Identifier: MIT
/* The broker's pool of host memory: its limit, the ring, leases that end by themselves. */
#include "pieces.h"

static uint64_t eight(size_t i)
{
	return 8 * MIB;
}

static void wait_leased(int64_t want)
{
	uint64_t deadline_ns = deadline_in_ms(10000);

	while (pool_bytes("leased_bytes") != want && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 5);
	CHECK(pool_bytes("leased_bytes") == want);
}

static void test_lease(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(3, eight, 1);

	out(s, &set);
	CHECK(set.copy.segment_bytes == 8 * MIB && set.copy.n_segments == 3);
	wait_leased(24 * MIB);
	int64_t pinned = pool_bytes("pinned_bytes");
	char *at = mmap(NULL, 8 * MIB, PROT_READ, MAP_SHARED, set.copy.segments[0], 0);
	CHECK(at != MAP_FAILED);
	host_copy_fini(&set.copy);
	wait_leased(8 * MIB); /* a mapping holds as a descriptor does */
	munmap(at, 8 * MIB);
	wait_leased(0);
	CHECK(pool_bytes("free_bytes") >= (int64_t)(24 * MIB));
	out(s, &set); /* into the same segments */
	CHECK(pool_bytes("pinned_bytes") == pinned);
	set_check_copy(&set);
	set_free(&set);
}

/* A lease outlives its broker; the process that holds it need not be the one that asked for it. */
static void test_holder(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(5, odd, 2);
	pid_t pid = broker_client_pid(&b);

	out(s, &set);
	set_close_fds(&set);
	CHECK(kill(pid, SIGKILL) == 0);
	broker_client_close(&b);
	broker_start();
	CHECK(broker_client_pid(&b) != pid);
	set_check_copy(&set);
	transfer_client_close(take_ptr(&s));
	s = session();
	in(s, &set);
	set_check_device(&set);
	CHECK(pool_bytes("leased_bytes") == 0); /* of this broker */
	set_free(&set);
}

static bool is_zero(const char *buf, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (buf[i])
			return false;
	return true;
}

/* Whatever a segment held before, its next holder does not see it. */
static void test_no_leak(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(4, eight, 1), small = set_make(1, granule, 1);
	auto_free char *buf = malloc(8 * MIB);

	out(s, &set);
	host_copy_fini(&set.copy);
	out(s, &small); /* a quarter of a segment */
	copy_read(&small.copy, 0, buf, 8 * MIB);
	CHECK(!is_zero(buf, 2 * MIB) && is_zero(buf + 2 * MIB, 6 * MIB));
	host_copy_fini(&small.copy);
	set_free(&set);
	set_free(&small);
}

/* What is over the limit is not pinned, goes through the ring, and is no one's in the pool later. */
static void test_ring(const char *conf, int64_t limit)
{
	end_broker(&b);
	node_conf(conf);
	broker_start();
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(30, eight, 2);

	CHECK(pool_bytes("limit_bytes") == limit);
	out(s, &set);
	CHECK(pool_bytes("pinned_bytes") <= limit);
	set_check_copy(&set);
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	CHECK(pool_bytes("pinned_bytes") <= limit);
	host_copy_fini(&set.copy);
	wait_leased(0);
	CHECK(pool_bytes("free_bytes") == pool_bytes("pinned_bytes"));
	set_free(&set);
}

int main(void)
{
	node_start();
	driver_open();
	node_conf("[Broker]\nPool=1G\n");
	broker_start();
	test_lease();
	test_no_leak();
	test_holder();
	test_ring("[Broker]\nPool=256M\n", 256 * MIB);
	test_ring("[Broker]\nPool=1M\n", MIB); /* not even a ring */
	end_broker(&b);
	node_end();
	return 0;
}
