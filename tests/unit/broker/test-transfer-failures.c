// SPDX-License-Identifier: MIT
/* Copies that fail, are cancelled, or lose their broker: what was held stays, nothing is left behind. */
#include "pieces.h"
#include "wire/transfer-packets.h"

#include <sys/socket.h>

enum { PIECES = 12 };

static uint64_t brokers_own(void)
{
	struct dev_process own;
	pid_t pid = broker_client_pid(&b);

	CHECK(broker_client_state(&b, &pid, 1, &own, NULL) == 0);
	return own.used_bytes;
}

/* What is in use but for the broker's contexts, which come and go. */
static uint64_t used_bytes(void)
{
	struct dev_gpu gpus[DEV_GPUS_MAX];
	uint64_t used, own;
	size_t n;

	do {
		own = brokers_own();
		used = 0;
		CHECK(broker_client_gpus(&b, gpus, &n, NULL) == 0);
		for (size_t i = 0; i < n; i++)
			used += gpus[i].used_bytes;
	} while (own != brokers_own());
	return used - own;
}

/* The broker's own end of a session goes on for a moment after ours. */
static void wait_used(uint64_t want)
{
	uint64_t deadline_ns = deadline_in_ms(10000);

	while (used_bytes() != want && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 5);
	CHECK(used_bytes() == want);
}

static int try_out(struct set *set, struct brumate_error *err)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	return transfer_client_out(s, &set->request, set->fds, &set->copy, NULL, err);
}

static int try_in(struct set *set, int *fds, struct brumate_error *err)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	return transfer_client_in(s, &set->request, &set->copy, fds, NULL, err);
}

static void test_injected(void)
{
	static const char *const points[] = { "data.import", "data.alloc", "data.copy" };
	struct set set = set_make(PIECES, odd, 2);
	struct brumate_error err;
	int fds[PIECES];

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		auto_free char *text = path_format("%s error:5\n", points[i]);

		node_fault(text);
		CHECK(try_out(&set, &err) == -EIO);
		set_check_device(&set);
	}
	/* Late, when the broker has unmapped the first pieces. */
	node_fault("data.copy delay:5\ndata.copy delay:5\ndata.copy delay:5\ndata.copy delay:5\n"
		   "data.copy error:5\n");
	CHECK(try_out(&set, &err) == -EIO);
	set_check_device(&set);
	must(try_out(&set, &err), &err);
	set_check_copy(&set);
	uint64_t used = used_bytes();
	node_fault("data.export error:5\n");
	CHECK(try_in(&set, fds, &err) == -EIO && strstr(err.text, "piece"));
	wait_used(used);
	node_fault("data.copy error:5\n");
	CHECK(try_in(&set, fds, &err) == -EIO);
	wait_used(used);
	set_check_copy(&set);
	set_free(&set);
}

static void test_killed(void)
{
	static const char *const points[] = { "data.import", "data.alloc", "data.copy" };

	end_broker(&b);
	broker_start(); /* one that has opened no GPU */
	uint64_t used = used_bytes();
	struct set set = set_make(PIECES, odd, 2);
	struct brumate_error err;
	int fds[PIECES];

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		auto_free char *text = path_format("%s kill\n", points[i]);

		node_fault(text);
		CHECK(try_out(&set, &err) == -EPIPE);
		broker_client_close(&b);
		broker_start();
		set_check_device(&set);
	}
	must(try_out(&set, &err), &err);
	set_close_fds(&set);
	node_fault("data.export kill\n");
	CHECK(try_in(&set, fds, &err) == -EPIPE);
	broker_client_close(&b);
	broker_start(); /* which has not made this host copy */
	wait_used(used);
	set_check_copy(&set);
	must(try_in(&set, set.fds, &err), &err);
	set_check_device(&set);
	set_free(&set);
}

static int cancel(void *arg, uint64_t done_bytes)
{
	int *left = arg;

	return (*left)-- > 0 ? 0 : -EINTR;
}

static void test_cancelled(void)
{
	struct set set = set_make(PIECES, odd, 2);
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;
	int left = 1;
	uint64_t leased = (uint64_t)pool_bytes("leased_bytes");

	node_fault("data.copy delay:400\n");
	set.request.progress = cancel;
	set.request.arg = &left;
	CHECK(transfer_client_out(s, &set.request, set.fds, &set.copy, NULL, &err) == -EINTR);
	set.request.progress = NULL;
	CHECK(!set.copy.segments);
	CHECK(transfer_client_out(s, &set.request, set.fds, &set.copy, NULL, &err) ==
	      -EPIPE); /* this session is over */
	set_check_device(&set);
	transfer_client_close(s);
	s = session();
	out(s, &set);
	set_check_copy(&set);
	CHECK(pool_bytes("leased_bytes") > (int64_t)leased);
	set_free(&set);
}

static void test_refused(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct device_piece piece = { 3 * MIB, "" };
	const struct transfer_request request = { .pieces = &piece, .n = 1 };
	struct host_copy copy = HOST_COPY_EMPTY;
	struct brumate_error err;
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	strcpy(piece.gpu, uuids[0]);
	CHECK(transfer_client_out(s, &request, &fd, &copy, NULL, &err) == -EINVAL);
	CHECK(strstr(err.text, "2 MiB"));
	transfer_client_close(take_ptr(&s));
	s = session();
	piece.len_bytes = 1ull << 44;
	int r = transfer_client_out(s, &request, &fd, &copy, NULL, &err);
	CHECK((r == -ENOSPC || r == -EOPNOTSUPP) && strstr(err.text, "16.0 TiB"));
	transfer_client_close(take_ptr(&s));
	s = session();
	piece.len_bytes = 2 * MIB;
	CHECK(transfer_client_out(s, &request, &fd, &copy, NULL, &err) == -EIO);
	CHECK(strstr(err.text, "piece 1 of 1") && strstr(err.text, "cuMemImport"));
	transfer_client_close(take_ptr(&s));
	s = session();
	strcpy(piece.gpu, "GPU-99999999-9999-9999-9999-999999999999");
	CHECK(transfer_client_out(s, &request, &fd, &copy, NULL, &err) == -ENODEV);
	CHECK(strstr(err.text, piece.gpu));
	close(fd);
}

/* More device memory than the GPU has: told by its name, and all that was made is gone again. */
static void test_no_room(void)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct device_piece pieces[64];
	const struct transfer_request request = { .pieces = pieces, .n = 64 };
	struct dev_gpu gpus[DEV_GPUS_MAX];
	struct brumate_error err;
	struct host_copy copy = HOST_COPY_EMPTY;
	int fds[64];
	size_t n;

	CHECK(broker_client_gpus(&b, gpus, &n, NULL) == 0);
	for (int i = 0; i < 64; i++) {
		pieces[i].len_bytes = i ? 2 * MIB : gpus[0].total_bytes / (2 * MIB) * (2 * MIB);
		strcpy(pieces[i].gpu, uuids[0]);
	}
	/* A host copy of as many bytes, in sealed memory that was never touched. */
	copy.total_bytes = host_copy_offset(pieces, 64);
	copy.segment_bytes = copy.total_bytes;
	copy.n_segments = 1;
	copy.segments = malloc(sizeof(int));
	copy.segments[0] = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(ftruncate(copy.segments[0], (off_t)copy.total_bytes) == 0);
	uint64_t used = used_bytes();
	CHECK(transfer_client_in(s, &request, &copy, fds, NULL, &err) == -EBADF); /* not sealed */
	transfer_client_close(take_ptr(&s));
	CHECK(fcntl(copy.segments[0], F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	s = session();
	CHECK(transfer_client_in(s, &request, &copy, fds, NULL, &err) == -ENOSPC);
	CHECK(strstr(err.text, uuids[0]) && strstr(err.text, "MiB"));
	wait_used(used);
	host_copy_fini(&copy);
}

static int raw_session(void)
{
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	CHECK(wire_call(&b.wire, "io.brumate.broker.Transfer", NULL, &pair[1], 1, NULL, NULL, NULL,
			deadline_in_ms(10000), NULL) == 0);
	close(pair[1]);
	return pair[0];
}

/* Sends it, and reads until the broker has ended the session. */
static void hostile(const struct transfer_packet *p, size_t len, size_t times)
{
	auto_close int fd = raw_session();
	struct transfer_packet answer;
	int fds[TRANSFER_ITEMS_MAX];

	for (size_t i = 0; i < times; i++)
		if (send(fd, p, len, MSG_NOSIGNAL) < 0)
			break;
	shutdown(fd, SHUT_WR);
	while (transfer_receive(fd, &answer, fds, deadline_in_ms(10000), NULL) == 0)
		for (uint32_t i = 0; answer.op == TRANSFER_SEGMENTS && i < answer.n; i++)
			close(fds[i]); /* what was asked for can be had */
}

/* It serves others as before, and nothing of the strangers' is left. */
static void test_alive(void)
{
	struct set set = set_make(2, odd, 2);
	pid_t pid = broker_client_pid(&b);
	struct brumate_error err;

	must(try_out(&set, &err), &err);
	set_check_copy(&set);
	set_free(&set);
	CHECK(broker_client_reopen(&b, NULL) == 0 && broker_client_pid(&b) == pid);
	CHECK(pool_bytes("leased_bytes") == 0);
}

static void test_hostile(void)
{
	struct transfer_packet p = { .version = TRANSFER_VERSION };

	hostile(&p, 3, 1);
	for (uint32_t op = 0; op < TRANSFER_OP__MAX + 2; op++) {
		p = (struct transfer_packet){ .version = TRANSFER_VERSION, .op = op };
		hostile(&p, sizeof(p), 3);
		memset((char *)&p + 8, 0xff, sizeof(p) - 8);
		hostile(&p, sizeof(p), 3);
		p.n = 1;
		p.n_total = 2;
		p.total_bytes = p.segment_bytes = 2 * MIB;
		p.pieces[0].len_bytes = 2 * MIB;
		hostile(&p, sizeof(p), 3);
	}
	test_alive();
}

enum { PLACES = 64 }; /* SESSIONS_MAX of session.c */

/* A session whose client asks for a copy of @set out, and gives none of its pieces; or for nothing, without a set. */
static int silent_session(const struct set *set)
{
	struct transfer_packet p = transfer_packet(TRANSFER_LAYOUT);
	struct brumate_error err;
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	must(broker_client_call(&b, "io.brumate.broker.Transfer", NULL, pair[1], NULL,
				deadline_in_ms(60000), &err),
	     &err);
	close(pair[1]);
	if (!set)
		return pair[0];
	p.flags = TRANSFER_TO_HOST;
	p.n = p.n_total = 1;
	p.pieces[0].len_bytes = set->pieces[0].len_bytes;
	CHECK(dev_uuid_parse(p.pieces[0].gpu, set->pieces[0].gpu) == 0);
	CHECK(transfer_send(pair[0], &p, NULL, 0, deadline_in_ms(60000)) == 0);
	p = transfer_packet(TRANSFER_OUT);
	CHECK(transfer_send(pair[0], &p, NULL, 0, deadline_in_ms(60000)) == 0);
	return pair[0];
}

/* They keep nobody out, whether they wait for a request or in one. */
static void test_silent(void)
{
	struct set set = set_make(PIECES, odd, 2);
	int silent[PLACES + 1];

	for (size_t i = 0; i < PLACES + 1; i++)
		silent[i] = silent_session(i % 2 ? &set : NULL);
	auto_(transfer_client_close) struct transfer_client *late = session();
	out(late, &set);
	set_check_copy(&set);
	for (size_t i = 0; i < PLACES + 1; i++)
		close(silent[i]);
	set_free(&set);
}

int main(void)
{
	node_start();
	driver_open();
	broker_start();
	test_injected();
	test_cancelled();
	test_silent();
	test_refused();
	test_no_room();
	test_hostile();
	test_killed();
	end_broker(&b);
	node_end();
	return 0;
}
