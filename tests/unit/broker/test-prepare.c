// SPDX-License-Identifier: MIT
/* Memory that is ready before it is asked for: for whom, how much, and given back when others need it. */
#include "check.h"
#include "base/loop.h"
#include "base/clock.h"
#include "base/fd.h"
#include "broker/prepare.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static _Atomic uint64_t used, room;

static void must(int r, const struct brumate_error *err)
{
	if (r < 0)
		fprintf(stderr, "%s\n", err->text);
	CHECK(r >= 0);
}

static int fake_open(const struct dev_libraries *libraries, struct dev_info *ret,
		     struct brumate_error *err)
{
	*ret = (struct dev_info){ .driver_version = "1" };
	return 0;
}

static void fake_usage(pid_t pid, struct dev_process *ret)
{
	*ret = (struct dev_process){ .used_bytes = used, .n_gpus = 1, .gpu_bytes = { used } };
}

static const struct dev_backend fake = { .name = "fake", .open = fake_open, .usage = fake_usage };

static const struct gpu_vendor fake_vendor = { .id = "fake", .backend = &fake };

static uint64_t fake_room(void)
{
	return room;
}

static uint64_t clock_cpu_ns(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool is_idle(void *arg, uint64_t *ret_since_ns)
{
	*ret_since_ns = 0; /* since the machine started: what is not wanted may go */
	return true;
}

static void wait_ready(struct pool *pool, uint64_t least, uint64_t most)
{
	uint64_t deadline_ns = deadline_in_ms(60000), bytes;

	do {
		bytes = pool_free_bytes(pool);
		if (bytes >= least && bytes <= most)
			return;
		poll(NULL, 0, 5);
	} while (deadline_left_ms(deadline_ns));
	fprintf(stderr, "%llu MiB are ready\n", (unsigned long long)(bytes / MIB));
	CHECK(false);
}

/* Nothing is given back only to be made ready again. */
static void check_rests(struct pool *pool)
{
	uint64_t begin_ns = clock_cpu_ns();

	poll(NULL, 0, 1000);
	CHECK(clock_cpu_ns() - begin_ns < NS_PER_S / 10);
	wait_ready(pool, 384 * MIB, 384 * MIB);
}

static void test_rules(void)
{
	CHECK(prepare_budget(100 * GIB, 0) == 50 * GIB);
	CHECK(prepare_budget(64 * GIB, 36 * GIB) == 50 * GIB);
	CHECK(prepare_budget(0, 36 * GIB) == 18 * GIB);
	/* Until then a machine that gives out 50 GB/s has half of it left. */
	CHECK(prepare_pause_ms(100 * GIB) == 1000);
	CHECK(prepare_pause_ms(10 * GIB) > 90 && prepare_pause_ms(10 * GIB) < 110);
	CHECK(prepare_pause_ms(0) == 20);
}

static void test_life(struct preparer *p, struct pool *pool, int oob)
{
	const pid_t pid = 1;
	struct brumate_error err;
	struct prepared prepared;
	uint64_t end_ns;
	int ends[2];

	/* Little is not worth it. */
	used = 100 * MIB;
	room = 100 * GIB;
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	must(preparer_add(p, ends[0], &(struct prepare_request){ &pid, 1, true, 0, false },
			  &prepared, &err),
	     &err);
	CHECK(prepared.bytes == 0 && preparer_busy(p, &end_ns) == 0);
	close(ends[1]);

	/* As much as the process has, in whole segments, and more as it gets more. */
	used = 321 * MIB;
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	must(preparer_add(p, ends[0], &(struct prepare_request){ &pid, 1, true, 0, false },
			  &prepared, &err),
	     &err);
	CHECK(prepared.bytes == 321 * MIB && prepared.n_open == 0 &&
	      preparer_busy(p, &end_ns) == 1);
	wait_ready(pool, 384 * MIB, 384 * MIB);
	check_rests(pool);
	used = 500 * MIB;
	wait_ready(pool, 500 * MIB, 512 * MIB);

	/* What nobody wants goes. */
	used = 300 * MIB;
	wait_ready(pool, 320 * MIB, 320 * MIB);
	used = 500 * MIB;
	wait_ready(pool, 500 * MIB, 512 * MIB);

	/* Others want what there is. */
	room = 256 * MIB;
	wait_ready(pool, 192 * MIB, 256 * MIB);
	room = 0;
	wait_ready(pool, 0, 0);
	room = 100 * GIB;
	wait_ready(pool, 500 * MIB, 512 * MIB);

	/* Somebody waits for memory: all goes, and nothing is made ready for a while. */
	CHECK(send(oob, "!", 1, MSG_OOB) == 1);
	wait_ready(pool, 0, 0);
	poll(NULL, 0, 1500);
	CHECK(pool_free_bytes(pool) == 0);

	close(ends[1]);
	for (uint64_t deadline_ns = deadline_in_ms(60000); preparer_busy(p, &end_ns);) {
		CHECK(deadline_left_ms(deadline_ns));
		poll(NULL, 0, 5);
	}
}

int main(void)
{
	const struct pool_options pool_options = { .limit_bytes = 4 * GIB };
	const struct dev_libraries libraries = { 0 };
	struct prepare_options o = { .is_idle = is_idle, .room_bytes = fake_room };
	struct brumate_error err;
	struct preparer *p;
	struct driver *driver;
	struct loop loop;
	int ends[2];

	test_rules();
	CHECK(loop_init(&loop) == 0);
	o.loop = &loop;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0 ||
	    send(ends[1], "!", 1, MSG_OOB) != 1)
		SKIP("no sockets with urgent data, which stand in for the kernel's pressure");
	CHECK(recv(ends[0], &(char){ 0 }, 1, MSG_OOB) == 1);
	o.pressure_fd = ends[0];
	must(driver_new(&driver, &fake_vendor, &libraries, &loop, &err), &err);
	must(pool_new(&o.pool, &pool_options, &err), &err);
	o.driver = driver;
	must(preparer_new(&p, &o, &err), &err);
	test_life(p, o.pool, ends[1]);
	preparer_free(p);
	pool_free(o.pool);
	driver_free(driver);
	loop_fini(&loop);
	return 0;
}
