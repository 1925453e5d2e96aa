// SPDX-License-Identifier: MIT
/*
 * The GPUs of the stand-in (kernel.h): run what the queues of processes hold, in pieces, so that a process can be paused in the
 * middle of a packet; and forget processes that ended.
 *
 *	gpu make          makes /dev/kfd and the render nodes
 *	gpu run           is the GPUs, and says "ready"
 *	gpu fail CALL     from now on calls of that number fail; 0: none
 *	gpu kill CALL     the same, and who makes them is killed
 *	gpu number FIRST  gives the GPUs the numbers FIRST and after it, as those of another machine have
 *	gpu hold WORDS    lets packets rest after so many words; 0: none
 *	gpu show          prints the number of queues that rest so, of processes, of those paused, and what of each GPU is used
 *	gpu calls         prints how often each call was made
 */
#include "kernel.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEP_WORDS = 4096, STEP_NS = 100000 };

static struct kernel *kernel;
static int kernel_fd;
static char *memory[KERNEL_GPUS];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_kernel(void)
{
	kernel_fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	if (kernel_fd < 0)
		die("/dev/kfd");
	kernel = mmap(NULL, sizeof(*kernel), PROT_READ | PROT_WRITE, MAP_SHARED, kernel_fd, 0);
	if (kernel == MAP_FAILED)
		die("mmap");
}

static void make(void)
{
	char path[64];

	kernel_fd = open("/dev/kfd", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (kernel_fd < 0 || ftruncate(kernel_fd, sizeof(*kernel)) < 0)
		die("/dev/kfd");
	close(kernel_fd);
	open_kernel();
	kernel->n_gpus = KERNEL_GPUS;
	for (uint32_t i = 0; i < KERNEL_GPUS; i++) {
		kernel->gpus[i] =
			(struct kernel_gpu){ .id = 1000 + i, .minor = KERNEL_FIRST_MINOR + i };
		snprintf(path, sizeof(path), "/dev/dri/renderD%u", kernel->gpus[i].minor);
		int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 || ftruncate(fd, KERNEL_GPU_BYTES) < 0)
			die(path);
		close(fd);
	}
}

/* ---- what queues hold ---- */

static void *look_up(const struct kernel_process *p, uint32_t user_gpu, uint64_t va,
		     uint64_t len_bytes)
{
	for (int i = 0; i < KERNEL_BOS; i++) {
		const struct kernel_bo *b = &p->bos[i];
		if (b->is_used && b->user_gpu == user_gpu && va >= b->va &&
		    va - b->va <= b->len_bytes && len_bytes <= b->len_bytes - (va - b->va))
			return memory[b->gpu] + b->offset + (va - b->va);
	}
	return NULL;
}

/* Returns whether it did something. */
static bool run_queue(const struct kernel_process *p, struct kernel_queue *q)
{
	struct ring *ring = look_up(p, q->user_gpu, q->ring_va, sizeof(*ring));
	uint64_t read = ring ? atomic_load(&ring->read) : 0;

	if (!ring || read == atomic_load(&ring->written))
		return false;
	const struct packet packet = ring->packets[read % RING_PACKETS];
	uint32_t *words = look_up(p, q->user_gpu, packet.va, packet.n_words * sizeof(*words));
	if (!words)
		return false; /* a page fault: the queue stands still */
	if (kernel->hold_at && q->done >= kernel->hold_at) {
		kernel->n_held++;
		return false;
	}
	uint64_t end =
		q->done + STEP_WORDS < packet.n_words ? q->done + STEP_WORDS : packet.n_words;
	for (; q->done < end; q->done++)
		words[q->done] += packet.addend;
	if (q->done == packet.n_words) {
		q->done = 0;
		atomic_store(&ring->read, read + 1);
	}
	return true;
}

/* ---- processes that ended ---- */

static bool is_alive(const struct kernel_process *p)
{
	int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	struct pollfd ended = { .fd = fd, .events = POLLIN };
	struct stat st;

	if (fd < 0)
		return false;
	bool r = fstat(fd, &st) == 0 && st.st_ino == p->identity && poll(&ended, 1, 0) == 0;
	close(fd);
	return r;
}

static void forget(struct kernel_process *p)
{
	char path[128];

	p->is_used = false;
	for (int i = 0; i < KERNEL_PROCESSES; i++)
		if (kernel->processes[i].is_used && kernel->processes[i].pid == p->pid)
			return;
	for (uint32_t i = 0; i < kernel->n_gpus; i++) {
		snprintf(path, sizeof(path), "/sys/class/kfd/kfd/proc/%d/vram_%u", (int)p->pid,
			 kernel->gpus[i].id);
		unlink(path);
	}
	snprintf(path, sizeof(path), "/sys/class/kfd/kfd/proc/%d", (int)p->pid);
	rmdir(path);
}

static uint64_t count_used(uint32_t gpu)
{
	uint64_t bytes = 0;

	for (int i = 0; i < KERNEL_PROCESSES * KERNEL_BOS; i++) {
		const struct kernel_process *p = &kernel->processes[i / KERNEL_BOS];
		const struct kernel_bo *b = &p->bos[i % KERNEL_BOS];
		if (p->is_used && b->is_used && b->gpu == gpu && b->flags & KFD_VRAM)
			bytes += b->len_bytes;
	}
	return bytes;
}

/* ---- */

static void run_all(void)
{
	kernel->n_held = 0;
	for (int i = 0; i < KERNEL_PROCESSES; i++) {
		struct kernel_process *p = &kernel->processes[i];
		if (p->is_used && !is_alive(p))
			forget(p);
		for (int j = 0; p->is_used && !p->is_paused && j < KERNEL_QUEUES; j++)
			if (p->queues[j].is_used)
				run_queue(p, &p->queues[j]);
	}
}

static void be_gpus(void)
{
	char path[64];

	for (uint32_t i = 0; i < KERNEL_GPUS; i++) {
		snprintf(path, sizeof(path), "/dev/dri/renderD%u", kernel->gpus[i].minor);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		memory[i] = mmap(NULL, KERNEL_GPU_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd < 0 || memory[i] == MAP_FAILED)
			die(path);
		close(fd);
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		const struct timespec step = { .tv_nsec = STEP_NS };
		flock(kernel_fd, LOCK_EX);
		run_all();
		flock(kernel_fd, LOCK_UN);
		nanosleep(&step, NULL);
	}
}

static void show(void)
{
	unsigned int n = 0, n_paused = 0;

	for (int i = 0; i < KERNEL_PROCESSES; i++) {
		n += kernel->processes[i].is_used;
		n_paused += kernel->processes[i].is_used && kernel->processes[i].is_paused;
	}
	printf("%u %u %u", kernel->n_held, n, n_paused);
	for (uint32_t i = 0; i < kernel->n_gpus; i++)
		printf(" %llu", (unsigned long long)count_used(i));
	puts("");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	uint64_t number = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

	if (!strcmp(what, "make")) {
		make();
		return 0;
	}
	open_kernel();
	if (!strcmp(what, "run"))
		be_gpus();
	flock(kernel_fd, LOCK_EX);
	if (!strcmp(what, "fail"))
		kernel->fails = (uint32_t)number;
	else if (!strcmp(what, "kill"))
		kernel->kills = (uint32_t)number;
	else if (!strcmp(what, "number"))
		for (uint32_t i = 0; i < kernel->n_gpus; i++)
			kernel->gpus[i].id = (uint32_t)number + i;
	else if (!strcmp(what, "hold"))
		kernel->hold_at = number;
	else if (!strcmp(what, "show"))
		show();
	else if (!strcmp(what, "calls"))
		for (int i = 1; i < CALL__MAX; i++)
			printf("%u\n", kernel->n_calls[i]);
	else
		return 2;
	return 0;
}
