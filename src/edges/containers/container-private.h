// SPDX-License-Identifier: MIT
/*
 * What the files about a container (container.h) share: the record of its GPU state (record.c), its device
 * memory (memory.c), both next to the images of its CRIU, and the directory that it has meanwhile
 * (place.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "engine/op.h"
#include "gpu/vendor.h"
#include "job/target.h"
#include "process/process.h"

/*
 * ---- the record ("brumate-gpus.json") ----
 *
 * Which of its processes had GPU state, which GPUs they saw, and which device image goes with it. It may come from anywhere,
 * in an archive.
 */

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
	/* The digest of the manifest of the image, in hexadecimal digits; empty: the driver saved device memory, and CRIU all
	 * else. What a record has of the rest gives it a version that earlier readers refuse. */
	char image[DIGEST_TEXT_BYTES];
	bool has_agents;     /* they gave out device memory, which is in the image */
	bool has_cpu_memory; /* the image has that too, which CRIU's images lack */
	/* Whose plugin in CRIU saved the state of GPUs among CRIU's images; empty: none, the driver or the agents gave it. */
	char vendor[GPU_VENDOR_ID_BYTES];
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

/*
 * ---- memory ----
 *
 * A checkpoint by itself ("brumate-memory/", docs/image-format.md) that holds memory alone: of devices what agents give out,
 * and what is large of the processes' own. So it is moved along with the images.
 */

#define CONTAINER_MEMORY_NAME "brumate-memory"

/** Begins it in the directory op->images.dir_fd, in the place of an old one, where there are agents whose memory goes there;
 * else returns 1. */
int container_memory_begin(struct op *op, struct brumate_error *err);

/** Refuses agents that tell of more memory than their GPUs have, before room is made for it. */
int container_memory_check(struct op *op, struct brumate_error *err);

/** Gives up what is not complete; nothing is copied any more. */
void container_memory_abort(struct op *op);

/** Takes what is large of the memory of stopped processes into it, which is begun where it is not, and tells by the table
 * @table_fd what CRIU is to leave out. 1: nothing is taken. */
int container_memory_take(struct op *op, int table_fd, struct brumate_error *err);

/** Waits for the transfer and completes it. @ret: the digest of its manifest, empty where none was begun. */
int container_memory_commit(struct op *op, char ret[static DIGEST_TEXT_BYTES],
			    struct brumate_error *err);

/** Opens that of the digest @digest in @dir_fd, and starts filling device memory from it, on the GPUs that op->gpus
 * says. -EBADMSG: it is not there, or another, or damaged as far as can be seen so soon. */
int container_memory_load(struct op *op, int dir_fd, const char *digest, struct brumate_error *err);

/*
 * ---- the directory ----
 *
 * Where a container has what is outside its processes while it is checkpointed: a directory below the runtime directory,
 * named by its first process. The process that works on the container holds its lock. Where they die, the keeper of the memory that they
 * had starts an heir, as long as it is noted for whom.
 */

struct container_place {
	char *dir;   /* owned; NULL: none */
	int lock_fd; /* -1: not ours */
};
#define CONTAINER_PLACE_NONE ((struct container_place){ .lock_fd = -1 })

/** Makes the directory of the container whose first process is @root, and removes those of containers that have ended.
 * With @wait, waits until another process that works on the container has ended. Returns 0; -EBUSY: one still does. */
int container_place_take(struct container_place *ret, struct proc_id root, bool wait,
			 struct brumate_error *err);

/** From now on an heir is needed where we die: once @criu has ended, the container is to have its GPUs. */
int container_place_want_heir(const struct container_place *p, struct proc_id criu,
			      struct brumate_error *err);

/** What an heir is to know, from the directory @dir: 0, or -ENOENT: none is needed. */
int container_place_inherit(const char *dir, struct proc_id *ret_root, struct proc_id *ret_criu,
			    struct brumate_error *err);

/** No heir is needed any more. The directory goes, unless something in it is still @wanted. */
void container_place_leave(struct container_place *p, bool wanted);

/** Forgets it, and leaves it to the heir. */
void container_place_fini(struct container_place *p);
