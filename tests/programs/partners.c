// SPDX-License-Identifier: MIT
/*
 * Processes that share device memory in a ring: each has memory of its own, and that of the next one. The word
 * says how it gets there: "fd" (a descriptor by SCM_RIGHTS, closed at both ends), "pidfd" (a descriptor that its
 * maker keeps open), "ipc" (a legacy handle), or "small" (the same, of a small allocation). With the word "anew" it
 * is passed as by "pidfd", and in each step by another handle, too; "host" is host memory: a memfd that both map and
 * register, and "shm" a file of /dev/shm that has no name any more, as NCCL's. With "event" it is passed as by "ipc", and the
 * reader waits for the writer's event instead of the writer for its work: it opens it for that moment by the handle it got
 * at the beginning, as PyTorch does, or with "event-kept" once for all. With "captured" it is passed as by "ipc", and the
 * word is written by a graph, to memory that the next one lends and another thread opens while both capture, as NCCL does. With "left" all memory was made by processes that
 * have ended. In each step a process
 * adds to a part of either memory and writes a word to that of the next one, by one mapping; that one reads it by
 * its own, and the writer by another mapping. --port is the number of processes, which take the GPUs from --gpu on
 * in turn.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { MEMBERS_MAX = 8, GRANULE = 2 << 20 };

static unsigned int n_members = 2, me;
static int links[MEMBERS_MAX][MEMBERS_MAX]; /* of the row's member, to the column's */

/* Whoever ends is missed by the others only if nobody else has its ends of the links. */
static void close_links_but(unsigned int whose)
{
	for (unsigned int i = 0; i < n_members; i++)
		for (unsigned int k = 0; k < n_members; k++)
			if (i != k && i != whose)
				close(links[i][k]);
}

static void tell(unsigned int whom, const void *what, size_t len)
{
	if (send(links[me][whom], what, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("member %u does not hear", whom);
}

static void hear(unsigned int whom, void *ret, size_t len)
{
	if (recv(links[me][whom], ret, len, MSG_WAITALL) != (ssize_t)len)
		die("member %u does not tell", whom);
}

/* Nobody passes before all have come. */
static void meet(void)
{
	char c = 'x';

	for (unsigned int i = 0; i < n_members; i++)
		if (i != me)
			tell(i, &c, 1);
	for (unsigned int i = 0; i < n_members; i++)
		if (i != me)
			hear(i, &c, 1);
}

/* ---- descriptors ---- */

static void send_fd(unsigned int whom, int fd)
{
	char c = 0, room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec io = { &c, 1 };
	struct msghdr m = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)
	};
	struct cmsghdr *head = CMSG_FIRSTHDR(&m);

	*head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS,
				  .cmsg_len = CMSG_LEN(sizeof(int)) };
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	if (sendmsg(links[me][whom], &m, 0) < 0)
		die("sendmsg: %m");
}

static int receive_fd(unsigned int whom)
{
	char c, room[CMSG_SPACE(sizeof(int))];
	struct iovec io = { &c, 1 };
	struct msghdr m = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)
	};
	int fd;

	if (recvmsg(links[me][whom], &m, MSG_CMSG_CLOEXEC) <= 0 || !CMSG_FIRSTHDR(&m))
		die("recvmsg: %m");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static int take_fd_from(unsigned int whom)
{
	int told[2], pidfd, fd;

	hear(whom, told, sizeof(told));
	pidfd = (int)syscall(SYS_pidfd_open, told[0], 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, told[1], 0);
	if (fd < 0)
		die("pidfd_getfd: %m");
	close(pidfd);
	return fd;
}

/* ---- memory ---- */

struct state {
	struct gpu gpu;
	size_t part; /* bytes of each of the two arrays in one memory; a word follows them */
	CUdeviceptr own, next, again; /* again: the next one's by another mapping */
	struct array mine, theirs;
	bool anew;
	enum { NO_EVENT, EVENT_FOR_A_MOMENT, EVENT_KEPT } event_way;
	CUevent event, kept;	 /* recorded after a write; that of the one before */
	CUipcEventHandle ticket; /* of that */
	CUdeviceptr box,
		lent; /* "captured": where our word is written to, and that of the next one */
	CUstream stream;
	CUipcMemHandle lent_by;
	int fd; /* of the next one's memory */
	CUmemGenericAllocationHandle handle;
};

static CUmemAllocationProp prop_of(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
}

static CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes, int device)
{
	CUmemAccessDesc access = { prop_of(device).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr address;

	CHECKED(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	CHECKED(cuMemMap(address, bytes, 0, handle, 0));
	CHECKED(cuMemSetAccess(address, bytes, &access, 1));
	return address;
}

static CUmemGenericAllocationHandle import_handle(int fd)
{
	CUmemGenericAllocationHandle handle;

	CHECKED(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	return handle;
}

static CUdeviceptr import_fd(int fd, size_t bytes, int device)
{
	return map_handle(import_handle(fd), bytes, device);
}

static void share_by_fd(struct state *s, bool keep_open)
{
	size_t bytes = 2 * s->part + GRANULE;
	unsigned int next = (me + 1) % n_members, before = (me + n_members - 1) % n_members;
	CUmemAllocationProp prop = prop_of(s->gpu.device);
	int fd;

	CHECKED(cuMemCreate(&s->handle, bytes, &prop, 0));
	s->own = map_handle(s->handle, bytes, s->gpu.device);
	CHECKED(cuMemExportToShareableHandle(&fd, s->handle,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	if (keep_open)
		tell(before, (int[]){ getpid(), fd }, 2 * sizeof(int));
	else
		send_fd(before, fd);
	int theirs = keep_open ? take_fd_from(next) : receive_fd(next);
	s->next = import_fd(theirs, bytes, s->gpu.device);
	s->again = import_fd(theirs, bytes, s->gpu.device);
	s->fd = theirs;
	if (!s->anew)
		close(theirs);
	if (!keep_open)
		close(fd);
}

static void share_by_handle(struct state *s)
{
	unsigned int next = (me + 1) % n_members, before = (me + n_members - 1) % n_members;
	CUipcMemHandle handle;

	CHECKED(cuMemAlloc_v2(&s->own, 2 * s->part + 4096));
	CHECKED(cuIpcGetMemHandle(&handle, s->own));
	tell(before, &handle, sizeof(handle));
	hear(next, &handle, sizeof(handle));
	CHECKED(cuIpcOpenMemHandle_v2(&s->next, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	s->again = s->next;
}

/* A child makes memory, and ends when all who want that have opened it: its end of the returned socket. */
static int start_maker(const struct options *options, size_t bytes, CUipcMemHandle *ret)
{
	int ends[2];
	char c;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		die("socketpair: %m");
	if (!fork()) {
		CUdeviceptr address;
		struct gpu gpu;
		int n_gpus;

		close(ends[0]);
		cuda_load();
		CHECKED(cuInit(0));
		CHECKED(cuDeviceGetCount(&n_gpus));
		gpu_open(&gpu, (options->gpu + (int)me) % n_gpus);
		CHECKED(cuMemAlloc_v2(&address, bytes));
		CHECKED(cuMemsetD8_v2(address, 0, bytes));
		CHECKED(cuCtxSynchronize());
		CHECKED(cuIpcGetMemHandle(ret, address));
		if (write(ends[1], ret, sizeof(*ret)) != sizeof(*ret) || read(ends[1], &c, 1) < 0)
			die("nobody hears");
		_exit(0);
	}
	close(ends[1]);
	if (recv(ends[0], ret, sizeof(*ret), MSG_WAITALL) != sizeof(*ret))
		die("no memory was made");
	return ends[0];
}

static void share_what_is_left(struct state *s, int maker, CUipcMemHandle handle)
{
	unsigned int next = (me + 1) % n_members, before = (me + n_members - 1) % n_members;

	CHECKED(cuIpcOpenMemHandle_v2(&s->own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	tell(before, &handle, sizeof(handle));
	hear(next, &handle, sizeof(handle));
	CHECKED(cuIpcOpenMemHandle_v2(&s->next, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	s->again = s->next;
	meet();
	close(maker);
	if (wait(NULL) < 0)
		die("wait: %m");
	meet();
}

static void share_event(struct state *s)
{
	unsigned int next = (me + 1) % n_members, before = (me + n_members - 1) % n_members;
	CUipcEventHandle ticket;

	CHECKED(cuEventCreate(&s->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	CHECKED(cuIpcGetEventHandle(&ticket, s->event));
	tell(next, &ticket, sizeof(ticket));
	hear(before, &s->ticket, sizeof(s->ticket));
	if (s->event_way == EVENT_KEPT)
		CHECKED(cuIpcOpenEventHandle(&s->kept, s->ticket));
}

/* What comes next in the default stream waits for the writer. */
static void wait_for_writer(struct state *s)
{
	CUevent event = s->kept;

	if (!event)
		CHECKED(cuIpcOpenEventHandle(&event, s->ticket));
	CHECKED(cuStreamWaitEvent(NULL, event, 0));
	if (!s->kept)
		CHECKED(cuEventDestroy_v2(event));
}

/* ---- memory that is lent while streams are being captured ---- */

static void make_box(struct state *s)
{
	CHECKED(cuMemAlloc_v2(&s->box, GRANULE));
	CHECKED(cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING));
}

static void *open_box(void *arg)
{
	struct state *s = arg;

	CHECKED(cuCtxSetCurrent(s->gpu.ctx));
	CHECKED(cuIpcOpenMemHandle_v2(&s->lent, s->lent_by, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	return NULL;
}

static void capture_write(struct state *s, uint32_t word, CUgraph *ret)
{
	unsigned int next = (me + 1) % n_members, before = (me + n_members - 1) % n_members;
	CUmemGenericAllocationHandle handle;
	pthread_t opener;

	CHECKED(cuStreamBeginCapture_v2(s->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	if (cuda.cuMemRetainAllocationHandle(&handle, (void *)s->box) != CUDA_ERROR_INVALID_VALUE)
		die("memory by cuMemAlloc has a handle");
	CHECKED(cuIpcGetMemHandle(&s->lent_by, s->box));
	tell(before, &s->lent_by, sizeof(s->lent_by));
	hear(next, &s->lent_by, sizeof(s->lent_by));
	if (pthread_create(&opener, NULL, open_box, s) || pthread_join(opener, NULL))
		die("no thread");
	LAUNCH(s->gpu.store_u32, 1, s->stream, &s->lent, &word);
	CHECKED(cuStreamEndCapture(s->stream, ret));
}

static void write_by_graph(struct state *s, uint32_t word)
{
	CUgraphExec exec;
	CUgraph graph;

	capture_write(s, word, &graph);
	CHECKED(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECKED(cuGraphLaunch(exec, s->stream));
	CHECKED(cuStreamSynchronize(s->stream));
	CHECKED(cuGraphExecDestroy(exec));
	CHECKED(cuGraphDestroy(graph));
	CHECKED(cuIpcCloseMemHandle(s->lent));
}

/* Of host memory that all processes map, each memory is a part. */
static char *shared_host;

static CUdeviceptr register_part(struct state *s, unsigned int whose)
{
	size_t bytes = 2 * s->part + GRANULE;
	char *part = shared_host + whose * bytes;
	CUdeviceptr address;

	CHECKED(cuMemHostRegister_v2(part, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECKED(cuMemHostGetDevicePointer_v2(&address, part, 0));
	return address;
}

static int unnamed_file(bool in_dev_shm)
{
	char path[] = "/dev/shm/partners-XXXXXX";
	int fd = in_dev_shm ? mkostemp(path, O_CLOEXEC) : memfd_create("partners", MFD_CLOEXEC);

	if (in_dev_shm && fd >= 0)
		unlink(path);
	return fd;
}

static void make_shared_host(size_t part, bool in_dev_shm)
{
	size_t bytes = n_members * (2 * part + GRANULE);
	int fd = unnamed_file(in_dev_shm);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		die("a file to share: %m");
	shared_host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared_host == MAP_FAILED)
		die("mmap: %m");
	if (in_dev_shm)
		close(fd);
}

static void share_host(struct state *s)
{
	s->own = register_part(s, me);
	s->next = register_part(s, (me + 1) % n_members);
	s->again = s->next;
}

/* ---- steps ---- */

static bool word_is(CUdeviceptr at, uint32_t wanted)
{
	uint32_t word = 0;

	CHECKED(cuMemcpyDtoH_v2(&word, at, sizeof(word)));
	if (word != wanted)
		say("member %u: %u at %#llx, not %u", me, word, (unsigned long long)at, wanted);
	return word == wanted;
}

/* The next one's memory by one more handle, for a moment. */
static bool look_anew(struct state *s, uint32_t word)
{
	size_t bytes = 2 * s->part + GRANULE;
	CUmemGenericAllocationHandle handle = import_handle(s->fd);
	CUdeviceptr there = map_handle(handle, bytes, s->gpu.device);
	bool right = word_is(there + 2 * s->part, word);

	CHECKED(cuMemUnmap(there, bytes));
	CHECKED(cuMemRelease(handle));
	CHECKED(cuMemAddressFree(there, bytes));
	return right;
}

static bool step(void *state, uint64_t n)
{
	struct state *s = state;
	CUdeviceptr there = s->next + 2 * s->part;
	uint32_t word = (uint32_t)n;
	bool right;

	array_add(&s->mine, NULL);
	array_add(&s->theirs, NULL);
	LAUNCH(s->gpu.store_u32, 1, NULL, &there, &word);
	if (s->box)
		write_by_graph(s, word);
	if (s->event)
		CHECKED(cuEventRecord(s->event, NULL));
	else
		CHECKED(cuCtxSynchronize());
	meet();
	if (s->event)
		wait_for_writer(s);
	right = (!s->box || word_is(s->box, word)) && word_is(s->own + 2 * s->part, word) &&
		word_is(s->again + 2 * s->part, word) && array_check(&s->mine, NULL) &&
		array_check(&s->theirs, NULL) && (!s->anew || look_anew(s, word));
	meet();
	return right;
}

static void say_member(void *state)
{
	printf("member %u ", me);
}

static void run_member(const struct options *options)
{
	bool small = !strcmp(options->word, "small"), anew = !strcmp(options->word, "anew");
	bool captured = !strcmp(options->word, "captured");
	struct state s = { .part = small ? 65536 : options->mib << 19, .anew = anew };
	CUipcMemHandle handle;
	int n_gpus, maker = -1;

	if (!strcmp(options->word, "left"))
		maker = start_maker(options, 2 * s.part + 4096, &handle);
	cuda_load();
	CHECKED(cuInit(0));
	CHECKED(cuDeviceGetCount(&n_gpus));
	gpu_open(&s.gpu, (options->gpu + (int)me) % n_gpus);
	if (!strncmp(options->word, "event", strlen("event")))
		s.event_way = strcmp(options->word, "event") ? EVENT_KEPT : EVENT_FOR_A_MOMENT;
	if (maker >= 0)
		share_what_is_left(&s, maker, handle);
	else if (small || captured || s.event_way || !strcmp(options->word, "ipc"))
		share_by_handle(&s);
	else if (shared_host)
		share_host(&s);
	else
		share_by_fd(&s, anew || !strcmp(options->word, "pidfd"));
	if (s.event_way)
		share_event(&s);
	if (captured)
		make_box(&s);
	say("member %u pid %d", me, getpid());
	array_over(&s.mine, &s.gpu, s.own, s.part);
	array_over(&s.theirs, &s.gpu, s.next + s.part, s.part);
	meet();
	steps_run(options, step, say_member, &s);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 16, .chunk_mib = 1, .interval_ms = 10, .port = 2 };
	bool all_right = true;
	int status;

	options_parse(&options, argc, argv,
		      "partners fd|pidfd|ipc|small|anew|host|shm|event|event-kept|left|captured "
		      "[--port 2] [--mib 16] [--gpu 0] "
		      "[--interval-ms 10]");
	n_members = (unsigned int)options.port;
	if (!options.word || n_members < 2 || n_members > MEMBERS_MAX)
		die("how memory is shared, and 2 to %d members", MEMBERS_MAX);
	links_make(&links[0][0], MEMBERS_MAX, n_members);
	if (!strcmp(options.word, "host") || !strcmp(options.word, "shm"))
		make_shared_host(options.mib << 19, !strcmp(options.word, "shm"));
	for (me = 0; me < n_members; me++)
		if (!fork()) {
			close_links_but(me);
			run_member(&options);
			return 0;
		}
	close_links_but(n_members);
	while (wait(&status) > 0)
		all_right = all_right && !status;
	return !all_right;
}
