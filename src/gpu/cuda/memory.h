// SPDX-License-Identifier: MIT
/* What the files share that copy and digest device memory. */
#pragma once

#include "gpu/copy.h"
#include "gpu/cuda/abi.h"

struct dev_memory {
	CUdevice device;
	CUcontext context;
	CUmodule digests; /* loaded when first wanted; under digest.c's lock */
	char uuid[DEV_UUID_TEXT_BYTES];
};

/** The kernels of digest.cu. */
extern const char cuda_digest_ptx[];

/** Makes the GPU's context current for this thread. */
int cuda_enter(struct dev_memory *m, struct brumate_error *err);
/** -ENOSPC for want of device memory, else -EIO, with the driver's words. */
int cuda_fail(struct brumate_error *err, const struct dev_memory *m, const char *call,
	      unsigned result);

/** Makes a call of the table `cu` of who uses it: 0, or cuda_fail() with the call's name and `err`. */
#define TRY(m, call, ...)                                          \
	({                                                         \
		CUresult result_ = cu.call(__VA_ARGS__);           \
		result_ ? cuda_fail(err, (m), #call, result_) : 0; \
	})

/* Of struct dev_memory_ops. */
int cuda_digester_open(struct dev_memory *m, uint64_t bytes_max, struct dev_digester **ret,
		       struct brumate_error *err);
void cuda_digester_close(struct dev_digester *d);
int cuda_digest(struct dev_digester *d, uint64_t at, uint64_t bytes, struct brumate_error *err);
int cuda_digest_wait(struct dev_digester *d, struct digest *ret, bool *ret_zero,
		     struct brumate_error *err);
