// SPDX-License-Identifier: MIT
/*
 * The configuration file: path_config(), then every "*.conf" in the directory of that name with ".d" appended, sorted
 * by name; then path_config_of_user() in the same way. Later settings override earlier ones. None of the files has to
 * exist.
 *
 * # or ; starts a comment line; there are no continuation lines
 * [Section]
 * Key=Value
 *
 * White space around keys and values is ignored; an empty value restores the default. An unknown key is a warning, so
 * that one file serves several versions; a wrong value is an error.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

enum conf_gpu { CONF_GPU_AUTO, CONF_GPU_SIMULATED, CONF_GPU__MAX };
enum conf_data_path {
	CONF_DATA_PATH_AUTO,
	CONF_DATA_PATH_BROKER,
	CONF_DATA_PATH_DRIVER,
	CONF_DATA_PATH__MAX
};

/* The same as in chunks/chunks.h, which this layer cannot include. */
enum conf_compress {
	CONF_COMPRESS_AUTO,
	CONF_COMPRESS_NONE,
	CONF_COMPRESS_LZ4,
	CONF_COMPRESS_ZSTD,
	CONF_COMPRESS__MAX
};

enum conf_memory { CONF_MEMORY_AUTO, CONF_MEMORY_BRUMATE, CONF_MEMORY_CRIU, CONF_MEMORY__MAX };

/* Of a member of `serve` and of those that share a GPU: [Serve NAME], NAME of the job. What is not given is CONF_UNSET. */
#define CONF_UNSET UINT64_MAX
struct conf_member {
	char *name;		  /* owned */
	uint64_t idle_after_ms;	  /* IdleAfter= */
	uint64_t min_resident_ms; /* MinResident= */
	int priority;		  /* Priority= */
	bool priority_given;
	enum conf_pin { CONF_PIN_NO, CONF_PIN_YES, CONF_PIN_UNSET } pin; /* Pin= */
};

struct brumate_conf {
	/* [Store] */
	char *store_dir; /* Directory=PATH: where checkpoints go. Owned; NULL: path_checkpoints_dir() */
	char *key_file; /* EncryptionKeyFile=PATH: encrypts checkpoints. Owned; NULL: not encrypted */
	char *key_program; /* EncryptionKeyCommand=PATH: prints the key. Owned */
	char *signing_key; /* SigningKey=PATH: signs manifests. Owned; NULL: not signed */
	char *trusted_keys; /* TrustedKeys=PATH: keys of trusted signers. Owned; NULL: no signature needed */
	bool allow_unauthenticated; /* AllowUnauthenticated=no: read checkpoints without proof of their origin */
	uint64_t
		files_bytes; /* Files=0: saves the content of files that a job writes, up to this size; 0: of none */
	enum conf_compress compress; /* Compress=auto: of memory; none, lz4, zstd */

	/* [Operation] */
	uint64_t lock_timeout_ms; /* LockTimeout=10s: limit for the driver to stop a process */
	uint64_t timeout_ms; /* Timeout=0: for a whole suspend, checkpoint or restore; 0 = none */
	bool spare_copy;     /* SpareCopy=yes: keep it while nobody needs its memory */
	bool keep_copy;	     /* KeepCopy=no: keep the host copy of a job that is resumed */
	bool tcp_close; /* TcpClose=no: close TCP connections at checkpoint instead of keeping them */

	/* [Broker] */
	uint64_t idle_timeout_ms; /* IdleTimeout=60s: after which an idle broker ends; 0 = never */
	uint64_t pool_bytes; /* Pool=0: limit of pinned host memory; 0 = half of the machine's */
	uint64_t
		memory_bytes; /* Memory=0: limit of host copies in memory; 0 = the machine's memory */
	char *spill_dir; /* SpillDirectory=PATH: for copies beyond it. Owned; NULL: in the state directory */
	bool prepare;	  /* Prepare=yes: keep memory ready for copies of running jobs */
	bool prepare_gpu; /* PrepareGpu=yes: pin it, too, which keeps the jobs' GPUs open */
	bool digests;	  /* Digests=yes: skip zeros, compare what was copied in */

	/* [Run] */
	enum conf_gpu gpu;	       /* Gpu=auto: "simulated" puts jobs on the simulated GPU */
	enum conf_data_path data_path; /* DataPath=auto: what moves device memory; broker, driver */
	uint64_t
		min_resident_ms; /* MinResident=2s: how long a job that came back, and is in use, stays on its GPU */
	uint64_t
		wake_wait_ms; /* WakeWait=1m: how long a job that is to wake may stay without its GPU before it is stuck */
	uint64_t
		log_bytes; /* LogKeep=1G: how much of the end of a job's log is kept; 0 = all of it */

	/* [Serve] */
	uint64_t serve_idle_after_ms; /* IdleAfter=5m: how long one is not asked before it leaves */
	uint64_t
		serve_memory_bytes; /* Memory=0: of copies of those that sleep, before one goes to disk; 0 = no limit */
	uint64_t
		serve_slice_ms; /* Slice=5m: of time, after which a job of `share` leaves for the next */
	struct conf_member *members; /* [Serve NAME]; owned */
	size_t n_members;

	/* [Hooks] programs, owned; NULL: none */
	char *hook_before_suspend; /* BeforeSuspend=PATH: one that fails forbids it */
	char *hook_after_resume;   /* AfterResume=PATH */
	char *hook_after_restore;  /* AfterRestore=PATH */
	char *hook_on_failure; /* OnFailure=PATH: of an operation, or of a checkpoint by schedule */
	uint64_t hook_timeout_ms; /* Timeout=10s: after which a hook is ended, and has failed */

	/* [Criu] */
	char *criu_path; /* Path=PATH: the criu to use. Owned; NULL: search for one */

	/* [Container] */
	bool container_force; /* Force=no: also checkpoint containers that might not be restorable */
	enum conf_memory container_memory; /* Memory=auto: saves CPU memory; brumate, criu */
	char *container_state; /* State=DIR:…: state directories of OCI runtimes. Owned; NULL: the usual ones */

	/* One line each, for the program to log. Owned. */
	char **warnings;
	size_t n_warnings;
};

/** The defaults. */
#define BRUMATE_CONF_DEFAULT                                   \
	((struct brumate_conf){ .lock_timeout_ms = 10000,      \
				.idle_timeout_ms = 60000,      \
				.wake_wait_ms = 60000,         \
				.hook_timeout_ms = 10000,      \
				.min_resident_ms = 2000,       \
				.serve_idle_after_ms = 300000, \
				.serve_slice_ms = 300000,      \
				.log_bytes = 1ull << 30,       \
				.spare_copy = true,            \
				.prepare = true,               \
				.prepare_gpu = true,           \
				.digests = true })

void conf_fini(struct brumate_conf *c);
DEFINE_AUTO_FINI(struct brumate_conf, conf_fini)

/**
 * Reads the configuration files and their drop-ins. Refuses files that are writable by everyone. @ret is owned by the
 * caller. Errors to act on: -EINVAL (the text names file, line, value and what is allowed), -EACCES, -errno.
 */
int conf_load(struct brumate_conf *ret, struct brumate_error *err);

/** Whether GPUs are the simulated ones, where no job says so: from the environment (BRUMATE_GPU), or the file. */
bool conf_wants_simulated(const struct brumate_conf *c);

/** What is set for the member @name, with CONF_UNSET where nothing is. Its name is NULL. Pure. */
struct conf_member conf_member_of(const struct brumate_conf *c, const char *name);

/** Applies the text of one file to @c. @name: of the file, for errors and warnings. Pure. On failure @c has the
 * settings before the bad line. */
int conf_apply(struct brumate_conf *c, const char *name, const char *text, size_t len_bytes,
	       struct brumate_error *err);

/* Parsers of values. Each returns 0, or -EINVAL without writing @ret. Pure. */

/** yes, no, true, false, on, off, 1 or 0. */
int conf_bool(bool *ret, const char *value);

/** A whole number with ms, s, m or h; without a unit, seconds. */
int conf_duration_ms(uint64_t *ret, const char *value);

/** A whole number of bytes, or with K, M, G, T: of KiB, MiB, GiB, TiB. */
int conf_size_bytes(uint64_t *ret, const char *value);

/** The index of @value in @words, which end with NULL. */
int conf_word(int *ret, const char *value, const char *const *words);
