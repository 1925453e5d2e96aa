// SPDX-License-Identifier: MIT
/* Kinds of memory. */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 20, AREA = PAGES * PAGE };

static void *anonymous(int flags)
{
	void *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	pattern((char *)p + PAGE, AREA / 2);
	return p;
}

static bool make_anonymous(void)
{
	return look_at_memory(anonymous(kind->detail), AREA, "area");
}

static bool make_protected(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && mprotect(p + 4 * PAGE, 3 * PAGE, kind->detail) == 0 &&
	       look_at_memory(p, AREA, "area");
}

static bool make_advised(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && madvise(p, AREA, kind->detail) == 0 && look_at_memory(p, AREA, "area");
}

static char *guarded;

static bool make_guarded(void)
{
	char *p = anonymous(MAP_PRIVATE);

	guarded = p;
	/* Reading it would end the program. */
	return p && madvise(p + 8 * PAGE, PAGE, 102 /* install a guard */) == 0 &&
	       look_at_memory(p, 8 * PAGE, "area");
}

static const char *use_guarded(void)
{
	char byte;
	const struct iovec to = { &byte, 1 }, guard = { guarded + 8 * PAGE, 1 };

	return process_vm_readv(getpid(), &to, 1, &guard, 1, 0) < 0 && errno == EFAULT
		       ? NULL
		       : "lets a guard be read";
}

static bool make_locked(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && (kind->detail ? mlock2(p, AREA, MLOCK_ONFAULT) : mlock(p, AREA)) == 0 &&
	       look_at_memory(p, AREA, "area");
}

static bool make_sealed(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && syscall(462 /* mseal */, p, AREA, 0) == 0 && look_at_memory(p, AREA, "area");
}

static bool make_protection_key(void)
{
	char *p = anonymous(MAP_PRIVATE);
	int key = pkey_alloc(0, 0);

	return p && key >= 0 && pkey_mprotect(p, AREA, PROT_READ | PROT_WRITE, key) == 0 &&
	       look_at_memory(p, AREA, "area");
}

static bool make_named(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && syscall(SYS_prctl, 0x53564d41 /* PR_SET_VMA */, 0, p, AREA, "object") == 0 &&
	       look_at_memory(p, AREA, "area");
}

static bool make_holes(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && munmap(p + 3 * PAGE, 2 * PAGE) == 0 && look_at_memory(p, 3 * PAGE, "before") &&
	       look_at_memory(p + 5 * PAGE, AREA - 5 * PAGE, "after");
}

static bool make_moved(void)
{
	char *p = anonymous(MAP_PRIVATE);

	return p && look_at_memory(mremap(p, AREA, 4 * AREA, MREMAP_MAYMOVE), 4 * AREA, "area");
}

static bool make_growing(void)
{
	char *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);

	if (p == MAP_FAILED)
		return false;
	pattern(p, AREA);
	return look_at_memory(p, AREA, "area");
}

static int file_of_area(const char *path)
{
	char bytes[AREA];
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	pattern(bytes, sizeof(bytes));
	return write(fd, bytes, sizeof(bytes)) == sizeof(bytes) ? fd : -1;
}

/* A private mapping has pages of its own; a shared one is written to. */
static bool make_file_area(void)
{
	int fd = file_of_area(new_path("")), offset = PAGE * (int)chance(3);
	char *p = mmap(NULL, AREA - offset, PROT_READ | PROT_WRITE, kind->detail, fd, offset);

	if (p == MAP_FAILED)
		return false;
	close(fd);
	pattern(p + 5 * PAGE, 3000);
	return look_at_memory(p, AREA - offset, "area");
}

static bool make_file_read_only(void)
{
	const char *path = new_path("");

	close(file_of_area(path));
	int fd = open(path, O_RDONLY);
	void *p = mmap(NULL, AREA, PROT_READ, kind->detail, fd, 0);
	close(fd);
	return look_at_memory(p, AREA, "area");
}

static bool make_deleted_area(void)
{
	const char *path = new_path("");
	int fd = file_of_area(path);
	char *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, kind->detail, fd, 0);

	if (p == MAP_FAILED || unlink(path) < 0)
		return false;
	close(fd);
	pattern(p + PAGE, 100);
	return look_at_memory(p, AREA, "area");
}

/* As a package that is updated does it. */
static bool make_replaced_area(void)
{
	const char *path = new_path(""), *new = new_path("-new");
	int fd = file_of_area(path);
	void *p = mmap(NULL, AREA, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

	close(fd);
	close(file_of_area(new));
	return p != MAP_FAILED && rename(new, path) == 0 && look_at_memory(p, AREA, "area") &&
	       look_at_path(path, "path");
}

static bool make_memfd_area(void)
{
	int fd = memfd_create("area", 0);
	void *p = ftruncate(fd, AREA) < 0
			  ? MAP_FAILED
			  : mmap(NULL, AREA, PROT_READ | PROT_WRITE, kind->detail, fd, 0);

	if (p == MAP_FAILED)
		return false;
	pattern(p, AREA / 2);
	return look_at_fd(fd, "fd") && look_at_memory(p, AREA, "area");
}

static bool make_shm_area(void)
{
	char name[64];

	snprintf(name, sizeof(name), "/objects-%d-%u", (int)getpid(), chance(1 << 30));
	int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	void *p = ftruncate(fd, AREA) < 0
			  ? MAP_FAILED
			  : mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return false;
	close(fd);
	pattern(p, AREA);
	if (kind->detail)
		shm_unlink(name);
	return look_at_memory(p, AREA, "area");
}

/* Shared with a child. */
static bool make_shared_with_child(void)
{
	void *p = anonymous(MAP_SHARED);

	return p && look_at_child(idle_child(NULL), "child") && look_at_memory(p, AREA, "area");
}

static bool make_huge(void)
{
	void *p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (p == MAP_FAILED)
		return false;
	pattern(p, PAGE);
	return look_at_memory(p, 2 << 20, "area");
}

static bool make_stack_like(void)
{
	void *p = anonymous(MAP_PRIVATE | MAP_NORESERVE | MAP_STACK);

	return look_at_memory(p, AREA, "area");
}

static bool make_device_zero(void)
{
	int fd = open("/dev/zero", O_RDWR);
	void *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, kind->detail, fd, 0);

	if (p == MAP_FAILED)
		return false;
	close(fd);
	pattern(p, PAGE);
	return look_at_memory(p, AREA, "area");
}

static bool make_far_below(void)
{
	void *p = mmap((void *)0x10000000, AREA, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (p == MAP_FAILED)
		return false;
	pattern(p, AREA);
	return look_at_memory(p, AREA, "area");
}

static bool make_many_small(void)
{
	char *p =
		mmap(NULL, 400 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < 400; i += 2) {
		pattern(p + i * PAGE, 16);
		if (mprotect(p + i * PAGE, PAGE, PROT_READ) < 0)
			return false;
	}
	return look_at_memory(p, 400 * PAGE, "area");
}

/* ---- System V ---- */

static int sysv_id;

static bool make_sysv_shm(void)
{
	sysv_id = shmget(IPC_PRIVATE, AREA, IPC_CREAT | 0600);
	void *p = shmat(sysv_id, NULL, 0);

	if (p == (void *)-1)
		return false;
	shmctl(sysv_id, IPC_RMID, NULL);
	pattern(p, AREA);
	return look_at_memory(p, AREA, "area");
}

static void look_at_sem(void *arg)
{
	fact("value", "%d", semctl(*(int *)arg, 0, GETVAL));
}

static bool make_sysv_sem(void)
{
	static int id;

	id = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
	struct sembuf up = { 0, 3, SEM_UNDO };
	/* It outlives us: the tester removes it. */
	printf("left semaphores %d\n", id);
	return id >= 0 && semop(id, &up, 1) == 0 && look_by(look_at_sem, &id);
}

static void look_at_queue(void *arg)
{
	struct msqid_ds ds = { 0 };

	int r = msgctl(*(int *)arg, IPC_STAT, &ds);

	fact("queue", "%d, %ld messages", r, (long)ds.msg_qnum);
}

static bool make_sysv_queue(void)
{
	static int id;
	struct {
		long type;
		char text[8];
	} message = { 1, "hello" };

	id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
	printf("left queue %d\n", id);
	return id >= 0 && msgsnd(id, &message, sizeof(message.text), 0) == 0 &&
	       look_by(look_at_queue, &id);
}

/* ---- what else a process's memory has ---- */

static bool make_membarrier(void)
{
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

static const char *use_membarrier(void)
{
	return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0
		       ? NULL
		       : "is not registered";
}

static bool make_userfaultfd(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_api api = { .api = UFFD_API };
	void *p = anonymous(MAP_PRIVATE);
	struct uffdio_register range = { { (uintptr_t)p, AREA }, UFFDIO_REGISTER_MODE_MISSING, 0 };

	return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 &&
	       ioctl(fd, UFFDIO_REGISTER, &range) == 0 && look_at_fd(fd, "fd");
}

const struct kind kinds_of_memory[] = {
	{ "memory-private", make_anonymous, .detail = MAP_PRIVATE },
	{ "memory-shared", make_anonymous, .detail = MAP_SHARED },
	{ "memory-noreserve", make_anonymous, .detail = MAP_PRIVATE | MAP_NORESERVE },
	{ "memory-populated", make_anonymous, .detail = MAP_PRIVATE | MAP_POPULATE },
	{ "memory-mapped-locked", make_anonymous, .detail = MAP_PRIVATE | MAP_LOCKED },
	{ "memory-no-access", make_protected, .detail = PROT_NONE },
	{ "memory-read-only", make_protected, .detail = PROT_READ },
	{ "memory-executable", make_protected, .detail = PROT_READ | PROT_WRITE | PROT_EXEC },
	{ "memory-execute-only", make_protected, .detail = PROT_EXEC },
	{ "memory-dontfork", make_advised, .detail = MADV_DONTFORK },
	{ "memory-wipeonfork", make_advised, .detail = MADV_WIPEONFORK },
	{ "memory-hugepage", make_advised, .detail = MADV_HUGEPAGE },
	{ "memory-nohugepage", make_advised, .detail = MADV_NOHUGEPAGE },
	{ "memory-dontdump", make_advised, .detail = MADV_DONTDUMP },
	{ "memory-mergeable", make_advised, .detail = MADV_MERGEABLE },
	{ "memory-random", make_advised, .detail = MADV_RANDOM },
	{ "memory-sequential", make_advised, .detail = MADV_SEQUENTIAL },
	{ "memory-guard", make_guarded, use_guarded },
	{ "memory-locked", make_locked },
	{ "memory-locked-on-fault", make_locked, .detail = 1 },
	{ "memory-mseal", make_sealed },
	{ "memory-protection-key", make_protection_key },
	{ "memory-named", make_named },
	{ "memory-holes", make_holes },
	{ "memory-moved", make_moved },
	{ "memory-growing", make_growing },
	{ "memory-stack", make_stack_like },
	{ "memory-far-below", make_far_below },
	{ "memory-many-small", make_many_small },
	{ "memory-zero-private", make_device_zero, .detail = MAP_PRIVATE },
	{ "memory-zero-shared", make_device_zero, .detail = MAP_SHARED },
	{ "memory-huge", make_huge },
	{ "memory-shared-with-child", make_shared_with_child },
	{ "file-mapped-private", make_file_area, .detail = MAP_PRIVATE },
	{ "file-mapped-shared", make_file_area, .detail = MAP_SHARED },
	{ "file-mapped-read-only", make_file_read_only, .detail = MAP_PRIVATE },
	{ "file-mapped-read-only-shared", make_file_read_only, .detail = MAP_SHARED },
	{ "file-mapped-deleted", make_deleted_area, .detail = MAP_PRIVATE },
	{ "file-mapped-deleted-shared", make_deleted_area, .detail = MAP_SHARED },
	{ "file-mapped-replaced", make_replaced_area },
	{ "memfd-mapped", make_memfd_area, .detail = MAP_SHARED },
	{ "memfd-mapped-private", make_memfd_area, .detail = MAP_PRIVATE },
	{ "shm-mapped", make_shm_area },
	{ "shm-mapped-deleted", make_shm_area, .detail = 1 },
	{ "sysv-shm", make_sysv_shm },
	{ "sysv-sem", make_sysv_sem },
	{ "sysv-queue", make_sysv_queue },
	{ "membarrier", make_membarrier, use_membarrier },
	{ "userfaultfd", make_userfaultfd },
	{ 0 },
};
