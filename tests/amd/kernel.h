// SPDX-License-Identifier: MIT
/*
 * A stand-in for the kernel's compute driver of AMD's GPUs, where there is neither: /dev/kfd, /dev/dri/renderDN and their sysfs,
 * in a mount namespace of a test. The files are plain ones. /dev/kfd holds the driver's state, struct kernel; a render node is the
 * memory of its GPU. kernel.c, preloaded, answers the calls that the driver would; gpu.c runs what queues hold.
 *
 * Facts are of the kernel's header for programs; no such hardware was asked.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

/* Where containers have the machine's /proc: the driver knows processes by its pids. */
#define KERNEL_CONTAINER_PROC "/proc-of-the-machine"

enum {
	KERNEL_GPUS = 2,
	KERNEL_PROCESSES = 16,
	KERNEL_BOS = 16,
	KERNEL_QUEUES = 4,
	KERNEL_GPU_BYTES = 64 << 20,
	KERNEL_FIRST_MINOR = 128,
};

struct kernel_gpu {
	uint32_t id, minor;
};

/* A piece of memory: where the program has it, and where it lies in the render node of its GPU. */
struct kernel_bo {
	uint64_t va, len_bytes, offset, handle;
	uint32_t gpu; /* index; of the GPU that has it */
	uint32_t user_gpu, flags;
	bool is_used;
};

/* What the GPU is to do lies in a piece, struct ring. */
struct kernel_queue {
	uint64_t ring_va;
	uint64_t done; /* words of the packet that the GPU is at */
	uint32_t user_gpu;
	bool is_used;
};

struct kernel_process {
	pid_t pid;
	uint64_t identity; /* of its pidfd: which of those that had this pid */
	bool is_used, is_paused;
	uint32_t user_gpus[KERNEL_GPUS]; /* by index: the id that the program knows */
	struct kernel_bo bos[KERNEL_BOS];
	struct kernel_queue queues[KERNEL_QUEUES];
	uint64_t last_handle;
};

/* Calls that a test may have fail. */
enum kernel_call {
	CALL_NONE,
	CALL_PROCESS_INFO,
	CALL_CHECKPOINT,
	CALL_UNPAUSE,
	CALL_RESTORE,
	CALL_RESUME,
	CALL_IMPORT,
	CALL_SUBMIT,
	CALL_FENCE,
	CALL__MAX,
};

struct kernel {
	uint32_t n_gpus;
	struct kernel_gpu gpus[KERNEL_GPUS];
	uint32_t kills;	  /* enum kernel_call: who makes it dies in it */
	uint32_t fails;	  /* enum kernel_call */
	uint64_t hold_at; /* the GPU rests when a packet is done up to there; 0: never */
	uint32_t n_held;  /* queues that rest so */
	uint32_t n_calls[CALL__MAX];
	struct kernel_process processes[KERNEL_PROCESSES];
};

/* Adds @addend to each of the words. */
struct packet {
	uint64_t va, n_words;
	uint32_t addend, padding;
};

enum { RING_PACKETS = 16 };
struct ring {
	_Atomic uint64_t written, read;
	struct packet packets[RING_PACKETS];
};

/* ---- facts ---- */

struct kfd_version {
	uint32_t major, minor;
};
struct kfd_acquire {
	uint32_t drm_fd, gpu_id;
};
struct kfd_alloc {
	uint64_t va, len_bytes, handle, offset;
	uint32_t gpu_id, flags;
};
struct kfd_queue {
	uint64_t ring_va, write_va, read_va, doorbell;
	uint32_t ring_bytes, gpu_id, type, percentage, priority, id;
	uint64_t eop_va, eop_bytes, save_va;
	uint32_t save_bytes, stack_bytes;
};
struct kfd_criu {
	uint64_t devices, bos, private_data, private_bytes;
	uint32_t n_devices, n_bos, n_objects, pid, op;
};
struct kfd_criu_device {
	uint32_t user_gpu_id, gpu_id, drm_fd, padding;
};
struct kfd_criu_bo {
	uint64_t va, len_bytes, offset, restored_offset;
	uint32_t gpu_id, flags, dmabuf_fd, padding;
};
#define KFD_VERSION _IOR('K', 0x01, struct kfd_version)
#define KFD_QUEUE   _IOWR('K', 0x02, struct kfd_queue)
#define KFD_ACQUIRE _IOW('K', 0x15, struct kfd_acquire)
#define KFD_ALLOC   _IOWR('K', 0x16, struct kfd_alloc)
#define KFD_CRIU    _IOWR('K', 0x22, struct kfd_criu)
enum { KFD_PROCESS_INFO, KFD_CHECKPOINT, KFD_UNPAUSE, KFD_RESTORE, KFD_RESUME };
enum { KFD_VRAM = 1 << 0, KFD_GTT = 1 << 1 };
