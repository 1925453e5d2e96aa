// SPDX-License-Identifier: MIT
/*
 * The calls of the stand-in (kernel.h), preloaded into the program and into CRIU: the driver's ioctls, what CRIU asks of files that
 * would be devices, and those functions of libdrm by which CRIU's plugin has the GPU copy. Everything else, the plugin above all,
 * is the real one.
 */
#include "kernel.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { KFD_MAJOR = 511, DRM_MAJOR = 226 };
static const char kfd_path[] = "/dev/kfd", sysfs[] = "/sys/class/kfd/kfd/proc";

/* ---- which files are devices ---- */

static int raw_stat(int dir, const char *path, struct stat *st, int flags)
{
	return (int)syscall(SYS_newfstatat, dir, path, st, flags);
}

static bool is_same(const struct stat *a, const char *path)
{
	struct stat b;

	return raw_stat(AT_FDCWD, path, &b, 0) == 0 && a->st_dev == b.st_dev &&
	       a->st_ino == b.st_ino;
}

/* The index of the GPU whose render node it is; -1: none. */
static int gpu_of(const struct stat *st)
{
	char path[64];

	for (int i = 0; i < KERNEL_GPUS; i++) {
		snprintf(path, sizeof(path), "/dev/dri/renderD%d", KERNEL_FIRST_MINOR + i);
		if (is_same(st, path))
			return i;
	}
	return -1;
}

static int disguise(int r, struct stat *st)
{
	int gpu;

	if (r < 0 || !S_ISREG(st->st_mode))
		return r;
	if (is_same(st, kfd_path))
		st->st_rdev = makedev(KFD_MAJOR, 0);
	else if ((gpu = gpu_of(st)) >= 0)
		st->st_rdev = makedev(DRM_MAJOR, KERNEL_FIRST_MINOR + gpu);
	else
		return r;
	st->st_mode = S_IFCHR | (st->st_mode & 07777);
	st->st_size = 0;
	return r;
}

int fstat(int fd, struct stat *st)
{
	return disguise(raw_stat(fd, "", st, AT_EMPTY_PATH), st);
}

int stat(const char *path, struct stat *st)
{
	return disguise(raw_stat(AT_FDCWD, path, st, 0), st);
}

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return disguise(raw_stat(dir, path, st, flags), st);
}

int fstat64(int fd, struct stat64 *st)
{
	return fstat(fd, (struct stat *)st);
}

int stat64(const char *path, struct stat64 *st)
{
	return stat(path, (struct stat *)st);
}

int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return fstatat(dir, path, (struct stat *)st, flags);
}

/* ---- the state ---- */

static struct kernel *lock_kernel(int *ret_fd)
{
	*ret_fd = open(kfd_path, O_RDWR | O_CLOEXEC);
	if (*ret_fd < 0 || flock(*ret_fd, LOCK_EX) < 0)
		abort();
	struct kernel *k = mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	if (k == MAP_FAILED)
		abort();
	return k;
}

static void unlock_kernel(struct kernel *k, int fd)
{
	munmap(k, sizeof(*k));
	close(fd);
}

/* Counts the call, and whether a test wants it to fail. */
static bool fails(struct kernel *k, enum kernel_call call)
{
	k->n_calls[call]++;
	if (k->kills == (uint32_t)call)
		kill(getpid(), SIGKILL);
	return k->fails == (uint32_t)call;
}

static bool call_fails(enum kernel_call call)
{
	int fd;
	struct kernel *k = lock_kernel(&fd);
	bool r = fails(k, call);

	unlock_kernel(k, fd);
	return r;
}

/* As the machine's /proc has it, which a container has under another name: the one whom CRIU means when it is in another namespace of
 * pids. */
static pid_t own_pid(void)
{
	char text[16];
	ssize_t n = readlink(KERNEL_CONTAINER_PROC "/self", text, sizeof(text) - 1);

	if (n < 0)
		n = readlink("/proc/self", text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	return atoi(text);
}

/* The same in every namespace, as the start of a process is not. */
static uint64_t identity_of(pid_t pid)
{
	struct stat st = { 0 };
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0 || raw_stat(fd, "", &st, AT_EMPTY_PATH) < 0)
		return 0;
	close(fd);
	return st.st_ino;
}

/* The caller's own, or of a process that CRIU restored. */
static struct kernel_process *find_process(struct kernel *k, pid_t pid)
{
	uint64_t identity = identity_of(pid == own_pid() ? getpid() : pid);

	for (int i = 0; i < KERNEL_PROCESSES; i++)
		if (k->processes[i].is_used && k->processes[i].pid == pid &&
		    k->processes[i].identity == identity)
			return &k->processes[i];
	return NULL;
}

/* A process that the driver does not know yet. */
static struct kernel_process *add_process(struct kernel *k, pid_t pid)
{
	struct kernel_process *free_one = NULL;

	for (int i = KERNEL_PROCESSES - 1; i >= 0; i--) {
		struct kernel_process *p = &k->processes[i];
		if (!p->is_used || p->pid == pid)
			free_one = p;
	}
	if (!free_one)
		return NULL;
	*free_one = (struct kernel_process){ .pid = pid,
					     .identity = identity_of(getpid()),
					     .is_used = true };
	for (uint32_t i = 0; i < k->n_gpus; i++)
		free_one->user_gpus[i] = k->gpus[i].id;
	return free_one;
}

static int find_gpu(const struct kernel *k, const struct kernel_process *p, uint32_t user_gpu)
{
	for (uint32_t i = 0; i < k->n_gpus; i++)
		if (p->user_gpus[i] == user_gpu)
			return (int)i;
	return -1;
}

/* What sysfs tells of the process. */
static void show(const struct kernel *k, const struct kernel_process *p)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), "%s/%d", sysfs, (int)p->pid);
	mkdir(path, 0755);
	for (uint32_t i = 0; i < k->n_gpus; i++) {
		uint64_t bytes = 0;
		for (int j = 0; j < KERNEL_BOS; j++)
			if (p->bos[j].is_used && p->bos[j].gpu == i && p->bos[j].flags & KFD_VRAM)
				bytes += p->bos[j].len_bytes;
		snprintf(path, sizeof(path), "%s/%d/vram_%u", sysfs, (int)p->pid, k->gpus[i].id);
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)bytes);
		if (fd < 0 || write(fd, text, (size_t)n) != n)
			abort();
		close(fd);
	}
}

/* ---- memory ---- */

/* The first place in the GPU where nobody's piece is. */
static bool find_place(const struct kernel *k, uint32_t gpu, uint64_t len_bytes, uint64_t *ret)
{
	uint64_t place = 1 << 20;

	for (bool moved = true; moved;) {
		moved = false;
		for (int i = 0; i < KERNEL_PROCESSES * KERNEL_BOS; i++) {
			const struct kernel_process *p = &k->processes[i / KERNEL_BOS];
			const struct kernel_bo *b = &p->bos[i % KERNEL_BOS];
			if (p->is_used && b->is_used && b->gpu == gpu &&
			    b->offset < place + len_bytes && place < b->offset + b->len_bytes) {
				place = (b->offset + b->len_bytes + 0xffff) & ~0xffffull;
				moved = true;
			}
		}
	}
	*ret = place;
	return place + len_bytes <= KERNEL_GPU_BYTES;
}

static int open_gpu(uint32_t gpu)
{
	char path[64];

	snprintf(path, sizeof(path), "/dev/dri/renderD%u", KERNEL_FIRST_MINOR + gpu);
	return open(path, O_RDWR | O_CLOEXEC);
}

static int add_bo(struct kernel *k, struct kernel_process *p, struct kernel_bo bo,
		  struct kernel_bo **ret)
{
	for (int i = 0; i < KERNEL_BOS; i++) {
		struct kernel_bo *b = &p->bos[i];
		if (b->is_used)
			continue;
		if (!find_place(k, bo.gpu, bo.len_bytes, &bo.offset))
			return -ENOMEM;
		int fd = open_gpu(bo.gpu);
		if (fd < 0 || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					(off_t)bo.offset, (off_t)bo.len_bytes) < 0)
			return -errno;
		close(fd);
		bo.is_used = true;
		bo.handle = ++p->last_handle;
		*b = bo;
		*ret = b;
		return 0;
	}
	return -ENOMEM;
}

/* A descriptor that tells where a piece is, as a dma-buf does for those who import it. */
struct shared {
	uint32_t gpu, padding;
	uint64_t offset, len_bytes;
};

static int share(const struct kernel_bo *b)
{
	const struct shared s = { .gpu = b->gpu, .offset = b->offset, .len_bytes = b->len_bytes };
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);

	if (fd < 0 || pwrite(fd, &s, sizeof(s), 0) != sizeof(s))
		abort();
	return fd;
}

/* ---- the driver's calls ---- */

static int alloc_memory(struct kernel *k, struct kfd_alloc *a)
{
	struct kernel_process *p = find_process(k, own_pid());
	int gpu = p ? find_gpu(k, p, a->gpu_id) : -1;
	struct kernel_bo *b;

	if (gpu < 0)
		return -EINVAL;
	int r = add_bo(k, p,
		       (struct kernel_bo){ .va = a->va,
					   .len_bytes = a->len_bytes,
					   .gpu = (uint32_t)gpu,
					   .user_gpu = a->gpu_id,
					   .flags = a->flags },
		       &b);
	if (r < 0)
		return r;
	a->handle = b->handle;
	a->offset = b->offset;
	show(k, p);
	return 0;
}

static int create_queue(struct kernel *k, struct kfd_queue *q)
{
	struct kernel_process *p = find_process(k, own_pid());

	if (!p || find_gpu(k, p, q->gpu_id) < 0)
		return -EINVAL;
	for (uint32_t i = 0; i < KERNEL_QUEUES; i++) {
		if (p->queues[i].is_used)
			continue;
		p->queues[i] = (struct kernel_queue){ .ring_va = q->ring_va,
						      .user_gpu = q->gpu_id,
						      .is_used = true };
		q->id = i;
		return 0;
	}
	return -ENOMEM;
}

/* Whose file it is: a process that CRIU holds, which has the same file open; ours are not in the driver. */
static struct kernel_process *owner_of(struct kernel *k, int fd)
{
	off_t token = lseek(fd, 0, SEEK_CUR);

	for (int i = 0; i < KERNEL_PROCESSES; i++)
		if (k->processes[i].is_used && k->processes[i].pid == (pid_t)token)
			return &k->processes[i];
	return NULL;
}

static uint32_t count_bos(const struct kernel_process *p)
{
	uint32_t n = 0;

	for (int i = 0; i < KERNEL_BOS; i++)
		n += p->bos[i].is_used;
	return n;
}

/* As the process itself knows it, which is how CRIU restores it. */
static pid_t inner_pid(pid_t pid)
{
	char path[64], line[256];
	int inner = pid;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "NSpid:", 6))
			inner = atoi(strrchr(line, '\t') + 1);
	if (f)
		fclose(f);
	return inner;
}

static int process_info(struct kernel *k, struct kernel_process *p, struct kfd_criu *c)
{
	if (fails(k, CALL_PROCESS_INFO))
		return -ENOMEM;
	p->is_paused = true;
	c->pid = (uint32_t)inner_pid(p->pid);
	c->n_devices = k->n_gpus;
	c->n_bos = count_bos(p);
	c->n_objects = KERNEL_QUEUES;
	c->private_bytes = sizeof(p->queues);
	return 0;
}

static int checkpoint(struct kernel *k, struct kernel_process *p, struct kfd_criu *c)
{
	struct kfd_criu_device *devices = (void *)(uintptr_t)c->devices;
	struct kfd_criu_bo *bos = (void *)(uintptr_t)c->bos;
	uint32_t n = 0;

	if (!p->is_paused || c->n_devices != k->n_gpus || c->n_bos != count_bos(p) ||
	    c->private_bytes != sizeof(p->queues))
		return -EINVAL;
	if (fails(k, CALL_CHECKPOINT))
		return -EIO;
	for (uint32_t i = 0; i < k->n_gpus; i++)
		devices[i] = (struct kfd_criu_device){ .user_gpu_id = p->user_gpus[i],
						       .gpu_id = k->gpus[i].id };
	for (int i = 0; i < KERNEL_BOS; i++) {
		const struct kernel_bo *b = &p->bos[i];
		if (b->is_used)
			bos[n++] = (struct kfd_criu_bo){ .va = b->va,
							 .len_bytes = b->len_bytes,
							 .offset = b->offset,
							 .gpu_id = b->user_gpu,
							 .flags = b->flags,
							 .dmabuf_fd = (uint32_t)share(b) };
	}
	memcpy((void *)(uintptr_t)c->private_data, p->queues, sizeof(p->queues));
	return 0;
}

static int restore_devices(struct kernel *k, struct kernel_process *p, const struct kfd_criu *c)
{
	const struct kfd_criu_device *devices = (void *)(uintptr_t)c->devices;
	struct stat st;

	memset(p->user_gpus, 0, sizeof(p->user_gpus));
	for (uint32_t i = 0; i < c->n_devices; i++) {
		int gpu = raw_stat((int)devices[i].drm_fd, "", &st, AT_EMPTY_PATH) == 0
				  ? gpu_of(&st)
				  : -1;
		if (gpu < 0 || k->gpus[gpu].id != devices[i].gpu_id || p->user_gpus[gpu])
			return -EINVAL;
		p->user_gpus[gpu] = devices[i].user_gpu_id;
	}
	return 0;
}

/* For a process that the driver does not know. */
static int restore(struct kernel *k, struct kfd_criu *c)
{
	struct kfd_criu_bo *bos = (void *)(uintptr_t)c->bos;
	struct kernel_bo *b;

	if (find_process(k, own_pid()) || c->private_bytes != sizeof(k->processes[0].queues))
		return -EINVAL;
	if (fails(k, CALL_RESTORE))
		return -EIO;
	struct kernel_process *p = add_process(k, own_pid());
	int r = p ? restore_devices(k, p, c) : -ENOMEM;
	for (uint32_t i = 0; i < c->n_bos && r == 0; i++) {
		int gpu = find_gpu(k, p, bos[i].gpu_id);
		r = gpu < 0 ? -EINVAL
			    : add_bo(k, p,
				     (struct kernel_bo){ .va = bos[i].va,
							 .len_bytes = bos[i].len_bytes,
							 .gpu = (uint32_t)gpu,
							 .user_gpu = bos[i].gpu_id,
							 .flags = bos[i].flags },
				     &b);
		if (r < 0)
			break;
		bos[i].restored_offset = b->offset;
		bos[i].dmabuf_fd = (uint32_t)share(b);
	}
	if (r < 0) {
		if (p)
			p->is_used = false;
		return r;
	}
	memcpy(p->queues, (void *)(uintptr_t)c->private_data, sizeof(p->queues));
	p->is_paused = true;
	show(k, p);
	return 0;
}

static int resume(struct kernel *k, const struct kfd_criu *c)
{
	struct kernel_process *p = find_process(k, (pid_t)c->pid);

	if (!p)
		return -ESRCH;
	if (fails(k, CALL_RESUME))
		return -EIO;
	p->is_paused = false;
	return 0;
}

static int criu_op(struct kernel *k, int fd, struct kfd_criu *c)
{
	struct kernel_process *p = owner_of(k, fd);

	switch (c->op) {
	case KFD_RESTORE: {
		int r = restore(k, c);
		if (r == 0)
			lseek(fd, own_pid(), SEEK_SET);
		return r;
	}
	case KFD_RESUME:
		return resume(k, c);
	case KFD_PROCESS_INFO:
		return p ? process_info(k, p, c) : -ESRCH;
	case KFD_CHECKPOINT:
		return p ? checkpoint(k, p, c) : -ESRCH;
	case KFD_UNPAUSE:
		if (!p || !p->is_paused)
			return -EINVAL;
		if (fails(k, CALL_UNPAUSE))
			return -EIO;
		p->is_paused = false;
		return 0;
	default:
		return -EINVAL;
	}
}

/* The file's position is whose it is: two descriptors of one open file share it, and CRIU's copies are such. */
static int acquire(struct kernel *k, int fd)
{
	struct kernel_process *p = find_process(k, own_pid());

	if (!p)
		p = add_process(k, own_pid());
	if (!p)
		return -ENOMEM;
	lseek(fd, p->pid, SEEK_SET);
	show(k, p);
	return 0;
}

static int kfd_call(int fd, unsigned long request, void *arg)
{
	int kernel_fd;
	struct kernel *k = lock_kernel(&kernel_fd);
	int r = -ENOTTY;

	if (request == KFD_VERSION) {
		*(struct kfd_version *)arg = (struct kfd_version){ .major = 1, .minor = 14 };
		r = 0;
	} else if (request == KFD_ACQUIRE) {
		r = acquire(k, fd);
	} else if (request == KFD_ALLOC) {
		r = alloc_memory(k, arg);
	} else if (request == KFD_QUEUE) {
		r = create_queue(k, arg);
	} else if (request == KFD_CRIU) {
		r = criu_op(k, fd, arg);
	}
	unlock_kernel(k, kernel_fd);
	return r;
}

int ioctl(int fd, unsigned long request, ...)
{
	struct stat st;
	va_list list;

	va_start(list, request);
	void *arg = va_arg(list, void *);
	va_end(list);
	if (_IOC_TYPE(request) != 'K' || raw_stat(fd, "", &st, AT_EMPTY_PATH) < 0 ||
	    !S_ISREG(st.st_mode) || !is_same(&st, kfd_path))
		return (int)syscall(SYS_ioctl, fd, request, arg);
	int r = kfd_call(fd, request, arg);
	if (r < 0) {
		errno = -r;
		return -1;
	}
	return r;
}

/* ---- libdrm: a GPU that copies by its sDMA engine ---- */

struct amdgpu_device {
	int gpu;
};

struct amdgpu_bo {
	void *memory; /* as the processor has it */
	uint64_t len_bytes, va;
	bool is_mapped, is_own;
};

struct amdgpu_list {
	uint32_t n;
	struct amdgpu_bo *items[];
};

struct import_result {
	struct amdgpu_bo *bo;
	uint64_t len_bytes;
};

struct alloc_request {
	uint64_t len_bytes, alignment;
	uint32_t heap;
	uint64_t flags;
};

struct command_buffer {
	uint64_t flags, va;
	uint32_t n_words;
};

struct submission {
	uint64_t flags;
	uint32_t engine, instance, ring;
	struct amdgpu_list *list;
	uint32_t n_dependencies;
	void *dependencies;
	uint32_t n_buffers;
	struct command_buffer *buffers;
	uint64_t number;
};

int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, struct amdgpu_device **ret);
int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, struct amdgpu_device **ret)
{
	struct stat st;
	int gpu = raw_stat(fd, "", &st, AT_EMPTY_PATH) == 0 ? gpu_of(&st) : -1;

	if (gpu < 0)
		return -ENODEV;
	*major = 3;
	*minor = 54;
	*ret = malloc(sizeof(**ret));
	(*ret)->gpu = gpu;
	return 0;
}

int amdgpu_device_deinitialize(struct amdgpu_device *device);
int amdgpu_device_deinitialize(struct amdgpu_device *device)
{
	free(device);
	return 0;
}

/* The fourth number of what it fills is the family. */
int amdgpu_query_gpu_info(struct amdgpu_device *device, uint32_t *ret);
int amdgpu_query_gpu_info(struct amdgpu_device *device, uint32_t *ret)
{
	enum { FAMILY_AI = 141 };

	(void)device;
	ret[3] = FAMILY_AI;
	return 0;
}

static struct amdgpu_bo *new_bo(void *memory, uint64_t len_bytes, bool is_mapped, bool is_own)
{
	struct amdgpu_bo *b = malloc(sizeof(*b));

	*b = (struct amdgpu_bo){
		.memory = memory, .len_bytes = len_bytes, .is_mapped = is_mapped, .is_own = is_own
	};
	return b;
}

int amdgpu_bo_import(struct amdgpu_device *device, int type, uint32_t handle,
		     struct import_result *ret);
int amdgpu_bo_import(struct amdgpu_device *device, int type, uint32_t handle,
		     struct import_result *ret)
{
	enum { DMABUF = 2 };
	struct shared s;

	if (call_fails(CALL_IMPORT))
		return -ENOMEM;
	if (type != DMABUF || pread((int)handle, &s, sizeof(s), 0) != sizeof(s) ||
	    (int)s.gpu != device->gpu)
		return -EINVAL;
	int fd = open_gpu(s.gpu);
	void *memory =
		mmap(NULL, s.len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)s.offset);
	close(fd);
	if (memory == MAP_FAILED)
		return -errno;
	*ret = (struct import_result){ .bo = new_bo(memory, s.len_bytes, true, false),
				       .len_bytes = s.len_bytes };
	return 0;
}

int amdgpu_create_bo_from_user_mem(struct amdgpu_device *device, void *memory, uint64_t len_bytes,
				   struct amdgpu_bo **ret);
int amdgpu_create_bo_from_user_mem(struct amdgpu_device *device, void *memory, uint64_t len_bytes,
				   struct amdgpu_bo **ret)
{
	(void)device;
	*ret = new_bo(memory, len_bytes, false, false);
	return 0;
}

int amdgpu_bo_alloc(struct amdgpu_device *device, struct alloc_request *request,
		    struct amdgpu_bo **ret);
int amdgpu_bo_alloc(struct amdgpu_device *device, struct alloc_request *request,
		    struct amdgpu_bo **ret)
{
	uint64_t len_bytes = (request->len_bytes + 0xfff) & ~0xfffull; /* as the kernel rounds */

	(void)device;
	*ret = new_bo(calloc(1, len_bytes), len_bytes, false, true);
	return 0;
}

int amdgpu_bo_free(struct amdgpu_bo *b);
int amdgpu_bo_free(struct amdgpu_bo *b)
{
	if (b->is_mapped)
		munmap(b->memory, b->len_bytes);
	if (b->is_own)
		free(b->memory);
	free(b);
	return 0;
}

int amdgpu_bo_cpu_map(struct amdgpu_bo *b, void **ret);
int amdgpu_bo_cpu_map(struct amdgpu_bo *b, void **ret)
{
	*ret = b->memory;
	return 0;
}

int amdgpu_bo_cpu_unmap(struct amdgpu_bo *b);
int amdgpu_bo_cpu_unmap(struct amdgpu_bo *b)
{
	(void)b;
	return 0;
}

int amdgpu_va_range_alloc(struct amdgpu_device *device, int type, uint64_t len_bytes,
			  uint64_t alignment, uint64_t base, uint64_t *ret, void **ret_handle,
			  uint64_t flags);
int amdgpu_va_range_alloc(struct amdgpu_device *device, int type, uint64_t len_bytes,
			  uint64_t alignment, uint64_t base, uint64_t *ret, void **ret_handle,
			  uint64_t flags)
{
	static _Atomic uint64_t next = 1ull << 40;

	(void)device, (void)type, (void)alignment, (void)base, (void)flags;
	*ret = atomic_fetch_add(&next, (len_bytes + 0x1fffff) & ~0x1fffffull);
	*ret_handle = NULL;
	return 0;
}

int amdgpu_va_range_free(void *handle);
int amdgpu_va_range_free(void *handle)
{
	(void)handle;
	return 0;
}

int amdgpu_bo_va_op(struct amdgpu_bo *b, uint64_t offset, uint64_t len_bytes, uint64_t va,
		    uint64_t flags, uint32_t op);
int amdgpu_bo_va_op(struct amdgpu_bo *b, uint64_t offset, uint64_t len_bytes, uint64_t va,
		    uint64_t flags, uint32_t op)
{
	enum { MAP = 1 };

	(void)offset, (void)flags;
	if (op == MAP && len_bytes > ((b->len_bytes + 0xfff) & ~0xfffull))
		return -EINVAL;
	b->va = op == MAP ? va : 0;
	return 0;
}

int amdgpu_bo_list_create(struct amdgpu_device *device, uint32_t n, struct amdgpu_bo **items,
			  uint8_t *priorities, struct amdgpu_list **ret);
int amdgpu_bo_list_create(struct amdgpu_device *device, uint32_t n, struct amdgpu_bo **items,
			  uint8_t *priorities, struct amdgpu_list **ret)
{
	(void)device, (void)priorities;
	*ret = malloc(sizeof(**ret) + n * sizeof(*items));
	(*ret)->n = n;
	memcpy((*ret)->items, items, n * sizeof(*items));
	return 0;
}

int amdgpu_bo_list_destroy(struct amdgpu_list *list);
int amdgpu_bo_list_destroy(struct amdgpu_list *list)
{
	free(list);
	return 0;
}

int amdgpu_cs_ctx_create(struct amdgpu_device *device, void **ret);
int amdgpu_cs_ctx_create(struct amdgpu_device *device, void **ret)
{
	(void)device;
	*ret = malloc(1);
	return 0;
}

int amdgpu_cs_ctx_free(void *context);
int amdgpu_cs_ctx_free(void *context)
{
	free(context);
	return 0;
}

/* Where the GPU finds @len_bytes at @va in the pieces of the list; NULL: a page fault. */
static void *look_up(const struct amdgpu_list *list, uint64_t va, uint64_t len_bytes)
{
	for (uint32_t i = 0; i < list->n; i++) {
		const struct amdgpu_bo *b = list->items[i];
		if (b->va && va >= b->va && va - b->va <= b->len_bytes &&
		    len_bytes <= b->len_bytes - (va - b->va))
			return (char *)b->memory + (va - b->va);
	}
	return NULL;
}

/* Linear copies of seven words, and words that do nothing. */
int amdgpu_cs_submit(void *context, uint64_t flags, struct submission *s, uint32_t n);
int amdgpu_cs_submit(void *context, uint64_t flags, struct submission *s, uint32_t n)
{
	enum { NOTHING = 0, COPY = 1, COPY_WORDS = 7 };

	(void)context, (void)flags;
	if (call_fails(CALL_SUBMIT))
		return -ENOMEM;
	if (n != 1 || s->n_buffers != 1)
		return -EINVAL;
	const uint32_t *w = look_up(s->list, s->buffers->va, s->buffers->n_words * 4ull);
	for (uint32_t i = 0; w && i < s->buffers->n_words;) {
		if ((w[i] & 0xff) == NOTHING) {
			i++;
			continue;
		}
		if ((w[i] & 0xffff) != COPY)
			return -EINVAL;
		void *from = look_up(s->list, w[i + 3] | (uint64_t)w[i + 4] << 32, w[i + 1]);
		void *to = look_up(s->list, w[i + 5] | (uint64_t)w[i + 6] << 32, w[i + 1]);
		if (!from || !to)
			return -EFAULT;
		memcpy(to, from, w[i + 1]);
		i += COPY_WORDS;
	}
	s->number = 1;
	return w ? 0 : -EFAULT;
}

int amdgpu_cs_query_fence_status(void *fence, uint64_t timeout_ns, uint64_t flags,
				 uint32_t *ret_expired);
int amdgpu_cs_query_fence_status(void *fence, uint64_t timeout_ns, uint64_t flags,
				 uint32_t *ret_expired)
{
	(void)fence, (void)timeout_ns, (void)flags;
	*ret_expired = !call_fails(CALL_FENCE);
	return 0;
}
