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
struct signing_key;

#define STORE_MANIFEST_NAME MANIFEST_FILE_NAME

/** A checkpoint that is being written. It owns its descriptors. */
struct store_writer {
	int store_fd; /* the store */
	int dir_fd;   /* ".ID.partial", locked (flock) while the writer lives */
	char id[MANIFEST_ID_BYTES];
	char *path; /* absolute path of the partial directory; of the checkpoint once committed */
	bool committed;
	/* Encrypts memory; NULL: it is not encrypted. The owner sets it before anything is written; borrowed. */
	const struct store_key *key;
	const struct signing_key *signing; /* signs the manifest; NULL: nobody does; borrowed */
	struct store_hashing *hashing;	   /* under way, or done */
};
#define STORE_WRITER_EMPTY ((struct store_writer){ .store_fd = -1, .dir_fd = -1 })

/**
 * Starts a checkpoint in the store at @dir (created with its parents, 0700, if absent). Partial
 * checkpoints whose writer is dead are swept first. Refuses a store that everyone may write to,
 * unless it is sticky. Errors to act on: -EEXIST (@id is taken), -EINVAL (@id is not a valid id),
 * -ENOSPC, -EDQUOT, -EROFS, -EACCES.
 */
int store_begin(struct store_writer *ret, const char *dir, const char *id,
		struct brumate_error *err);

/** Creates a directory below the checkpoint, 0700. Returns its fd (owned) or -errno. */
int store_mkdir(struct store_writer *w, const char *name, struct brumate_error *err);

/** Opens the directory below @dir_fd that @path lies in (owned fd), made with those above it where it is missing. @path is cut
 * into its parts, of which @ret_base is the last. -errno; -ELOOP: too deep. */
int store_enter_parents(int dir_fd, char *path, const char **ret_base);

/** Is told in the caller's thread how many bytes of files are done. <0 cancels with that code. May be NULL. */
typedef int (*store_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Hashes and syncs every regular file below the checkpoint (in parallel, one thread a core, at most
 * 8), fills m->files, m->id and, where they are empty, m->created and m->brumate_version, writes the
 * manifest, renames, syncs. Special files and links are refused. On failure the partial directory is
 * still there for store_abort(), and the store as it was.
 */
int store_commit(struct store_writer *w, struct manifest *m, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/**
 * Begins what store_commit() does to files, in a thread: with those that are there by now, but for memory. store_commit()
 * does it again to a file that has changed by then, and returns what failed here. @w stays where it is until then. Of
 * images that are to be encrypted nothing is there by now.
 */
void store_hash_ahead(struct store_writer *w);

/**
 * Commits what was written and verified by the caller, with the manifest @text of @len_bytes, which is
 * @m, as it is. Names and sizes of the files are compared with it; they must be synced already.
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
	const struct store_key *key;	  /* store_unlock(); borrowed */
	const struct pack_source *source; /* has its packs; borrowed. NULL: they are files */
};
#define STORE_IMAGE_EMPTY ((struct store_image){ .dir_fd = -1 })
void store_image_fini(struct store_image *i);
DEFINE_AUTO_FINI(struct store_image, store_image_fini)

/**
 * Opens the checkpoint @id of the store at @dir, or, where @id contains a '/', the directory @id
 * itself. Tried in this order: the id of a checkpoint, the id or name of a job (its latest
 * checkpoint), a unique prefix of an id. Refuses a directory that others than its owner may write to,
 * or that is owned by neither the caller nor root. Errors to act on: -ENOENT, -ENOTUNIQ, -EBADMSG, -EPROTONOSUPPORT, -EACCES.
 */
int store_open(struct store_image *ret, const char *dir, const char *id, struct brumate_error *err);

/**
 * Gives the key of a checkpoint that is encrypted, or NULL where there is none; one that is not encrypted
 * needs none. To verify, export and copy takes no key, to restore does. Errors to act on: -ENOKEY,
 * -EKEYREJECTED (another one).
 */
int store_unlock(struct store_image *i, const struct store_key *key, struct brumate_error *err);

/**
 * Reads one of CRIU's images, "criu/@name", whole and in the clear, and compares it with its digest. @ret: owned.
 * Errors to act on: -ENOENT (the manifest has none, without @err), -EFBIG (more than @max_bytes), -EBADMSG, -ENOKEY (it
 * is encrypted, and there was no store_unlock()).
 */
int store_read_image(char **ret, size_t *ret_len_bytes, const struct store_image *i,
		     const char *name, size_t max_bytes, struct brumate_error *err);

/** Compares every file with its size and digest, in parallel. -EBADMSG names the first bad file and
 * what is wrong (missing, truncated: A of B bytes, digest); an extra file is an error too. From here
 * until @i is closed nobody removes it (a shared lock on its directory). */
int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** As store_verify(), but packs only have to be there and as long as they should be. It is for callers that read
 * their chunks by chunks_load_all(), which compares each. */
int store_verify_files(const struct store_image *i, store_progress_fn progress, void *arg,
		       struct brumate_error *err);

/** What is wrong with one file of a checkpoint. */
enum store_problem_kind {
	STORE_MISSING,
	STORE_EXTRA, /* not in the manifest */
	STORE_SIZE,
	STORE_DIGEST,
	STORE_OWNER,	  /* of somebody else, or others may write to it */
	STORE_UNREADABLE, /* failure says why; -EBADMSG: it is not a regular file */
	STORE_CHUNK,	  /* of a pack: text says which, and what of the job it holds */
};

struct store_problem {
	enum store_problem_kind kind;
	const char *path; /* borrowed */
	uint64_t expected_bytes, actual_bytes;
	struct digest expected, actual; /* zeros where there is none */
	int failure;
	const char *text;	    /* STORE_CHUNK; borrowed. There too: */
	uint64_t offset, len_bytes; /* where it lies in the file */
};

typedef void (*store_problem_fn)(void *arg, const struct store_problem *p);

/**
 * As store_verify(), to the end: @tell is called for every bad file, in the order of their paths, then
 * for every bad chunk, after all were read. Returns how many; <0 where the files could not be compared
 * at all.
 */
int store_verify_all(const struct store_image *i, store_problem_fn tell, void *tell_arg,
		     store_progress_fn progress, void *arg, struct brumate_error *err);

struct chunks_writer;
struct chunks_reader;
struct chunks_options;
struct chunks_common;

/** Begins the memory of @w, which is borrowed until chunks_end(). Packs are shared with earlier checkpoints of the
 * store as @options says. */
int store_chunks_begin(struct chunks_writer **ret, struct store_writer *w,
		       const struct chunks_options *options, struct brumate_error *err);

/** Opens the memory of @i, which is borrowed. Errors to act on: -ENOENT (it has none), -EBADMSG. */
int store_chunks_open(struct chunks_reader **ret, const struct store_image *i,
		      struct brumate_error *err);

/** Counts what of the chunks of @to is in @from. A checkpoint without memory has none. */
int store_chunks_compare(struct chunks_common *ret, const struct store_image *from,
			 const struct store_image *to, struct brumate_error *err);

/** Compares names and sizes only, which is cheap. -EBADMSG: a file is truncated or missing. */
int store_check(const struct store_image *i, struct brumate_error *err);

/** Calls @fn for every committed checkpoint of the store, in the order of manifest_sequence(); damaged ones with @i NULL and
 * the reason. A missing store is empty. */
int store_list(const char *dir,
	       void (*fn)(void *arg, const char *id, const struct store_image *i,
			  const struct brumate_error *why),
	       void *arg, struct brumate_error *err);

/** The highest manifest_sequence() of the checkpoints of the job @job (an id) in the store; 0: it has none there. Reads
 * all manifests. */
uint64_t store_newest_sequence(const char *dir, const char *job);

/**
 * Pins a checkpoint, damaged or not, by its whole id: nobody removes it until store_unpin(). To pin twice is no more
 * than once. Errors to act on: -ENOENT, -EBUSY (it is being removed), -EACCES (of another user).
 */
int store_pin(const char *dir, const char *id, struct brumate_error *err);

/** Lets a checkpoint go again; one that is not pinned is not an error. Errors to act on: -ENOENT, -EACCES. */
int store_unpin(const char *dir, const char *id, struct brumate_error *err);

/** Whether a checkpoint is pinned: 1 or 0; <0 where that cannot be told, which is not "no". */
int store_pinned(const char *dir, const char *id, struct brumate_error *err);

/** Refuses (-EBUSY) a checkpoint that is pinned. Errors to act on: -ENOENT. */
int store_refuse_pinned(const char *dir, const char *id, struct brumate_error *err);

/** Removes a checkpoint, damaged or not, by its whole id: renamed out of sight first, so that half of one is never
 * seen. 1: it is gone, but what is left of it out of sight, which @err names, could not be removed and waits for
 * store_sweep(). Errors to act on: -ENOENT, -EBUSY (being written or restored, or pinned), -EACCES. */
int store_remove(const char *dir, const char *id, struct brumate_error *err);

/** Which checkpoints stay: at least one of the two must be given; what either keeps is kept. */
struct retention_rule {
	unsigned keep_last;	 /* newest of each job; 0: not given */
	uint64_t keep_within_ms; /* younger than this; 0: not given */
};

struct retention_item {
	const char *id, *job, *created; /* borrowed; @created as clock_stamp() writes it */
	uint64_t sequence; /* by which those of a job are ordered, see manifest_sequence() */
	bool doomed;
};

/**
 * Sets doomed for each of @items, and sorts them by job, newest first: the one of the highest sequence, whatever the
 * clock said. One whose time cannot be read or lies in the future is as new as can be. Pure.
 */
void retention_choose(struct retention_item *items, size_t n, const struct retention_rule *rule,
		      uint64_t now_ms);

enum store_pruned {
	STORE_PRUNE_REMOVED, /* or would be, with dry_run */
	STORE_PRUNE_KEPT,    /* the rule lets it go, but it is in use or needed: @why */
	STORE_PRUNE_DAMAGED, /* it stays, and does not count: @why */
};

/** What to prune and whom to tell. Strings borrowed; functions may be NULL. */
struct store_prune {
	const char *job; /* id or name; NULL: all, each by itself */
	struct retention_rule rule;
	bool dry_run;
	const char *(*needed)(void *arg, const char *id); /* why it must stay, or NULL */
	void (*tell)(void *arg, enum store_pruned what, const char *id, const char *why);
	void *arg;
};

/** Removes what a rule lets go. What is pinned stays and does not count. Returns how many; -EINVAL (a rule that keeps nothing), what
 * store_list() returns. */
int store_prune(const char *dir, const struct store_prune *p, struct brumate_error *err);

/** Writes the id that a checkpoint made now gets: "NAME-20260102-030405", ".2" for a second one. */
void store_new_id(char ret[static MANIFEST_ID_BYTES], const char *dir, const char *name);

/** Writes all @len_bytes of a stream. Returns 0 or -errno. */
typedef int (*store_write_fn)(void *arg, const void *buf, size_t len_bytes);

/**
 * Writes the checkpoint @i as one stream (docs/image-format.md). A file that does not match its digest
 * is -EBADMSG, and the stream stays unfinished. Nobody removes @i meanwhile.
 */
int store_export(const struct store_image *i, store_write_fn write, void *write_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err);

/** Reads up to @room bytes of a stream. Returns how many, 0 at its end, or -errno. */
typedef ssize_t (*store_read_fn)(void *arg, void *buf, size_t room);

/**
 * Makes a checkpoint of the store @dir from a stream: verified while it comes, committed when all of it
 * is there, else nothing is left. @authority says whether it is believed, before anything of it is kept.
 * @ret_id: of the checkpoint. Errors to act on: -EBADMSG, -EPROTONOSUPPORT, -EEXIST, -ENOSPC, those of
 * authentic_check(), store_begin() and @read.
 */
int store_import(char ret_id[static MANIFEST_ID_BYTES], const char *dir,
		 const struct authority *authority, store_read_fn read, void *read_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err);

/** Removes partial checkpoints of @dir whose writer is dead, what is left of removed ones, and pins of those that are
 * gone. Returns how many, or -errno. Where the file system has no locks (some network ones), none is removed. */
int store_sweep(const char *dir);

/** Tells how many bytes are free on the file system that holds @dir, or its nearest parent that exists; UINT64_MAX: it
 * does not tell. */
int store_free_bytes(const char *dir, uint64_t *ret, struct brumate_error *err);

/** Refuses (-ENOSPC) a checkpoint that has no room on the file system of @dir, without its packs if @files_only; -EBADMSG:
 * no disk has. @ret_total: what it takes. */
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
	uint64_t disk_bytes;   /* blocks of its files, less what was counted with another before */
	uint64_t shared_bytes; /* blocks of its packs that other checkpoints have too */
};

/** Counts @i, adding to @seen. Of checkpoints that are counted one after the other, the sum of disk_bytes
 * is what they take together. Files that are missing count nothing. 0 or -ENOMEM. */
int usage_of(struct usage *ret, const struct store_image *i, struct usage_seen *seen);
