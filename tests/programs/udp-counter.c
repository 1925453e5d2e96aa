// SPDX-License-Identifier: MIT
/*
 * A server in the manner of NVIDIA's demonstration of cuda-checkpoint: each UDP packet adds 1 to a
 * counter in device memory and is answered with its value. `ask` sends one packet and prints the
 * answer, waiting up to --busy-ms for it (a suspended server answers late).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

static const char usage[] = "udp-counter serve [--port 0] | ask --port P [--busy-ms 5000]";

static struct sockaddr_in local_address(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int open_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket: %s", strerror(errno));
	return fd;
}

static unsigned int count_up(const struct gpu *gpu, CUdeviceptr counter)
{
	uint64_t one = 1;
	unsigned int value;

	LAUNCH(gpu->inc_u32, 1, NULL, &counter, &one);
	CHECKED(cuMemcpyDtoH_v2(&value, counter, sizeof(value)));
	return value;
}

static void serve(int port)
{
	struct sockaddr_in address = local_address(port);
	socklen_t len = sizeof(address);
	struct gpu gpu;
	CUdeviceptr counter;
	char packet[64];
	int fd = open_socket();

	if (bind(fd, (struct sockaddr *)&address, len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		die("bind port %d: %s", port, strerror(errno));
	gpu_open(&gpu, 0);
	CHECKED(cuMemAlloc_v2(&counter, sizeof(unsigned int)));
	CHECKED(cuMemsetD8_v2(counter, 0, sizeof(unsigned int)));
	say("ready pid %d port %d", (int)getpid(), ntohs(address.sin_port));

	for (;;) {
		struct sockaddr_in from;
		socklen_t from_len = sizeof(from);

		if (recvfrom(fd, packet, sizeof(packet), 0, (struct sockaddr *)&from, &from_len) <
		    0) {
			if (errno == EINTR)
				continue;
			die("receive: %s", strerror(errno));
		}
		unsigned int value = count_up(&gpu, counter);
		int n = snprintf(packet, sizeof(packet), "%u\n", value);
		sendto(fd, packet, (size_t)n, 0, (struct sockaddr *)&from, from_len);
		say("step %u OK", value);
	}
}

static int ask(int port, unsigned int patience_ms)
{
	struct sockaddr_in address = local_address(port);
	struct pollfd poller = { .fd = open_socket(), .events = POLLIN };
	char answer[64];

	if (sendto(poller.fd, "+", 1, 0, (struct sockaddr *)&address, sizeof(address)) < 0)
		die("send: %s", strerror(errno));
	if (poll(&poller, 1, (int)patience_ms) <= 0)
		die("no answer from port %d in %u ms", port, patience_ms);

	ssize_t n = recv(poller.fd, answer, sizeof(answer) - 1, 0);
	if (n <= 0)
		die("receive: %s", strerror(errno));
	answer[n] = '\0';
	fputs(answer, stdout);
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1, .busy_ms = 5000 };

	options_parse(&options, argc, argv, usage);
	if (options.word && !strcmp(options.word, "ask"))
		return ask(options.port, options.busy_ms);
	if (options.word && !strcmp(options.word, "serve"))
		serve(options.port);
	fprintf(stderr, "usage: %s\n", usage);
	return 2;
}
