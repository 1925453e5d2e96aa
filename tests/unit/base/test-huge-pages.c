// SPDX-License-Identifier: MIT
/* What is in memory stays, whether the kernel gives huge pages or not, in our memory and in a child's. */
#include "base/huge-pages.h"
#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"

enum {
	PAGES = 3,
	BYTES = PAGES * HUGE_PAGE_BYTES,
	ROOM = BYTES + HUGE_PAGE_BYTES,
	FILLED = 32 << 20,
	HUGE_2MIB = 21 << 26, /* MFD_HUGE_2MB */
};

/* A place for BYTES at a multiple of a huge page. */
static char *reserve(void)
{
	char *p = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p + (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
}

/* Some kernels and containers do not do it; what is there is the same. */
static void is_harmless(int r)
{
	CHECK(r == 0 || r == -EINVAL || r == -ENOMEM || r == -EBUSY || r == -EAGAIN ||
	      r == -ENOSYS);
}

static void put_marks(char *p)
{
	for (size_t at = 0; at < BYTES; at += HUGE_PAGE_BYTES / 2)
		p[at + 17] = (char)(at / 4096 + 1);
}

static void marks_are_there(const char *p)
{
	size_t others = 0;

	for (size_t at = 0; at < BYTES; at += HUGE_PAGE_BYTES / 2)
		CHECK(p[at + 17] == (char)(at / 4096 + 1));
	for (size_t at = 0; at < BYTES; at++)
		others += p[at] != 0;
	CHECK(others <= 2 * PAGES);
}

static void shared_memory(void)
{
	int fd = memfd_create("huge", MFD_CLOEXEC);
	char *p = reserve();

	CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
	CHECK(mmap(p, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	put_marks(p);
	is_harmless(huge_pages_populate(p, BYTES));
	marks_are_there(p);
	munmap(p, BYTES);
	close(fd);
}

/* Nothing outside of the range is touched, and a range without a whole huge page is none. */
static void private_memory(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char there[ROOM / 4096];
	char *p = reserve();

	CHECK(huge_pages_populate(p + page, HUGE_PAGE_BYTES) == 0);
	CHECK(mincore(p, BYTES, there) == 0);
	CHECK(!memchr(there, 1, BYTES / page));
	put_marks(p);
	is_harmless(huge_pages_populate(p + page, BYTES - page));
	marks_are_there(p);
}

/* Others write it meanwhile. */
static void *write_all(void *arg)
{
	char *p = arg;

	for (size_t at = 8; at < FILLED; at += 4096)
		p[at] = 'w';
	return NULL;
}

/* All of it is there, whatever it is made of, and what was in it. */
static void filled(size_t len)
{
	int fd = memfd_create("huge", MFD_CLOEXEC);
	struct stat st;
	pthread_t thread;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
	char *p = huge_pages_map(fd, 0, len, PROT_READ | PROT_WRITE);
	CHECK(p && (uintptr_t)p % HUGE_PAGE_BYTES == 0);
	p[len - 1] = 'x';
	if (len == FILLED)
		CHECK(pthread_create(&thread, NULL, write_all, p) == 0);
	CHECK(huge_pages_fill(p, len, HUGE_PAGES_IF_CHEAP) >= 0);
	if (len == FILLED)
		CHECK(pthread_join(thread, NULL) == 0);
	CHECK(fstat(fd, &st) == 0 && (size_t)st.st_blocks * 512 >= len);
	CHECK(p[len - 1] == 'x');
	for (size_t at = 0; at < len - 1; at++)
		CHECK(p[at] == (len == FILLED && at % 4096 == 8 ? 'w' : 0));
	CHECK(huge_pages_fill(p, len, HUGE_PAGES_UNASKED) == 1);
	munmap(p, len);
	close(fd);
	CHECK(!huge_pages_map(-1, 0, len, PROT_READ) && errno == EBADF);
}

static void memory_of_a_child(void)
{
	char *p = reserve();
	int ready[2], ask[2];
	char c = 0;

	CHECK(pipe(ready) == 0 && pipe(ask) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		put_marks(p);
		CHECK(write(ready[1], &c, 1) == 1 && read(ask[0], &c, 1) == 1);
		marks_are_there(p);
		_exit(0);
	}
	CHECK(read(ready[0], &c, 1) == 1);
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), status;
	CHECK(pidfd >= 0);
	int r = huge_pages_collapse(pidfd, (uintptr_t)p, BYTES);
	if (r != -EPERM)
		is_harmless(r);
	CHECK(write(ask[1], &c, 1) == 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(huge_pages_collapse(pidfd, (uintptr_t)p, BYTES) < 0); /* it is gone */
	close(pidfd);
}

static atomic_bool over;

static void *use_memory(void *arg)
{
	const size_t len = 8 << 20;

	(void)arg;
	while (!over) {
		char *p =
			mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(p != MAP_FAILED);
		for (size_t at = 0; at < len; at += len / 8)
			p[at] = 1;
		munmap(p, len);
	}
	return NULL;
}

/* What cannot be mapped takes nothing away from other threads: no huge page is set aside for hugetlbfs here,
 * or few. */
static void failing_beside_others(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, use_memory, NULL) == 0);
	for (int i = 0; i < 5000; i++) {
		const size_t len = 8 << 20;
		int fd = memfd_create("huge", MFD_HUGETLB | (unsigned)HUGE_2MIB);

		if (fd < 0)
			break; /* no hugetlbfs at all */
		CHECK(ftruncate(fd, len) == 0);
		void *p = huge_pages_map(fd, 0, len, PROT_READ | PROT_WRITE);
		if (p)
			munmap(p, len);
		close(fd);
	}
	over = true;
	pthread_join(thread, NULL);
}

/* A few failures are forgiven, a machine that has none is not asked for long. */
static void luck(void)
{
	struct huge_pages_luck l = { 0 }, patient = { .slow_ns = 60 * NS_PER_MS };

	CHECK(huge_pages_pay(&l));
	huge_pages_note(&l, HUGE_PAGE_BYTES, -ENOMEM, huge_pages_start());
	CHECK(huge_pages_pay(&l));
	for (int i = 0; i < 100; i++)
		huge_pages_note(&l, HUGE_PAGE_BYTES, 0, huge_pages_start());
	CHECK(huge_pages_pay(&l));
	for (int i = 0; i < 50; i++) {
		huge_pages_note(&l, HUGE_PAGE_BYTES, -ENOMEM, huge_pages_start());
		huge_pages_note(&patient, HUGE_PAGE_BYTES, -ENOMEM, huge_pages_start());
	}
	CHECK(!huge_pages_pay(&l) && huge_pages_pay(&patient));
	uint64_t given_up_ns = l.given_up_ns;
	/* What others asked for in the meantime does not prolong it by much, nor end it. */
	huge_pages_note(&l, HUGE_PAGE_BYTES, 0, huge_pages_start());
	CHECK(!huge_pages_pay(&l) && l.given_up_ns - given_up_ns < NS_PER_S);
	l.given_up_ns = clock_now_ns() - 2 * NS_PER_S;
	CHECK(huge_pages_pay(&l)); /* there may be some by now */
	huge_pages_note(&l, HUGE_PAGE_BYTES, -ENOMEM, huge_pages_start());
	CHECK(huge_pages_pay(&l)); /* and what was before is forgotten */
	huge_pages_note(&l, 64ull * HUGE_PAGE_BYTES, -ENOMEM, huge_pages_start());
	CHECK(!huge_pages_pay(&l));
}

/* Waiting is not work: a machine that is busy with something else is none that is short of them. */
static void luck_by_work(void)
{
	struct huge_pages_luck l = { 0 };
	uint64_t start_ns = huge_pages_start(), since_ns = clock_now_ns();

	while (clock_now_ns() - since_ns < 50 * NS_PER_MS)
		poll(NULL, 0, 10);
	huge_pages_note(&l, 64ull * HUGE_PAGE_BYTES, 0, start_ns);
	CHECK(huge_pages_pay(&l));
	start_ns = huge_pages_start();
	while (huge_pages_start() - start_ns < 50 * NS_PER_MS)
		;
	huge_pages_note(&l, 64ull * HUGE_PAGE_BYTES, 0, start_ns);
	CHECK(!huge_pages_pay(&l));
}

int main(void)
{
	luck();
	luck_by_work();
	shared_memory();
	private_memory();
	filled(FILLED);
	filled(HUGE_PAGE_BYTES + 4096);
	memory_of_a_child();
	failing_beside_others();
	return 0;
}
