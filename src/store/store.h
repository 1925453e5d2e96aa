// SPDX-License-Identifier: MIT
/*
 * Checkpoints on disk. A store is a directory; a checkpoint is a directory in it that is complete or
 * absent: built as ".ID.partial", every file hashed and synced, the manifest written last, renamed to
 * ID, the store synced. Directories are 0700, files 0600. Nothing here follows a link, and paths from
 * a manifest are opened beneath their checkpoint only (openat2, RESOLVE_BENEATH | NO_SYMLINKS).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "chunks/key.h"
#include "image/manifest.h"

struct authority;
struct closed_files;
struct signing_key;

#define STORE_MANIFEST_NAME MANIFEST_FILE_NAME

/** A checkpoint that is being written. It owns its descriptors. */
struct store_writer {
	int store_fd; /* the store */
	int dir_fd;   /* ".ID.partial", locked (flock) while the writer lives */
	char id[MANIFEST_ID_BYTES];
	char *path; /* absolute path of the partial directory; of the checkpoint once committed */
	bool committed;
	/* Encrypts memory; NULL: not encrypted. Set by the owner before anything is written; borrowed. */
	const struct store_key *key;
	const struct signing_key *signing; /* signs the manifest; NULL: not signed; borrowed */
	struct store_hashing *hashing;	   /* under way, or done */
	struct closed_files *closed;	   /* hashed while others are written */
};
#define STORE_WRITER_EMPTY ((struct store_writer){ .store_fd = -1, .dir_fd = -1 })

/**
 * Starts a checkpoint in the store at @dir (created with its parents, 0700, if absent). First removes partial
 * checkpoints whose writer is dead. Refuses a store that is writable by everyone, unless it is sticky. Errors to act
 * on: -EEXIST (@id is taken), -EINVAL (@id is not a valid id), -ENOSPC, -EDQUOT, -EROFS, -EACCES.
 */
int store_begin(struct store_writer *ret, const char *dir, const char *id,
		struct brumate_error *err);

/** Creates a directory below the checkpoint, 0700. Returns its fd (owned) or -errno. */
int store_mkdir(struct store_writer *w, const char *name, struct brumate_error *err);

/** Opens the directory below @dir_fd that contains @path (owned fd), and creates missing ones on the way. @path is
 * split into its parts, of which @ret_base is the last. -errno; -ELOOP: too deep. */
int store_enter_parents(int dir_fd, char *path, const char **ret_base);

/** Called in the caller's thread with the bytes of files that are done. <0 cancels with that code. May be NULL. */
typedef int (*store_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Hashes and syncs every regular file below the checkpoint (in parallel, by 8 threads), fills
 * in m->files, m->id and, if they are empty, m->created and m->brumate_version, writes the manifest, renames, syncs.
 * Refuses special files and links. On failure the partial directory still exists for store_abort(), and the store is
 * unchanged.
 */
int store_commit(struct store_writer *w, struct manifest *m, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/**
 * Starts the work of store_commit() on files in a thread, one by one as they are closed in directory @name of the checkpoint, which
 * only we write to, or programs with our own rights. store_hash_ahead() does the rest, and is called when all are written. If images
 * are to be encrypted, or the kernel does not tell, nothing is done here. @w must not move until then.
 */
void store_hash_closed(struct store_writer *w, const char *name);

/**
 * Starts the work of store_commit() on files in a thread, for those that exist at this time, except memory.
 * store_commit() repeats it for files that have changed since, and returns the failures. @w must not move until then.
 * If images are to be encrypted, none exists at this time.
 */
void store_hash_ahead(struct store_writer *w);

/**
 * Commits what the caller has written and verified, with the manifest @text of @len_bytes, which is that of @m,
 * unchanged. Names and sizes of the files are compared with it; they must be synced already.
 */
int store_commit_as(struct store_writer *w, const struct manifest *m, const char *text,
		    size_t len_bytes, struct brumate_error *err);

/** Removes a checkpoint that was not committed, and releases the writer. A committed writer is only released; the
 * empty value is accepted. */
void store_abort(struct store_writer *w);
DEFINE_AUTO_FINI(struct store_writer, store_abort)

struct pack_source;

/** A committed checkpoint, opened. */
struct store_image {
	int dir_fd;
	char *path; /* absolute */
	struct manifest manifest;
	const struct store_key *key; /* store_unlock(); borrowed */
	const struct pack_source
		*source; /* the source of its packs; borrowed. NULL: they are files */
};
#define STORE_IMAGE_EMPTY ((struct store_image){ .dir_fd = -1 })
void store_image_fini(struct store_image *i);
DEFINE_AUTO_FINI(struct store_image, store_image_fini)

/** With less, a word that was typed by mistake would be the beginning of some id. */
enum { STORE_PREFIX_BYTES_MIN = 2 };

/** Refuses (-ENOTDIR) a store at the end of a link that leads to nothing, which is not one that has yet to be made: what it is on may not be
 * mounted. All of store_*() do. */
int store_refuse_dangling(const char *dir, struct brumate_error *err);

/**
 * Opens the checkpoint @id of the store at @dir, or, if @id contains a '/', the directory @id itself. Tried in this
 * order: the id of a checkpoint, the id or name of a job (its latest checkpoint), a unique prefix of an id. Refuses a
 * directory that is writable by others than its owner, or owned by neither the caller nor root. Errors to act on:
 * -ENOENT, -ENOTUNIQ, -EBADMSG, -EPROTONOSUPPORT, -EACCES.
 */
int store_open(struct store_image *ret, const char *dir, const char *id, struct brumate_error *err);

/**
 * Sets the key of an encrypted checkpoint; NULL if there is none. A checkpoint that is not encrypted needs none.
 * Verifying, exporting and copying need no key, restoring does. Errors to act on: -ENOKEY, -EKEYREJECTED (another
 * key).
 */
int store_unlock(struct store_image *i, const struct store_key *key, struct brumate_error *err);

/**
 * Reads one of CRIU's images, "criu/@name", completely and decrypted, and compares it with its digest. @ret: owned.
 * Errors to act on: -ENOENT (not in the manifest; @err is not set), -EFBIG (more than @max_bytes), -EBADMSG, -ENOKEY
 * (encrypted, and store_unlock() was not called).
 */
int store_read_image(char **ret, size_t *ret_len_bytes, const struct store_image *i,
		     const char *name, size_t max_bytes, struct brumate_error *err);

/** Compares every file with its size and digest, in parallel. -EBADMSG names the first bad file and what is wrong
 * (missing, truncated: A of B bytes, digest); an extra file is an error, too. From here until @i is closed it cannot
 * be removed (a shared lock on its directory). */
int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** Like store_verify(), but for packs only checks existence and length. For callers that read their chunks by
 * chunks_load_all(), which compares each. */
int store_verify_files(const struct store_image *i, store_progress_fn progress, void *arg,
		       struct brumate_error *err);

/** The rest of store_verify() after store_verify_files(): every chunk of the packs. */
int store_verify_memory(const struct store_image *i, store_progress_fn progress, void *arg,
			struct brumate_error *err);

/** What is wrong with one file of a checkpoint. */
enum store_problem_kind {
	STORE_MISSING,
	STORE_EXTRA, /* not in the manifest */
	STORE_SIZE,
	STORE_DIGEST,
	STORE_OWNER,	  /* owned by another user, or writable by others */
	STORE_UNREADABLE, /* see failure; -EBADMSG: it is not a regular file */
	STORE_FAILED, /* it could not be read, which says nothing of what is in it; see failure */
	STORE_CHUNK,  /* of a pack: the text says which, and what of the job it holds */
};

struct store_problem {
	enum store_problem_kind kind;
	const char *path; /* borrowed */
	uint64_t expected_bytes, actual_bytes;
	struct digest expected, actual; /* zeros if there is none */
	int failure;
	const char *text;	    /* for STORE_CHUNK; borrowed. Also for it: */
	uint64_t offset, len_bytes; /* its place in the file */
};

typedef void (*store_problem_fn)(void *arg, const struct store_problem *p);

/**
 * Like store_verify(), to the end: calls @tell for every bad file, in the order of their paths, then for every bad
 * chunk, after all were read. Returns their number; <0 if the files could not be compared at all.
 */
int store_verify_all(const struct store_image *i, store_problem_fn tell, void *tell_arg,
		     store_progress_fn progress, void *arg, struct brumate_error *err);

struct chunks_writer;
struct chunks_reader;
struct chunks_options;
struct chunks_common;

/** Counts what a plain checkpoint in the store @dir would have to write for memory whose @n chunks have these digests: each
 * once, without zeros, and without those that it would share. 0 or -ENOMEM. */
int store_count_new(uint64_t *ret_bytes, const char *dir, const struct chunks_options *options,
		    const struct digest *digests, size_t n);

/** Starts the memory of @w, which is borrowed until chunks_end(). Packs are shared with earlier checkpoints of the
 * store according to @options. */
int store_chunks_begin(struct chunks_writer **ret, struct store_writer *w,
		       const struct chunks_options *options, struct brumate_error *err);

/** Opens the memory of @i, which is borrowed. Errors to act on: -ENOENT (it has none), -EBADMSG. */
int store_chunks_open(struct chunks_reader **ret, const struct store_image *i,
		      struct brumate_error *err);

/** Counts the chunks of @to that @from has. A checkpoint without memory has none. */
int store_chunks_compare(struct chunks_common *ret, const struct store_image *from,
			 const struct store_image *to, struct brumate_error *err);

/** Compares names and sizes only, which is fast. -EBADMSG: a file is truncated or missing. */
int store_check(const struct store_image *i, struct brumate_error *err);

/** Calls @fn for every committed checkpoint of the store, in the order of manifest_sequence(); damaged ones with @i NULL and
 * the reason. A missing store is empty. */
int store_list(const char *dir,
	       void (*fn)(void *arg, const char *id, const struct store_image *i,
			  const struct brumate_error *why),
	       void *arg, struct brumate_error *err);

/** The highest manifest_sequence() of the checkpoints of the job @job (an id) in the store; 0: it has none. Reads all
 * manifests. */
uint64_t store_newest_sequence(const char *dir, const char *job);

/**
 * Pins a checkpoint, damaged or not, by its full id: it cannot be removed until store_unpin(). Pins do not count: one
 * unpin undoes several pins. Errors to act on: -ENOENT, -EBUSY (it is being removed), -EACCES (of another user).
 */
int store_pin(const char *dir, const char *id, struct brumate_error *err);

/** Unpins a checkpoint; one that is not pinned is not an error. Errors to act on: -ENOENT, -EACCES. */
int store_unpin(const char *dir, const char *id, struct brumate_error *err);

/** Whether a checkpoint is pinned: 1 or 0; <0 if that is unknown, which must not be taken for "no". */
int store_pinned(const char *dir, const char *id, struct brumate_error *err);

/** Refuses (-EBUSY) a checkpoint that is pinned. Errors to act on: -ENOENT. */
int store_refuse_pinned(const char *dir, const char *id, struct brumate_error *err);

/** Removes a checkpoint, damaged or not, by its full id. Renames it to a hidden name first, so that an incomplete one
 * is never visible. 1: it is gone, but the hidden directory, which @err names, could not be removed and is left to
 * store_sweep(). Errors to act on: -ENOENT, -EBUSY (being written or restored, or pinned), -EACCES. */
int store_remove(const char *dir, const char *id, struct brumate_error *err);

/** Which checkpoints are kept; at least one of the two must be set, and a checkpoint is kept if either says so. */
struct retention_rule {
	unsigned keep_last;	 /* newest of each job; 0: not set */
	uint64_t keep_within_ms; /* younger than this; 0: not set */
};

struct retention_item {
	const char *id, *job, *created; /* borrowed; @created in the format of clock_stamp() */
	uint64_t sequence; /* orders the checkpoints of a job, see manifest_sequence() */
	bool doomed;
};

/**
 * Sets doomed for each of @items, and sorts them by job, newest first: the one of the highest sequence, regardless of
 * the clock. One whose time cannot be read or is in the future counts as brand new. Pure.
 */
void retention_choose(struct retention_item *items, size_t n, const struct retention_rule *rule,
		      uint64_t now_ms);

enum store_pruned {
	STORE_PRUNE_REMOVED, /* or would be, with dry_run */
	STORE_PRUNE_KEPT,    /* not kept by the rule, but in use or needed: @why */
	STORE_PRUNE_DAMAGED, /* it stays, and does not count: @why */
};

/** What to prune, and who gets the results. Strings are borrowed; functions may be NULL. */
struct store_prune {
	const char *job; /* id or name; NULL: all, each job by itself */
	struct retention_rule rule;
	bool dry_run;
	const char *(*needed)(void *arg, const char *id); /* returns why it must stay, or NULL */
	void (*tell)(void *arg, enum store_pruned what, const char *id, const char *why);
	void *arg;
};

/** Removes the checkpoints that a rule does not keep. Pinned ones stay and do not count. Returns the number removed;
 * -EINVAL (a rule that keeps nothing), errors of store_list(). */
int store_prune(const char *dir, const struct store_prune *p, struct brumate_error *err);

/** Makes the id of a checkpoint created now: "NAME-20260102-030405", ".2" for a second one. */
void store_new_id(char ret[static MANIFEST_ID_BYTES], const char *dir, const char *name);
/** The one after it, for who finds it taken: others, on other machines, too, may choose the same at the same time. */
void store_next_id(char id[static MANIFEST_ID_BYTES]);

/** Writes all @len_bytes of a stream. Returns 0 or -errno. */
typedef int (*store_write_fn)(void *arg, const void *buf, size_t len_bytes);

/**
 * Writes the checkpoint @i as one stream (docs/image-format.md). A file that does not match its digest is -EBADMSG,
 * and the stream stays incomplete. @i cannot be removed during that.
 */
int store_export(const struct store_image *i, store_write_fn write, void *write_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err);

/** Reads up to @room bytes of a stream. Returns their number, 0 at the end, or -errno. */
typedef ssize_t (*store_read_fn)(void *arg, void *buf, size_t room);

/**
 * Makes a checkpoint in the store @dir from a stream: verified as it arrives, committed when it is complete; on
 * failure nothing is left. @authority decides whether it is accepted, before anything of it is kept. @ret_id: of the
 * checkpoint.
 * Errors to act on: -EBADMSG, -EPROTONOSUPPORT, -EEXIST, -ENOSPC, those of authentic_check(), store_begin() and
 * @read.
 */
int store_import(char ret_id[static MANIFEST_ID_BYTES], const char *dir,
		 const struct authority *authority, store_read_fn read, void *read_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err);

/** Removes partial checkpoints of @dir whose writer is dead, hidden rests of removed ones, and pins of checkpoints
 * that do not exist any more. Returns their number, or -errno. On a file system without locks (some network ones),
 * removes nothing. */
int store_sweep(const char *dir);

/** The number of free bytes on the file system of @dir, or of its nearest existing ancestor; UINT64_MAX if that does not
 * tell. */
int store_free_bytes(const char *dir, uint64_t *ret, struct brumate_error *err);

/** Refuses (-ENOSPC) a checkpoint that does not fit on the file system of @dir, without its packs if @files_only;
 * -EBADMSG: no disk is that large. @ret_total: its size. */
int store_check_space(const char *dir, const struct manifest *m, bool files_only,
		      uint64_t *ret_total, struct brumate_error *err);

/** Packs that were counted already, as checkpoints share them. */
struct usage_seen {
	ino_t *slots; /* open hash; 0 is free */
	size_t n_slots, n;
};
#define USAGE_SEEN_EMPTY ((struct usage_seen){ 0 })
void usage_seen_fini(struct usage_seen *s);
DEFINE_AUTO_FINI(struct usage_seen, usage_seen_fini)

struct usage {
	uint64_t disk_bytes;   /* blocks of its files that were not counted before */
	uint64_t shared_bytes; /* blocks of its packs that other checkpoints have, too */
};

/** Counts @i, adding to @seen. For checkpoints that are counted one after the other, the sum of disk_bytes is the
 * space that they take together. Missing files count nothing. 0 or -ENOMEM. */
int usage_of(struct usage *ret, const struct store_image *i, struct usage_seen *seen);
