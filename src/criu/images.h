// SPDX-License-Identifier: MIT
/*
 * What is read from CRIU's image files. Their frame are numbers that say what an image is, then messages, each behind its
 * length. Decoders are pure and take foreign bytes.
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
#include "process/credentials.h"

/** A timer of CLOCK_REALTIME (timer_create(2)) of a process, numbered as in the images, that is to come yet. */
struct criu_timer {
	pid_t pid;
	int32_t id;
	uint64_t left_ns, interval_ns;
};

/** Called of a dump's, before CRIU_EVENT_DUMPED. <0: the dump fails. */
typedef int (*criu_timer_fn)(void *arg, const struct criu_timer *timer);

/** A process of a dumped tree, with the numbers it had in its own namespace. */
struct criu_image_process {
	pid_t pid, ppid, pgid, sid;
	pid_t *threads; /* ids of all its threads, the first included */
	size_t n_threads;
};

struct criu_image_tree {
	struct criu_image_process *items; /* the root first */
	size_t n;
};
#define CRIU_IMAGE_TREE_EMPTY ((struct criu_image_tree){ 0 })
void criu_image_tree_fini(struct criu_image_tree *t);
DEFINE_AUTO_FINI(struct criu_image_tree, criu_image_tree_fini)

/** Decodes pstree.img. 0, -EBADMSG, -ENOMEM. */
int criu_image_tree_decode(struct criu_image_tree *ret, const void *buf, size_t len_bytes);

struct criu_image_stats {
	double frozen_seconds;
	uint64_t pages_written;
};

/** Decodes stats-dump. 0, -EBADMSG. */
int criu_image_stats_decode(struct criu_image_stats *ret, const void *buf, size_t len_bytes);

/** What a thread is to be made with. */
struct criu_image_thread {
	bool has_ended; /* a zombie, which runs no more; there is nothing else of it */
	struct credentials credentials;
	uint32_t securebits; /* capabilities(7) */
	uint32_t filter;     /* of system calls, the last one; its place in seccomp.img */
};
#define CRIU_IMAGE_THREAD_EMPTY ((struct criu_image_thread){ 0 })
void criu_image_thread_fini(struct criu_image_thread *t);
DEFINE_AUTO_FINI(struct criu_image_thread, criu_image_thread_fini)

/** Decodes a core image. 0, -EBADMSG (also of a living thread without credentials), -ENOMEM. */
int criu_image_thread_decode(struct criu_image_thread *ret, const void *buf, size_t len_bytes);

/** The name of the process (task comm) in the core image of its first thread; empty where there is none. 0, -EBADMSG. */
int criu_image_comm_decode(char ret[static 64], const void *buf, size_t len_bytes);

/** Reads and decodes the core image of thread @tid beneath @dir_fd. 0, -ENOENT, -EBADMSG … */
int criu_image_thread_read(struct criu_image_thread *ret, int dir_fd, pid_t tid);

/** Filters of system calls: seccomp.img. */
struct criu_image_filters;
void criu_image_filters_free(struct criu_image_filters *f);
DEFINE_AUTO(struct criu_image_filters *, criu_image_filters_free)

/** Decodes seccomp.img. @ret: owned. 0, -EBADMSG, -ENOMEM. */
int criu_image_filters_decode(struct criu_image_filters **ret, const void *buf, size_t len_bytes);

/** Reads and decodes seccomp.img beneath @dir_fd. 0, -ENOENT, -EBADMSG … */
int criu_image_filters_read(struct criu_image_filters **ret, int dir_fd);

/**
 * The digest of the filter in place @filter and all those of its thread that it is linked to (manifest_filters).
 * 1 if they are for every thread of their process: CRIU then has the first thread install them, and writes for the others
 * that they have none. 0 if not; -EBADMSG, -ENOMEM.
 */
int criu_image_filters_digest(struct digest *ret, const struct criu_image_filters *f,
			      uint32_t filter);

/** Reads and decodes pstree.img beneath @dir_fd. 0, -ENOENT, -EBADMSG … */
int criu_image_tree_read(struct criu_image_tree *ret, int dir_fd);
/** Reads and decodes stats-dump beneath @dir_fd. */
int criu_image_stats_read(struct criu_image_stats *ret, int dir_fd);

/**
 * Has the images of a dump, beneath @dir_fd, ask for nothing that takes a capability. They get a full bounding set: to restore a
 * lesser one CRIU drops what is missing, also where it is missing here already, and that takes a capability which a user's CRIU does
 * not have. The set that such a job gets is that of its shim, as the kernel lets no process add to it.
 * That a thread keeps its capabilities is taken out, which CRIU would set together with what takes one; a thread may do so itself.
 * 0, -EBADMSG, -ENOMEM, or another -errno.
 */
int criu_ask_no_capability(int dir_fd);

/** 1 where every bounding set in the images beneath @dir_fd is full as far as this kernel knows, else 0; <0 as above. */
int criu_bounding_sets_are_full(int dir_fd);

/** 1 where a thread of the images beneath @dir_fd has supplementary groups, else 0; <0 as above. */
int criu_images_have_groups(int dir_fd);

/**
 * Writes supplementary groups into the images beneath @dir_fd as our own user namespace would show them, in which no group
 * but our own is anybody's: CRIU, which may not change them there, finds that it need not. Returns as above.
 */
int criu_mask_groups(int dir_fd);

enum { CRIU_IMAGE_BYTES_MAX = 64 << 20 }; /* of an image that is read */

/** What is left of an image, or the bytes of one entry of it: a message. Borrowed. */
struct criu_entries {
	const uint8_t *p;
	size_t left;
};

/** The first number of an image, and the second of those that others than images.c read. */
#define CRIU_MAGIC_IMAGE       0x54564319u
#define CRIU_MAGIC_INVENTORY   0x58313116u
#define CRIU_MAGIC_CORE	       0x55053847u
#define CRIU_MAGIC_FDINFO      0x56213732u
#define CRIU_MAGIC_IDS	       0x54432030u
#define CRIU_MAGIC_MM	       0x57492820u
#define CRIU_MAGIC_FS	       0x51403912u
#define CRIU_MAGIC_REMAP_FPATH 0x59133954u
#define CRIU_MAGIC_FILES       0x56303138u
#define CRIU_MAGIC_MEMFD_INODE 0x48453499u
#define CRIU_MAGIC_TCP_STREAM  0x51465506u

/** Begins an image with these two numbers. -EBADMSG: they are others. */
int criu_entries_open(struct criu_entries *ret, const void *buf, size_t len_bytes, uint32_t first,
		      uint32_t second);

/** The same of an image that begins with one number only. */
int criu_entries_open_bare(struct criu_entries *ret, const void *buf, size_t len_bytes,
			   uint32_t number);

/** Whether an image of that name is that of a TCP connection. */
bool criu_image_is_tcp(const char *name);

/** Finds the next entry. 1, or 0 at the end; -EBADMSG. */
int criu_entries_next(struct criu_entries *image, struct criu_entries *ret);

enum { CRIU_CONTENTS_TEXT_MAX = 128 << 20 }; /* of the whole report, about */

/** Gives the image @name whole, at most CRIU_IMAGE_BYTES_MAX of it (@ret owned). 0, -ENOENT: there is none; another
 * -errno ends the reading with @err. */
typedef int (*criu_image_read_fn)(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
				  struct brumate_error *err);

/**
 * criu_contents_read() - tell what the images ask for
 *
 * Pure, but for @read. @ret (owned) is an object: processes, the root first; files and sockets.
 * What the members mean is in wire/io.brumate.varlink. Strings are escaped as base/escape.h does.
 * Errors to act on: -EBADMSG names the image that is damaged, -E2BIG (more than CRIU_CONTENTS_TEXT_MAX), -ENOMEM.
 */
int criu_contents_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err);

/* * The same, but files and sockets alone (an object, owned): two images are read. */
int criu_files_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err);

/* * The same, but the array of sockets alone (owned): one image is read. */
int criu_sockets_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err);

/* ---- rewriting what is opened at a restore ---- */

/* * What the images say of a regular file's fate: bits. */
enum criu_regular {
	/* Opened by way of the descriptor that a restore is given under the whole path (criu_inherit.key, with its first '/'),
	 * with the flags and the position of each that had it; by its path where the restore is given none. */
	CRIU_REGULAR_GIVEN = 1u << 0,
	CRIU_REGULAR_ANY_SIZE = 1u << 1, /* at any size by then */
};

/* * Decides the fate of the file at @path: CRIU_REGULAR_… */
typedef unsigned (*criu_regular_fn)(void *arg, const char *path);

/** Asks @fn of each regular file in the images of a dump beneath @dir_fd that has a name, and writes it down there.
 * 0, -EBADMSG, -ENOMEM, or another -errno. */
int criu_regular_rewrite(int dir_fd, criu_regular_fn fn, void *arg);

/** Looks in the images of a dump beneath @dir_fd for a file that has lost the name it was opened by, and has another: CRIU has
 * given it one more, which is gone again where the job goes on. 1 (@ret: the lost name, owned), 0, -EBADMSG, -ENOMEM, -errno. */
int criu_linked_find(int dir_fd, char **ret);

/** A file or directory in the images of a dump that had no name any more (CRIU: a ghost). */
struct criu_ghost {
	uint32_t number;
	const char *path; /* where it was; borrowed */
	uint32_t mode;	  /* st_mode */
	uint32_t uid, gid;
	uint64_t size_bytes;
	bool is_written; /* open for writing */
};

/* * Decides the fate of a ghost: 1: it is not in the images any more, but a restore is given it under the key @ret_key (of
 * @room bytes, with a '/' first); 0: nothing. <0 ends the rewriting. criu_ghost_copy() gets what it holds. */
typedef int (*criu_ghost_fn)(void *arg, const struct criu_ghost *ghost, char *ret_key, size_t room);

/** Asks @fn of each ghost that is a file or a directory, once, and takes it out of the images of a dump beneath @dir_fd. 0,
 * -EBADMSG, -ENOMEM, what @fn returned, or another -errno. */
int criu_ghosts_rewrite(int dir_fd, criu_ghost_fn fn, void *arg);

/** Writes what ghost @number holds to @to_fd, an empty file. */
int criu_ghost_copy(int dir_fd, uint32_t number, int to_fd);

/** Finds the one entry of a core image (owned); NULL: it is damaged. With what our messages do not name, it can be encoded again. */
struct CriuImage__Core *criu_core_unpack(const void *buf, size_t len_bytes);
