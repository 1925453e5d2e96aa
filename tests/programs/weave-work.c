// SPDX-License-Identifier: MIT
/*
 * What a process of weave (weave.h) does: it holds blocks of device memory of several kinds, and in each step does
 * some things at random with them: kernels, graphs, copies, all on streams of their own and ordered by events. It
 * keeps in mind what each block must hold, and compares. At steps that all members know, kernels of each wait
 * on the GPU for kernels of others; a thread carries what they have reached to the shared page and back.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "weave.h"

#define FACTOR 2654435761ull
#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)

enum {
	BLOCKS = 6,
	STREAMS = 3,
	GRID = 64,
	DEEDS_MAX = 4,
	SPIN_NS_MAX = 20000000,
	LAUNCHES_MAX = 5,
	DICE_STEP = 16,
	DICE_MEETING,
};

enum block_kind { BLOCK_NONE, BLOCK_PLAIN, BLOCK_ASYNC, BLOCK_VMM };

/* Its word i is (base + i) * factor + added. */
struct block {
	enum block_kind kind;
	CUdeviceptr at;
	size_t words;
	uint64_t base, factor, added;
	CUstream stream;     /* all that touches the block is ordered on it */
	CUgraphExec add_one; /* NULL: none is made */
	CUmemGenericAllocationHandle handle;
};

/* Page-locked: what our kernels have reached, and what those of the others have. */
struct flags {
	_Atomic uint32_t own, others[WEAVE_MEMBERS_MAX];
};

struct work {
	const struct weave *weave;
	unsigned int member;
	struct gpu gpu;
	struct block blocks[BLOCKS];
	CUstream streams[STREAMS];
	CUevent event;
	CUdeviceptr sum;
	uint64_t *pinned; /* as large as the largest block */
	struct flags *flags;
	CUdeviceptr own, others; /* where kernels see the flags */
	pthread_t carrier, beside;
	atomic_bool is_ending;
	bool has_beside;
	pid_t child; /* one that uses no GPU; 0: none */
	int child_ends[2];
};

static const size_t block_bytes[] = { 4 * KIB, 64 * KIB, 300 * KIB, 2 * MIB, 2 * MIB };
static const size_t largest_bytes = 2 * MIB;

/* ---- blocks ---- */

static void order_after(struct work *w, CUstream later, CUstream earlier)
{
	if (later == earlier)
		return;
	CHECKED(cuEventRecord(w->event, earlier));
	CHECKED(cuStreamWaitEvent(later, w->event, 0));
}

static size_t bytes_of(const struct block *b)
{
	return b->words * sizeof(uint64_t);
}

static uint64_t word_of(const struct block *b, uint64_t i)
{
	return (b->base + i) * b->factor + b->added;
}

static uint64_t sum_of(const struct block *b)
{
	return (b->factor ? array_sum(b->base, b->words) : 0) + b->words * b->added;
}

static void fill_block(struct work *w, struct block *b, struct dice *dice)
{
	b->base = dice_throw(dice, 1 << 20);
	b->factor = FACTOR;
	b->added = 0;
	LAUNCH(w->gpu.fill_u64, GRID, b->stream, &b->at, &b->words, &b->base);
}

static void map_block(struct work *w, struct block *b, size_t bytes)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, w->gpu.device },
	};
	const CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CHECKED(cuMemAddressReserve(&b->at, bytes, 0, 0, 0));
	CHECKED(cuMemCreate(&b->handle, bytes, &prop, 0));
	CHECKED(cuMemMap(b->at, bytes, 0, b->handle, 0));
	CHECKED(cuMemSetAccess(b->at, bytes, &access, 1));
}

static void make_block(struct work *w, struct block *b, struct dice *dice)
{
	size_t n_sizes = sizeof(block_bytes) / sizeof(*block_bytes);
	size_t bytes = block_bytes[dice_throw(dice, (unsigned int)n_sizes)];

	*b = (struct block){ .kind = BLOCK_PLAIN, .words = bytes / sizeof(uint64_t) };
	b->stream = w->streams[dice_throw(dice, STREAMS)];
	if (dice_once_in(dice, 4))
		b->kind = BLOCK_ASYNC;
	else if (bytes % (2 * MIB) == 0 && dice_once_in(dice, 2))
		b->kind = BLOCK_VMM;
	if (b->kind == BLOCK_ASYNC)
		CHECKED(cuMemAllocAsync(&b->at, bytes, b->stream));
	else if (b->kind == BLOCK_VMM)
		map_block(w, b, bytes);
	else
		CHECKED(cuMemAlloc_v2(&b->at, bytes));
	fill_block(w, b, dice);
}

static void free_block(struct block *b)
{
	size_t bytes = bytes_of(b);

	if (b->add_one) {
		CHECKED(cuStreamSynchronize(b->stream));
		CHECKED(cuGraphExecDestroy(b->add_one));
	}
	if (b->kind == BLOCK_PLAIN) {
		CHECKED(cuMemFree_v2(b->at));
	} else if (b->kind == BLOCK_ASYNC) {
		CHECKED(cuMemFreeAsync(b->at, b->stream));
	} else if (b->kind == BLOCK_VMM) {
		CHECKED(cuStreamSynchronize(b->stream));
		CHECKED(cuMemUnmap(b->at, bytes));
		CHECKED(cuMemRelease(b->handle));
		CHECKED(cuMemAddressFree(b->at, bytes));
	}
	*b = (struct block){ 0 };
}

/* The kernel adds all words up. */
static bool sum_is_right(struct work *w, const struct block *b)
{
	uint64_t words = b->words, sum = 0;

	CHECKED(cuMemsetD8Async(w->sum, 0, sizeof(sum), b->stream));
	LAUNCH(w->gpu.sum_u64, GRID, b->stream, (void *)&b->at, &words, &w->sum);
	CHECKED(cuStreamSynchronize(b->stream));
	CHECKED(cuMemcpyDtoH_v2(&sum, w->sum, sizeof(sum)));
	return sum == sum_of(b);
}

/* Each word is compared here. */
static bool copy_is_right(struct work *w, const struct block *b)
{
	CHECKED(cuMemcpyDtoHAsync_v2(w->pinned, b->at, bytes_of(b), b->stream));
	CHECKED(cuStreamSynchronize(b->stream));
	for (uint64_t i = 0; i < b->words; i++)
		if (w->pinned[i] != word_of(b, i))
			return false;
	return true;
}

/* ---- deeds with a block ---- */

static void add(struct work *w, struct block *b, struct dice *dice)
{
	uint64_t value = dice_throw(dice, 1 << 16);

	LAUNCH(w->gpu.add_u64, GRID, b->stream, &b->at, &b->words, &value);
	b->added += value;
}

/* Launched several times, and again in later steps. */
static void add_by_graph(struct work *w, struct block *b, struct dice *dice)
{
	uint64_t one = 1;
	CUgraph graph;

	if (!b->add_one) {
		CHECKED(cuStreamBeginCapture_v2(b->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		LAUNCH(w->gpu.add_u64, GRID, b->stream, &b->at, &b->words, &one);
		CHECKED(cuStreamEndCapture(b->stream, &graph));
		CHECKED(cuGraphInstantiateWithFlags(&b->add_one, graph, 0));
		CHECKED(cuGraphDestroy(graph));
	}
	for (unsigned int i = dice_throw(dice, LAUNCHES_MAX) + 1; i > 0; i--, b->added++)
		CHECKED(cuGraphLaunch(b->add_one, b->stream));
}

static void set_bytes(struct work *w, struct block *b, struct dice *dice)
{
	unsigned int byte = dice_throw(dice, 256);

	CHECKED(cuMemsetD8Async(b->at, (unsigned char)byte, bytes_of(b), b->stream));
	b->base = b->factor = 0;
	b->added = byte * 0x0101010101010101ull;
}

static void upload(struct work *w, struct block *b, struct dice *dice)
{
	b->base = dice_throw(dice, 1 << 20);
	b->factor = FACTOR;
	b->added = dice_throw(dice, 1 << 20);
	for (uint64_t i = 0; i < b->words; i++)
		w->pinned[i] = word_of(b, i);
	if (dice_once_in(dice, 2)) {
		CHECKED(cuStreamSynchronize(b->stream));
		CHECKED(cuMemcpyHtoD_v2(b->at, w->pinned, bytes_of(b)));
	} else {
		CHECKED(cuMemcpyHtoDAsync_v2(b->at, w->pinned, bytes_of(b), b->stream));
		CHECKED(cuStreamSynchronize(b->stream));
	}
}

/* From any other block that is large enough. */
static void copy_over(struct work *w, struct block *b, struct dice *dice)
{
	struct block *from = &w->blocks[dice_throw(dice, BLOCKS)];

	if (from == b || from->words < b->words)
		return;
	order_after(w, b->stream, from->stream);
	CHECKED(cuMemcpyDtoDAsync_v2(b->at, from->at, bytes_of(b), b->stream));
	order_after(w, from->stream, b->stream);
	if (dice_once_in(dice, 2))
		CHECKED(cuStreamSynchronize(b->stream));
	b->base = from->base;
	b->factor = from->factor;
	b->added = from->added;
}

static void make_anew(struct work *w, struct block *b, struct dice *dice)
{
	free_block(b);
	make_block(w, b, dice);
}

/* ---- deeds beside ---- */

static void spin(struct work *w, struct block *b, struct dice *dice)
{
	uint64_t ns = dice_throw(dice, SPIN_NS_MAX);

	LAUNCH(w->gpu.spin_ns, 1, b->stream, &ns);
}

static void *work_beside(void *arg)
{
	struct work *w = arg;
	struct array own;
	CUstream stream;

	CHECKED(cuCtxSetCurrent(w->gpu.ctx));
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	array_alloc(&own, &w->gpu, 1, 64 * KIB);
	for (int i = 0; i < LAUNCHES_MAX; i++) {
		array_add(&own, stream);
		if (!array_check(&own, stream))
			die("member %u: memory of a thread is BAD", w->member);
	}
	array_free(&own);
	CHECKED(cuStreamDestroy_v2(stream));
	return NULL;
}

static void end_beside(struct work *w)
{
	if (w->has_beside)
		pthread_join(w->beside, NULL);
	w->has_beside = false;
}

/* A thread works beside what follows. */
static void begin_beside(struct work *w, struct block *b, struct dice *dice)
{
	end_beside(w);
	if (pthread_create(&w->beside, NULL, work_beside, w))
		die("no thread");
	w->has_beside = true;
}

static void __attribute__((noreturn)) be_child(const int *ends)
{
	char byte;

	close(ends[1]);
	while (read(ends[0], &byte, 1) == 1)
		;
	_exit(0);
}

/* It hears no more, and ends. */
static void end_child(struct work *w)
{
	if (!w->child)
		return;
	close(w->child_ends[1]);
	if (waitpid(w->child, NULL, 0) != w->child)
		die("member %u: its child is gone", w->member);
	w->child = 0;
}

/* A process that uses no GPU, forked from one that does. */
static void begin_child(struct work *w, struct block *b, struct dice *dice)
{
	end_child(w);
	if (pipe(w->child_ends) < 0)
		die("pipe: %m");
	fflush(stdout);
	w->child = fork();
	if (w->child < 0)
		die("fork: %m");
	if (!w->child)
		be_child(w->child_ends);
	close(w->child_ends[0]);
}

static void use_second_context(struct work *w, struct block *b, struct dice *dice)
{
	struct gpu gpu = { .device = w->gpu.device };
	struct array own;

	CHECKED(cuCtxCreate_v2(&gpu.ctx, 0, gpu.device));
	gpu_load_kernels(&gpu);
	array_alloc(&own, &gpu, 1, 64 * KIB);
	array_add(&own, NULL);
	if (!array_check(&own, NULL))
		die("member %u: memory of a second context is BAD", w->member);
	CHECKED(cuCtxDestroy_v2(gpu.ctx));
	free(own.chunks);
	CHECKED(cuCtxSetCurrent(w->gpu.ctx));
}

static const struct {
	void (*deed)(struct work *w, struct block *b, struct dice *dice);
	unsigned int weight;
} deeds[] = {
	{ add, 8 },	    { add_by_graph, 5 },       { set_bytes, 1 }, { upload, 3 },
	{ copy_over, 4 },   { make_anew, 4 },	       { spin, 3 },	 { begin_beside, 1 },
	{ begin_child, 1 }, { use_second_context, 1 },
};

static void do_something(struct work *w, struct dice *dice)
{
	unsigned int total = 0, at;
	size_t i = 0;

	for (size_t k = 0; k < sizeof(deeds) / sizeof(*deeds); k++)
		total += deeds[k].weight;
	for (at = dice_throw(dice, total); at >= deeds[i].weight; i++)
		at -= deeds[i].weight;
	deeds[i].deed(w, &w->blocks[dice_throw(dice, BLOCKS)], dice);
}

/* ---- meetings ---- */

/* The page outlives the process: what was reached stays so for the next one of the member. */
static void *carry(void *arg)
{
	const struct timespec pause = { .tv_nsec = 500000 };
	struct work *w = arg;
	bool last;

	do {
		last = atomic_load(&w->is_ending);
		atomic_store(&w->weave->page->reached[w->member], atomic_load(&w->flags->own));
		for (unsigned int i = 0; i < w->weave->n_members; i++)
			atomic_store(&w->flags->others[i],
				     atomic_load(&w->weave->page->reached[i]));
		nanosleep(&pause, NULL);
	} while (!last);
	return NULL;
}

static void begin_to_carry(struct work *w)
{
	CHECKED(cuMemHostAlloc((void **)&w->flags, sizeof(*w->flags), CU_MEMHOSTALLOC_DEVICEMAP));
	*w->flags = (struct flags){ 0 };
	atomic_store(&w->flags->own, atomic_load(&w->weave->page->reached[w->member]));
	CHECKED(cuMemHostGetDevicePointer_v2(&w->own, (void *)&w->flags->own, 0));
	CHECKED(cuMemHostGetDevicePointer_v2(&w->others, (void *)w->flags->others, 0));
	if (pthread_create(&w->carrier, NULL, carry, w))
		die("no thread");
}

/* Kernels of some members wait for each other, on a stream that has other work as well. */
static void meet(struct work *w, uint64_t n)
{
	struct dice dice = dice_of(w->weave->seed, DICE_MEETING, n);
	unsigned int who;
	uint32_t number = (uint32_t)n;

	if (!dice_once_in(&dice, 3))
		return;
	who = dice_throw(&dice, 1u << w->weave->n_members);
	if (!(who & 1u << w->member))
		return;
	LAUNCH(w->gpu.store_u32, 1, w->streams[0], &w->own, &number);
	for (unsigned int i = 0; i < w->weave->n_members; i++) {
		CUdeviceptr other = w->others + i * sizeof(uint32_t);

		if (i != w->member && who & 1u << i)
			LAUNCH(w->gpu.await_u32, 1, w->streams[0], &other, &number);
	}
}

/* ---- beginning, steps, end ---- */

struct work *work_begin(const struct weave *weave, unsigned int member, uint64_t first_step)
{
	struct work *w = calloc(1, sizeof(*w));
	struct dice dice;
	int n_gpus;

	if (!w)
		die("no memory");
	w->weave = weave;
	w->member = member;
	dice = dice_of(weave->seed, DICE_STEP + member, first_step - 1);
	cuda_load();
	CHECKED(cuInit(0));
	CHECKED(cuDeviceGetCount(&n_gpus));
	gpu_open(&w->gpu, (int)dice_throw(&dice, (unsigned int)n_gpus));
	for (int i = 0; i < STREAMS; i++)
		CHECKED(cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING));
	CHECKED(cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
	CHECKED(cuMemAlloc_v2(&w->sum, sizeof(uint64_t)));
	CHECKED(cuMemHostAlloc((void **)&w->pinned, largest_bytes, 0));
	begin_to_carry(w);
	for (int i = 0; i < BLOCKS; i++)
		make_block(w, &w->blocks[i], &dice);
	return w;
}

bool work_step(struct work *w, uint64_t n)
{
	struct dice dice = dice_of(w->weave->seed, DICE_STEP + w->member, n << 8);
	bool right = true;

	meet(w, n);
	for (unsigned int i = dice_throw(&dice, DEEDS_MAX) + 1; i > 0; i--)
		do_something(w, &dice);
	right = sum_is_right(w, &w->blocks[dice_throw(&dice, BLOCKS)]);
	if (dice_once_in(&dice, 4))
		for (int i = 0; i < BLOCKS && right; i++)
			right = copy_is_right(w, &w->blocks[i]);
	return right;
}

void work_end(struct work *w)
{
	end_beside(w);
	end_child(w);
	for (int i = 0; i < BLOCKS; i++) {
		if (!copy_is_right(w, &w->blocks[i]))
			die("member %u: block %d is BAD at the end", w->member, i);
		free_block(&w->blocks[i]);
	}
	CHECKED(cuCtxSynchronize());
	atomic_store(&w->is_ending, true);
	pthread_join(w->carrier, NULL);
}
