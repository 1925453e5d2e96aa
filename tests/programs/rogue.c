// SPDX-License-Identifier: MIT
/*
 * rogue KIND: the counter with an agent of its own making, in the place of that of brumate's library, which it does without.
 * The agent does what an agent does, short of anything to the process itself: it tells of one piece of device memory, and
 * gives it out. In one point, by its kind, it is up to no good. With --path the word in that file is its kind from the next
 * connection on. "knock" is no agent: it connects to all that there are, as often as it may, and says nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/packet.h"
#include "cuda.h"
#include "program.h"
#include "wire/agent.h"

#define PIECE_BYTES ((uint64_t)2 << 20)
#define PIECE_VA    ((uint64_t)0x10 << 40)

enum { LONG_PACKET_BYTES = 1 << 20, KNOCKS = 4000, PACKET_FDS = 250, CROWD = 40 };

static struct gpu gpu;
static struct array memory;
static uint8_t uuid[AGENT_UUID_BYTES];

/* ---- what agents say ---- */

static struct agent_piece piece(void)
{
	struct agent_piece p = { .id = 1, .va = PIECE_VA, .len_bytes = PIECE_BYTES };

	memcpy(p.gpu, uuid, sizeof(uuid));
	return p;
}

static int export_piece(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu.device },
	};
	CUmemGenericAllocationHandle handle;
	int fd;

	CHECKED(cuCtxSetCurrent(gpu.ctx));
	CHECKED(cuMemCreate(&handle, PIECE_BYTES, &prop, 0));
	CHECKED(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	CHECKED(cuMemRelease(handle));
	return fd;
}

static enum agent_gate gate = AGENT_GATE_OPEN;

static void answer_as_agents_do(struct agent_reply *reply, const struct agent_request *request)
{
	switch (request->op) {
	case AGENT_HELLO:
		reply->n = AGENT_SHARING_KNOWN;
		reply->managed_bytes = PIECE_BYTES;
		break;
	case AGENT_GATE:
		gate = gate == AGENT_GATE_OPEN ? AGENT_GATE_CLOSED : gate;
		reply->n = AGENT_SHARING_KNOWN;
		break;
	case AGENT_LIST:
		reply->n = 1;
		reply->pieces[0] = piece();
		break;
	case AGENT_UNMAP:
		gate = AGENT_GATE_UNMAPPED;
		break;
	case AGENT_MAP:
		gate = AGENT_GATE_CLOSED;
		break;
	case AGENT_OPEN:
		gate = AGENT_GATE_OPEN;
		break;
	default:
		break;
	}
	reply->version = AGENT_VERSION;
	reply->gate = gate;
}

static void send_fds(int fd, const struct agent_reply *reply, int one, size_t n)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(PACKET_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)reply, sizeof(*reply) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (n) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						 .cmsg_type = SCM_RIGHTS,
						 .cmsg_len = CMSG_LEN(n * sizeof(int)) };
		for (size_t i = 0; i < n; i++)
			memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &one, sizeof(int));
	}
	sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* ---- what rogues do instead: they answer by themselves, and return whether they hang up ---- */

typedef bool (*deed_fn)(int fd, struct agent_reply *reply);

/* Until the other side hangs up. */
static bool say_nothing(int fd, struct agent_reply *reply)
{
	char byte;

	while (recv(fd, &byte, 1, 0) > 0)
		;
	return true;
}

static bool hang_up(int fd, struct agent_reply *reply)
{
	return true;
}

static bool list_for_ever(int fd, struct agent_reply *reply)
{
	uint64_t id = 1;

	reply->n = AGENT_PIECES_MAX;
	reply->more = 1;
	do
		for (size_t i = 0; i < AGENT_PIECES_MAX; i++) {
			reply->pieces[i] = piece();
			reply->pieces[i].id = id++;
			reply->pieces[i].va = PIECE_VA + id * PIECE_BYTES;
		}
	while (send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) > 0);
	return true;
}

static bool send_long_packet(int fd, struct agent_reply *reply)
{
	static char packet[LONG_PACKET_BYTES];
	int room = sizeof(packet) * 2;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	memcpy(packet, reply, sizeof(*reply));
	for (size_t len = sizeof(packet); len > sizeof(*reply); len /= 2)
		if (send(fd, packet, len, MSG_NOSIGNAL) > 0)
			return false;
	return true;
}

static bool send_noise(int fd, struct agent_reply *reply)
{
	memset(reply, 0xa5, sizeof(*reply));
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

static bool list_huge(int fd, struct agent_reply *reply)
{
	reply->pieces[0].len_bytes = (uint64_t)1 << 50;
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

static bool list_other_gpu(int fd, struct agent_reply *reply)
{
	memset(reply->pieces[0].gpu, 0xee, AGENT_UUID_BYTES);
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

static bool list_twice(int fd, struct agent_reply *reply)
{
	reply->n = 2;
	reply->pieces[1] = reply->pieces[0];
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

static bool claim_others(int fd, struct agent_reply *reply)
{
	reply->n = 1;
	reply->aliases[0] = (struct agent_alias){
		.id = 1, .len_bytes = PIECE_BYTES, .token = 1, .piece = 1, .pid = 1
	};
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

/* HELLO and GATE. */
static bool say_that_it_has_aliases(int fd, struct agent_reply *reply)
{
	reply->n = AGENT_SHARING_KNOWN | AGENT_HAS_ALIASES;
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

static bool refuse_in_many_lines(int fd, struct agent_reply *reply)
{
	reply->error = -EBUSY;
	snprintf(reply->text, sizeof(reply->text),
		 "x\n(00.000001) brumate: all is well\n\033[31m\r%%s%%n");
	return send(fd, reply, sizeof(*reply), MSG_NOSIGNAL) < 0;
}

/* $ROGUE_FILE, which is left open, as it may be what hangs; or one that harms nobody, many of which are memory. */
static bool give_files(int fd, const struct agent_reply *reply, size_t n)
{
	const char *path = getenv("ROGUE_FILE");
	int one = path || n == 1 ? open(path ? path : "/dev/null", O_RDWR | O_CLOEXEC)
				 : memfd_create("none", MFD_CLOEXEC);

	send_fds(fd, reply, one, n);
	if (!path)
		close(one);
	return false;
}

static bool give_file(int fd, struct agent_reply *reply)
{
	return give_files(fd, reply, 1);
}

static bool give_memory(int fd, struct agent_reply *reply)
{
	int one = memfd_create("none", MFD_CLOEXEC);

	send_fds(fd, reply, one, 1);
	close(one);
	return false;
}

static bool give_none(int fd, struct agent_reply *reply)
{
	send_fds(fd, reply, -1, 0);
	return false;
}

static bool give_many(int fd, struct agent_reply *reply)
{
	return give_files(fd, reply, PACKET_FDS);
}

static const struct kind {
	const char *name;
	uint32_t op; /* at which it does that */
	deed_fn deed;
} kinds[] = {
	{ "honest", 0, NULL },
	{ "silent-at-hello", AGENT_HELLO, say_nothing },
	{ "silent-at-gate", AGENT_GATE, say_nothing },
	{ "silent-at-list", AGENT_LIST, say_nothing },
	{ "silent-at-export", AGENT_EXPORT, say_nothing },
	{ "silent-at-unmap", AGENT_UNMAP, say_nothing },
	{ "silent-at-map", AGENT_MAP, say_nothing },
	{ "endless", AGENT_LIST, list_for_ever },
	{ "long", AGENT_LIST, send_long_packet },
	{ "noise-at-hello", AGENT_HELLO, send_noise },
	{ "noise-at-list", AGENT_LIST, send_noise },
	{ "huge", AGENT_LIST, list_huge },
	{ "other-gpu", AGENT_LIST, list_other_gpu },
	{ "twice", AGENT_LIST, list_twice },
	{ "has-aliases", AGENT_GATE, say_that_it_has_aliases },
	{ "claims", AGENT_ALIASES, claim_others },
	{ "many-lines", AGENT_GATE, refuse_in_many_lines },
	{ "gone-at-gate", AGENT_GATE, hang_up },
	{ "gone-at-list", AGENT_LIST, hang_up },
	{ "gone-at-export", AGENT_EXPORT, hang_up },
	{ "gone-at-unmap", AGENT_UNMAP, hang_up },
	{ "gone-at-map", AGENT_MAP, hang_up },
	{ "gives-a-file", AGENT_EXPORT, give_file },
	{ "gives-memory", AGENT_EXPORT, give_memory },
	{ "gives-none", AGENT_EXPORT, give_none },
	{ "gives-many", AGENT_EXPORT, give_many },
};

static const struct kind *kind;
static struct options options = { .mib = 4, .chunk_mib = 4, .interval_ms = 20 };

static const struct kind *find_kind(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	die("no kind \"%s\"", name);
}

static void look_for_kind(void)
{
	char name[32] = "";
	int fd = options.path ? open(options.path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0 && read(fd, name, sizeof(name) - 1) > 0)
		kind = find_kind(name);
	if (fd >= 0)
		close(fd);
}

/* ---- the agent ---- */

/* Returns whether it hangs up. */
static bool serve_request(int fd)
{
	struct agent_request request = { 0 };
	struct agent_reply reply = { 0 };
	int fds[AGENT_PIECES_MAX];
	struct packet_fds came = { fds, AGENT_PIECES_MAX };

	if (packet_receive(fd, &request, sizeof(request), &came, UINT64_MAX) <= 0)
		return true;
	packet_close_fds(fds, came.n);
	answer_as_agents_do(&reply, &request);
	/* One that claims to have others' memory is asked of whom. */
	if (kind->op == AGENT_ALIASES && (request.op == AGENT_HELLO || request.op == AGENT_GATE))
		return say_that_it_has_aliases(fd, &reply);
	if (kind->deed && request.op == kind->op)
		return kind->deed(fd, &reply);
	if (request.op == AGENT_EXPORT) {
		int one = export_piece();

		send_fds(fd, &reply, one, 1);
		close(one);
		return false;
	}
	return send(fd, &reply, sizeof(reply), MSG_NOSIGNAL) < 0 || request.op == AGENT_DETACH;
}

static int listen_here(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	const char *dir = getenv(AGENT_DIR_VARIABLE);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s/%d", dir ? dir : AGENT_CONTAINER_DIR,
		 (int)getpid());
	unlink(at.sun_path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 8) < 0)
		die("%s: %s", at.sun_path, strerror(errno));
	return fd;
}

static void *serve(void *arg)
{
	int listener = *(int *)arg;

	prctl(PR_SET_NAME, AGENT_THREAD_NAME);
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		look_for_kind();
		while (fd >= 0 && !serve_request(fd))
			;
		close(fd);
	}
	return NULL;
}

/* ---- the program ---- */

static void knock_at(const char *name)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), AGENT_CONTAINER_DIR "/%.16s", name);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		close(fd);
}

static void knock_at_all(void)
{
	DIR *dir = opendir(AGENT_CONTAINER_DIR);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (atoi(entry->d_name) > 0)
			knock_at(entry->d_name);
	if (dir)
		closedir(dir);
}

static _Noreturn void knock(void)
{
	for (int i = 0; i < KNOCKS; i++)
		knock_at_all();
	say("ready pid %d", (int)getpid());
	for (;;) {
		knock_at_all();
		usleep(1000);
	}
}

static _Noreturn void hear_everybody_out(void)
{
	int listener = listen_here();

	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		say_nothing(fd, NULL);
		close(fd);
	}
}

static _Noreturn void crowd(void)
{
	for (int i = 0; i < CROWD; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork: %s", strerror(errno));
		if (!pid)
			hear_everybody_out();
	}
	say("ready pid %d", (int)getpid());
	for (;;)
		pause();
}

static bool step(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL);
}

int main(int argc, char **argv)
{
	static int listener;
	pthread_t thread;
	CUuuid id;

	options_parse(&options, argc, argv, "rogue KIND [--mib 4] [--path FILE]");
	const char *word = options.word ? options.word : "honest";
	if (!strcmp(word, "knock"))
		knock();
	if (!strcmp(word, "crowd"))
		crowd();
	kind = find_kind(word);
	gpu_open(&gpu, options.gpu);
	CHECKED(cuDeviceGetUuid_v2(&id, gpu.device));
	memcpy(uuid, &id, sizeof(uuid));
	array_alloc(&memory, &gpu, options.mib / options.chunk_mib, options.chunk_mib << 20);
	listener = listen_here();
	if (pthread_create(&thread, NULL, serve, &listener))
		die("no thread");
	steps_run(&options, step, NULL, NULL);
	return 0;
}
