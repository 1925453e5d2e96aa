// SPDX-License-Identifier: MIT
/*
 * What a GPU vendor's driver can do for us. One constant struct per backend. Only the broker calls it, through these
 * wrappers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum {
	DEV_UUID_TEXT_BYTES = 48, /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
	DEV_NAME_BYTES = 96,
	DEV_GPUS_MAX = 64,
	DEV_N_FEATURES = 5,
};

/** Features beyond the required minimum; bits of dev_info.features. gpu/vendor.h says since which driver. */
enum dev_feature {
	DEV_CHECKPOINT = 1u << 0,     /* the checkpoint calls exist */
	DEV_REMAP = 1u << 1,	      /* restore onto other GPUs */
	DEV_JOB_FILE = 1u << 2,	      /* jobs of several processes by the driver itself */
	DEV_LEGACY_IPC = 1u << 3,     /* legacy IPC within a job */
	DEV_CUSTOM_STORAGE = 1u << 4, /* a stopped process's memory can be mapped */
};

/** State of a process according to the driver. */
enum dev_state {
	DEV_STATE_NONE, /* not a client of this driver, or ended */
	DEV_STATE_RUNNING,
	DEV_STATE_LOCKED,
	DEV_STATE_CHECKPOINTED,
	DEV_STATE_FAILED,
	DEV_STATE_UNKNOWN, /* the driver gave an answer we do not know */
	DEV_STATE__MAX,
};

enum dev_action { DEV_LOCK, DEV_DO_CHECKPOINT, DEV_RESTORE, DEV_UNLOCK, DEV_ACTION__MAX };

struct dev_gpu {
	char uuid[DEV_UUID_TEXT_BYTES];
	char name[DEV_NAME_BYTES];
	uint64_t total_bytes, used_bytes;
	bool partitioned; /* divided into parts, which the driver cannot save */
};

struct dev_info {
	char driver_version[64]; /* "580.159.04" */
	int api_version;	 /* according to the driver: 13000 */
	uint32_t features;	 /* DEV_* */
	bool simulated;
	double init_seconds; /* the time that initialising the driver took */
};

struct dev_gpu_pair {
	char from[DEV_UUID_TEXT_BYTES], to[DEV_UUID_TEXT_BYTES];
};

/** "FROM=TO,..." (owned); NULL without memory. */
char *dev_gpu_pairs_format(const struct dev_gpu_pair *pairs, size_t n);

struct dev_process {
	pid_t pid; /* 0: not filled in */
	enum dev_state state;
	pid_t restore_tid; /* 0: none */
	uint64_t used_bytes;
	size_t n_gpus;
	char gpus[DEV_GPUS_MAX][DEV_UUID_TEXT_BYTES];
	uint64_t gpu_bytes[DEV_GPUS_MAX]; /* on each of them; the sum is used_bytes */
};

/** Result of one driver call: the driver's own number (0 success) and name. */
struct dev_result {
	int number;
	char name[64];
};

/** Paths of the vendor's libraries; NULL: their usual names. */
struct dev_libraries {
	const char *driver, *management; /* borrowed, never returned */
	bool simulated;
};

struct dev_memory_ops;

/* Functions other than open() are called only after open() succeeded, by any number of threads at once. */
struct dev_backend {
	const char *name; /* "cuda" */
	/* Before open(): sets the environment so that the driver shows all GPUs of the machine, in a fixed order, and
	 * caches compiled kernels in @dir, unless the user has set another place. */
	void (*see_all_gpus)(void);
	void (*keep_kernels_in)(const char *dir);
	/* Loads and initialises the driver once; 0, or <0 with the reason (driver absent: -ENODEV). */
	int (*open)(const struct dev_libraries *libraries, struct dev_info *ret,
		    struct brumate_error *err);
	int (*gpus)(struct dev_gpu *ret, size_t max, size_t *ret_n, struct brumate_error *err);
	/* process(): all that is known of a process; state(): its state alone, which is cheap. */
	int (*process)(pid_t pid, struct dev_process *ret, struct brumate_error *err);
	int (*state)(pid_t pid, enum dev_state *ret, struct brumate_error *err);
	/* What a process uses on which GPUs, without asking the process. NULL: unsupported. */
	void (*usage)(pid_t pid, struct dev_process *ret);
	/* Blocks as long as the driver does. 0 if the call was made: *ret has its result. NULL: the driver has no
	 * such calls. */
	int (*act)(pid_t pid, enum dev_action action, uint32_t timeout_ms,
		   const struct dev_gpu_pair *pairs, size_t n_pairs, struct dev_result *ret,
		   struct brumate_error *err);
	const struct dev_memory_ops *memory; /* gpu/copy.h; NULL: only the driver moves memory */
};

/* The operations, with a fault point (device.open, device.lock ...) before and a debug line after. */
int dev_open(const struct dev_backend *b, const struct dev_libraries *libraries,
	     struct dev_info *ret, struct brumate_error *err);
int dev_gpus(const struct dev_backend *b, struct dev_gpu *ret, size_t max, size_t *ret_n,
	     struct brumate_error *err);
int dev_process(const struct dev_backend *b, pid_t pid, struct dev_process *ret,
		struct brumate_error *err);
int dev_process_state(const struct dev_backend *b, pid_t pid, enum dev_state *ret,
		      struct brumate_error *err);
int dev_act(const struct dev_backend *b, pid_t pid, enum dev_action action, uint32_t timeout_ms,
	    const struct dev_gpu_pair *pairs, size_t n_pairs, struct dev_result *ret,
	    struct brumate_error *err);

/**
 * Completes a map of GPUs to all @n_gpus of this machine, as the driver requires: a GPU that is not mentioned stays
 * in its place or, if that is taken, moves to the place that became free. @ret has room for @n_gpus pairs. Pure.
 * -EINVAL: unknown GPU, or one that is given twice; @err names it.
 */
int dev_map_complete(struct dev_gpu_pair *ret, const struct dev_gpu *gpus, size_t n_gpus,
		     const struct dev_gpu_pair *pairs, size_t n_pairs, struct brumate_error *err);

enum { DEV_UUID_BYTES = 16 };

/** Formats as "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". */
void dev_uuid_format(char ret[static DEV_UUID_TEXT_BYTES],
		     const uint8_t uuid[static DEV_UUID_BYTES]);
/** Parses it; also accepts upper case, and no prefix or that of a part of a GPU. Returns 0 or -EINVAL. Pure. */
int dev_uuid_parse(uint8_t ret[static DEV_UUID_BYTES], const char *text);

extern const char *const dev_feature_names[DEV_N_FEATURES]; /* of its bits, the lowest first */
extern const char *const dev_state_names[DEV_STATE__MAX];
const char *dev_state_name(enum dev_state state);
const char *dev_action_name(enum dev_action action);
int dev_action_parse(const char *name, enum dev_action *ret); /* 0, -EINVAL */
