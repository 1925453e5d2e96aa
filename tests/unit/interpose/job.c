// SPDX-License-Identifier: MIT
/* A job and the other end of its agent. */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"

static char machine[64];
static pid_t owner;

static void remove_machine(void)
{
	if (getpid() == owner)
		remove_tree(AT_FDCWD, machine);
}

void job_prepare(const char *vram_mib)
{
	char dir[96];

	owner = getpid();
	snprintf(machine, sizeof(machine), "/dev/shm/brumate-test-%d", owner);
	snprintf(dir, sizeof(dir), "%s/agent", machine);
	remove_tree(AT_FDCWD, machine);
	CHECK(mkdir_parents(dir, 0700) == 0);
	atexit(remove_machine);
	setenv("BRUMATE_SIM_DIR", machine, 1);
	setenv("BRUMATE_SIM_VRAM_MIB", vram_mib, 1);
	setenv(AGENT_DIR_VARIABLE, dir, 1);
}

CUcontext job_enter(void)
{
	CUcontext ctx;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	CHECK(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	return ctx;
}

CUcontext job_start(const char *vram_mib)
{
	job_prepare(vram_mib);
	return job_enter();
}

int agent_connect(void)
{
	return agent_connect_to(getpid());
}

int agent_connect_to(pid_t pid)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s/agent/%d", machine, pid);
	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	return fd;
}

static void send_request(int conn, const struct agent_request *request, const int *fds, size_t n)
{
	char control[CMSG_SPACE(sizeof(int) * AGENT_PIECES_MAX)] = { 0 };
	struct iovec iov = { (void *)request, sizeof(*request) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n);

		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
	}
	CHECK(sendmsg(conn, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*request));
}

static size_t receive_reply(int conn, struct agent_reply *reply, int *fds)
{
	char control[CMSG_SPACE(sizeof(int) * AGENT_PIECES_MAX)];
	struct iovec iov = { reply, sizeof(*reply) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	size_t n = 0;

	CHECK(recvmsg(conn, &msg, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof(*reply));
	CHECK(!(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
	CHECK(reply->version == AGENT_VERSION);
	c = CMSG_FIRSTHDR(&msg);
	if (c) {
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), n * sizeof(int));
	}
	return n;
}

void agent_send(int conn, struct agent_request *request)
{
	request->version = AGENT_VERSION;
	send_request(conn, request, NULL, 0);
}

int agent_ask(int conn, struct agent_request *request, struct agent_reply *reply, int *fds,
	      size_t n_fds)
{
	request->version = AGENT_VERSION;
	send_request(conn, request, fds, request->op == AGENT_MAP ? n_fds : 0);

	size_t n = receive_reply(conn, reply, fds);

	CHECK(n == (request->op == AGENT_EXPORT && !reply->error ? n_fds : 0));
	return reply->error;
}

int agent_do(int conn, enum agent_op op, struct agent_reply *reply)
{
	struct agent_request request = { .op = op };

	return agent_ask(conn, &request, reply, NULL, 0);
}

int agent_gate(int conn, struct agent_reply *reply)
{
	struct agent_request request = { .op = AGENT_GATE, .timeout_ms = 5000 };

	return agent_ask(conn, &request, reply, NULL, 0);
}

struct agent_piece *agent_list(int conn, size_t *ret_n)
{
	struct agent_request request = { .version = AGENT_VERSION, .op = AGENT_LIST };
	struct agent_piece *pieces = NULL;
	struct agent_reply reply;
	size_t n = 0;

	send_request(conn, &request, NULL, 0);
	do {
		CHECK(receive_reply(conn, &reply, NULL) == 0);
		CHECK(reply.error == 0);
		pieces = realloc(pieces, (n + reply.n + 1) * sizeof(*pieces));
		CHECK(pieces);
		memcpy(pieces + n, reply.pieces, reply.n * sizeof(*pieces));
		n += reply.n;
	} while (reply.more);
	*ret_n = n;
	return pieces;
}

static void in_portions(int conn, enum agent_op op, const struct parked *parked)
{
	for (size_t i = 0; i < parked->n; i += AGENT_PIECES_MAX) {
		size_t left = parked->n - i, n = left < AGENT_PIECES_MAX ? left : AGENT_PIECES_MAX;
		struct agent_request request = { .op = op, .n = (uint32_t)n };
		struct agent_reply reply;

		for (size_t k = 0; k < n; k++)
			request.ids[k] = parked->pieces[i + k].id;
		if (agent_ask(conn, &request, &reply, parked->fds + i, n) < 0)
			fprintf(stderr, "%s: %d\n", reply.text, reply.result);
		CHECK(reply.error == 0);
	}
}

struct parked agent_park(int conn)
{
	struct parked parked = { 0 };
	struct agent_reply reply;

	if (agent_gate(conn, &reply) < 0)
		fprintf(stderr, "%s\n", reply.text);
	CHECK(reply.error == 0);
	CHECK(reply.gate == AGENT_GATE_CLOSED);
	parked.pieces = agent_list(conn, &parked.n);
	parked.fds = calloc(parked.n + 1, sizeof(int));
	CHECK(parked.fds);
	in_portions(conn, AGENT_EXPORT, &parked);
	CHECK(agent_do(conn, AGENT_UNMAP, &reply) == 0);
	CHECK(reply.gate == (parked.n ? AGENT_GATE_UNMAPPED : AGENT_GATE_CLOSED));
	return parked;
}

void agent_map(int conn, const struct parked *parked)
{
	in_portions(conn, AGENT_MAP, parked);
}

void parked_free(struct parked *parked)
{
	for (size_t i = 0; i < parked->n; i++)
		close(parked->fds[i]);
	free(parked->fds);
	free(parked->pieces);
	*parked = (struct parked){ 0 };
}

void agent_unpark(int conn, struct parked *parked)
{
	struct agent_request own = { .op = AGENT_OWN, .n = 1 };
	struct agent_reply reply;

	agent_map(conn, parked);
	CHECK(agent_ask(conn, &own, &reply, NULL, 0) == 0);
	CHECK(reply.n == 0);
	parked_free(parked);
}

void agent_cycle(void)
{
	int conn = agent_connect();
	struct parked parked = agent_park(conn);
	struct agent_reply reply;

	agent_unpark(conn, &parked);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	CHECK(reply.gate == AGENT_GATE_OPEN);
	close(conn);
}

static uint64_t pattern(unsigned int seed, size_t at)
{
	return (at + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)seed << 32;
}

/* Of what is large, both ends: that is where mappings would be mixed up. */
enum { END_BYTES = 1 << 16 };

static void fill_part(CUdeviceptr ptr, size_t bytes, unsigned int seed)
{
	uint64_t host[END_BYTES / 8];

	for (size_t i = 0; i < (bytes + 7) / 8; i++)
		host[i] = pattern(seed, i);
	CHECK(cuMemcpyHtoD_v2(ptr, host, bytes) == CUDA_SUCCESS);
}

static bool holds_part(CUdeviceptr ptr, size_t bytes, unsigned int seed)
{
	uint64_t host[END_BYTES / 8];

	CHECK(cuMemcpyDtoH_v2(host, ptr, bytes) == CUDA_SUCCESS);
	for (size_t i = 0; i < bytes / 8; i++)
		if (host[i] != pattern(seed, i))
			return false;
	return true;
}

void fill(CUdeviceptr ptr, size_t bytes, unsigned int seed)
{
	fill_part(ptr, bytes < END_BYTES ? bytes : END_BYTES, seed);
	if (bytes > END_BYTES)
		fill_part(ptr + bytes - END_BYTES, END_BYTES, ~seed);
}

bool holds(CUdeviceptr ptr, size_t bytes, unsigned int seed)
{
	if (bytes > 2 * END_BYTES)
		return holds_part(ptr, END_BYTES, seed) &&
		       holds_part(ptr + bytes - END_BYTES, END_BYTES, ~seed);
	if (bytes > END_BYTES)
		return holds_part(ptr + bytes - END_BYTES, END_BYTES, ~seed);
	return holds_part(ptr, bytes, seed);
}
