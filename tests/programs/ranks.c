// SPDX-License-Identifier: MIT
/*
 * Processes that compute together as ranks of a training do: kernels of each wait on the GPU for kernels of all
 * others, and the host runs ahead of the GPU. A thread of each rank carries what its kernels tell to the other
 * ranks by sockets, as collective libraries do between machines; no memory is shared. The word is the number
 * of ranks; they take the GPUs from --gpu on in turn. With --interval-ms the ranks are not in step: each pauses
 * for that long at other times. With the word "independent" three of them do the same work and wait for nobody;
 * with the word "threads" two ranks are threads of one process. With the word RANK:IP,IP,... this is one rank, of those
 * at these addresses, in the order of their numbers.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { RANKS_MAX = 16, LAYERS = 8, AHEAD = 4, PORT = 7072 };

static unsigned int n_ranks = 2;
static _Thread_local unsigned int rank;
static bool independent, threads;
static int links[RANKS_MAX][RANKS_MAX]; /* of the row's rank, to the column's */

/* Page-locked: what our kernels have reached, and what those of the others have. Threads share one. */
static struct flags {
	_Atomic uint32_t own, others[RANKS_MAX];
} * flags;
static pthread_barrier_t made;

/* One that has ended needs to hear no more. */
static void tell_others(uint32_t reached)
{
	for (unsigned int k = 0; k < n_ranks; k++)
		if (k != rank)
			send(links[rank][k], &reached, sizeof(reached), MSG_NOSIGNAL);
}

static void hear_others(void)
{
	for (unsigned int k = 0; k < n_ranks; k++) {
		struct pollfd from = { .fd = links[rank][k], .events = POLLIN };
		uint32_t reached;

		while (k != rank && poll(&from, 1, 0) > 0 &&
		       read(from.fd, &reached, sizeof(reached)) == sizeof(reached))
			atomic_store(&flags->others[k], reached);
	}
}

struct carrier {
	pthread_t thread;
	unsigned int rank;
	_Atomic uint32_t last;
};

/* Until the last that is to be reached has been told. The GPU writes and reads memory: nothing wakes this. */
static void *carry(void *arg)
{
	const struct timespec pause = { .tv_nsec = 20000 };
	const struct carrier *carrier = arg;
	uint32_t told = 0;

	rank = carrier->rank;
	while (!told || told != atomic_load(&carrier->last)) {
		uint32_t reached = atomic_load(&flags->own);

		if (reached != told)
			tell_others(reached);
		told = reached;
		hear_others();
		nanosleep(&pause, NULL);
	}
	return NULL;
}

struct state {
	const struct options *options;
	struct gpu gpu;
	struct array memory;
	CUdeviceptr own, others;
	uint32_t reached;
};

/* Nobody passes before all have come. */
static void meet(struct state *s)
{
	s->reached++;
	LAUNCH(s->gpu.store_u32, 1, NULL, &s->own, &s->reached);
	for (unsigned int k = 0; k < n_ranks; k++) {
		CUdeviceptr other = s->others + k * sizeof(uint32_t);

		if (k != rank)
			LAUNCH(s->gpu.await_u32, 1, NULL, &other, &s->reached);
	}
}

static bool step(void *state, uint64_t n)
{
	struct state *s = state;
	uint64_t busy_ns = s->options->busy_ms * 1000000ull / LAYERS;
	struct timespec skew = { .tv_sec = s->options->interval_ms / 1000,
				 .tv_nsec = s->options->interval_ms % 1000 * 1000000 };

	for (int i = 0; i < LAYERS; i++) {
		if (busy_ns)
			LAUNCH(s->gpu.spin_ns, 1, NULL, &busy_ns);
		array_add(&s->memory, NULL);
		if (!independent)
			meet(s);
		if (i == LAYERS / 2 && n % n_ranks == rank)
			nanosleep(&skew, NULL);
	}
	return n % AHEAD || array_check(&s->memory, NULL);
}

static void say_rank(void *state)
{
	printf("rank %u ", rank);
}

static void make_flags(void)
{
	CHECKED(cuMemHostAlloc((void **)&flags, sizeof(*flags),
			       CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
	*flags = (struct flags){ 0 };
}

static void find_flags(struct state *s)
{
	CHECKED(cuMemHostGetDevicePointer_v2(&s->own, (void *)&flags->own, 0));
	CHECKED(cuMemHostGetDevicePointer_v2(&s->others, (void *)flags->others, 0));
	if (threads)
		s->own = s->others + rank * sizeof(uint32_t);
}

static void open_rank(struct state *s)
{
	int n_gpus;

	CHECKED(cuInit(0));
	CHECKED(cuDeviceGetCount(&n_gpus));
	gpu_open(&s->gpu, (s->options->gpu + (int)rank) % n_gpus);
	array_alloc(&s->memory, &s->gpu, 1, s->options->mib << 20);
}

static void run_steps(struct state *s)
{
	struct options own = *s->options;

	own.interval_ms = 0;
	steps_run(&own, step, say_rank, s);
	CHECKED(cuCtxSynchronize());
}

/* A process alone. */
static void run_rank(const struct options *options)
{
	struct state s = { .options = options };
	struct carrier carrier = { .rank = rank };

	cuda_load();
	open_rank(&s);
	make_flags();
	find_flags(&s);
	if (pthread_create(&carrier.thread, NULL, carry, &carrier))
		die("pthread_create");
	run_steps(&s);
	atomic_store(&carrier.last, independent ? 1 : s.reached);
	if (independent)
		atomic_store(&flags->own, 1);
	pthread_join(carrier.thread, NULL);
}

static void run_thread(unsigned int own_rank, const struct options *options)
{
	struct state s = { .options = options };

	rank = own_rank;
	open_rank(&s);
	if (!rank)
		make_flags();
	pthread_barrier_wait(&made);
	find_flags(&s);
	run_steps(&s);
}

static void *run_second(void *arg)
{
	run_thread(1, arg);
	return NULL;
}

static void run_threads(struct options *options)
{
	pthread_t second;

	cuda_load();
	pthread_barrier_init(&made, NULL, 2);
	if (pthread_create(&second, NULL, run_second, options))
		die("pthread_create");
	run_thread(0, options);
	pthread_join(second, NULL);
}

static struct sockaddr_in address_of(const char *ip)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1)
		die("%s is no address", ip);
	return a;
}

/* Until it has started, too, of which nothing tells. */
static int link_to(const char *ip)
{
	const struct sockaddr_in a = address_of(ip);

	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0 &&
		    write(fd, &rank, sizeof(rank)) == sizeof(rank))
			return fd;
		close(fd);
		usleep(50000);
	}
}

/* To the ranks before this one; those after it come to us. */
static void link_nodes(char *ips)
{
	char *rest = ips, *all[RANKS_MAX] = { 0 };
	int on = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	for (n_ranks = 0; rest && n_ranks < RANKS_MAX; n_ranks++)
		all[n_ranks] = strsep(&rest, ",");
	if (rank >= n_ranks)
		die("rank %u of %u", rank, n_ranks);
	const struct sockaddr_in own = address_of(all[rank]);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(l, (const struct sockaddr *)&own, sizeof(own)) < 0 || listen(l, RANKS_MAX) < 0)
		die("bind: %m");
	for (unsigned int k = 0; k < rank; k++)
		links[rank][k] = link_to(all[k]);
	for (unsigned int k = rank + 1; k < n_ranks; k++) {
		int fd = accept(l, NULL, NULL);
		unsigned int who;

		if (read(fd, &who, sizeof(who)) != sizeof(who) || who >= n_ranks)
			die("no rank has come");
		links[rank][who] = fd;
	}
	close(l);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 16, .chunk_mib = 1 };
	bool all_right = true;
	int status;

	options_parse(&options, argc, argv,
		      "ranks [2|independent|threads|RANK:IP,...] [--mib 16] [--busy-ms 0] "
		      "[--interval-ms 0] "
		      "[--steps N] [--gpu 0]");
	independent = options.word && !strcmp(options.word, "independent");
	threads = options.word && !strcmp(options.word, "threads");
	if (threads) {
		run_threads(&options);
		return 0;
	}
	const char *colon = options.word ? strchr(options.word, ':') : NULL;
	if (colon) {
		char ips[256];

		snprintf(ips, sizeof(ips), "%s", colon + 1);
		rank = (unsigned int)atoi(options.word);
		link_nodes(ips);
		run_rank(&options);
		return 0;
	}
	if (options.word)
		n_ranks = independent ? 3 : (unsigned int)atoi(options.word);
	if (n_ranks < 2 || n_ranks > RANKS_MAX)
		die("2 to %d ranks", RANKS_MAX);
	links_make(&links[0][0], RANKS_MAX, n_ranks);
	for (rank = 0; rank < n_ranks; rank++)
		if (!fork()) {
			run_rank(&options);
			return 0;
		}
	while (wait(&status) > 0)
		all_right = all_right && !status;
	return !all_right;
}
