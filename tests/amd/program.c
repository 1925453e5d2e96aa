// SPDX-License-Identifier: MIT
/*
 * A program that uses both GPUs of the stand-in (kernel.h) as the runtimes of real ones do: by /dev/kfd and the render nodes, with
 * memory that it maps and a queue on each. Step after step it has each GPU add one to all its words, and looks at them.
 *
 *	program [--children N] [--gpus N] [--memory-mib N]
 *
 * With --memory-mib it has so much memory of its own, too, and looks at it at each step.
 */
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 1 << 16, RING_BYTES = 4096 };
_Static_assert(sizeof(struct ring) <= RING_BYTES, "a page");

struct side {
	uint32_t *words;
	struct ring *ring;
};

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void *allocate(int kfd, int render, uint32_t gpu_id, size_t len_bytes, uint32_t flags)
{
	/* Addresses are reserved first, and are the same for processor and GPU. */
	void *va = mmap(NULL, len_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			0);
	struct kfd_alloc a = {
		.va = (uintptr_t)va, .len_bytes = len_bytes, .gpu_id = gpu_id, .flags = flags
	};

	if (va == MAP_FAILED || ioctl(kfd, KFD_ALLOC, &a) < 0)
		die("memory of a GPU");
	if (mmap(va, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, render,
		 (off_t)a.offset) == MAP_FAILED)
		die("mapping memory of a GPU");
	return va;
}

static uint32_t gpu_id_of(int index)
{
	char path[96], text[16] = "";

	snprintf(path, sizeof(path), "/sys/class/kfd/kfd/topology/nodes/%d/gpu_id", index + 1);
	FILE *f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f))
		die(path);
	fclose(f);
	return (uint32_t)strtoul(text, NULL, 10);
}

static struct side open_side(int kfd, int index)
{
	uint32_t id = gpu_id_of(index);
	char path[64];
	struct side s;

	snprintf(path, sizeof(path), "/dev/dri/renderD%d", KERNEL_FIRST_MINOR + index);
	int render = open(path, O_RDWR | O_CLOEXEC);
	struct kfd_acquire acquire = { .drm_fd = (uint32_t)render, .gpu_id = id };
	if (render < 0 || ioctl(kfd, KFD_ACQUIRE, &acquire) < 0)
		die(path);
	s.words = allocate(kfd, render, id, WORDS * sizeof(*s.words), KFD_VRAM);
	s.ring = allocate(kfd, render, id, RING_BYTES, KFD_GTT);
	struct kfd_queue queue = { .ring_va = (uintptr_t)s.ring,
				   .gpu_id = id,
				   .ring_bytes = RING_BYTES };
	if (ioctl(kfd, KFD_QUEUE, &queue) < 0)
		die("a queue");
	return s;
}

static void submit(struct side *s)
{
	uint64_t written = atomic_load(&s->ring->written);

	s->ring->packets[written % RING_PACKETS] =
		(struct packet){ .va = (uintptr_t)s->words, .n_words = WORDS, .addend = 1 };
	atomic_store(&s->ring->written, written + 1);
}

static void await(const struct side *s)
{
	const struct timespec moment = { .tv_nsec = 1000000 };

	while (atomic_load(&s->ring->read) != atomic_load(&s->ring->written))
		nanosleep(&moment, NULL);
}

/* Memory that says of each of its words which one it is. */
struct own_memory {
	uint64_t *words;
	size_t n;
};

static struct own_memory allocate_own(size_t len_bytes)
{
	struct own_memory m = { .n = len_bytes / sizeof(*m.words) };

	if (!m.n)
		return m;
	m.words = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m.words == MAP_FAILED)
		die("memory");
	for (size_t i = 0; i < m.n; i++)
		m.words[i] = ~i;
	return m;
}

static bool is_right(const struct own_memory *m)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->words[i] != ~i)
			return false;
	return true;
}

static int count(int n_gpus, int child, size_t own_bytes)
{
	int kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	struct side sides[KERNEL_GPUS];
	const struct own_memory own = allocate_own(own_bytes);

	if (kfd < 0)
		die("/dev/kfd");
	for (int i = 0; i < n_gpus; i++)
		sides[i] = open_side(kfd, i);
	if (!child)
		puts("ready to count");
	for (uint32_t step = 1;; step++) {
		for (int i = 0; i < n_gpus; i++)
			submit(&sides[i]);
		for (int i = 0; i < n_gpus; i++) {
			await(&sides[i]);
			for (int w = 0; w < WORDS; w++)
				if (sides[i].words[w] != step) {
					printf("step %u BAD: GPU %d, word %d is %u\n", step, i, w,
					       sides[i].words[w]);
					return 1;
				}
		}
		if (!is_right(&own)) {
			printf("step %u BAD: memory\n", step);
			return 1;
		}
		if (child)
			printf("child %d at %u\n", child, step);
		else
			printf("step %u OK\n", step);
	}
}

int main(int argc, char **argv)
{
	int n_gpus = KERNEL_GPUS, n_children = 0;
	size_t own_bytes = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--gpus"))
			n_gpus = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--children"))
			n_children = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--memory-mib"))
			own_bytes = (size_t)atoi(argv[i + 1]) << 20;
	}
	for (int i = 0; i < n_children; i++)
		if (fork() == 0)
			return count(n_gpus, i + 1, 0);
	return count(n_gpus, 0, own_bytes);
}
