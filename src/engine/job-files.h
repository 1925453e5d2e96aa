// SPDX-License-Identifier: MIT
/*
 * Files with a name that belong to what a job is at its checkpoint, and which go on changing once it runs again: those
 * it has open for writing, and memory that is shared by a name (tmpfs). Next to CRIU's images a checkpoint has a record
 * of them, and copies of some:
 *
 *   job-files.c          the record, as bytes
 *   job-files-find.c     what a job has open and mapped
 *   job-files-save.c     at the checkpoint: what they hold, and copies
 *   job-files-restore.c  at the restore: they are as they were, or are made so, or the restore is refused by name
 *
 * All is opened with the rights of the job's user, and never through a link.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "job/job.h"
#include "process/process.h"

struct op;
struct criu_inherit;
struct job_files_ahead;
struct manifest;
struct scan_report;

enum job_file_kind {
	JOB_FILE_WRITTEN,     /* open for writing */
	JOB_FILE_MEMORY,      /* memory that has a name: its content is always in the checkpoint */
	JOB_FILE_REMOVED,     /* a program, library or other file without a name: as above */
	JOB_FILE_REMOVED_DIR, /* a directory of which nothing is left */
};

enum { JOB_FILE_COPY_BYTES = 32, JOB_FILE_KEY_BYTES = 64, JOB_FILES_MAX = 100000 };

struct job_file {
	enum job_file_kind kind;
	char *path; /* owned; absolute, without links; of what was removed the key for CRIU */
	uint64_t size_bytes, mtime_ns;
	uint64_t device, inode;
	uint32_t mode; /* permissions */
	uint32_t uid, gid;
	bool in_sequence; /* all who write to it can only append (O_APPEND; Linux appends by pwrite(2) then, too) */
	bool is_mapped;	 /* shared, and writable: the time of its last change tells little */
	bool is_written; /* what was removed is open for writing */
	bool has_digest;
	bool has_samples; /* the digest is of parts of it: it is too long */
	struct digest digest;
	char key[JOB_FILE_KEY_BYTES];	/* for CRIU, where that is not the path; else empty */
	char copy[JOB_FILE_COPY_BYTES]; /* next to CRIU's images; empty: none */
	/* How it was found; not in the record. */
	struct job_file_seen {
		int fd;		/* open to read; -1: it cannot be, or not yet */
		pid_t pid;	/* of a process that has it */
		bool is_leased; /* for writing: to open it would break that */
		bool is_opened; /* by a descriptor, not by a mapping alone */
		bool is_tmpfs;
		bool is_within; /* a descriptor stands before its end, or it is mapped: it is written to in its middle, as it seems */
	} seen;
};

struct job_files {
	struct job_file *items;
	size_t n;
};
#define JOB_FILES_EMPTY ((struct job_files){ 0 })
void job_files_fini(struct job_files *f);
DEFINE_AUTO_FINI(struct job_files, job_files_fini)

/** Adds one of @path, zeros but for that. Borrowed; NULL without memory. */
struct job_file *job_files_add(struct job_files *f, const char *path);

/* ---- the record ---- */

#define JOB_FILES_RECORD "brumate-files.json"
#define JOB_FILES_COPY	 "brumate-file-" /* and a number */

/** Owned; NULL without memory. */
char *job_files_encode(const struct job_files *f);

/** Pure, for foreign bytes. -EBADMSG, -ENOMEM. */
int job_files_decode(struct job_files *ret, const char *text, size_t len_bytes,
		     struct brumate_error *err);

/* ---- what a file holds ---- */

/** Whether all of a file of this length is too much to read while its job stands still. */
bool job_file_is_long(uint64_t size_bytes);

/** The digest of the first @size_bytes of @fd: of all of it, or of samples if it is long. 0; -ENODATA: it is shorter. */
int job_file_digest(struct digest *ret, bool of_samples, int fd, uint64_t size_bytes);

/** Adds @len_bytes from @offset on. As above. */
int job_file_digest_add(struct digest_run *run, int fd, uint64_t offset, uint64_t len_bytes);

/** Where a file is copied in parts, the length of each but the last; one that is nothing but zeros is left out, and what
 * is only zeros at the end of one. The parts are COPY-0
 * and so on. They are hashed side by side, and a file that is mostly empty takes little. */
#define JOB_FILE_PART_BYTES (16ull << 20)

/** The name of a part of @copy. */
static inline void job_file_part(char ret[static JOB_FILE_COPY_BYTES + 16], const char *copy,
				 uint64_t part)
{
	snprintf(ret, JOB_FILE_COPY_BYTES + 16, "%s-%llu", copy, (unsigned long long)part);
}

/** Copies @len_bytes of @from from @from_offset on to the start of @to, which is empty; what is not there is not made. */
int job_file_copy(int to_fd, int from_fd, uint64_t from_offset, uint64_t len_bytes);

/** The same to the place @to_offset of @to, where there are zeros. */
int job_file_copy_to(int to_fd, uint64_t to_offset, int from_fd, uint64_t from_offset,
		     uint64_t len_bytes);

/** Opens @path beneath @root_fd, as the calling thread may, but never through a link, nor what would wait. -errno. */
int job_file_open(int root_fd, const char *path, int flags);

static inline uint64_t job_file_mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

/* ---- a job's ---- */

/** Finds those of the members of @tree, which need not stand still; each is opened where that can be done. What a
 * restore replaces (@m's externals), the job's log and files of file systems in user space are left out. */
int job_files_find(struct job_files *ret, const struct target *target, const struct manifest *m,
		   const struct proc_tree *tree, struct brumate_error *err);

/** Calls @fn for each descriptor of members of @tree that has deleted memory open (tmpfs) which is too long for CRIU's images,
 * with its key there (criu(8), --external file[…]), and its path. <0 ends it. */
typedef int (*job_memory_fn)(void *arg, const char *key, const char *path, const struct stat *st,
			     pid_t pid, const char *fd);
int job_memory_each(const struct proc_tree *tree, job_memory_fn fn, void *arg);

/** A process that has the file open for writing, or mapped shared; with @reads also who only reads it. 0: none that can be
 * seen. */
pid_t job_file_find_user(const struct stat *file, bool reads);

/** Before the job is touched: whether the files that are asked for can be taken, and how many bytes copies take. */
int job_files_check(struct op *op, uint64_t *ret_bytes, struct brumate_error *err);

/** Adds to @report the files that a checkpoint would not hold and that a restore may have to refuse. 0, -ENOMEM … */
int job_files_scan(struct op *op, struct scan_report *report, struct brumate_error *err);

/** While the job runs: begins the digests of long files that grow at their ends, of which job_files_save() then has to read the
 * rest alone. What cannot be read is left out; -ECANCELED, -ETIMEDOUT, -ENOMEM. */
int job_files_hash_ahead(struct op *op, struct brumate_error *err);
void job_files_ahead_free(struct job_files_ahead *a); /* accepts NULL */

/** Before a dump: adds to op->checkpoint.externals what CRIU is to leave to job_files_save(). */
int job_files_announce(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_DUMPED: writes the record and the copies next to CRIU's images, and has CRIU's images take what a
 * restore gives. */
int job_files_save(struct op *op, struct brumate_error *err);

/** Where a restore puts programs and libraries that were removed: a file that holds what @copy_fd (of @digest) does, seen below
 * @root, the root of the job's processes. It stays there while it is in use (programs.c). Returns its descriptor (owned), or -errno. */
int programs_keep(const char *root, const char *name, const struct digest *digest, int copy_fd);

/** Before CRIU restores: makes the files what they were, or refuses, before it changes any. Images are open. */
int job_files_restore(struct op *op, struct brumate_error *err);

/**
 * For a rehearsal, in which files are stood in for: reads what job_files_give() needs, and changes none. @goes_on: the job runs,
 * and its files have gone on with it; else it is refused what a restore would refuse.
 */
int job_files_rehearse(struct op *op, bool goes_on, struct brumate_error *err);

/** Calls @fn for each file with a name that a restore would make what it was. <0 ends it. After job_files_rehearse(). */
typedef int (*job_file_fn)(void *arg, const struct job_file *f);
int job_files_each(const struct op *op, job_file_fn fn, void *arg);

/** Adds to @inherits (owned, grown; @n of them) what CRIU is to open in place of what has a name. */
int job_files_give(struct op *op, struct criu_inherit **inherits, size_t *n,
		   struct brumate_error *err);

/** Takes that back. */
void job_files_undo(struct op *op);

/** The job runs with them. */
void job_files_settle(struct op *op);
