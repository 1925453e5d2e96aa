// SPDX-License-Identifier: MIT
/*
 * What the broker answers (io.brumate.broker.varlink), as structures: both ends have them from here, and so neither knows a member
 * that the other does not.
 */
#pragma once

#include <jansson.h>

#include "base/schema.h"
#include "gpu/gpu.h"

/** A GPU of this node. */
struct broker_gpu {
	int index;
	struct dev_gpu gpu;
	/** Device memory that the broker has copied since it started. */
	struct broker_moved {
		uint64_t out_bytes, in_bytes;	    /* to the host, and back */
		uint64_t written_bytes, read_bytes; /* of these, to and from a disk */
	} moved;
};

/** Host memory for copies, and room for them. */
struct broker_room {
	uint64_t limit_bytes; /* that may be pinned */
	uint64_t pinned_bytes, leased_bytes;
	uint64_t
		free_bytes; /* of memory_bytes, that the broker has and gives back when memory is short */
	uint64_t free_pinned_bytes; /* of these */
	uint64_t memory_bytes;	    /* pinned or not */
	uint64_t disk_bytes;	    /* beyond that, in */
	char disk[1024];	    /* this directory */
};

/** All that Info tells; Gpus tells the GPUs alone. */
struct broker_info {
	char backend[32];
	struct dev_info device;
	pid_t pid;
	size_t n_gpus;
	struct broker_gpu gpus[DEV_GPUS_MAX];
	struct broker_room room;
};

/** The result of an action on one process. result.number -1, name "TIMEOUT": still under way. */
struct broker_outcome {
	pid_t pid;
	double seconds;
	struct dev_result result;
	enum dev_state state;
};

/** A GPU to be changed for another one: a row of the parameter "gpu_map". */
extern const struct schema_field broker_pair_fields[2];

/** A list, on the heap. */
struct broker_processes {
	struct dev_process *items;
	size_t n;
};
struct broker_outcomes {
	struct broker_outcome *items;
	size_t n;
};

/** Which answer: of the structure with its name. */
enum broker_answer {
	BROKER_INFO, /* struct broker_info */
	BROKER_GPUS, /* likewise, but for all else */
	BROKER_PROCESSES,
	BROKER_OUTCOMES,
	BROKER_ANSWER__MAX
};

/** The reply (owned). NULL without memory. */
json_t *broker_answer_encode(enum broker_answer what, const void *from);
/** Fills @ret, which was zeros, from @reply, which is not trusted. Members that an older broker lacks stay zero. The caller frees the
 * items of a list, after a failure too. -EBADMSG, -ENOMEM. */
int broker_answer_decode(enum broker_answer what, void *ret, json_t *reply,
			 struct brumate_error *err);
