// SPDX-License-Identifier: MIT
/*
 * The simulated CUDA driver, seen from inside: what its source files share.
 *
 * Device memory is files outside the process (vram.c) that are mapped where the program's device
 * pointers point, so that kernels are plain C and memory can be passed on, parked and lost as on
 * hardware. What the hardware was seen to do is named where it is imitated, as "H200: ..."; the
 * measurements stand in docs/driver-behaviour.md.
 *
 * One mutex, sim.lock, guards all tables and queues; operations of streams run without it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"
#include "table.h"
#include "vram.h"
#include "driver-abi.h"

enum {
	SIM_PAGE_BYTES = 4096,
	SIM_GRANULE_BYTES = 2 << 20, /* H200: granularity of physical allocations */
	SIM_PARAMS_MAX = 8,
	SIM_STACK_BYTES = 1024, /* H200: the limit of a new context */
};

struct stream_dep {
	CUstream stream; /* counted reference */
	uint64_t seq;
};

struct stream_op;
typedef CUresult (*op_fn)(struct stream_op *op);

/** One operation of a stream or node of a graph. Plain data but for deps: a copy can run again. */
struct stream_op {
	struct stream_op *next;
	op_fn run;
	CUstream stream; /* borrowed: lives as long as it has operations */
	CUcontext ctx;
	CUresult status; /* of the context when it runs: one that failed does no more work */
	uint64_t seq;
	struct stream_dep *deps;
	size_t n_deps;
	union {
		struct {
			CUdeviceptr dst, src;
			size_t dst_pitch, src_pitch, width, height; /* bytes, rows */
		} copy;
		struct {
			CUdeviceptr dst;
			size_t pitch, width, height; /* bytes, elements, rows */
			uint32_t value, element_bytes;
		} fill;
		struct {
			const struct kernel *kernel;
			uint64_t params[SIM_PARAMS_MAX];
		} launch;
		struct {
			CUhostFn fn;
			CUstreamCallback callback; /* if not fn */
			CUstream stream;	   /* as the program called it */
			void *data;
		} host;
		struct {
			CUevent event;
			uint64_t record; /* of an event that is shared */
		};
		CUdeviceptr free_ptr;
		CUgraphExec exec;
	};
};

struct CUstream_st {
	CUcontext ctx;
	bool is_null, blocking, started, destroyed;
	unsigned int refs;
	uint64_t submitted, completed; /* numbers of operations; they run in order */
	struct stream_op *head, **tail;
	pthread_cond_t work;
	struct capture *capture;
};

enum { SHARED_EVENT_NAME_BYTES = 40 };

/** What an event shares with other processes. */
struct shared_event {
	char name[SHARED_EVENT_NAME_BYTES]; /* empty: nothing */
	bool opened;			    /* another process made it */
	struct event_page *page;	    /* NULL while checkpointed */
	uint64_t saved_recorded, saved_done;
};

struct CUevent_st {
	CUcontext ctx;
	unsigned int flags, refs;
	CUstream stream; /* counted; of the last record, NULL: never recorded */
	uint64_t seq, time_ns;
	struct capture *capture; /* last recorded in a capture: which, on which stream, how far */
	CUstream capture_stream;
	uint64_t capture_pos;
	struct shared_event shared;
};

struct CUctx_st {
	int device;
	unsigned int flags, retained;
	bool primary, alive;
	_Atomic(CUresult) error; /* sticky: what a kernel did wrong */
	uint64_t peers;		 /* bit per device this context may reach */
	struct vram_file vram, stacks;
	size_t stack_bytes; /* limit: of each thread */
	struct CUstream_st *null_stream;
	struct sim_table slabs;
};

/** One physical allocation. */
struct phys {
	struct vram_file file;
	CUmemAllocationProp prop;
	unsigned int handles; /* VMM handles out for it */
	unsigned int views;   /* mappings */
	int device;	      /* ordinal in this process; -1: foreign memory */
	bool imported;	      /* by fd from another process */
	bool exported;	      /* as one */
	char ipc_name
		[VRAM_NAME_BYTES]; /* legacy IPC: name it is published under or was opened by */
	bool ipc_opened, ipc_same_job;
	bool ipc_away;	     /* was released at the checkpoint, and not opened again */
	struct saved *saved; /* while checkpointed */
};

/** Memory of @phys mapped into the process. Kept over a checkpoint, when the pages are not. */
struct phys_view {
	char *va;
	size_t bytes, offset;
	int prot;
	struct phys *phys;
};

enum range_kind { RANGE_DEVICE, RANGE_VMM, RANGE_IPC, RANGE_HOST, RANGE_REGISTERED, RANGE_MANAGED };

/** What the program knows as one allocation, by address. */
struct range {
	enum range_kind kind;
	CUdeviceptr base;
	size_t bytes;
	int device; /* ordinal; -1: host */
	CUcontext ctx;
	struct phys_view *view; /* RANGE_DEVICE (own or of the slab), RANGE_VMM, RANGE_IPC */
	struct slab *slab;	/* RANGE_DEVICE carved from a slab */
	uint64_t access;	/* RANGE_VMM, RANGE_IPC: bit per device */
	unsigned int opened, host_flags, sync_memops;
	uint64_t id;
	struct advice *advice; /* RANGE_MANAGED, once there was some */
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation has completed */
	unsigned int waiters;	/* on changed */
	bool initialized, forked;
	int handle_fd; /* the open GPU; CRIU refuses to dump it */
	int n_devices;
	int gpu_of[CONFIG_GPUS_MAX]; /* device ordinal to GPU of the machine */
	CUcontext primary[CONFIG_GPUS_MAX];
	struct sim_table contexts, streams, events, modules, graphs, execs;
	struct sim_table ranges, views, physes, reservations;
	uint64_t next_id;
};

extern struct sim sim;

/* api.c: the way in and out of every driver call. */
CUresult api_enter(const char *name);
CUresult api_leave(CUresult result);
CUresult api_context(CUcontext *ret);	  /* current context, alive and without error */
int sim_gate_close(uint64_t deadline_ns); /* 0; -ETIMEDOUT: open again */
void sim_gate_open(void);
CUresult handle_open(void);
void handle_close(void);
void shut_down_at_exit(enum config_shutdown when); /* once, where the configuration says so */
extern _Thread_local bool api_in_callback;

/* Runs @call between enter and leave, unless entering fails. */
#define API(call)                                        \
	({                                               \
		CUresult entered_ = api_enter(__func__); \
		entered_ ? entered_ : api_leave(call);   \
	})
/* As API, for calls that need a context: @call may use `ctx`. */
#define API_CTX(call)                              \
	API(({                                     \
		CUcontext ctx;                     \
		CUresult has_ = api_context(&ctx); \
		has_ ? has_ : (call);              \
	}))
/* As API, with sim.lock held. */
#define API_LOCKED(call)                         \
	API(({                                   \
		pthread_mutex_lock(&sim.lock);   \
		CUresult locked_ = (call);       \
		pthread_mutex_unlock(&sim.lock); \
		locked_;                         \
	}))
/* As API_LOCKED, but for processes in which a kernel has failed. */
#define API_SOUND_LOCKED(call)                       \
	API_LOCKED(({                                \
		CUresult failed_ = contexts_error(); \
		failed_ ? failed_ : (call);          \
	}))
#define API_CTX_LOCKED(call)                     \
	API_CTX(({                               \
		pthread_mutex_lock(&sim.lock);   \
		CUresult locked_ = (call);       \
		pthread_mutex_unlock(&sim.lock); \
		locked_;                         \
	}))

/* fault.c: 0, or the error to return; may wait, end the process or never return. */
CUresult sim_fault(const char *call);

/* device.c */
bool device_valid(CUdevice dev);
int device_gpu(CUdevice dev);
void uuid_of_gpu(CUuuid *ret, int gpu);
int gpu_of_uuid(const struct config_machine *machine, const CUuuid *uuid); /* -1: none of it */
int devices_init(void); /* 0, or -EINVAL after saying why */

/* context.c, with sim.lock held */
CUcontext sim_context_current(void);
void context_wait_idle(CUcontext ctx);
void contexts_drop_vram(void);
CUresult contexts_take_vram(void);
bool contexts_have_peers(void);
CUresult contexts_error(void); /* of a kernel, in any context that lives */
void context_unload_modules(CUcontext ctx);

/* limit.c, with sim.lock held: the device memory of a context for stacks */
CUresult stacks_take(CUcontext ctx);
uint64_t stacks_bytes(void); /* of all contexts */

/* memory.c and slab.c, with sim.lock held */
void *va_reserve(size_t bytes, size_t align);
CUresult vram_result(int r); /* of a vram_ call: full is out of memory */
struct phys *phys_new(int device, size_t bytes, CUresult *ret_error);
struct phys *phys_adopt(const struct vram_file *file);
void phys_put(struct phys *phys); /* frees it when no handle and no view is left */
struct phys_view *view_new(void *va, size_t bytes, struct phys *phys, size_t offset, int prot);
void view_free(struct phys_view *view, bool keep_reserved);
int view_map(struct phys_view *view);
void view_unmap(struct phys_view *view);
struct range *range_new(enum range_kind kind, void *base, size_t bytes);
struct range *range_find(CUdeviceptr ptr);
void range_drop(struct range *range);
CUresult sim_memory_alloc(CUcontext ctx, CUdeviceptr *ret, size_t bytes);
CUresult sim_memory_free(CUdeviceptr ptr);
void memory_free_of_context(CUcontext ctx);
/* Whether kernels in @ctx may touch all of [ptr, ptr + bytes). */
bool memory_reachable(CUdeviceptr ptr, size_t bytes, CUcontext ctx);
bool memory_known(CUdeviceptr ptr, size_t bytes);  /* by any device, or page-locked */
bool memory_pinned(const void *ptr, size_t bytes); /* host memory the driver has locked */
CUresult slab_alloc(CUcontext ctx, size_t bytes, struct range **ret);
void slab_free(struct range *range);
size_t round_up(size_t n, size_t to);

/* stream.c, with sim.lock held */
CUresult stream_resolve(CUcontext ctx, CUstream handle, CUstream *ret);
CUresult sim_stream_new(CUcontext ctx, unsigned int flags, bool is_null, CUstream *ret);
void stream_put(CUstream stream);
void stream_retire(CUstream stream);
CUresult stream_submit(CUstream stream, const struct stream_op *op,
		       uint64_t *ret_seq); /* copies @op */
CUresult stream_submit_after(CUstream stream, const struct stream_op *op, CUstream after,
			     uint64_t seq);
CUresult stream_run(CUstream stream, const struct stream_op *op); /* submits and waits */
void stream_wait(CUstream stream, uint64_t seq);
bool streams_wait(CUcontext ctx, uint64_t deadline_ns);
CUresult op_nothing(struct stream_op *op);

/* capture.c, with sim.lock held */
CUresult capture_add(CUstream stream, const struct stream_op *op);
CUresult capture_join(CUstream stream, CUevent event);
void capture_record(CUstream stream, CUevent event);
CUresult capture_forbids(CUcontext ctx, CUstream stream);
/* Whether the calling thread may not allocate or free now, which ends the capture: seen on driver 580.159. */
CUresult capture_forbids_unsafe(void);
void capture_leave(CUstream stream);

/* graph.c, with sim.lock held */
CUgraph graph_new(void);
CUresult graph_append(CUgraph graph, const struct stream_op *op, CUgraphNode *ret);
void graph_free(CUgraph graph);

/* copy.c, with sim.lock held: nodes of graphs */
CUresult copy_3d_prepare(const CUDA_MEMCPY3D *copy, struct stream_op *ret);
CUresult fill_prepare(const CUDA_MEMSET_NODE_PARAMS *fill, struct stream_op *ret);

/* module.c and kernels.c */
struct kernel {
	const char *name;
	unsigned int n_params;
	uint8_t param_bytes[SIM_PARAMS_MAX];
	CUresult (*run)(CUcontext ctx, const uint64_t *params);
};
struct CUfunc_st {
	const struct kernel *kernel;
	CUmodule module;
};
const struct kernel *kernel_find(const char *name, size_t len);
/* The memory at @ptr, or NULL when the context may not touch all @n elements of @bytes. */
void *kernel_reach(CUcontext ctx, uint64_t ptr, uint64_t n, size_t bytes);
CUresult kernel_digest(CUcontext ctx, const uint64_t *params);
CUresult launch_prepare(CUfunction fn, void **params, void **extra, struct stream_op *ret);
void module_free(CUmodule module);

/* vmm.c, with sim.lock held */
bool vmm_reserved(CUdeviceptr ptr);
bool vmm_reservation(CUdeviceptr ptr, CUdeviceptr *ret_base, size_t *ret_bytes);

/* ipc.c, with sim.lock held */
CUresult ipc_publish(struct phys *phys); /* again, where the allocation is now */
void ipc_withdraw(struct phys *phys);
CUresult ipc_reopen(struct phys *phys);

/* event.c and ipc_event.c, with sim.lock held but for the wait */
CUresult event_new(CUcontext ctx, CUevent *ret, unsigned int flags);
CUresult shared_event_make(struct shared_event *event);
void shared_event_fini(struct shared_event *event);
uint64_t shared_event_record(struct shared_event *event); /* the number of the record */
void shared_event_pass(struct shared_event *event, uint64_t record);
uint64_t shared_event_last(const struct shared_event *event);
bool shared_event_is_done(const struct shared_event *event, uint64_t record);
void shared_event_wait(const struct shared_event *event, uint64_t record);
bool shared_events_are_open(void);
void shared_events_save(void);
CUresult shared_events_restore(void);

/* ctl.c: this process as a target of checkpoint calls */
int ctl_start(void);
void ctl_forget(void); /* in a forked child */
void ctl_stop(void);   /* the process is not a target any more */
bool ctl_was_locked(void);

/* checkpoint.c: what the restore thread does. Each returns what the caller's call returns. */
struct restore_request;
CUresult checkpoint_save(void);
CUresult checkpoint_restore(const struct restore_request *request);
void checkpoint_lose(void);	       /* no restore works any more */
CUresult checkpoint_open_shared(void); /* NOT_READY: whose memory it is has not been restored */

/* job_file.c: the job of this process, if it has one */
void sim_job_file_open(void);
void sim_job_file_close(void);
uint64_t sim_job_file_identity(void); /* 0: none */
CUresult sim_job_file_begin(bool restores);
void sim_job_file_end(void);
CUresult sim_job_file_note_save(void);
bool sim_job_file_is_current(void);
