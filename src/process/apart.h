// SPDX-License-Identifier: MIT
/*
 * A place apart, in which a job can be put together while its original runs on: pid, mount, network and IPC namespaces,
 * and for a user a user namespace around them. Every id of a process is free there. Files are those of this
 * machine, but every change is made in memory alone: each file system lies beneath an overlay, and what cannot
 * is read-only. In a user namespace the kernel lets nobody put an overlay over what other mounts hide, so that all is
 * read-only there but for the folders that are named. The network has every address and leads nowhere. All of it goes when its init ends, and that ends with
 * the thread that made it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

/**
 * A regular file that is shown with another content: holes of that length. One that is opened to be written to would be
 * copied whole into memory otherwise, and has gone on since it was saved.
 */
struct apart_stand_in {
	char *path; /* absolute; owned by the caller */
	uint64_t len_bytes;
	bool is_made; /* also where there is no such file, with this mode and owner */
	mode_t mode;
	uid_t uid;
	gid_t gid;
};

/** What is to be seen there. All borrowed. */
struct apart_view {
	/* File systems that may be far, or another program's, and need not answer, are there only if one of these lies on
	 * them. */
	const char *const *paths;
	size_t n_paths;
	/* In which something is to be made or removed; absolute. One that other file systems are mounted in stays read-only
	 * in a user namespace. */
	const char *const *folders;
	size_t n_folders;
	const struct apart_stand_in *stand_ins;
	size_t n_stand_ins;
	const char *
		devices; /* how paths of those begin that are /dev/null there, parted by colons; NULL: none */
	pid_t highest_pid; /* of those that are wanted: helpers get higher ones */
};

/** The place. It lives as long as the descriptor is open. */
struct apart {
	struct proc_id init; /* a protected child of ours; pid 0: there is none */
	int life_fd;
};
#define APART_NONE ((struct apart){ .life_fd = -1 })

/**
 * Makes the place. Errors to act on: -EPERM, -EACCES, -ENOSPC, -EUSERS (namespaces are not for us here; the hint says what
 * to do).
 */
int apart_start(struct apart *ret, const struct apart_view *view, struct brumate_error *err);

/** Ends all that lives there, and waits for it. The empty value is accepted. */
void apart_end(struct apart *a);
DEFINE_AUTO_FINI(struct apart, apart_end)

/* ---- pure ---- */

/** How a mount is shown. */
enum apart_kind {
	APART_OVERLAY,
	APART_LIKE_IT, /* a new file system of the same kind, empty: numbers of terminals, queues of messages */
	APART_READ_ONLY, /* itself: of the kernel, or devices */
	APART_FAR,	 /* as APART_OVERLAY, where it is wanted */
	APART_LEFT_OUT,
};

/** By the type of the file system and where it is mounted. */
enum apart_kind apart_kind_of(const char *type, const char *path);
