// SPDX-License-Identifier: MIT
/*
 * A request: what a caller asks an operation to do. Its options stand in one table, by which the command
 * line makes parameters, the service checks and passes them, the shim reads them, and the record of a job
 * keeps those of its schedule. A new option is a row of the table and a member of struct request.
 */
#pragma once

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/conf.h"
#include "base/error.h"
#include "gpu/gpu.h"
#include "image/manifest.h"
#include "chunks/key.h"
#include "chunks/chunks.h"

/** What a request is for: bits, of which an option has those where it is allowed. */
enum request_for {
	REQUEST_SUSPEND = 1u << 0,
	REQUEST_RESUME = 1u << 1,
	REQUEST_CHECKPOINT = 1u << 2,
	REQUEST_RESTORE = 1u << 3,
	REQUEST_SCHEDULE = 1u << 4, /* each of the checkpoints that a schedule makes */
	REQUEST_READ = 1u << 5,	    /* verifying, comparing, moving a checkpoint */
	REQUEST_REHEARSE = 1u << 6,
};

enum { REQUEST_JOB_BYTES = 16, REQUEST_COMPRESS_BYTES = 8, REQUEST_KEY_FILE_BYTES = 1024 };

/** Zeros are a request without options. One without a GPU map and a key may be copied as it is. */
struct request {
	uint32_t timeout_ms; /* of the whole operation; 0: none */
	uint32_t wait_ms;    /* for what is in the way to end: another operation, memory in use */
	bool dry_run;	     /* only say what it would come to */
	bool force;	     /* go on where the job may be lost */
	bool cpu_runs;	     /* its processes run on while it is suspended, but for the GPU */
	bool park;	     /* leave device memory on the GPU */
	bool keep_copy;	     /* the host copy stays as a baseline when the job runs again */
	bool leave_running;
	bool wake; /* hold the ports at which it listens, and restore it at the first connection */
	bool drop_external;	 /* unix connections to outside are closed after a restore */
	bool tcp_skip_in_flight; /* leave out TCP connections that nobody has accepted yet */
	bool with_files; /* take the content of files that the job writes into the checkpoint */
	bool rehearse;	 /* see whether it comes back, before it counts */
	bool keep_files; /* refuse where files of the job are not as they were */
	bool tcp_close;	 /* close TCP connections rather than keep them */
	bool allow_unauthenticated; /* take a checkpoint that does not say from whom it is */
	struct dev_gpu_pair *pairs; /* GPUs to change for others; owned */
	size_t n_pairs;
	/* The id of the job that is leaving for it: it is waited for as long as that takes, before all others; empty: none. */
	char room_of[REQUEST_JOB_BYTES];
	/* The socket of the coordinator of several operations, absolute; "": it is alone (engine/together.h). */
	char together[REQUEST_KEY_FILE_BYTES];
	bool unnamed; /* nobody asked for just this @id: where it is taken, the next one will do */
	char id[MANIFEST_ID_BYTES]; /* of the checkpoint to be made */
	char dir[PATH_MAX];	    /* the store it goes to, absolute */
	/* The text that chunks_parse_compress() takes; "": not given. */
	char compress[REQUEST_COMPRESS_BYTES];
	struct store_key key; /* of the checkpoint; id "": not given */
	/* Absolute path of a key that is read when it is needed; "": not given. */
	char key_file[REQUEST_KEY_FILE_BYTES];
};
/** Frees the GPU map and wipes the key. */
void request_fini(struct request *r);
DEFINE_AUTO_FINI(struct request, request_fini)

enum request_type {
	REQUEST_FLAG,
	REQUEST_TIME,	 /* in milliseconds */
	REQUEST_GPU_MAP, /* a list of {from, to} */
	REQUEST_WORD,	 /* how to compress */
	REQUEST_KEY,	 /* 64 hexadecimal digits */
	REQUEST_PATH,	 /* absolute */
	REQUEST_PLACE,	 /* text that the service chooses and the shim needs: no caller gives it */
	REQUEST_OURS,	 /* the same, which the shim does not need */
};

struct request_option {
	const char *name; /* as a parameter and in the record */
	const char *word; /* on the command line, without "--"; NULL: not there */
	enum request_type type;
	unsigned where; /* REQUEST_SUSPEND … */
	size_t offset;	/* in struct request */
	size_t room;	/* bytes that it has there */
	ssize_t conf;	/* offset of its default in struct brumate_conf; -1: none */
};

/** The next option for @where after @o (NULL: the first), or NULL. */
const struct request_option *request_next_option(const struct request_option *o, unsigned where);
#define REQUEST_FOR_EACH(o, where)                                                         \
	for (const struct request_option *o = request_next_option(NULL, where); o != NULL; \
	     o = request_next_option(o, where))

/** Where @r has the value of @o. */
static inline void *request_at(const struct request *r, const struct request_option *o)
{
	return (char *)r + o->offset;
}

/** Checks the options for @where in @parameters, which come from anybody. -EINVAL. */
int request_check(json_t *parameters, unsigned where, struct brumate_error *err);

/** The options for @where in @parameters (checked, borrowed) as a new object. Owned, NULL without memory. */
json_t *request_pick(json_t *parameters, unsigned where);

/** Adds what the configuration says of the options for @where that @picked lacks. */
int request_add_defaults(json_t *picked, unsigned where, struct brumate_error *err);

/** Adds the same to a request that was decoded without defaults. */
void request_configure(struct request *r, unsigned where, const struct brumate_conf *conf);

/** Reads a request for @where from @parameters, and wipes the key there. @ret: zeros before; the caller calls
 * request_fini() even after a failure. -EINVAL. */
int request_decode(struct request *ret, unsigned where, json_t *parameters,
		   struct brumate_error *err);

/** How memory is to be compressed. */
enum chunks_compress request_compress(const struct request *r);
