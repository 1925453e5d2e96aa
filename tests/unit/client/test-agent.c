// SPDX-License-Identifier: MIT
/* The client of agents against one that says what it likes: right answers in parts, refusals, answers
 * that make no sense, and none at all. The agent is a thread of this process. */
#include "client/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "check.h"

enum { PIECES = 100 };

static char dir[] = "/tmp/brumate-agent-XXXXXX";

enum mood {
	GOOD,
	REFUSES,
	DOUBLES,
	TRUNCATES,
	WRONG_VERSION,
	WITHHOLDS,
	HANGS_UP,
	ENDLESS,
	SILENT
};
static _Atomic enum mood mood;
static int listen_fd;
static _Atomic int memory_fd;
static const char *_Atomic given_path; /* of a file that is given instead of that; NULL: none */
static _Thread_local int lack;	       /* what the next answer cannot be received for */

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	if (!lack)
		return syscall(SYS_recvmsg, fd, m, flags);
	errno = lack;
	lack = 0;
	return -1;
}

static void describe(struct agent_reply *reply, uint64_t from)
{
	uint64_t last = mood == ENDLESS ? UINT64_MAX : PIECES;

	for (uint64_t id = from; id <= last && reply->n < AGENT_PIECES_MAX; id++)
		reply->pieces[reply->n++] = (struct agent_piece){ .id = mood == DOUBLES ? 1 : id,
								  .va = id << 21 & INT64_MAX,
								  .len_bytes = 1 << 21 };
	reply->more = from + reply->n <= last;
}

static void send_reply(int fd, const struct agent_reply *reply, size_t n_fds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(AGENT_PIECES_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)reply,
			     mood == TRUNCATES && reply->n ? sizeof(*reply) - 8 : sizeof(*reply) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds) {
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		*c = (struct cmsghdr){ CMSG_LEN(n_fds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		const int given = memory_fd;
		for (size_t i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &given, sizeof(int));
	}
	/* A client that has seen enough is gone. */
	CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) > 0 || errno == EPIPE || errno == ECONNRESET);
}

/* A child does it, with nothing but the connection: the file is not to be open in the client as well. It ends when that has
 * hung up. */
static void give_from_child(int fd, const struct agent_reply *reply, size_t n_fds)
{
	char byte;

	if (fork() != 0)
		return;
	dup2(fd, 0);
	syscall(SYS_close_range, 1, ~0u, 0);
	memory_fd = open(given_path, O_RDWR | O_CLOEXEC);
	if (memory_fd >= 0)
		send_reply(0, reply, n_fds);
	recv(0, &byte, 1, 0);
	_exit(0);
}

static bool is_gone(int fd)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, 0) > 0;
}

static void answer(int fd, const struct agent_request *request)
{
	struct agent_reply reply = { .version = AGENT_VERSION, .gate = AGENT_GATE_CLOSED };
	size_t n_fds = request->op == AGENT_EXPORT ? request->n : 0;
	uint64_t next = 1;

	if (request->op == AGENT_HELLO)
		reply.managed_bytes = 4711;
	if (mood == WRONG_VERSION)
		reply.version++;
	if (mood == REFUSES && request->op != AGENT_HELLO) {
		reply.error = -EOPNOTSUPP;
		reply.result = 801;
		snprintf(reply.text, sizeof(reply.text), "memory is shared");
		n_fds = 0;
	}
	if (mood == WITHHOLDS && n_fds)
		n_fds--;
	if (given_path && n_fds) {
		give_from_child(fd, &reply, n_fds);
		return;
	}
	if (request->op != AGENT_LIST || reply.error) {
		send_reply(fd, &reply, n_fds);
		return;
	}
	do {
		reply.n = 0;
		describe(&reply, next);
		next += reply.n;
		send_reply(fd, &reply, 0);
	} while (reply.more && mood != TRUNCATES && !is_gone(fd));
}

static void *serve(void *arg)
{
	struct agent_request request;
	int fd;

	(void)arg;
	while ((fd = accept(listen_fd, NULL, NULL)) >= 0) {
		while (recv(fd, &request, sizeof(request), 0) == sizeof(request)) {
			CHECK(request.version == AGENT_VERSION);
			if (mood == HANGS_UP && request.op != AGENT_HELLO)
				break;
			if (mood != SILENT || request.op == AGENT_HELLO)
				answer(fd, &request);
		}
		close(fd);
	}
	return NULL;
}

static void listen_there(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%d", dir, getpid());
	CHECK(listen_fd >= 0 && !bind(listen_fd, (struct sockaddr *)&address, sizeof(address)) &&
	      !listen(listen_fd, 8));
}

static struct agent met(enum mood m)
{
	struct agent a = AGENT_EMPTY;
	struct proc_id self;

	mood = m;
	CHECK(proc_identify(&self, getpid(), NULL) == 0);
	CHECK(agent_open(&a, dir, self, NULL) == 0);
	CHECK(a.managed_bytes == 4711 && a.gate == AGENT_GATE_CLOSED);
	return a;
}

static void good_answers(void)
{
	auto_(agent_close) struct agent a = met(GOOD);
	auto_free struct agent_piece *pieces = NULL;
	uint64_t ids[PIECES];
	int fds[PIECES];
	size_t n = 0;

	CHECK(agent_gate(&a, 100, -1, 0, NULL) == 0);
	CHECK(agent_list(&a, &pieces, &n, NULL) == 0 && n == PIECES);
	for (size_t i = 0; i < n; i++) {
		CHECK(pieces[i].id == i + 1);
		ids[i] = pieces[i].id;
	}
	CHECK(agent_export(&a, ids, n, fds, NULL) == 0);
	CHECK(agent_unmap(&a, NULL) == 0 && agent_map(&a, ids, fds, n, NULL) == 0);
	for (size_t i = 0; i < n; i++)
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC && !close(fds[i]));
	CHECK(agent_own(&a, false, &n, NULL) == 0 && n == 0 && agent_open_gate(&a, NULL) == 0);
	agent_detach(&a);
	CHECK(a.fd < 0);
}

static void refusals(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(agent_close) struct agent a = met(REFUSES);

	CHECK(agent_gate(&a, 100, -1, 0, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "memory is shared") && strstr(err.text, "801"));
	CHECK(a.fd >= 0); /* it is still in step */
}

static void expect_nonsense(enum mood m, int want)
{
	auto_(agent_close) struct agent a = met(m);
	struct agent_piece *pieces = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	size_t n = 0;

	CHECK(agent_list(&a, &pieces, &n, &err) == want && !pieces && !n && err.text[0]);
}

static void too_few_fds(void)
{
	auto_(agent_close) struct agent a = met(WITHHOLDS);
	const uint64_t ids[2] = { 1, 2 };
	int fds[2] = { -1, -1 };

	CHECK(agent_export(&a, ids, 2, fds, NULL) == -EBADMSG);
	CHECK(fds[0] == -1 && a.fd < 0);
}

/* That it is us who cannot receive it does not make the agent gone. */
static void an_answer_that_cannot_be_received(void)
{
	auto_(agent_close) struct agent a = met(GOOD);
	struct brumate_error err = BRUMATE_ERROR_NONE;

	lack = ENOMEM;
	CHECK(agent_gate(&a, 100, -1, 0, &err) == -ENOMEM && !strstr(err.text, "gone"));
	CHECK(a.fd < 0);
}

/* Whoever has left a question open is not waited for a second time, over whatever connection. */
static void no_answer_twice(void)
{
	auto_(agent_close) struct agent a = met(SILENT), again = AGENT_EMPTY;
	uint64_t start_ns = clock_now_ns();

	lack = ETIMEDOUT;
	CHECK(agent_open_gate(&a, NULL) == -ETIMEDOUT && a.fd < 0);
	again = met(SILENT);
	again.was_silent = a.was_silent;
	CHECK(agent_open_gate(&again, NULL) == -ETIMEDOUT);
	CHECK(clock_since_s(start_ns) < AGENT_CALL_TIMEOUT_MS / 2000.0);
}

static void no_room_for_fds(void)
{
	auto_(agent_close) struct agent a = met(GOOD);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const uint64_t ids[2] = { 1, 2 };
	int fds[2] = { -1, -1 }, next = dup(0);
	struct rlimit limit;

	CHECK(!close(next) && !getrlimit(RLIMIT_NOFILE, &limit));
	const struct rlimit tight = { (rlim_t)next + 1, limit.rlim_max };
	CHECK(!setrlimit(RLIMIT_NOFILE, &tight));
	CHECK(agent_export(&a, ids, 2, fds, &err) == -EMFILE && fds[0] == -1 && a.fd < 0);
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	CHECK(fcntl(next, F_GETFD) < 0 &&
	      errno == EBADF); /* the one for which there was room is closed */
}

/* ---- files that are no device memory ---- */

/* What the agent of a job gives; of a simulated driver, files of a disk are device memory as well. */
static void expect_given(int fd, bool simulated, int r)
{
	auto_(agent_close) struct agent a = met(GOOD);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const uint64_t ids[1] = { 1 };
	const int before = memory_fd;
	int given = -1;

	CHECK(fd >= 0);
	a.simulated = simulated;
	memory_fd = fd;
	CHECK(agent_export(&a, ids, 1, &given, &err) == r && (given >= 0) == (r == 0));
	CHECK(r == 0 || strstr(err.text, "neither memory nor a device"));
	memory_fd = before;
	if (given >= 0)
		close(given);
}

static void only_memory_is_taken(void)
{
	auto_free char *path = path_format("%s/file", dir);
	int pair[2], pipes[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	const int fds[] = { pair[0],
			    pair[1],
			    pipes[0],
			    pipes[1],
			    open("/dev/null", O_RDWR | O_CLOEXEC),
			    open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
			    open("/", O_PATH | O_CLOEXEC) };

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		expect_given(fds[i], false, -EBADMSG);
		expect_given(fds[i], true, -EBADMSG);
		close(fds[i]);
	}
	expect_given(memory_fd, false, 0);
	expect_given(memory_fd, true, 0);
	int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct statfs fs;

	CHECK(file >= 0 && fstatfs(file, &fs) == 0);
	expect_given(file, true, 0);
	expect_given(file, false, fs.f_type == TMPFS_MAGIC ? 0 : -EBADMSG);
	close(file);
	CHECK(unlink(path) == 0);
}

/* ---- a file system that does not answer when a file of it is closed ---- */

static int fuse_fd;
static _Atomic int n_flushes;

/* Knows one file. */
static size_t fuse_answer(const struct fuse_in_header *in, void *out)
{
	struct fuse_entry_out *entry = out;
	struct fuse_attr_out *attr = out;

	switch (in->opcode) {
	case FUSE_INIT:
		*(struct fuse_init_out *)out = (struct fuse_init_out){ .major = 7, .minor = 31 };
		return sizeof(struct fuse_init_out);
	case FUSE_LOOKUP:
		*entry = (struct fuse_entry_out){ .nodeid = 2 };
		entry->attr = (struct fuse_attr){ .ino = 2, .mode = S_IFREG | 0600, .nlink = 1 };
		return sizeof(*entry);
	case FUSE_GETATTR:
		*attr = (struct fuse_attr_out){ .attr_valid = 1 };
		attr->attr = (struct fuse_attr){ .ino = 1, .mode = S_IFDIR | 0700, .nlink = 2 };
		return sizeof(*attr);
	case FUSE_OPEN:
		return sizeof(struct fuse_open_out);
	case FUSE_STATFS:
		return sizeof(struct fuse_statfs_out);
	default:
		return 0;
	}
}

static void *serve_files(void *arg)
{
	struct {
		struct fuse_in_header in;
		char rest[FUSE_MIN_READ_BUFFER];
	} request;
	struct {
		struct fuse_out_header head;
		_Alignas(8) char body[256];
	} reply;

	while (read(fuse_fd, &request, sizeof(request)) > 0) {
		n_flushes += request.in.opcode == FUSE_FLUSH;
		if (request.in.opcode == FUSE_FLUSH || request.in.opcode == FUSE_FORGET)
			continue;
		memset(&reply, 0, sizeof(reply));
		reply.head.len =
			(uint32_t)(sizeof(reply.head) + fuse_answer(&request.in, reply.body));
		reply.head.unique = request.in.unique;
		CHECK(write(fuse_fd, &reply, reply.head.len) > 0 || errno == ENOENT ||
		      errno == ENODEV);
	}
	return arg;
}

/* Returns false where this machine lets us have no such file system. */
static bool mount_fuse(const char *at)
{
	char options[96];

	fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	return fuse_fd >= 0 && unshare(CLONE_NEWNS) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(at, 0700) == 0 &&
	       mount("test", at, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
}

static void a_file_whose_close_hangs(void)
{
	auto_(agent_close) struct agent a = met(GOOD);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const uint64_t ids[2] = { 1, 2 };
	int fds[2] = { -1, -1 };
	char at[64], path[96];
	pthread_t thread;

	snprintf(at, sizeof(at), "%s/fuse", dir);
	/* The agent's thread does not see what this one has mounted. */
	snprintf(path, sizeof(path), "/proc/%d/root%s/file", (int)getpid(), at);
	if (!mount_fuse(at)) {
		puts("not tried: a file whose close hangs; no FUSE can be mounted here");
		return;
	}
	CHECK(pthread_create(&thread, NULL, serve_files, NULL) == 0);
	given_path = path;
	CHECK(agent_export(&a, ids, 2, fds, &err) == -EBADMSG && fds[0] == -1 && a.fd < 0);
	CHECK(strstr(err.text, "neither memory nor a device"));
	while (n_flushes < 2) /* of who gave it, and of who looked at it */
		usleep(1000);
	CHECK(umount2(at, MNT_FORCE) == 0 || umount2(at, MNT_DETACH) == 0);
	pthread_join(thread, NULL);
	while (wait(NULL) > 0) /* nobody is left who waits for it */
		;
	close(fuse_fd);
	given_path = NULL;
}

static void nobody_or_somebody_else(void)
{
	struct agent a = AGENT_EMPTY;
	struct proc_id self, parent;

	CHECK(proc_identify(&self, getpid(), NULL) == 0);
	CHECK(agent_open(&a, "/nowhere", self, NULL) == -ENOENT);
	mood = WRONG_VERSION;
	CHECK(agent_open(&a, dir, self, NULL) == -EPROTONOSUPPORT);
	/* The socket of another process, which is served by us. */
	if (proc_identify(&parent, getppid(), NULL) < 0)
		return;
	char from[64], to[64];
	snprintf(from, sizeof(from), "%s/%d", dir, getpid());
	snprintf(to, sizeof(to), "%s/%d", dir, getppid());
	CHECK(link(from, to) == 0);
	CHECK(agent_open(&a, dir, parent, NULL) == -EPERM && a.fd < 0);
}

int main(void)
{
	pthread_t thread;

	memory_fd = memfd_create("piece", MFD_CLOEXEC);
	CHECK(memory_fd >= 0 && mkdtemp(dir));
	listen_there();
	CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
	good_answers();
	refusals();
	expect_nonsense(DOUBLES, -EBADMSG);
	expect_nonsense(TRUNCATES, -EBADMSG);
	expect_nonsense(HANGS_UP, -EPIPE);
	expect_nonsense(ENDLESS, -EBADMSG);
	too_few_fds();
	an_answer_that_cannot_be_received();
	no_answer_twice();
	no_room_for_fds();
	only_memory_is_taken();
	a_file_whose_close_hangs();
	nobody_or_somebody_else();
	shutdown(listen_fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
