// SPDX-License-Identifier: MIT
/* Frames, fds and deadlines over a socketpair: in pieces, in bulk, from peers that misbehave. */
#include "check.h"
#include "base/clock.h"
#include "wire/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct pair {
	struct wire a, b;
};

static struct pair make_pair(void)
{
	struct pair p;
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	wire_init(&p.a, fds[0]);
	wire_init(&p.b, fds[1]);
	return p;
}

static void end_pair(struct pair *p)
{
	wire_fini(&p->a);
	wire_fini(&p->b);
}

static size_t count_fds(void)
{
	auto_closedir DIR *dir = opendir("/proc/self/fd");
	size_t n = 0;

	while (readdir(dir))
		n++;
	return n;
}

/* A raw sendmsg(2) with fds, as a foreign peer would do it. */
static void send_raw(int fd, const char *text, size_t len, int carried, size_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = { 0 };
	struct iovec iov = { (char *)text, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control };
	struct cmsghdr *c = (struct cmsghdr *)control;

	msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	for (size_t i = 0; i < n; i++)
		memcpy(CMSG_DATA(c) + i * sizeof(int), &carried, sizeof(int));
	CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)len);
}

static void test_byte_by_byte(void)
{
	static const char text[] = "{\"a\":\"b\"}";
	struct pair p = make_pair();
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

	for (size_t i = 0; i < sizeof(text); i++) {
		CHECK(wire_receive(&p.b, &m, deadline_in_ms(0), NULL) == -ETIMEDOUT);
		CHECK(write(p.a.fd, text + i, 1) == 1);
	}
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), NULL) == 0);
	CHECK_STR(json_string_value(json_object_get(m.json, "a")), "b");
	end_pair(&p);
}

static void test_several_in_one_read(void)
{
	static const char text[] = "{\"i\":0}\0{\"i\":1}\0{\"i\":2}";
	struct pair p = make_pair();

	CHECK(write(p.a.fd, text, sizeof(text)) == sizeof(text));
	for (int i = 0; i < 3; i++) {
		auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

		CHECK(wire_receive(&p.b, &m, deadline_in_ms(0), NULL) == 0);
		CHECK(json_integer_value(json_object_get(m.json, "i")) == i);
	}
	end_pair(&p);
}

static void test_garbage(void)
{
	struct pair p = make_pair();
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	struct brumate_error err;

	CHECK(write(p.a.fd, "GET / HTTP/1.0\r\n\r\n", 19) == 19);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), &err) == -EBADMSG);
	CHECK(write(p.a.fd, "{\"half\":", 8) == 8);
	wire_fini(&p.a);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), &err) == -EPIPE);
	CHECK(strstr(err.text, "in the middle"));
	CHECK(!m.json);
	end_pair(&p);
}

static void *write_endlessly(void *arg)
{
	char block[65536];

	memset(block, ' ', sizeof(block));
	while (send(*(int *)arg, block, sizeof(block), MSG_NOSIGNAL) > 0)
		;
	return NULL;
}

static void test_huge(void)
{
	struct pair p = make_pair();
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, write_endlessly, &p.a.fd) == 0);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(20000), NULL) == -EMSGSIZE);
	shutdown(p.b.fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	end_pair(&p);
}

static void *receive_large(void *arg)
{
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

	CHECK(wire_receive(arg, &m, deadline_in_ms(20000), NULL) == 0);
	CHECK(json_string_length(json_object_get(m.json, "x")) == 8 << 20);
	CHECK(m.n_fds == 2);
	return NULL;
}

static void test_large_with_fds(void)
{
	struct pair p = make_pair();
	auto_free char *text = calloc(1, (8 << 20) + 1);
	memset(text, 'x', 8 << 20);
	auto_json json_t *json = json_pack("{s:s}", "x", text);
	int fds[2] = { p.a.fd, p.b.fd };
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, receive_large, &p.b) == 0);
	CHECK(wire_send(&p.a, json, fds, 2, deadline_in_ms(20000), NULL) == 0);
	pthread_join(thread, NULL);
	CHECK(p.b.room == 0); /* what a large message needed is given back */
	end_pair(&p);
}

static void test_send_deadline(void)
{
	struct pair p = make_pair();
	auto_free char *text = calloc(1, (8 << 20) + 1);
	memset(text, 'x', 8 << 20);
	auto_json json_t *json = json_pack("{s:s}", "x", text);
	auto_json json_t *small = json_object();

	/* Nobody reads: half a message is out, so the connection must be of no further use. */
	CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(50), NULL) == -ETIMEDOUT);
	CHECK(wire_send(&p.a, small, NULL, 0, deadline_in_ms(50), NULL) == -EPIPE);
	CHECK(wire_is_hung_up(&p.b));
	end_pair(&p);
}

static void test_too_long_to_send(void)
{
	struct pair p = make_pair();
	auto_free char *text = calloc(1, WIRE_MESSAGE_BYTES_MAX + 1);
	memset(text, 'x', WIRE_MESSAGE_BYTES_MAX);
	auto_json json_t *json = json_pack("{s:s}", "x", text);

	CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(1000), NULL) == -EMSGSIZE);
	end_pair(&p);
}

/* Each fd must come with the message it was sent with, also when reads join or split messages. */
static void test_fds_belong_to_their_message(void)
{
	struct pair p = make_pair();
	int ends[2];
	struct stat want, got;
	auto_json json_t *json = json_object();
	auto_(wire_message_fini) struct wire_message first = WIRE_MESSAGE_EMPTY;
	auto_(wire_message_fini) struct wire_message second = WIRE_MESSAGE_EMPTY;
	auto_(wire_message_fini) struct wire_message third = WIRE_MESSAGE_EMPTY;

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	CHECK(fstat(ends[0], &want) == 0);
	CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(1000), NULL) == 0);
	CHECK(wire_send(&p.a, json, ends, 2, deadline_in_ms(1000), NULL) == 0);
	CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(1000), NULL) == 0);
	close(ends[0]);
	close(ends[1]);
	CHECK(wire_receive(&p.b, &first, deadline_in_ms(1000), NULL) == 0 && first.n_fds == 0);
	CHECK(wire_receive(&p.b, &second, deadline_in_ms(1000), NULL) == 0 && second.n_fds == 2);
	CHECK(wire_receive(&p.b, &third, deadline_in_ms(1000), NULL) == 0 && third.n_fds == 0);
	CHECK(fstat(second.fds[0], &got) == 0 && got.st_ino == want.st_ino);
	CHECK(fcntl(second.fds[0], F_GETFD) & FD_CLOEXEC);
	end_pair(&p);
}

static void test_too_many_fds(void)
{
	struct pair p = make_pair();
	size_t before = count_fds();
	struct wire_message m = WIRE_MESSAGE_EMPTY;

	send_raw(p.a.fd, "{}", 3, STDIN_FILENO, 253);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), NULL) == 0);
	CHECK(m.n_fds == WIRE_FDS_MAX);
	CHECK(count_fds() == before + WIRE_FDS_MAX);
	wire_message_fini(&m);
	CHECK(count_fds() == before);

	/* fds of a message that never ends, and of one that is garbage */
	send_raw(p.a.fd, "x", 2, STDIN_FILENO, 3);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), NULL) == -EBADMSG);
	CHECK(count_fds() == before);
	send_raw(p.a.fd, "{", 1, STDIN_FILENO, 3);
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(0), NULL) == -ETIMEDOUT);
	end_pair(&p);
	CHECK(count_fds() == before - 2);
}

static void test_hang_up(void)
{
	struct pair p = make_pair();

	CHECK(!wire_is_hung_up(&p.b));
	CHECK(write(p.a.fd, "{}", 3) == 3);
	CHECK(!wire_is_hung_up(&p.b));
	shutdown(p.a.fd, SHUT_WR); /* still waits for the answer */
	CHECK(!wire_is_hung_up(&p.b));
	wire_fini(&p.a);
	CHECK(wire_is_hung_up(&p.b));
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	CHECK(wire_receive(&p.b, &m, deadline_in_ms(0), NULL) == 0);
	end_pair(&p);
}

/* Whether a peer that has gone can have begun what it was asked. */
static void test_unheard(void)
{
	for (int reads = 0; reads < 2; reads++) {
		struct pair p = make_pair();
		auto_json json_t *json = json_pack("{s:s}", "method", "io.brumate.job.Kill");
		auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

		CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(1000), NULL) == 0);
		if (reads)
			CHECK(wire_receive(&p.b, &m, deadline_in_ms(1000), NULL) == 0);
		wire_fini(&p.b);
		auto_(wire_message_fini) struct wire_message none = WIRE_MESSAGE_EMPTY;
		CHECK(wire_receive(&p.a, &none, deadline_in_ms(1000), NULL) == -EPIPE);
		CHECK(p.a.unheard == !reads);
		CHECK(wire_send(&p.a, json, NULL, 0, deadline_in_ms(1000), NULL) == -EPIPE);
		CHECK(p.a.unheard);
		end_pair(&p);
	}
}

int main(void)
{
	test_byte_by_byte();
	test_several_in_one_read();
	test_garbage();
	test_huge();
	test_large_with_fds();
	test_send_deadline();
	test_too_long_to_send();
	test_fds_belong_to_their_message();
	test_too_many_fds();
	test_hang_up();
	test_unheard();
	return 0;
}
