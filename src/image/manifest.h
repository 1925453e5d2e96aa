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
	MANIFEST_VERSION_USUAL = 2, /* of manifests that use nothing introduced in version 3 */
	MANIFEST_ID_BYTES = 80,
	MANIFEST_UUID_BYTES = 48,
	MANIFEST_NAME_BYTES = 128,
	MANIFEST_KEY_BYTES = 33,
	MANIFEST_VENDOR_BYTES = 16,
	MANIFEST_SIGNATURE_BYTES = 129,
	MANIFEST_BYTES_MAX = 64 << 20,
	MANIFEST_FILES_MAX = 1 << 20,
	MANIFEST_PROCESSES_MAX = 1 << 17,
	MANIFEST_GPUS_MAX = 64,
	MANIFEST_REGIONS_MAX = 1 << 17,
	MANIFEST_PACKS_MAX = 1 << 16,
	MANIFEST_HUGE_PAGES_MAX = 8,
	MANIFEST_PAGE_BYTES_MAX = 1 << 30,
	MANIFEST_RIGHTS_MAX = 1 << 17,
	MANIFEST_GROUPS_MAX = 1 << 16,
};

/** All programs that read JSON represent integers exactly up to this one. */
#define MANIFEST_SEQUENCE_MAX (1ull << 53)

/** Name of the manifest in the directory of its checkpoint. */
#define MANIFEST_FILE_NAME "manifest.json"

/** Directory of the packs, and of the table of their content (image/chunk-table.h), which counts as one of the files. */
#define MANIFEST_MEMORY_DIR "memory"
#define MANIFEST_TABLE_PATH MANIFEST_MEMORY_DIR "/chunks"

struct manifest_gpu {
	char uuid[MANIFEST_UUID_BYTES];
	char name[MANIFEST_NAME_BYTES];
	uint64_t total_bytes; /* of the GPU */
	uint64_t used_bytes;  /* by the job, when it was checkpointed */
};

struct manifest_process {
	pid_t pid; /* its number in its own pid namespace, with which CRIU restores it */
	pid_t ppid;
	char comm[64];
	bool gpu;	    /* had GPU state, which the driver saved into its memory */
	bool stopped;	    /* stood still as its job was suspended: a restore makes it run on */
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
	double seconds; /* stored with a precision of microseconds, like downtime_seconds */
};

enum manifest_region_kind { MANIFEST_REGION_HOST, MANIFEST_REGION_DEVICE, MANIFEST_REGION__MAX };

/** Memory of a process that is stored in chunks instead of CRIU's images (chunks/chunks.h). */
struct manifest_region {
	enum manifest_region_kind kind;
	pid_t pid;   /* as in manifest_process */
	uint64_t id; /* device: of the piece (wire/agent.h); host: 0 */
	uint64_t va;
	uint64_t len_bytes;
	char gpu[MANIFEST_UUID_BYTES]; /* device memory only; else empty */
};

/** A file of chunks. The digests in the table cover its bytes; it has no digest of its own. */
struct manifest_pack {
	char *path; /* like the path of a file; the table numbers packs in this order */
	uint64_t len_bytes;
};

/** Pages of hugetlbfs that its processes have a claim to, and a restore needs. */
struct manifest_huge_pages {
	uint64_t page_bytes;
	uint64_t bytes; /* of all pages of that size */
};

struct manifest_group {
	gid_t gid;
};

/** The credentials of threads of a process, as reported by the kernel when they were frozen: each thread has the
 * credentials of one of the items with its process's number. */
struct manifest_rights {
	pid_t pid;	  /* as in manifest_process */
	uint32_t uids[4]; /* real, effective, saved, of files */
	uint32_t gids[4];
	struct manifest_group *groups; /* supplementary ones, sorted */
	size_t n_groups;
	uint64_t capabilities[5]; /* inheritable, permitted, effective, bounding, ambient */
	bool no_new_privs;
	uint32_t seccomp; /* mode: 0 none, 1 strict, 2 filters */
	char label[256];  /* of a security module; empty if there is none */
};

/** The digest of the system call filters that threads of a process have (docs/image-format.md). */
struct manifest_filters {
	pid_t pid; /* as in manifest_process */
	struct digest digest;
};

/** An fd of the job that leads outside its tree and is replaced at restore. @key: CRIU's name for it. */
struct manifest_external {
	char *key;	 /* owned; "pipe:[123]", "tty[8803:6]", or a path */
	char become[32]; /* "log", "null" or "tty" */
};

struct manifest {
	int version; /* 0 when encoded: MANIFEST_VERSION */
	char id[MANIFEST_ID_BYTES];
	char created[32]; /* in the format of clock_stamp() */
	char brumate_version[32];
	uint64_t sequence; /* orders the checkpoints of a job; 0: unknown (older writers) */

	struct {
		char id[MANIFEST_ID_BYTES];
		char name[MANIFEST_NAME_BYTES];
		uid_t uid;
		gid_t gid;
		char **argv;   /* NULL-terminated, owned */
		char **labels; /* "KEY=VALUE", NULL-terminated, owned; NULL: none */
		char *cwd;     /* owned; NULL if not known */
		char *log;     /* absolute path, owned; NULL if the job has none (managed by pid) */
		char *rootfs;  /* "/" today; owned; NULL if not known */
		bool simulated; /* ran on the simulated GPU */
		char gpu_vendor
			[MANIFEST_VENDOR_BYTES]; /* an id of gpu/vendor.h; empty: not known, of older writers */
		bool by_pid;			 /* was given to `manage`, not started by brumate */
		char started_as
			[MANIFEST_ID_BYTES]; /* for a copy: the id of the job as which its processes were started; empty: this one. Since version 3 */
	} job;

	struct {
		char kernel[128]; /* uname -r */
		char machine[32]; /* x86_64 */
		char hostname[128];
		char cpu_model[128];
		char boot_id[40];
		uint64_t
			page_bytes; /* of the kernel; 0: not known, of a checkpoint before this was written down */
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
		[MANIFEST_KEY_BYTES]; /* id of the key that encrypts memory and CRIU's images; empty: they are not encrypted. Since version 2 */

	struct manifest_file *files; /* all but the manifest itself and packs, sorted by path */
	size_t n_files;

	struct {
		struct manifest_region *regions; /* in the order of the table */
		size_t n_regions;
		struct manifest_pack *packs; /* sorted by path; no path is also that of a file */
		size_t n_packs;
		uint64_t zero_bytes;	/* not stored */
		uint64_t shared_bytes;	/* in packs shared with an earlier checkpoint */
		uint64_t written_bytes; /* length of new packs */
	} memory;			/* since version 2; all empty before */

	char set[MANIFEST_ID_BYTES]; /* the set without which it is none (store/set.h); empty: it is alone. Since version 3 */
	bool tcp_close; /* TCP connections are restored as closed */
	bool leave_running;
	double downtime_seconds; /* 0 if the job did not continue */
	struct manifest_phase *phases;
	size_t n_phases;
	struct manifest_huge_pages *huge_pages; /* one for each size; missing from older writers */
	size_t n_huge_pages;
	struct manifest_rights *rights; /* missing from older writers */
	size_t n_rights;
	struct manifest_filters *filters; /* missing from older writers */
	size_t n_filters;

	/* Authenticates the writer, in lower-case hexadecimal digits (store/authentic.h); empty: none. */
	char mac[DIGEST_TEXT_BYTES];
	char signer[DIGEST_TEXT_BYTES]; /* present if and only if the signature is */
	char signature[MANIFEST_SIGNATURE_BYTES];
	/* Digest of all other members, over which MAC and signature are computed. The decoder fills it; the encoder
	 * ignores it. */
	struct digest body;
};

#define MANIFEST_EMPTY ((struct manifest){ 0 })
void manifest_fini(struct manifest *m);
DEFINE_AUTO_FINI(struct manifest, manifest_fini)

/** 1 to 79 of [A-Za-z0-9._-], not starting with a dot: safe as the name of a directory. Pure. */
bool manifest_id_is_valid(const char *id);

/** Relative, without empty parts, "." or "..", or parts that no file system accepts. Pure. */
bool manifest_path_is_valid(const char *path);

/** Orders checkpoints: a later one of a job has a higher number, even if the clock was set back. Without a number in
 * the manifest it is the time in milliseconds since 1970; a number in the manifest is close to that time, too. */
uint64_t manifest_sequence(const struct manifest *m);

/** Sum of the sizes of all files and packs. */
uint64_t manifest_bytes(const struct manifest *m);

/** Sum of the sizes of the files whose path begins with @prefix. */
uint64_t manifest_files_bytes(const struct manifest *m, const char *prefix);

/** Sum of the lengths of the regions of @kind. */
uint64_t manifest_region_bytes(const struct manifest *m, enum manifest_region_kind kind);

/** The size of the job's files and memory before compression and sharing: all files but the chunk table, and all
 * regions. */
uint64_t manifest_whole_bytes(const struct manifest *m);

/** Memory in chunks, before compression and sharing. */
uint64_t manifest_memory_bytes(const struct manifest *m);

/** Encodes as JSON text ending in a newline (owned by the caller), which manifest_decode() takes.
 * Any bytes in strings survive (docs/image-format.md, "Strings"). -ENOMEM; -EINVAL: @m breaks a rule
 * of the format, and the text says which. */
int manifest_encode(const struct manifest *m, char **ret_text, size_t *ret_len_bytes,
		    struct brumate_error *err);

/** The same as an object, unchecked, for `inspect --format json`. Owned. NULL if out of memory. */
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

/** The digest over which MAC and signature are computed: of every member but these and "digest". The same value as
 * the decoder's m->body. Returns 0 or -ENOMEM. */
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
