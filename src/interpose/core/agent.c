// SPDX-License-Identifier: MIT
/*
 * The agent: one thread that listens on a socket in the job's directory and serves whoever is root or
 * the job's own user, one connection at a time. At rest it is blocked and its socket is all that we
 * have open in the process. A program that closes the socket ends the agent, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"
#include "base/thread.h"
#include "interpose/core/agent.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/core/snapshot.h"

/* Out of the way of programs that count on low numbers or walk through them. */
enum { LISTEN_FD_MIN = 500, STACK_BYTES = 1 << 20, JOB_DIGITS = 8 };

/* How the kernel calls users that a user namespace has no number for (user_namespaces(7)), unless somebody changed it. */
enum { OVERFLOW_UID = 65534 };

static atomic_int owner;   /* the process the agent belongs to */
static atomic_int settled; /* the process whose agent_start() is through */
static atomic_uint life;   /* enum agent_life */
static atomic_bool managed;
static int listen_fd = -1;
static atomic_int served_fd = -1; /* the connection being served; for a fork's child to close */
static uint64_t token;		  /* names this process, also after it was restored */
static struct sockaddr_un address;

uint64_t agent_token(void)
{
	return token;
}

bool memory_managed(void)
{
	return atomic_load_explicit(&managed, memory_order_acquire);
}

void agent_set_life(enum agent_life now)
{
	atomic_store(&life, now);
}

enum agent_life agent_life(void)
{
	return (enum agent_life)atomic_load(&life);
}

/* The program may have closed our descriptor, and its number may be another file by now. */
static bool is_still_ours(void)
{
	struct sockaddr_un at = { 0 };
	socklen_t len = sizeof(at);

	return !getsockname(listen_fd, (struct sockaddr *)&at, &len) && at.sun_family == AF_UNIX &&
	       !strncmp(at.sun_path, address.sun_path, sizeof(at.sun_path));
}

/* Whether @n received bytes are a request, as far as its own length goes. */
static bool is_request(const struct agent_request *request, ssize_t n)
{
	size_t head = offsetof(struct agent_request, ids);

	return n >= (ssize_t)head && request->n <= AGENT_PIECES_MAX &&
	       (size_t)n >= head + request->n * sizeof(request->ids[0]);
}

enum outcome { HUNG_UP, SERVED, DETACHED };

static enum outcome serve_request(int fd, bool *ret_neighbour)
{
	struct agent_request request = { 0 };
	struct agent_job job = { .request = &request };
	struct agent_reply reply;
	struct packet_fds came = { job.fds, AGENT_PIECES_MAX };
	ssize_t n = packet_receive(fd, &request, sizeof(request), &came, DEADLINE_NEVER);
	bool sound = came.state == PACKET_WHOLE && is_request(&request, n);
	ssize_t sent = -EPIPE;

	job.n_fds = came.n;
	/* Only these take descriptors; the others may have some to give. */
	bool takes = request.op == AGENT_MAP || request.op == AGENT_GATE;

	if (!sound || !takes) {
		packet_close_fds(job.fds, job.n_fds);
		job.n_fds = 0;
	}
	if (!sound)
		return HUNG_UP;
	*ret_neighbour = request.op == AGENT_LEND || request.op == AGENT_TAKE_BACK;
	do {
		memset(&reply, 0, sizeof(reply));
		reply.version = AGENT_VERSION;
		agent_run(&job, &reply);
		sent = packet_send(fd, &reply, sizeof(reply), job.fds,
				   takes || reply.error ? 0 : job.n_fds,
				   DEADLINE_NEVER);
	} while (sent >= 0 && reply.more);
	packet_close_fds(job.fds, job.n_fds);
	/* A neighbour that its gate holds back would hang up late: it asks once. */
	if (sent < 0 || *ret_neighbour)
		return HUNG_UP;
	return request.op == AGENT_DETACH ? DETACHED : SERVED;
}

static void serve_connection(int fd)
{
	enum outcome outcome;
	bool neighbour = false;

	do
		outcome = serve_request(fd, &neighbour);
	while (outcome == SERVED);
	if (outcome == HUNG_UP && !neighbour)
		agent_hung_up();
}

/* Who has no number here comes from outside of our user namespace and our pid namespace: to open a socket of ours all the same
 * takes the rights of root there. */
static bool is_from_outside(const struct ucred *peer)
{
	return peer->uid == OVERFLOW_UID && peer->pid == 0;
}

static bool may_ask(int fd)
{
	struct ucred peer;

	return fd_peer(fd, &peer) == 0 &&
	       (peer.uid == 0 || peer.uid == geteuid() || is_from_outside(&peer));
}

/* Whether accepting may go well the next time. Somebody waits, while the program has no descriptor left:
 * that is looked at again now and then, since nothing tells when it has. */
static bool accept_may_pass(int error)
{
	const struct timespec pause = { .tv_nsec = 50 * NS_PER_MS };

	if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
		nanosleep(&pause, NULL);
		return true;
	}
	return error == EINTR || error == ECONNABORTED;
}

/* Who makes the file looks for agents afterwards, and who listens looks for the file: one sees the other. */
static bool job_is_held(void)
{
	char path[sizeof(address.sun_path) + sizeof(AGENT_HOLD_FILE)];
	size_t dir = (size_t)(strrchr(address.sun_path, '/') - address.sun_path);

	snprintf(path, sizeof(path), "%.*s/%s", (int)dir, address.sun_path, AGENT_HOLD_FILE);
	return !access(path, F_OK);
}

static void *agent_thread(void *arg)
{
	prctl(PR_SET_NAME, AGENT_THREAD_NAME);
	gate_exempt();
	if (!job_is_held())
		gate_open();
	while (is_still_ours()) {
		auto_close int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && !accept_may_pass(errno))
			break;
		atomic_store(&served_fd, fd);
		if (fd >= 0 && may_ask(fd))
			serve_connection(fd);
		atomic_store(&served_fd, -1);
	}
	return NULL;
}

/* The highest number there may be is below LISTEN_FD_MIN in tight places. */
static int move_high(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, LISTEN_FD_MIN);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int address_of(struct sockaddr_un *ret, const char *dir, int pid)
{
	int n;

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/%d", dir, pid);
	return n < 0 || (size_t)n >= sizeof(ret->sun_path) ? -ENAMETOOLONG : 0;
}

/* Directories of agents are named by the ids of their jobs, hexadecimal, and lie beside each other. */
uint32_t neighbour_here(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE), *slash = dir ? strrchr(dir, '/') : NULL;
	char *end;
	unsigned long id = slash ? strtoul(slash + 1, &end, 16) : 0;

	return slash && end - slash - 1 == JOB_DIGITS && !*end ? (uint32_t)id : 0;
}

int neighbour_connect(uint32_t there, int pid)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	char beside[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	struct sockaddr_un at;
	auto_close int fd = -1;

	if (!dir)
		return -ENOENT;
	if (there != neighbour_here()) {
		const char *slash = strrchr(dir, '/');
		int n = slash ? snprintf(beside, sizeof(beside), "%.*s/%0*x", (int)(slash - dir),
					 dir, JOB_DIGITS, there)
			      : -1;

		if (n < 0 || (size_t)n >= sizeof(beside))
			return -ENOENT;
		dir = beside;
	}
	if (address_of(&at, dir, pid) < 0)
		return -ENOENT;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		return -errno;
	return take_fd(&fd);
}

static int listen_at(const char *dir)
{
	auto_close int fd = -1;

	if (address_of(&address, dir, (int)getpid()) < 0)
		return -ENAMETOOLONG;
	if (getrandom(&token, sizeof(token), GRND_NONBLOCK) != sizeof(token))
		return -EAGAIN;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	/* The mode of the socket is that of the file to be: nobody else gets in before a chmod. */
	if (fd < 0 || fchmod(fd, AGENT_MODE_WITH_ROOM) < 0)
		return -errno;
	fd = move_high(take_fd(&fd));
	unlink(address.sun_path);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
		return -errno;
	listen_fd = take_fd(&fd);
	return 0;
}

/* The gate is closed before anybody can find the agent, which opens it. */
static int start_thread(const char *dir)
{
	int r;

	gate_hold();
	r = listen_at(dir);
	if (r < 0)
		return r;
	atomic_store_explicit(&managed, true, memory_order_release);
	r = thread_start_detached(agent_thread, NULL, STACK_BYTES);
	if (r < 0) {
		atomic_store(&managed, false);
		unlink(address.sun_path);
		close(listen_fd);
	}
	return r;
}

void agent_start(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	int nobody = 0, saved = errno, self = (int)getpid();

	if (!dir || !*dir)
		return;
	if (atomic_compare_exchange_strong(&owner, &nobody, self)) {
		atomic_store(&life, AGENT_LIFE_STARTING);
		if (start_thread(dir) < 0)
			gate_open();
		atomic_store(&settled, self);
	}
	while (atomic_load(&settled) != self)
		sched_yield(); /* a moment: who starts it waits for nothing */
	errno = saved;
}

void agent_forget(void)
{
	int conn = atomic_exchange(&served_fd, -1);

	if (listen_fd >= 0 && is_still_ours())
		close(listen_fd);
	listen_fd = -1;
	if (conn >= 0)
		close(conn);
	snapshot_forget();
	atomic_store(&managed, false);
	atomic_store(&life, AGENT_LIFE_READY);
	atomic_store(&owner, 0);
	atomic_store(&settled, 0);
}
