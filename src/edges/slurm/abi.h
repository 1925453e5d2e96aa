// SPDX-License-Identifier: MIT
/*
 * Slurm's interface for plugins, as far as ours use it: the same from 22.05 to 26.05, by its header for SPANK and the plugin tables of
 * its sources. Declared here so that nothing of Slurm is needed to build, and one build serves every version.
 */
#pragma once

#include <stdint.h>

typedef struct spank_handle *spank_t;

enum spank_context {
	SPANK_CTX_ERROR,
	SPANK_CTX_LOCAL,
	SPANK_CTX_REMOTE,
	SPANK_CTX_ALLOCATOR,
	SPANK_CTX_SLURMD,
	SPANK_CTX_JOB_SCRIPT,
};

enum spank_item {
	SPANK_JOB_UID = 0,
	SPANK_JOB_GID = 1,
	SPANK_JOB_ID = 2,
	SPANK_JOB_STEPID = 3,
	SPANK_JOB_ARGV = 9,
	SPANK_JOB_ENV = 10,
	SPANK_TASK_GLOBAL_ID = 12,
};

enum { SPANK_OPTIONAL_ARGUMENT = 2 };

/* Steps from here on are no steps of srun. */
#define SLURM_STEP_MAX	 0xfffffff0u
#define SLURM_BATCH_STEP 0xfffffffbu

struct spank_option {
	char *name;
	char *arginfo;
	char *usage;
	int has_arg;
	int val;
	int (*cb)(int val, const char *optarg, int remote);
};

enum spank_context spank_context(void);
int spank_get_item(spank_t spank, int item, ...);
int spank_option_register(spank_t spank, struct spank_option *option);

/* Of the program that loads the plugin; absent from what loads it otherwise. */
extern void slurm_error(const char *format, ...) __attribute__((weak, format(printf, 1, 2)));
extern void slurm_info(const char *format, ...) __attribute__((weak, format(printf, 1, 2)));
extern void slurm_xfree(void **item) __attribute__((weak));
