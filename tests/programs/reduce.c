// SPDX-License-Identifier: MIT
/*
 * reduce WAY:N: N ranks, each a process with a GPU, that add their data up as collective libraries do, again and
 * again: each copies it to where the others can read it, says so in a flag beside it, and a kernel of each waits
 * for the flags of the others and adds what it finds. WAY says where that is:
 *
 *	fd     device memory whose descriptors the ranks send each other
 *	ipc    device memory by legacy IPC handles
 *	shm    host memory that all share and have registered with the driver
 *	proxy  host memory of each, between which a thread of each copies what kernels have written
 *
 * Data is kept twice, so that nobody overwrites what others still read: who says that it has come to a round has
 * read all of the one before.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { RANKS_MAX = 8, TWO = 2, HEAD_BYTES = 4096, GRID = 64 };

enum way { BY_FD, BY_IPC, BY_SHM, BY_PROXY, WAYS };
static const char *const way_names[WAYS] = { "fd", "ipc", "shm", "proxy" };

/* What one rank lets the others read: a flag, and from HEAD_BYTES on data of two rounds. */
struct box {
	_Atomic uint32_t round;
};

static enum way way;
static unsigned int n_ranks, rank;
static size_t data_bytes, box_bytes;
static int links[RANKS_MAX][RANKS_MAX]; /* of the row's rank, to the column's */
static char *shared;			/* the boxes of all ranks, of SHM and PROXY */

struct reducer {
	const struct options *options;
	struct gpu gpu;
	CUstream stream;
	CUdeviceptr boxes[RANKS_MAX]; /* as kernels here see them */
	CUdeviceptr data, sum;
	char *pinned;	       /* PROXY: where kernels here see the boxes of all */
	_Atomic uint32_t last; /* PROXY: the round after which the thread ends; 0: none */
	uint32_t round;
};

/* ---- how the ranks find each other's memory ---- */

static void send_to(unsigned int to, const void *data, size_t len_bytes, int fd)
{
	struct iovec io = { (void *)(uintptr_t)data, len_bytes };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = &io, .msg_iovlen = 1 };

	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	if (sendmsg(links[rank][to], &message, 0) != (ssize_t)len_bytes)
		die("send to rank %u: %m", to);
}

static int receive_from(unsigned int from, void *data, size_t len_bytes)
{
	struct iovec io = { data, len_bytes };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = { .msg_iov = &io,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(links[rank][from], &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) !=
	    (ssize_t)len_bytes)
		die("receive from rank %u: %m", from);
	if (message.msg_controllen)
		memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

static CUdeviceptr map_handle(const struct reducer *r, CUmemGenericAllocationHandle handle)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, r->gpu.device },
					 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr at;

	CHECKED(cuMemAddressReserve(&at, box_bytes, 0, 0, 0));
	CHECKED(cuMemMap(at, box_bytes, 0, handle, 0));
	CHECKED(cuMemSetAccess(at, box_bytes, &access, 1));
	return at;
}

static void share_by_fd(struct reducer *r)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, r->gpu.device },
	};
	CUmemGenericAllocationHandle handle;
	char byte = 0;
	int fd;

	CHECKED(cuMemCreate(&handle, box_bytes, &prop, 0));
	CHECKED(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	r->boxes[rank] = map_handle(r, handle);
	CHECKED(cuMemsetD8_v2(r->boxes[rank], 0, box_bytes));
	for (unsigned int k = 0; k < n_ranks; k++)
		if (k != rank)
			send_to(k, &byte, 1, fd);
	close(fd);
	for (unsigned int k = 0; k < n_ranks; k++) {
		if (k == rank)
			continue;
		fd = receive_from(k, &byte, 1);
		CHECKED(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		r->boxes[k] = map_handle(r, handle);
	}
}

static void share_by_ipc(struct reducer *r)
{
	CUipcMemHandle handle;

	CHECKED(cuMemAlloc_v2(&r->boxes[rank], box_bytes));
	CHECKED(cuMemsetD8_v2(r->boxes[rank], 0, box_bytes));
	CHECKED(cuIpcGetMemHandle(&handle, r->boxes[rank]));
	for (unsigned int k = 0; k < n_ranks; k++)
		if (k != rank)
			send_to(k, &handle, sizeof(handle), -1);
	for (unsigned int k = 0; k < n_ranks; k++) {
		if (k == rank)
			continue;
		receive_from(k, &handle, sizeof(handle));
		CHECKED(cuIpcOpenMemHandle_v2(&r->boxes[k], handle,
					      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	}
}

static void find_boxes(struct reducer *r, char *host)
{
	for (unsigned int k = 0; k < n_ranks; k++)
		CHECKED(cuMemHostGetDevicePointer_v2(&r->boxes[k], host + k * box_bytes, 0));
}

static void share_by_shm(struct reducer *r)
{
	CHECKED(cuMemHostRegister_v2(shared, n_ranks * box_bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
	find_boxes(r, shared);
}

/* ---- the proxy ---- */

static struct box *box_of(char *boxes, unsigned int k)
{
	return (struct box *)(void *)(boxes + k * box_bytes);
}

/* A rank is one round ahead of what it was told of, at most. */
static void move_box(char *to, char *from, unsigned int k)
{
	uint32_t round = atomic_load(&box_of(from, k)->round);
	uint32_t done = atomic_load(&box_of(to, k)->round);

	while (done != round) {
		size_t at = k * box_bytes + HEAD_BYTES + ++done % TWO * data_bytes;

		memcpy(to + at, from + at, data_bytes);
		atomic_store(&box_of(to, k)->round, done);
	}
}

static void *carry(void *arg)
{
	const struct timespec pause = { .tv_nsec = 100000 };
	struct reducer *r = arg;

	while (!atomic_load(&r->last) ||
	       atomic_load(&box_of(shared, rank)->round) != atomic_load(&r->last)) {
		for (unsigned int k = 0; k < n_ranks; k++)
			move_box(k == rank ? shared : r->pinned, k == rank ? r->pinned : shared, k);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void share_by_proxy(struct reducer *r)
{
	CHECKED(cuMemHostAlloc((void **)&r->pinned, n_ranks * box_bytes,
			       CU_MEMHOSTALLOC_DEVICEMAP));
	memset(r->pinned, 0, n_ranks * box_bytes);
	find_boxes(r, r->pinned);
}

/* ---- all-reduce ---- */

static uint64_t base_of(unsigned int k, uint64_t round)
{
	return round * 1000 + k * 17;
}

static void reduce(struct reducer *r)
{
	uint64_t words = data_bytes / sizeof(uint64_t), halves = 2 * words;
	size_t at = HEAD_BYTES + ++r->round % TWO * data_bytes;
	CUdeviceptr own = r->boxes[rank] + at;

	LAUNCH(r->gpu.copy_u32, GRID, r->stream, &own, &r->data, &halves);
	LAUNCH(r->gpu.store_u32, 1, r->stream, &r->boxes[rank], &r->round);
	for (unsigned int k = 0; k < n_ranks; k++) {
		CUdeviceptr theirs = r->boxes[k] + at;

		if (k == rank)
			continue;
		LAUNCH(r->gpu.await_u32, 1, r->stream, &r->boxes[k], &r->round);
		LAUNCH(r->gpu.add_array_u64, GRID, r->stream, &r->data, &theirs, &words);
	}
}

static bool sum_is_right(struct reducer *r)
{
	uint64_t words = data_bytes / sizeof(uint64_t), sum = 0, wanted = 0;

	CHECKED(cuMemsetD8Async(r->sum, 0, sizeof(sum), r->stream));
	LAUNCH(r->gpu.sum_u64, GRID, r->stream, &r->data, &words, &r->sum);
	CHECKED(cuStreamSynchronize(r->stream));
	CHECKED(cuMemcpyDtoH_v2(&sum, r->sum, sizeof(sum)));
	for (unsigned int k = 0; k < n_ranks; k++)
		wanted += array_sum(base_of(k, r->round), words);
	return sum == wanted;
}

static bool step(void *state, uint64_t n)
{
	struct reducer *r = state;
	uint64_t words = data_bytes / sizeof(uint64_t), base = base_of(rank, n);
	uint64_t busy_ns = r->options->busy_ms * 1000000ull;

	if (busy_ns)
		LAUNCH(r->gpu.spin_ns, 1, r->stream, &busy_ns);
	LAUNCH(r->gpu.fill_u64, GRID, r->stream, &r->data, &words, &base);
	reduce(r);
	return sum_is_right(r);
}

static void say_rank(void *state)
{
	printf("rank %u ", rank);
}

/* ---- the ranks ---- */

static void share(struct reducer *r)
{
	static void (*const ways[WAYS])(struct reducer * r) = { share_by_fd, share_by_ipc,
								share_by_shm, share_by_proxy };

	ways[way](r);
	CHECKED(cuCtxSynchronize());
}

/* Nobody begins before all have what they need of the others. */
static void meet(void)
{
	char byte = 0;

	for (unsigned int k = 0; k < n_ranks; k++)
		if (k != rank)
			send_to(k, &byte, 1, -1);
	for (unsigned int k = 0; k < n_ranks; k++)
		if (k != rank)
			receive_from(k, &byte, 1);
}

static void run_rank(const struct options *options)
{
	struct reducer r = { .options = options };
	pthread_t carrier;
	int n_gpus;

	cuda_load();
	CHECKED(cuInit(0));
	CHECKED(cuDeviceGetCount(&n_gpus));
	gpu_open(&r.gpu, (options->gpu + (int)rank) % n_gpus);
	CHECKED(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
	CHECKED(cuMemAlloc_v2(&r.data, data_bytes));
	CHECKED(cuMemAlloc_v2(&r.sum, sizeof(uint64_t)));
	share(&r);
	if (way == BY_PROXY && pthread_create(&carrier, NULL, carry, &r))
		die("no thread");
	meet();
	steps_run(options, step, say_rank, &r);
	atomic_store(&r.last, r.round);
	if (way == BY_PROXY)
		pthread_join(carrier, NULL);
	meet(); /* what others still read stays until then */
}

static void make_shared(void)
{
	int fd = memfd_create("reduce", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)(n_ranks * box_bytes)) < 0)
		die("memfd: %m");
	shared = mmap(NULL, n_ranks * box_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		die("mmap: %m");
	close(fd);
}

static bool parse_way(const char *word)
{
	for (int i = 0; i < WAYS; i++) {
		size_t len = strlen(way_names[i]);

		if (strncmp(word, way_names[i], len) || word[len] != ':')
			continue;
		way = (enum way)i;
		n_ranks = (unsigned int)strtoul(word + len + 1, NULL, 10);
		return n_ranks >= 2 && n_ranks <= RANKS_MAX;
	}
	return false;
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1 };
	bool all_right = true;
	int status;

	options_parse(&options, argc, argv,
		      "reduce fd|ipc|shm|proxy:N [--mib 1] [--busy-ms 0] [--interval-ms 0] "
		      "[--steps N] [--gpu 0]");
	if (!options.word || !parse_way(options.word))
		die("expected fd, ipc, shm or proxy, a colon, and from 2 to %d ranks", RANKS_MAX);
	data_bytes = options.mib << 20;
	box_bytes = (TWO + 2) * data_bytes; /* whole granules */
	links_make(&links[0][0], RANKS_MAX, n_ranks);
	make_shared();
	for (rank = 0; rank < n_ranks; rank++)
		if (!fork()) {
			run_rank(&options);
			return 0;
		}
	while (wait(&status) > 0)
		all_right = all_right && !status;
	return !all_right;
}
