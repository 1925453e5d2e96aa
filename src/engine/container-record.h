// SPDX-License-Identifier: MIT
/*
 * The record beside the images of a container's CRIU ("brumate-gpus.json"): which of its processes had GPU state, which GPUs
 * they saw, and which device image goes with it. It may come from anywhere, in an archive.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "job/job.h"

enum { CONTAINER_RECORD_BYTES_MAX = 1 << 20, CONTAINER_PROCESSES_MAX = 4096 };

/** A process that had GPU state. */
struct container_process {
	pid_t pid, restore_thread; /* as the container numbers them */
};

struct container_record {
	struct container_process *processes; /* owned */
	size_t n_processes;
	struct job_gpu *gpus; /* owned */
	size_t n_gpus;
	/* The digest of the manifest of the device image, in hexadecimal digits; empty: the driver saved all memory. A record
	 * that has one is of a version that readers of before refuse. */
	char image[DIGEST_TEXT_BYTES];
};
#define CONTAINER_RECORD_EMPTY ((struct container_record){ 0 })
void container_record_fini(struct container_record *r);
DEFINE_AUTO_FINI(struct container_record, container_record_fini)

/** Its text (owned); NULL without memory. */
char *container_record_encode(const struct container_record *r);

/**
 * container_record_decode() - read a record
 * @text: borrowed, untrusted
 *
 * Pure. Return: 0 and @ret owned; -EBADMSG; -EOPNOTSUPP: it is of another version.
 */
int container_record_decode(struct container_record *ret, const char *text, size_t len_bytes,
			    struct brumate_error *err);
