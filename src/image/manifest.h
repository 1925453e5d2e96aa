// SPDX-License-Identifier: MIT
/*
 * The manifest of a checkpoint: what was saved, of what, where and how. Pure encode, decode and
 * check; docs/image-format.md is the normative description.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"

enum {
	MANIFEST_VERSION = 3,
	MANIFEST_VERSION_USUAL = 2, /* of all that have nothing which is new in 3 */
	MANIFEST_ID_BYTES = 80,
	MANIFEST_UUID_BYTES = 48,
	MANIFEST_NAME_BYTES = 128,
	MANIFEST_KEY_BYTES = 33,
	MANIFEST_SIGNATURE_BYTES = 129,
	MANIFEST_BYTES_MAX = 64 << 20,
	MANIFEST_FILES_MAX = 1 << 20,
	MANIFEST_PROCESSES_MAX = 1 << 17,
	MANIFEST_GPUS_MAX = 64,
	MANIFEST_REGIONS_MAX = 1 << 17,
	MANIFEST_PACKS_MAX = 1 << 16,
	MANIFEST_HUGE_PAGES_MAX = 8,
	MANIFEST_RIGHTS_MAX = 1 << 17,
	MANIFEST_GROUPS_MAX = 1 << 16,
};

/** Every program that reads JSON keeps integers up to here. */
#define MANIFEST_SEQUENCE_MAX (1ull << 53)

/** Name of the manifest in the directory of its checkpoint. */
#define MANIFEST_FILE_NAME "manifest.json"

/** Directory of the packs, and the table of what is in them (image/chunk-table.h), which is one of the
 * files. */
#define MANIFEST_MEMORY_DIR "memory"
#define MANIFEST_TABLE_PATH MANIFEST_MEMORY_DIR "/chunks"

struct manifest_gpu {
	char uuid[MANIFEST_UUID_BYTES];
	char name[MANIFEST_NAME_BYTES];
	uint64_t total_bytes; /* of the card */
	uint64_t used_bytes;  /* by the job, when it was checkpointed */
};

struct manifest_process {
	pid_t pid; /* as its own pid namespace numbers it, which is what CRIU restores */
	pid_t ppid;
	char comm[64];
	bool gpu;	    /* had GPU state, which the driver saved into its memory */
	uint64_t gpu_bytes; /* device memory it held */
	uint64_t rss_bytes;
};

struct manifest_file {
	char *path; /* relative, below the checkpoint's directory; no "..", no leading '/' */
	uint64_t len_bytes;
	struct digest digest;
};

struct manifest_phase {
	char name[64];
	double seconds; /* kept to the microsecond, as is downtime_seconds */
};

enum manifest_region_kind { MANIFEST_REGION_HOST, MANIFEST_REGION_DEVICE, MANIFEST_REGION__MAX };

/** Memory of a process that is kept in chunks beside CRIU's images (chunks/chunks.h). */
struct manifest_region {
	enum manifest_region_kind kind;
	pid_t pid;   /* as manifest_process has it */
	uint64_t id; /* device: of the piece (wire/agent.h); host: 0 */
	uint64_t va;
	uint64_t len_bytes;
	char gpu[MANIFEST_UUID_BYTES]; /* device; else empty */
};

/** A file of chunks. Its bytes are covered by the digests of the table, not by one of its own. */
struct manifest_pack {
	char *path; /* as that of a file; the table numbers packs in this order */
	uint64_t len_bytes;
};

/** Pages of hugetlbfs that its processes have claim to, and a restore cannot do without. */
struct manifest_huge_pages {
	uint64_t page_bytes;
	uint64_t bytes; /* of all pages of that size */
};

struct manifest_group {
	gid_t gid;
};

/** What threads of a process may do, as the kernel told when they stood still: each has the rights of an item that has
 * the number of its process. */
struct manifest_rights {
	pid_t pid;	  /* as manifest_process has it */
	uint32_t uids[4]; /* real, effective, saved, of files */
	uint32_t gids[4];
	struct manifest_group *groups; /* supplementary ones, sorted */
	size_t n_groups;
	uint64_t capabilities[5]; /* inheritable, permitted, effective, bounding, ambient */
	bool no_new_privs;
	uint32_t seccomp; /* mode: 0 none, 1 strict, 2 filters */
	char label[256];  /* of a security module; empty where there is none */
};

/** The digest of filters of system calls that threads of a process have (docs/image-format.md). */
struct manifest_filters {
	pid_t pid; /* as manifest_process has it */
	struct digest digest;
};

/** An fd of the job that leads outside its tree and is given anew at restore: key as CRIU names it. */
struct manifest_external {
	char key[256];	 /* "pipe:[123]" or "tty[8803:6]" */
	char become[32]; /* "log", "null" or "tty" */
};

struct manifest {
	int version; /* 0 when encoded: MANIFEST_VERSION */
	char id[MANIFEST_ID_BYTES];
	char created[32]; /* as clock_stamp() writes it */
	char brumate_version[32];
	uint64_t sequence; /* orders the checkpoints of a job; 0: an older writer did not know it */

	struct {
		char id[MANIFEST_ID_BYTES];
		char name[MANIFEST_NAME_BYTES];
		uid_t uid;
		gid_t gid;
		char **argv;  /* NULL-terminated, owned */
		char **labels; /* "KEY=VALUE", NULL-terminated, owned; NULL: none */
		char *cwd;    /* owned; NULL if not known */
		char *log;    /* absolute path, owned; NULL if the job has none (managed by pid) */
		char *rootfs; /* "/" today; owned; NULL if not known */
		bool simulated; /* ran on the simulated GPU */
		bool by_pid;	/* was taken in, not started by brumate */
		char started_as
			[MANIFEST_ID_BYTES]; /* of a copy: the job as which its processes were
						     * started; empty: as this one. Since version 3 */
	} job;

	struct {
		char kernel[128]; /* uname -r */
		char machine[32]; /* x86_64 */
		char hostname[128];
		char cpu_model[128];
		char boot_id[40];
	} host;

	char driver_version[64]; /* empty if the job had no GPU state */
	int api_version;	 /* of the driver: 13000 */
	int criu_version;	 /* 40201 */

	struct manifest_gpu *gpus;
	size_t n_gpus;
	struct manifest_process *processes; /* root first */
	size_t n_processes;
	struct manifest_external *externals;
	size_t n_externals;
	bool shell_job;
	char key_id
		[MANIFEST_KEY_BYTES]; /* of the key that memory and CRIU's images are encrypted by; empty:
					  * they are not. Since version 2 */

	struct manifest_file *files; /* all but the manifest itself and packs, sorted by path */
	size_t n_files;

	struct {
		struct manifest_region *regions; /* in the order of the table */
		size_t n_regions;
		struct manifest_pack *packs; /* sorted by path, which is none of a file */
		size_t n_packs;
		uint64_t zero_bytes;	/* not stored */
		uint64_t shared_bytes;	/* in packs that an earlier checkpoint had */
		uint64_t written_bytes; /* in new packs: what they are long */
	} memory;			/* since version 2; all empty before */

	bool leave_running;
	double downtime_seconds; /* 0 where the job did not go on */
	struct manifest_phase *phases;
	size_t n_phases;
	struct manifest_huge_pages *huge_pages; /* one for each size; older writers did not tell */
	size_t n_huge_pages;
	struct manifest_rights *rights; /* older writers did not tell */
	size_t n_rights;
	struct manifest_filters *filters; /* older writers did not tell */
	size_t n_filters;

	/* Who wrote it, in lower-case hexadecimal digits (store/authentic.h); empty: it does not say. */
	char mac[DIGEST_TEXT_BYTES];
	char signer[DIGEST_TEXT_BYTES]; /* there with the signature, or neither is */
	char signature[MANIFEST_SIGNATURE_BYTES];
	/* Of all the rest, which is what MAC and signature are made of. The decoder fills it; the encoder
	 * does not look at it. */
	struct digest body;
};

#define MANIFEST_EMPTY ((struct manifest){ 0 })
void manifest_fini(struct manifest *m);
DEFINE_AUTO_FINI(struct manifest, manifest_fini)

/** 1 to 79 of [A-Za-z0-9._-], not starting with a dot: safe as the name of a directory. Pure. */
bool manifest_id_is_valid(const char *id);

/** Relative, no empty part, no "." or "..", no part that no file system takes. Pure. */
bool manifest_path_is_valid(const char *path);

/** What orders checkpoints: a later one of a job has a higher one, whatever became of the clock. Where the manifest has
 * none it is the time, in milliseconds since 1970, which is also what it is about for one that has. */
uint64_t manifest_sequence(const struct manifest *m);

/** Sum of the sizes of all files and packs. */
uint64_t manifest_bytes(const struct manifest *m);

/** What the job's files and memory come to before compression and sharing: all files but the chunk
 * table, and all regions. */
uint64_t manifest_whole_bytes(const struct manifest *m);

/** Memory in chunks, before compression and sharing. */
uint64_t manifest_memory_bytes(const struct manifest *m);

/** Encodes as JSON text ending in a newline (owned by the caller), which manifest_decode() takes.
 * Any bytes in strings survive (docs/image-format.md, "Strings"). -ENOMEM; -EINVAL: @m breaks a rule
 * of the format, and the text says which. */
int manifest_encode(const struct manifest *m, char **ret_text, size_t *ret_len_bytes,
		    struct brumate_error *err);

/** The same as an object, unchecked, for `inspect --format json`. Owned. NULL without memory. */
json_t *manifest_to_json(const struct manifest *m);

/**
 * manifest_decode() - read a manifest
 * @text: borrowed, untrusted
 *
 * Pure. Checks types, ranges, lengths, paths (no absolute, no "..", no duplicates), and a digest over
 * the manifest itself (member "digest" over the rest, canonical form), so that a flipped byte in it is
 * found.
 * Return: 0 and @ret owned; -EBADMSG damaged; -EPROTONOSUPPORT from a newer writer (text names both
 * versions).
 */
int manifest_decode(struct manifest *ret, const char *text, size_t len_bytes,
		    struct brumate_error *err);

/** The digest of all that MAC and signature are made of: every member but these and "digest". As the decoder
 * fills m->body. Returns 0 or -ENOMEM. */
int manifest_body(struct digest *ret, const struct manifest *m);

/** The digest of the canonical text of @object, which must not have the member "digest". Returns 0 or -ENOMEM. */
int manifest_canonical_digest(struct digest *ret, const json_t *object);

/**
 * Compares @from with @to. Owned; NULL without memory. An object of
 *
 *	fields     [{name, from, to}]: members of the manifest, of its job and its host, that differ
 *	gpus, processes, externals, files, phases
 *	           {added, removed, changed}: added and removed items whole, changed as {name, from, to}
 *	           with the members that differ only; matched by uuid, pid, key, path, name
 *	same_files, same_bytes
 *	           files that are the same in both, and their bytes
 */
json_t *manifest_diff(const struct manifest *from, const struct manifest *to);
