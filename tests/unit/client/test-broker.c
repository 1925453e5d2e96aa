// SPDX-License-Identifier: MIT
/* The client of the broker against one whose answers are not what they should be. */
#include "client/broker.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* A broker that gives one answer, and the client's end of the connection to it. */
static struct broker_client broker_that_says(const char *answer)
{
	struct broker_client b = BROKER_CLIENT_EMPTY;
	int ends[2];
	char c = 1;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(ends[0]);
		while (c && read(ends[1], &c, 1) == 1)
			; /* to the end of the call */
		_exit(write(ends[1], answer, strlen(answer) + 1) < 0);
	}
	close(ends[1]);
	wire_init(&b.wire, ends[0]);
	return b;
}

static int info_of(const char *answer, struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client b = broker_that_says(answer);
	struct broker_info info;

	return broker_client_info(&b, &info, err);
}

/* The caller may want to know why, or not. */
static void test_improper(const char *answer)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(info_of(answer, &err) == -EPROTO && err.code == EPROTO);
	CHECK(strstr(err.text, "broker: its answer"));
	CHECK(info_of(answer, NULL) == -EPROTO);
}

int main(void)
{
	test_improper("{\"parameters\":{}}");
	test_improper("{\"parameters\":{\"backend\":7}}");
	test_improper("{\"parameters\":{\"backend\":\"cuda\",\"pool\":-1}}");
	while (wait(NULL) > 0)
		;
	return 0;
}
