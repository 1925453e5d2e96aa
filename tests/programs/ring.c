// SPDX-License-Identifier: MIT
/*
 * One rank of a ring over several nodes: the word is RANK:N:IP0,IP1,...[:IP:PORT], the last of somebody beside the ring. Each step adds 1 to GPU memory of which every word is checked, sends
 * 64 KiB to the next rank that tell step and place, and reads the same of the one before: a byte that is lost, doubled or of another time shows
 * at once.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { WORDS = 8192, PORT = 7070, RANKS_MAX = 16 };

struct ring {
	struct gpu gpu;
	struct array memory;
	int to_next, from_last;
	int beside; /* a connection over which nothing goes; -1: none */
	unsigned int rank, n_ranks;
	char *ips[RANKS_MAX];
};

static _Noreturn void end(const struct ring *r)
{
	say("rank %u ERR the connection ended: %m", r->rank);
	exit(3);
}

static void send_all(const struct ring *r, const void *from, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = send(r->to_next, (const char *)from + done, len - done, MSG_NOSIGNAL);

		if (n <= 0)
			end(r);
		done += (size_t)n;
	}
}

static void receive_all(const struct ring *r, void *to, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = recv(r->from_last, (char *)to + done, len - done, 0);

		if (n <= 0)
			end(r);
		done += (size_t)n;
	}
}

/* Says how it ended. */
static void look_beside(struct ring *r)
{
	char byte;

	if (r->beside < 0 || (recv(r->beside, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN))
		return;
	say("rank %u beside: %m", r->rank);
	close(r->beside);
	r->beside = -1;
}

static void connect_beside(struct ring *r, const char *ip, unsigned int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	r->beside = socket(AF_INET, SOCK_STREAM, 0);
	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1 ||
	    connect(r->beside, (struct sockaddr *)&a, sizeof(a)) < 0) {
		perror("beside");
		exit(1);
	}
}

static bool step(void *state, uint64_t n)
{
	static uint64_t out[WORDS], in[WORDS];
	struct ring *r = state;

	array_add(&r->memory, NULL);
	look_beside(r);
	for (unsigned int i = 0; i < WORDS; i++)
		out[i] = n * WORDS + i;
	send_all(r, out, sizeof(out));
	receive_all(r, in, sizeof(in));
	return !memcmp(out, in, sizeof(in)) && array_check(&r->memory, NULL);
}

static void prefix(void *state)
{
	const struct ring *r = state;

	printf("rank %u ", r->rank);
}

static struct sockaddr_in address(const struct ring *r, unsigned int rank)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (inet_pton(AF_INET, r->ips[rank % r->n_ranks], &a.sin_addr) != 1)
		exit(2);
	return a;
}

static void connect_all(struct ring *r)
{
	struct sockaddr_in own = address(r, r->rank), next = address(r, r->rank + 1);
	int l = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(l, (struct sockaddr *)&own, sizeof(own)) < 0 || listen(l, 4) < 0) {
		perror("bind");
		exit(1);
	}
	for (;;) { /* until the other rank has started, too, of which nothing tells */
		r->to_next = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(r->to_next, (struct sockaddr *)&next, sizeof(next)) == 0)
			break;
		close(r->to_next);
		usleep(50000);
	}
	r->from_last = accept(l, NULL, NULL);
	close(l);
}

int main(int argc, char **argv)
{
	struct options o = { .mib = 16, .chunk_mib = 16, .interval_ms = 50 };
	static struct ring r = { .beside = -1 };
	char ips[256], ip[64], *save = NULL;
	unsigned int port;

	options_parse(&o, argc, argv, "ring [--mib 16] [--interval-ms 50] RANK:N:IP,...");
	int n = o.word ? sscanf(o.word, "%u:%u:%255[^:]:%63[^:]:%u", &r.rank, &r.n_ranks, ips, ip,
				&port)
		       : 0;
	if ((n != 3 && n != 5) || r.n_ranks > RANKS_MAX)
		return 2;
	for (unsigned int i = 0; i < r.n_ranks; i++)
		if (!(r.ips[i] = strtok_r(i ? NULL : ips, ",", &save)))
			return 2;
	connect_all(&r);
	if (n == 5)
		connect_beside(&r, ip, port);
	gpu_open(&r.gpu, o.gpu);
	array_alloc(&r.memory, &r.gpu, o.mib / o.chunk_mib, o.chunk_mib << 20);
	steps_run(&o, step, prefix, &r);
	return 0;
}
